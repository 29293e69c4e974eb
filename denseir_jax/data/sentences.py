"""Where sentences start: rules, good for English and harmless elsewhere. The unit of block packing and of span splitting.

A sentence ends after ``.``, ``!``, ``?`` or ``...`` with closing quotes and brackets, where white space follows; after the
full stops of Chinese and Japanese with or without it; and at a blank line. A full stop does not end one

* before a lower-case letter ("approx. half"), and so never inside a number or an address, where no space follows;
* after a title or another abbreviation that wants a continuation ("Dr.", "vs.", "e.g."), after "No." or "p." before a digit;
* after a single capital ("J. Smith") and an acronym with stops ("U.S. Army"), unless a word follows that likes to begin a
  sentence ("in the U.S. The ..."); after a bare number at the head of the sentence ("1. First").
"""

import re

# Each branch starts at the first mark of a run and never backs up, so no text, however odd, takes more than linear time.
_END = re.compile(
    r"""(?<![.!?\u2026])(?P<latin>[.!?\u2026]++)["'\u201d\u2019\u00bb)\]]*+\s++"""
    r"""|(?<![\u3002\uff01\uff1f\uff61])[\u3002\uff01\uff1f\uff61]++["'\u201d\u2019\u300d\u300f\uff09)]*+\s*+"""
    r"""|\n[^\S\n]*+\n\s*+"""
)
_WORD = re.compile(r"[^\s(\[\"'\u201c\u2018\u00ab]*\Z")
_ACRONYM = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]\Z")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WANTS_MORE = _words(
    "mr mrs ms dr prof st rev hon gen col capt lt sgt cmdr gov sen rep pres messrs mme mlle fr sr jr vs v cf viz ca c al approx e.g i.e "
    "mt ft dept univ esp incl resp"
)
_BEFORE_NUMBER = _words("no nos p pp vol vols fig figs ch sec art op jan feb mar apr jun jul aug sep sept oct nov dec b d r eq eqs ed")
_BEGINS = _words(
    "the a an in on at it he she they we this these those that there his her its their as after before but however when while if "
    "by for from to with since during although also both most many some you"
)
_LOOK_BACK = 40  # characters: no abbreviation is longer


def split_sentences(text: str) -> list[int]:
    """Offsets, in characters, at which sentences start.

    Sentence i is ``text[starts[i]:starts[i + 1]]`` (the last one runs to the end), so nothing is lost: white space belongs
    to the sentence before it. The first start is 0; a text without characters has none.
    """
    if not text:
        return []
    starts = [0]
    for match in _END.finditer(text):
        end = match.end()
        if end < len(text) and (match["latin"] is None or not _goes_on(text, starts[-1], match.start("latin"), end, match["latin"])):
            starts.append(end)
    return starts


def _goes_on(text: str, start: int, stop: int, next_start: int, mark: str) -> bool:
    """Whether the sentence that began at `start` goes on after the mark at `stop`; the next text begins at `next_start`."""
    following = text[next_start]
    if following.islower():
        return True
    if mark != ".":
        return False
    word = _WORD.search(text, max(start, stop - _LOOK_BACK), stop)
    before = word.group() if word else ""
    lower = before.lower()
    if lower in _WANTS_MORE and not (len(before) == 1 and before.isupper()):
        return True
    if lower in _BEFORE_NUMBER and following.isdigit():
        return True
    if before.isdigit() and not text[start : stop - len(before)].strip():
        return True
    if _ACRONYM.match(before) and (before.isupper() or "." in before):
        return re.split(r"\W", text[next_start : next_start + 12], maxsplit=1)[0].lower() not in _BEGINS
    return False

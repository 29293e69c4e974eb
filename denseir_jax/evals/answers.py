"""Whether a text holds an answer, by DPR's rule (Karpukhin et al. 2020, as its code has it). Mining and answer recall share it.

"string": both sides are decomposed (NFD) and cut into runs of letters, digits and marks, and single characters of any other kind
but spaces and controls; a text holds an answer if the answer's lower-cased tokens stand in it one after the other. "regex": the
answer is a pattern, searched for in the decomposed text without regard to case. An empty answer, which DPR's code finds in every
text, is in none; so is a pattern that does not compile.
"""

import re
import unicodedata
import warnings
from collections.abc import Iterable
from typing import Literal

AnswerMode = Literal["string", "regex"]


class _Apart(dict[int, str]):
    """What each character becomes, so that white space parts the tokens; filled as characters turn up."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        kind = unicodedata.category(character)[0]
        self[code] = found = character if kind in "LNM" else " " if kind in "ZC" else f" {character} "
        return found


_APART = _Apart()


def prepared(text: str, mode: AnswerMode) -> str:
    """A text in the form in which answers are looked for; make it once and ask it of many queries."""
    text = unicodedata.normalize("NFD", text)
    return text if mode == "regex" else "".join(f" {token.lower()}" for token in text.translate(_APART).split()) + " "


class Answers:
    """The answers of one query, ready to be looked for.

    Args:
        answers: strings or patterns; those without a token (an empty pattern) are left out.
    Attributes:
        faulty: patterns that do not compile. usable: whether there is anything to look for.
    """

    def __init__(self, answers: Iterable[str], mode: AnswerMode = "string"):
        self.mode = mode
        ready = [prepared(answer, mode) for answer in answers]
        # No token has white space in it, so a run of tokens is found as a piece of text that spaces bound.
        self._strings = [answer for answer in ready if answer.strip()] if mode == "string" else []
        patterns = {answer: _pattern(answer) for answer in ready if answer} if mode == "regex" else {}
        self._patterns = [found for found in patterns.values() if found]
        self.faulty = tuple(answer for answer, found in patterns.items() if not found)
        self.usable = bool(self._strings or self._patterns)

    def within(self, text: str) -> bool:
        """Whether a `prepared` text holds one of them."""
        return any(answer in text for answer in self._strings) or any(pattern.search(text) for pattern in self._patterns)


def _pattern(text: str) -> re.Pattern[str] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a pattern that a later Python may read otherwise is no fault of its user here
            return re.compile(text, re.IGNORECASE | re.UNICODE | re.MULTILINE)
    except (re.error, OverflowError, RecursionError):
        return None


def has_answer(answers: Iterable[str], text: str, mode: AnswerMode = "string") -> bool:
    """Whether the text holds one of the answers."""
    return Answers(answers, mode).within(prepared(text, mode))

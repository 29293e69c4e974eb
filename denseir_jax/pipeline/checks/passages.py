"""One pass over a corpus: what is wrong in it, and a table by which judgments and training sets are looked up."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from denseir_jax.core import console
from denseir_jax.data import lengths
from denseir_jax.data.findings import Findings
from denseir_jax.data.mojibake import REPLACEMENT, mojibake
from denseir_jax.data.records import Passage
from denseir_jax.data.template import TextTemplate
from denseir_jax.search.negatives import normalized

NO_TEXT = 0
"""The key of a text without a character."""

_TOGETHER = 512  # texts tokenised at a time
Count = Callable[[Sequence[str]], Sequence[int]]
"""Texts -> tokens of each, [CLS] and [SEP] included, nothing cropped."""


class Table:
    """What is kept of a corpus, 40 bytes a passage beside the letters of its id.

    Attributes:
        keys: int64 [n], hashes of the normalised texts, equal for equal texts; `NO_TEXT` where there is none. A title stands in
        for a missing text. characters: int64 [n], of the whole text with its title, prefix apart. tokens: int64 [n], or
        empty where nothing counts them.

    Hashes of 64 bits stand for ids and texts: among n of them two fall together with probability n^2 / 2^65.
    """

    def __init__(self) -> None:
        self._hashes, self._keys, self._characters, self._tokens = array("q"), array("q"), array("q"), array("q")
        self._letters, self._ends = bytearray(), array("q", [0])
        self._sorted: tuple[np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, passage: Passage, characters: int) -> None:
        """One more row. Call before anything is looked up."""
        self._hashes.append(hash(passage.id))
        self._keys.append(text_key(passage.text or passage.title))
        self._characters.append(characters)
        self._letters += passage.id.encode("utf-8")
        self._ends.append(len(self._letters))

    def add_tokens(self, counts: Iterable[int]) -> None:
        """Tokens of the rows that have none yet, in order."""
        self._tokens.extend(counts)

    @property
    def keys(self) -> Int[np.ndarray, " n"]:
        """See the class."""
        return _numbers(self._keys)

    @property
    def characters(self) -> Int[np.ndarray, " n"]:
        """See the class."""
        return _numbers(self._characters)

    @property
    def tokens(self) -> Int[np.ndarray, " m"]:
        """See the class."""
        return _numbers(self._tokens)

    def name(self, row: int) -> str:
        """The id in this row."""
        return self._letters[self._ends[row] : self._ends[row + 1]].decode("utf-8")

    def rows(self, ids: Iterable[str]) -> Int[np.ndarray, " k"]:
        """int64: the row of each id, -1 where there is none."""
        wanted = np.fromiter((hash(id) for id in ids), np.int64)
        if not len(self) or not len(wanted):
            return np.full(len(wanted), -1, np.int64)
        if self._sorted is None:
            hashes = _numbers(self._hashes)
            order = np.argsort(hashes, kind="stable")
            self._sorted = hashes[order], order
        hashes, order = self._sorted
        at = np.minimum(np.searchsorted(hashes, wanted), len(hashes) - 1)
        return np.where(hashes[at] == wanted, order[at], -1)


def _numbers(kept: Any) -> np.ndarray:
    """An array of the letter q as int64, without a copy. NumPy takes the letter q for a type of its own, not for int64."""
    return np.asarray(kept).view(np.int64)


def text_key(text: str) -> int:
    """A hash that texts share which are equal but for case, width and white space; `NO_TEXT` of none."""
    plain = normalized(text)
    return (hash(plain) or 1) if plain else NO_TEXT


def read(corpus: Iterable[Passage], findings: Findings, template: TextTemplate, count: Count | None) -> Table:
    """Read all passages once, and note what is wrong in them. What was read before a source broke off is kept."""
    table, waiting, empty = Table(), list[str](), 0
    unprefixed = TextTemplate(title_join=template.title_join, use_title=template.use_title)
    findings.place = None
    with findings.going_on():
        for passage in console.progress(corpus, "check_data: reading passages", None, "passages"):
            text = unprefixed.passage(passage)
            table.add(passage, len(text))
            note_characters(findings, f"{passage.title} {passage.text}", f"passage {passage.id!r}")
            if not text.strip():
                empty += 1
                findings.note("passage without text", findings.where(f"passage {passage.id!r}"), _EMPTY, fault=False)
            if count is not None:
                waiting.append(template.passage(passage))
                if len(waiting) == _TOGETHER:
                    table.add_tokens(count(waiting))
                    waiting.clear()
    if count is not None and waiting:
        table.add_tokens(count(waiting))
    _note_repeated(table, findings)
    if len(table) and empty == len(table):
        remedy = "see that the texts are under the key, or in the column, that is read"
        findings.note("corpus of empty texts", "every passage", remedy, fault=True)
    return table


_EMPTY = "nothing, or take them out: training skips them, an index holds them as an empty text"


def _note_repeated(table: Table, findings: Findings) -> None:
    keys = table.keys
    order = np.argsort(keys, kind="stable")
    again = order[1:][(keys[order][1:] == keys[order][:-1]) & (keys[order][1:] != NO_TEXT)]
    if not len(again):
        return
    row = int(again.min())
    earlier = int(np.flatnonzero(keys == keys[row])[0])
    findings.note(
        "passage with the text of an earlier one",
        f"{table.name(row)!r} has the text of {table.name(earlier)!r}",
        "take one of two out: where one is the answer the other is too; training knows only those whose tokens, title included, are equal",
        fault=False,
        count=len(again),
    )


def note_characters(findings: Findings, text: str, name: str) -> None:
    """Note lost characters and wrong decoding in the text of the row in hand, which is named."""
    if text.isascii():
        return
    if REPLACEMENT in text:
        remedy = "convert the original again: these letters are lost"
        findings.note("text with replacement characters (U+FFFD)", findings.where(name), remedy, fault=False)
    sequence = mojibake(text)
    if sequence:
        remedy = "decode the original as UTF-8, or mend the texts (the package ftfy does)"
        findings.note("text that looks like UTF-8 read as Latin-1", f"{findings.where(name)}: {sequence!r}", remedy, fault=False)


def facts(table: Table, template: TextTemplate) -> dict[str, Any]:
    """Sizes and lengths, for the report."""
    found: dict[str, Any] = {"passages": len(table), "characters": lengths.summary(table.characters)}
    if len(table.tokens):
        found["tokens"] = lengths.summary(table.tokens, template.reach + 2)  # of the first block: [CLS] and [SEP]
    return found

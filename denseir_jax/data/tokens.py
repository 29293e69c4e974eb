"""The token store: a corpus as memory-mapped tokens, read at random by batches and by encode.

The folder ``tokens/`` of a `prepare` run:

====================  ============================================================================================
tokens.bin            uint16 (uint32 beyond 65,536 ids): the tokens of all documents, one after the other, no specials
word_start.bin        one bit a token (little-endian within a byte): a word starts here
sentence_start.bin    one bit a token: a sentence starts here
offsets.npy           int64 [n + 1]: document i has the tokens offsets[i] to offsets[i + 1]
pieces.npy            int64 [m, 2]: start and end of each training piece, in tokens of the whole store
piece_document.npy    int64 [m]: the document that a piece was cut from
content.npy           uint64 [n]: hash of a document's tokens; equal texts share it
ids.txt               one id a line, as a JSON string
====================  ============================================================================================

Documents are stored whole: they are cropped, once, when a batch is made. The tokenizer is beside it, in ``tokenizer/``.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError
from denseir_jax.data.template import TextTemplate
from denseir_jax.data.token_merge import token_dtype
from denseir_jax.data.tokenizer import FOLDER as TOKENIZER
from denseir_jax.data.tokenizer import SpecialIds, Tokenizer, load_tokenizer

FOLDER = "tokens"


@dataclass(frozen=True)
class Window:
    """Tokens of several ranges side by side; what lies beyond a range's length is 0 / False."""

    ids: Int[np.ndarray, "k w"]
    word_start: Bool[np.ndarray, "k w"]
    sentence_start: Bool[np.ndarray, "k w"]


class TokenStore:
    """Reader of a finished `prepare` run. Cheap to open and to send to another process: it maps files, it loads none.

    Attributes:
        folder: the run folder. n_documents, n_pieces, n_tokens, vocab_size: sizes.
        template: the text template of the documents. tokenizer_sha256: of the tokenizer that made the tokens.
        special_ids: ids of [PAD], [UNK], [CLS], [SEP], [MASK]. sha256: identity of the run.
        offsets, pieces, piece_document: see the module.
    """

    def __init__(self, path: str | Path):
        self.folder = Path(path).absolute()
        manifest = artifacts.finished_run(self.folder, ["prepare"])
        self.template = TextTemplate(**manifest["template"])
        self.tokenizer_sha256: str = manifest["tokenizer_sha256"]
        self.special_ids = SpecialIds(**manifest["special_ids"])
        self.vocab_size: int = manifest["vocab_size"]
        self.sha256: str = manifest["sha256"]
        self.n_tokens: int = manifest["counts"]["tokens"]
        self.offsets = self._table("offsets.npy")
        self.pieces = self._table("pieces.npy")
        self.piece_document = self._table("piece_document.npy")
        self.n_documents, self.n_pieces = len(self.offsets) - 1, len(self.pieces)
        self._tokens = self._mapped("tokens.bin", token_dtype(self.vocab_size), self.n_tokens)
        self._words = self._mapped("word_start.bin", np.dtype(np.uint8), -(-self.n_tokens // 8))
        self._sentences = self._mapped("sentence_start.bin", np.dtype(np.uint8), -(-self.n_tokens // 8))

    @classmethod
    def open(cls, path: str | Path) -> "TokenStore":
        """Open the store of a run folder.

        Raises:
            InputError: no such folder, not finished, not made by `prepare`, or a file is missing or torn.
        """
        return cls(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenStore, (self.folder,)

    def _table(self, name: str) -> np.ndarray:
        path = self.folder / FOLDER / name
        try:
            table: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read: {error}; run prepare again") from None
        return np.asarray(table)

    def _mapped(self, name: str, dtype: np.dtype, size: int) -> np.ndarray:
        path = self.folder / FOLDER / name
        found = path.stat().st_size if path.exists() else -1
        if found != size * dtype.itemsize:
            raise InputError(f"{path} has {found} bytes; expected {size * dtype.itemsize}; run prepare again")
        return np.asarray(np.memmap(path, dtype, mode="r")) if size else np.empty(0, dtype)

    @cached_property
    def ids(self) -> list[str]:
        """The documents' ids, by row."""
        with open(self.folder / FOLDER / "ids.txt", encoding="ascii") as stream:
            return [json.loads(line) for line in stream]

    @cached_property
    def row_of(self) -> dict[str, int]:
        """Id -> row."""
        return {id: row for row, id in enumerate(self.ids)}

    @cached_property
    def content_ids(self) -> Int[np.ndarray, " n"]:
        """int32 [n]: for every document the row of the first one with the same tokens; its own row if there is none."""
        content = self._table("content.npy")
        _, first, inverse = np.unique(content, return_index=True, return_inverse=True)
        return first[inverse].astype(np.int32)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the tokens.

        Raises:
            InputError: the one that is there is another.
        """
        tokenizer = load_tokenizer(self.folder / TOKENIZER)
        if tokenizer.sha256 != self.tokenizer_sha256:
            raise InputError(f"{self.folder / TOKENIZER} is not the tokenizer that made the tokens beside it; run prepare again")
        return tokenizer

    def document(self, row: int) -> tuple[Int[np.ndarray, " t"], Bool[np.ndarray, " t"]]:
        """(ids int32, word_start) of a whole document."""
        start, end = map(int, self.offsets[row : row + 2])
        return self._tokens[start:end].astype(np.int32), self._flags(self._words, start, end)

    def piece(self, number: int) -> tuple[Int[np.ndarray, " t"], Bool[np.ndarray, " t"], Bool[np.ndarray, " t"]]:
        """(ids int32, word_start, sentence_start) of a whole piece."""
        start, end = map(int, self.pieces[number])
        ids = self._tokens[start:end].astype(np.int32)
        return ids, self._flags(self._words, start, end), self._flags(self._sentences, start, end)

    def _flags(self, packed: np.ndarray, start: int, end: int) -> Bool[np.ndarray, " t"]:
        first = start // 8
        bits = np.unpackbits(packed[first : -(-end // 8)], bitorder="little")
        return bits[start - 8 * first : end - 8 * first].astype(bool)

    def window(self, starts: Int[np.ndarray, " k"], lengths: Int[np.ndarray, " k"], width: int) -> Window:
        """The first `width` tokens at most of the ranges that begin at `starts` (in tokens of the store)."""
        columns = np.arange(width)
        inside = columns < lengths[:, None]
        at = np.where(inside, starts[:, None] + columns, 0)
        if not inside.any():
            return Window(np.zeros(at.shape, np.int32), inside, inside)
        return Window(
            np.where(inside, self._tokens[at], 0).astype(np.int32), _bits(self._words, at) & inside, self._sentence_bits(at, inside)
        )

    def sentence_counts(self, starts: Int[np.ndarray, " k"], lengths: Int[np.ndarray, " k"], width: int) -> Int[np.ndarray, " k"]:
        """How many sentences the first `width` tokens of each range hold, the one that the range begins in included."""
        counts = np.zeros(len(starts), np.int64)
        for first in range(0, len(starts), 4096):
            part = slice(first, first + 4096)
            inside = np.arange(width) < lengths[part, None]
            at = np.where(inside, starts[part, None] + np.arange(width), 0)
            if inside.any():
                counts[part] = self._sentence_bits(at, inside)[:, 1:].sum(1) + inside[:, 0]
        return counts

    def _sentence_bits(self, at: Int[np.ndarray, "k w"], inside: Bool[np.ndarray, "k w"]) -> Bool[np.ndarray, "k w"]:
        return _bits(self._sentences, at) & inside


def _bits(packed: np.ndarray, at: Int[np.ndarray, "k w"]) -> Bool[np.ndarray, "k w"]:
    return (packed[at >> 3] >> (at & 7).astype(np.uint8) & 1).astype(bool)

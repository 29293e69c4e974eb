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
from jaxtyping import Bool, Int, UInt

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError
from denseir_jax.data import token_checks
from denseir_jax.data.facts import build, need_keys, need_output
from denseir_jax.data.template import TextTemplate
from denseir_jax.data.token_merge import token_dtype
from denseir_jax.data.tokenizer import FOLDER as TOKENIZER
from denseir_jax.data.tokenizer import SpecialIds, Tokenizer, load_tokenizer

FOLDER = "tokens"
FILES = ("content.npy", "ids.txt", "offsets.npy", "piece_document.npy", "pieces.npy", "sentence_start.bin", "tokens.bin", "word_start.bin")
_FACTS = {
    "outputs": dict, "template": dict, "tokenizer_sha256": str, "special_ids": dict, "vocab_size": int, "sha256": str, "counts": dict
}  # fmt: skip


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
        facts = self.folder / artifacts.MANIFEST
        manifest = need_keys(artifacts.finished_run(self.folder, ["prepare"]), facts, **_FACTS)
        counts = need_keys(manifest["counts"], facts, documents=int, tokens=int, pieces=int)
        self._outputs = manifest["outputs"]
        self.template = build(TextTemplate, manifest["template"], facts)
        self.tokenizer_sha256: str = manifest["tokenizer_sha256"]
        self.special_ids = build(SpecialIds, manifest["special_ids"], facts)
        self.vocab_size: int = manifest["vocab_size"]
        self.sha256: str = manifest["sha256"]
        self.n_documents, self.n_pieces, self.n_tokens = counts["documents"], counts["pieces"], counts["tokens"]
        self.offsets = self._table("offsets.npy")
        self.pieces = self._table("pieces.npy")
        self.piece_document = self._table("piece_document.npy")
        self._tokens = self._mapped("tokens.bin", token_dtype(self.vocab_size), self.n_tokens)
        self._words = self._mapped("word_start.bin", np.dtype(np.uint8), -(-self.n_tokens // 8))
        self._sentences = self._mapped("sentence_start.bin", np.dtype(np.uint8), -(-self.n_tokens // 8))
        self._check()

    @classmethod
    def open(cls, path: str | Path) -> "TokenStore":
        """Open the store of a run folder.

        Sizes, tables and a sample of the documents are compared with what the run wrote; every token read later is seen to
        be in the vocabulary.

        Raises:
            InputError: no such folder, not finished, not made by `prepare`, or a file is missing, torn or changed since.
        """
        return cls(path)

    def _check(self) -> None:
        """See that the files belong together, without reading all tokens."""
        fault = token_checks.fault_of_offsets(self.offsets, self.n_documents, self.n_tokens)
        if fault:
            raise self._changed("offsets.npy", fault)
        fault = token_checks.fault_of_pieces(self.pieces, self.piece_document, self.offsets, self.n_pieces)
        if fault:
            raise self._changed("pieces.npy", fault)
        content = self._content()
        for row in token_checks.sampled_rows(self.n_documents).tolist():
            ids, word_start = self.document(row)
            if token_checks.content_hash(ids) != content[row]:
                raise self._changed("tokens.bin", f"holds other tokens of document {row} than those that were written")
            start = int(self.offsets[row])
            for name, begins in (("word", word_start[:1]), ("sentence", self._flags(self._sentences, start, start + min(len(ids), 1)))):
                if not begins.all():
                    raise self._changed(f"{name}_start.bin", f"has no {name} where document {row} begins")

    def _changed(self, name: str, fault: str) -> InputError:
        return InputError(f"{self.folder / FOLDER / name} {fault}; it was changed: remove it and run prepare again")

    def _content(self) -> UInt[np.ndarray, " n"]:
        content = self._table("content.npy")
        if content.shape != (self.n_documents,) or content.dtype != np.uint64:
            raise self._changed(
                "content.npy", f"has shape {content.shape} and type {content.dtype}; expected ({self.n_documents},), uint64"
            )
        return content

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenStore, (self.folder,)

    def _table(self, name: str) -> np.ndarray:
        path = self.folder / FOLDER / name
        try:
            table: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read: {error}; remove it and run prepare again") from None
        return np.asarray(table)

    def _mapped(self, name: str, dtype: np.dtype, size: int) -> np.ndarray:
        path = self.folder / FOLDER / name
        if not path.is_file():
            raise InputError(f"{path} does not exist; run prepare again")
        found = path.stat().st_size
        if found != size * dtype.itemsize:
            raise InputError(f"{path} has {found} bytes; expected {size * dtype.itemsize}; remove it and run prepare again")
        return np.asarray(np.memmap(path, dtype, mode="r")) if size else np.empty(0, dtype)

    @cached_property
    def ids(self) -> list[str]:
        """The documents' ids, by row.

        Raises:
            InputError: the file is missing or was changed.
        """
        path = self.folder / FOLDER / "ids.txt"
        need_output({"outputs": self._outputs}, path, f"{FOLDER}/ids.txt")
        with open(path, encoding="ascii") as stream:
            return [json.loads(line) for line in stream]

    @cached_property
    def row_of(self) -> dict[str, int]:
        """Id -> row."""
        return {id: row for row, id in enumerate(self.ids)}

    @cached_property
    def content_ids(self) -> Int[np.ndarray, " n"]:
        """int32 [n]: for every document the row of the first one with the same tokens; its own row if there is none.

        Raises:
            InputError: the file was changed.
        """
        need_output({"outputs": self._outputs}, self.folder / FOLDER / "content.npy", f"{FOLDER}/content.npy")
        _, first, inverse = np.unique(self._content(), return_index=True, return_inverse=True)
        return first[inverse].astype(np.int32)

    def names_of(self, pieces: Int[np.ndarray, " k"]) -> list[str]:
        """Ids of the documents that these pieces are of."""
        return [self.ids[row] for row in self.piece_document[pieces].tolist()]

    def texts_of(self, pieces: Int[np.ndarray, " k"]) -> Int[np.ndarray, " k"]:
        """int32: for each piece the row of the first document with the same tokens as its own, so that duplicates can be told."""
        return np.asarray(self.content_ids[self.piece_document[pieces]])

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
        return self._known(self._tokens[start:end]), self._flags(self._words, start, end)

    def piece(self, number: int) -> tuple[Int[np.ndarray, " t"], Bool[np.ndarray, " t"], Bool[np.ndarray, " t"]]:
        """(ids int32, word_start, sentence_start) of a whole piece."""
        start, end = map(int, self.pieces[number])
        ids = self._known(self._tokens[start:end])
        return ids, self._flags(self._words, start, end), self._flags(self._sentences, start, end)

    def _known(self, tokens: np.ndarray) -> np.ndarray:
        """Tokens as int32.

        Raises:
            InputError: one is not in the vocabulary; a table of embeddings would take some other row for it, silently.
        """
        if tokens.size and (largest := int(tokens.max())) >= self.vocab_size:
            raise self._changed("tokens.bin", f"holds the token {largest}; expected less than vocab_size {self.vocab_size}")
        return tokens.astype(np.int32)

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
        return Window(np.where(inside, self._known(self._tokens[at]), 0), _bits(self._words, at) & inside, self._sentence_bits(at, inside))

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

"""Encoding a chunk of a corpus into one part file: the unit of parallel and of interrupted work in `prepare`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from denseir_jax.core import artifacts
from denseir_jax.data.pieces import SplitRule
from denseir_jax.data.sentences import split_sentences
from denseir_jax.data.token_checks import content_hash
from denseir_jax.data.tokenizer import Encoded, Tokenizer

_AT_ONCE = 64  # documents given to the tokenizer together


@dataclass(frozen=True)
class Chunk:
    """Consecutive documents of the corpus. `first` is the row of the first one."""

    first: int
    ids: Sequence[str]
    texts: Sequence[str]


@dataclass(frozen=True)
class EncodedDocument:
    """One document as the store keeps it: tokens, sentence starts, and pieces as token ranges within the document."""

    encoded: Encoded
    sentence_start: Bool[np.ndarray, " t"]
    pieces: Sequence[tuple[int, int]]


def encode_document(text: str, encoded: Encoded, rule: SplitRule, row: int) -> EncodedDocument:
    """Find the sentences of an encoded text and cut it into pieces."""
    starts = sentence_starts(text, encoded)
    bounds = np.append(np.flatnonzero(starts), len(starts))
    ranges = rule.cut(np.diff(bounds).tolist(), row)
    return EncodedDocument(encoded, starts, [(int(bounds[first]), int(bounds[last])) for first, last in ranges])


def sentence_starts(text: str, encoded: Encoded) -> Bool[np.ndarray, " t"]:
    """Which tokens begin a sentence. A token belongs to the sentence of its last character, since some begin with a space."""
    last = np.maximum(encoded.offsets[:, 1] - 1, 0)
    sentence = np.maximum.accumulate(np.searchsorted(np.array(split_sentences(text), np.int64), last, side="right"))
    return np.diff(sentence, prepend=-1) != 0


def write_part(path: Path, chunk: Chunk, tokenizer: Tokenizer, rule: SplitRule) -> None:
    """Encode a chunk and write its part file, whole or not at all."""
    documents = [
        encode_document(text, encoded, rule, chunk.first + start + i)
        for start in range(0, len(chunk.texts), _AT_ONCE)
        for i, (text, encoded) in enumerate(_encode(tokenizer, chunk.texts[start : start + _AT_ONCE]))
    ]
    arrays = _arrays(chunk, documents, tokenizer.unk_id)
    with artifacts.new_file(path) as temporary, open(temporary, "wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)


def _encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[tuple[str, Encoded]]:
    return list(zip(texts, tokenizer.encode_batch(texts), strict=True))


def _arrays(chunk: Chunk, documents: Sequence[EncodedDocument], unknown: int) -> dict[str, np.ndarray]:
    lengths = np.array([len(document.encoded.ids) for document in documents], np.int64)
    begins = np.cumsum(lengths) - lengths
    pieces = [(row, start, end) for row, document in enumerate(documents) for start, end in document.pieces]
    table = np.array(pieces, np.int64).reshape(-1, 3)
    tokens = _joined([document.encoded.ids for document in documents], np.int32)
    lines = "".join(json.dumps(id) + "\n" for id in chunk.ids)
    return {
        "tokens": tokens,
        "word_start": _joined([document.encoded.word_start for document in documents], np.bool_),
        "sentence_start": _joined([document.sentence_start for document in documents], np.bool_),
        "lengths": lengths,
        "pieces": table[:, 1:] + begins[table[:, 0]][:, None],
        "piece_document": table[:, 0],
        "content": np.array([content_hash(document.encoded.ids) for document in documents], np.uint64),
        "ids": np.frombuffer(lines.encode("ascii"), np.uint8),
        "sizes": np.array([len(documents), len(tokens), len(table), np.count_nonzero(tokens == unknown)], np.int64),
    }


def _joined(arrays: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *arrays]).astype(dtype, copy=False)

"""Vectors on disk: shards ``00000.npy`` of a fixed number of rows, ``ids.txt``, and ``embeddings.json``, written last.

Where vectors have a lexical part, the words that are kept of it lie beside each shard: ``00000.words.npy`` holds their ids
(uint16, or uint32 for a vocabulary of more than 65,536), ``00000.weights.npy`` their weights, both [rows, words kept].
Beside each shard lies ``00000.json``: which model made it, from which texts, and its hash. A shard counts as finished
only when that file exists, so that an interrupted run goes on after the last whole shard, and never mixes two models.

``ids.txt`` has a line a document. A document has one row, or, where documents are read in blocks, several that follow each
other: then ``blocks.npy`` says how many (uint16 [documents]).
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Integer
from scipy.sparse import csr_array

from denseir_jax.core import artifacts, failpoints
from denseir_jax.core.errors import InputError
from denseir_jax.data.facts import need_keys, read_facts
from denseir_jax.models.embedder import WordVectors
from denseir_jax.search.embedding_files import (
    BLOCKS,
    DENSE,
    HASHES,
    IDS,
    WEIGHTS,
    WORDS,
    documents_in,
    mapped_shard,
    read_blocks,
    read_record,
)
from denseir_jax.search.embedding_files import FACTS as FACTS
from denseir_jax.search.ids import read_ids, write_ids
from denseir_jax.search.lexical import Vectors, dense_of, sparse_rows, word_type

_BLOCK = 1 << 16  # rows converted at a time
_LEXICAL = ("words", "vocab_size")  # in a record and in the facts where there is a lexical part: words kept a text, and of how many


def shard_finished(folder: Path, number: int, model: Mapping[str, Any], source: str, documents: int) -> bool:
    """Whether shard `number` is there, whole, made by `model` from so many documents, whose texts have the hash `source`.

    Raises:
        InputError: it was made by another model or from other texts; shards of two kinds are never mixed.
    """
    if not (folder / f"{number:05d}.json").exists():
        return False
    made = read_record(folder / f"{number:05d}.json")
    where = f"shard {number} in {folder}"
    wanted = json.loads(json.dumps(model))
    differing = sorted(key for key in {**made["model"], **wanted} if made["model"].get(key) != wanted.get(key))
    if differing:
        key = differing[0]
        shown = f"{key}: {made['model'].get(key)!r} there, {wanted.get(key)!r} here"
        raise InputError(f"{where} was made by another model ({shown}); refusing to mix models: use another folder or remove this one")
    there = documents_in(made)
    if made["source"] != source or there != documents:
        raise InputError(
            f"{where} was made from other texts ({there} documents there, {documents} here); use another folder or remove this one"
        )
    try:
        return bool(mapped_shard(folder, number, made["rows"], made))
    except InputError:
        return False  # it is encoded again


def write_shard(
    folder: Path,
    number: int,
    ids: Sequence[str],
    vectors: Vectors,
    dtype: str,
    model: Mapping[str, Any],
    source: str,
    blocks: Int[np.ndarray, " documents"] | None = None,
) -> None:
    """Write one shard, then the file that declares it finished.

    Args:
        ids: of the documents. blocks: rows of each document; None: one.
    Raises:
        InputError: a vector is NaN or Inf, or becomes so in `dtype`; the first such document is named.
    """
    dense = dense_of(vectors)
    record: dict[str, Any] = {"model": dict(model), "source": source, "rows": len(dense), "dimension": dense.shape[1]}
    if blocks is not None:
        record["blocks"] = blocks.tolist()
        ids = [id for id, number_of in zip(ids, record["blocks"], strict=True) for _ in range(number_of)]
    stored = {DENSE: _stored(dense, ids, dtype)}
    if isinstance(vectors, WordVectors):
        record |= {"words": vectors.words.shape[1], "vocab_size": vectors.vocab_size}
        stored |= {WORDS: vectors.words.astype(word_type(vectors.vocab_size)), WEIGHTS: _stored(vectors.weights, ids, dtype)}
    for ending, array in stored.items():
        artifacts.write_array(folder / f"{number:05d}{ending}", array)
    failpoints.reach("encode_shard")
    record |= {HASHES[ending]: artifacts.file_sha256(folder / f"{number:05d}{ending}") for ending in stored}
    artifacts.write_json(folder / f"{number:05d}.json", record)


def _stored(numbers: Float[np.ndarray, "m _"], ids: Sequence[str], dtype: str) -> Float[np.ndarray, "m _"]:
    with np.errstate(over="ignore"):
        stored = np.ascontiguousarray(numbers.astype(dtype))
    _check_finite(stored, ids.__getitem__, f"; dtype is {dtype}")
    return stored


def finish(folder: Path, ids: Sequence[str], source: str) -> dict[str, Any]:
    """Declare the folder whole: write ``ids.txt`` and ``embeddings.json`` over the finished shards; return the facts.

    Raises:
        InputError: shards are missing, do not belong together, or their rows are not as many as the ids.
    """
    records = [read_record(path) for path in sorted(folder.glob("[0-9]*.json"))]
    documents = sum(map(documents_in, records))
    if not records or documents != len(ids):
        raise InputError(f"{folder} holds {documents} vectors for {len(ids)} documents")
    common = ("model", "dimension", *_LEXICAL)
    if any(record.get(key) != records[0].get(key) for record in records for key in common):
        raise InputError(f"{folder} holds shards of several models; remove it and encode again")
    write_ids(folder / IDS, ids)
    facts = {
        "n": sum(record["rows"] for record in records),
        **{key: records[0][key] for key in common if key in records[0]},
        "source_sha256": source,
        "ids_sha256": artifacts.file_sha256(folder / IDS),
        "shards": [{key: record[key] for key in ("rows", *HASHES.values()) if key in record} for record in records],
    }
    if "blocks" in records[0]:
        artifacts.write_array(folder / BLOCKS, np.concatenate([np.array(record["blocks"], np.uint16) for record in records]))
        facts |= {"documents": documents, "blocks_sha256": artifacts.file_sha256(folder / BLOCKS)}
    artifacts.write_json(folder / FACTS, facts)
    return facts


class Embeddings:
    """n vectors of documents, one or several of each, memory-mapped: reading some rows touches only these.

    A shard is compared with its hash when it is first read from; that reads all of it, once.

    Args:
        parts: the dense vectors, in shards. words: word ids and weights of each shard, where there is a lexical part.
        folder: where the files of `parts` lie, to be compared with the hashes in `facts`; None for arrays in memory.
        blocks: rows of each document; None: one.
    Attributes:
        ids: document ids, in the order of their rows. n, dimension: shape of all vectors, without the lexical part.
        starts: int64 [documents + 1], each document's first row; None where a document is a row. facts: ``embeddings.json``.
        lexical: words kept of a text's lexical part, vocab_size: of how many; 0 where there is none.
        sha256: identifies the vectors and ids by content.
    """

    def __init__(
        self,
        ids: Sequence[str],
        parts: Sequence[Float[np.ndarray, "m d"]],
        facts: Mapping[str, Any],
        folder: Path | None = None,
        words: Sequence[tuple[np.ndarray, np.ndarray]] = (),
        blocks: Integer[np.ndarray, " documents"] | None = None,
    ):
        self.ids, self.facts, self._folder = list(ids), dict(facts), folder
        self._arrays = {DENSE: list(parts), WORDS: [part[0] for part in words], WEIGHTS: [part[1] for part in words]}
        self._unread = set() if folder is None else set(range(len(parts)))
        self.starts = None if blocks is None else np.concatenate([[0], np.cumsum(blocks, dtype=np.int64)])
        self.n, self.dimension = len(self.ids) if self.starts is None else int(self.starts[-1]), int(parts[0].shape[1])
        self.lexical, self.vocab_size = (int(words[0][0].shape[1]), int(facts["vocab_size"])) if words else (0, 0)
        self._starts = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
        self.sha256 = artifacts.json_sha256(self.facts)
        if self._starts[-1] != self.n or (blocks is not None and (len(blocks) != len(self.ids) or not np.all(blocks))):
            raise InputError(f"embeddings hold {self._starts[-1]} vectors for {len(self.ids)} ids")

    @classmethod
    def open(cls, folder: Path) -> "Embeddings":
        """Open a finished folder.

        Raises:
            InputError: not finished, a file is missing, the ids were changed, or its shards do not have the shapes it declares.
        """
        if not (folder / FACTS).exists():
            raise InputError(f"{folder} holds no {FACTS}: encoding has not finished there")
        facts = read_facts(folder / FACTS, n=int, dimension=int, model=dict, source_sha256=str, ids_sha256=str, shards=list)
        need_keys(facts["model"], folder / FACTS, dtype=str)
        if "words" in facts:
            need_keys(facts, folder / FACTS, words=int, vocab_size=int)
        ids = read_ids(folder / IDS)
        if artifacts.file_sha256(folder / IDS) != facts["ids_sha256"]:
            raise InputError(f"{folder / IDS} was changed after the vectors had been made; remove it and encode again")
        shards = []
        for number, shard in enumerate(facts["shards"]):
            need_keys(shard, folder / FACTS, rows=int)
            shards.append(mapped_shard(folder, number, shard["rows"], facts))
            need_keys(shard, folder / FACTS, **{HASHES[ending]: str for ending in shards[-1]})
        if not shards:
            raise InputError(f"{folder / FACTS} names no shard; remove it and encode again")
        words = [(shard[WORDS], shard[WEIGHTS]) for shard in shards if WORDS in shard]
        return cls(ids, [shard[DENSE] for shard in shards], facts, folder, words, read_blocks(folder, facts))

    @classmethod
    def of_array(cls, ids: Sequence[str], vectors: Vectors, blocks: Integer[np.ndarray, " documents"] | None = None) -> "Embeddings":
        """The same view over arrays in memory."""
        facts: dict[str, Any] = {"n": len(vectors), "ids_sha256": artifacts.json_sha256(list(ids))}
        facts |= {} if blocks is None else {"blocks": blocks.tolist()}
        if not isinstance(vectors, WordVectors):
            return cls(ids, [vectors], {**facts, "content": artifacts.arrays_sha256({"vectors": vectors})}, blocks=blocks)
        arrays = {"vectors": vectors.dense, "words": vectors.words, "weights": vectors.weights}
        facts |= {"content": artifacts.arrays_sha256(arrays), "vocab_size": vectors.vocab_size}
        return cls(ids, [vectors.dense], facts, words=[(vectors.words, vectors.weights)], blocks=blocks)

    def name(self, row: int) -> str:
        """The id of the document that a row belongs to."""
        return self.ids[row if self.starts is None else int(np.searchsorted(self.starts, row, side="right")) - 1]

    def rows(self, start: int, stop: int) -> Float[np.ndarray, "m d"]:
        """Rows [start, stop) as float32, without the lexical part.

        Raises:
            InputError: one of them is NaN or Inf; its id is named. A shard was changed.
        """
        block = self._slice(DENSE, start, stop).astype(np.float32)
        _check_finite(block, lambda row: self.name(start + row))
        return block

    def lexical_rows(self, start: int, stop: int) -> csr_array:
        """The lexical part of rows [start, stop), float32 [m, vocab_size]; raises as `rows` does."""
        weights = self._slice(WEIGHTS, start, stop).astype(np.float32)
        _check_finite(weights, lambda row: self.name(start + row))
        return sparse_rows(self._slice(WORDS, start, stop), weights, self.vocab_size)

    def _slice(self, kind: str, start: int, stop: int) -> np.ndarray:
        stop = min(stop, self.n)
        first, last = np.searchsorted(self._starts, [start, max(stop - 1, start)], side="right") - 1
        pieces = [
            self._part(kind, part)[max(start - self._starts[part], 0) : stop - self._starts[part]]
            for part in range(int(first), min(int(last), len(self._starts) - 2) + 1)
        ]
        return np.concatenate(pieces)

    def blocks(self, size: int) -> Iterator[tuple[int, Float[np.ndarray, "m d"]]]:
        """(first row, float32 block) from front to back, each of `size` rows but the last."""
        for start in range(0, self.n, size):
            yield start, self.rows(start, start + size)

    def take(self, rows: Int[np.ndarray, " k"]) -> Float[np.ndarray, "k d"]:
        """Single rows by number, as float32, without the lexical part.

        Raises:
            InputError: a shard was changed.
        """
        return self._take(DENSE, rows, np.float32)

    def lexical_take(self, rows: Int[np.ndarray, " k"]) -> csr_array:
        """The lexical part of single rows, as `take`."""
        return sparse_rows(self._take(WORDS, rows, np.int32), self._take(WEIGHTS, rows, np.float32), self.vocab_size)

    def _take(self, kind: str, rows: Int[np.ndarray, " k"], dtype: Any) -> np.ndarray:
        parts = np.searchsorted(self._starts, rows, side="right") - 1
        out = np.empty((len(rows), self._arrays[kind][0].shape[1]), dtype)
        for part in np.unique(parts):
            chosen = parts == part
            out[chosen] = self._part(kind, int(part))[rows[chosen] - self._starts[part]]
        return out

    def _part(self, kind: str, number: int) -> np.ndarray:
        if self._folder is not None and number in self._unread:
            for ending in (ending for ending, arrays in self._arrays.items() if arrays):
                path = self._folder / f"{number:05d}{ending}"
                if artifacts.file_sha256(path) != self.facts["shards"][number][HASHES[ending]]:
                    raise InputError(f"{path} was changed after the vectors had been made; remove it and encode again")
            self._unread.discard(number)  # threads that read a batch ahead may both come here
        return self._arrays[kind][number]

    def whole(self, start: int = 0, stop: int | None = None) -> Float[np.ndarray, "m d"]:
        """Rows [start, stop), or all, in memory as float32, without the lexical part: rows x dimension x 4 bytes."""
        stop = self.n if stop is None else stop
        out = np.empty((stop - start, self.dimension), np.float32)
        for first in range(start, stop, _BLOCK):
            last = min(first + _BLOCK, stop)
            out[first - start : last - start] = self.rows(first, last)
        return out


def _check_finite(block: np.ndarray, name: Callable[[int], str], note: str = "") -> None:
    bad = np.flatnonzero(~np.isfinite(block).all(axis=1))
    if len(bad):
        raise InputError(f"the vector of document {name(int(bad[0]))!r} is not finite (NaN or Inf), one of {len(bad)} such{note}")

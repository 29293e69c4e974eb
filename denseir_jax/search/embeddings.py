"""Vectors on disk: shards ``00000.npy`` of a fixed number of rows, ``ids.txt``, and ``embeddings.json``, written last.

Beside each shard lies ``00000.json``: which model made it, from which texts, and its hash. A shard counts as finished
only when that file exists, so that an interrupted run goes on after the last whole shard, and never mixes two models.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from denseir_jax.core import artifacts, failpoints
from denseir_jax.core.errors import InputError
from denseir_jax.data.facts import need_keys, read_facts

FACTS, IDS = "embeddings.json", "ids.txt"


def shard_finished(folder: Path, number: int, model: Mapping[str, Any], source: str, rows: int) -> bool:
    """Whether shard `number` is there, whole, made by `model` from the texts with hash `source`.

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
    if made["source"] != source or made["rows"] != rows:
        raise InputError(
            f"{where} was made from other texts ({made['rows']} rows there, {rows} here); use another folder or remove this one"
        )
    try:
        return _mapped(folder / f"{number:05d}.npy", (rows, made["dimension"]), made["model"]["dtype"]) is not None
    except InputError:
        return False  # it is encoded again


def read_record(path: Path) -> dict[str, Any]:
    """What is written beside a finished shard.

    Raises:
        InputError: it is not such a record.
    """
    record = read_facts(path, model=dict, source=str, rows=int, dimension=int, sha256=str)
    need_keys(record["model"], path, dtype=str)
    return record


def _mapped(path: Path, shape: tuple[int, int], dtype: str) -> np.ndarray:
    try:
        part = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} cannot be read: {error}; remove it and encode again") from None
    if part.shape != shape or part.dtype != dtype:
        raise InputError(f"{path} has shape {part.shape} and type {part.dtype}; expected {shape} and {dtype}; remove it and encode again")
    return np.asarray(part)


def write_shard(
    folder: Path, number: int, ids: Sequence[str], vectors: Float[np.ndarray, "m d"], dtype: str, model: Mapping[str, Any], source: str
) -> None:
    """Write one shard, then the file that declares it finished.

    Raises:
        InputError: a vector is NaN or Inf, or becomes so in `dtype`; the first such document is named.
    """
    with np.errstate(over="ignore"):
        stored = np.ascontiguousarray(vectors.astype(dtype))
    _check_finite(stored, ids, 0, f"; dtype is {dtype}")
    path = folder / f"{number:05d}.npy"
    artifacts.write_array(path, stored)
    failpoints.reach("encode_shard")
    record = {"model": dict(model), "source": source, "rows": len(stored), "dimension": stored.shape[1]}
    artifacts.write_json(path.with_suffix(".json"), {**record, "sha256": artifacts.file_sha256(path)})


def finish(folder: Path, ids: Sequence[str], source: str) -> dict[str, Any]:
    """Declare the folder whole: write ``ids.txt`` and ``embeddings.json`` over the finished shards; return the facts.

    Raises:
        InputError: shards are missing, do not belong together, or their rows are not as many as the ids.
    """
    records = [read_record(path) for path in sorted(folder.glob("[0-9]*.json"))]
    rows = sum(record["rows"] for record in records)
    if not records or rows != len(ids):
        raise InputError(f"{folder} holds {rows} vectors for {len(ids)} documents")
    if any(record["model"] != records[0]["model"] or record["dimension"] != records[0]["dimension"] for record in records):
        raise InputError(f"{folder} holds shards of several models; remove it and encode again")
    write_ids(folder / IDS, ids)
    facts = {
        "n": rows,
        "dimension": records[0]["dimension"],
        "model": records[0]["model"],
        "source_sha256": source,
        "ids_sha256": artifacts.file_sha256(folder / IDS),
        "shards": [{"rows": record["rows"], "sha256": record["sha256"]} for record in records],
    }
    artifacts.write_json(folder / FACTS, facts)
    return facts


def write_ids(path: Path, ids: Sequence[str]) -> None:
    """One JSON string a line: an id may hold any character, line ends too."""
    with artifacts.new_file(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(json.dumps(item, ensure_ascii=False) + "\n" for item in ids)


def read_ids(path: Path) -> list[str]:
    """What `write_ids` wrote.

    Raises:
        InputError: the file is missing, or not such a list.
    """
    try:
        with open(path, encoding="utf-8", newline="\n") as stream:
            ids = [json.loads(line) for line in stream]
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a list of ids, one JSON string a line: {error}") from None
    other = next((line for line, item in enumerate(ids, start=1) if not isinstance(item, str)), None)
    if other is not None:
        raise InputError(f"{path}:{other}: not an id; expected one JSON string a line")
    return ids


class Embeddings:
    """Vectors of n documents, memory-mapped: reading a block touches only that block.

    A shard is compared with its hash when it is first read from; that reads all of it, once.

    Args:
        paths: the files of `parts`, to be compared with the hashes in `facts`; none for arrays in memory.
    Attributes:
        ids: document ids in row order. n, dimension: shape of the whole. facts: ``embeddings.json``.
        sha256: identifies the vectors and ids by content.
    """

    def __init__(self, ids: Sequence[str], parts: Sequence[Float[np.ndarray, "m d"]], facts: Mapping[str, Any], paths: Sequence[Path] = ()):
        self.ids, self.facts, self._parts = list(ids), dict(facts), list(parts)
        self._unread = dict(enumerate(paths))
        self.n, self.dimension = len(self.ids), int(parts[0].shape[1])
        self._starts = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
        self.sha256 = artifacts.json_sha256(self.facts)
        if self._starts[-1] != self.n:
            raise InputError(f"embeddings hold {self._starts[-1]} vectors for {self.n} ids")

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
        ids = read_ids(folder / IDS)
        if artifacts.file_sha256(folder / IDS) != facts["ids_sha256"]:
            raise InputError(f"{folder / IDS} was changed after the vectors had been made; remove it and encode again")
        paths, parts = [folder / f"{number:05d}.npy" for number in range(len(facts["shards"]))], []
        for path, shard in zip(paths, facts["shards"], strict=True):
            need_keys(shard, folder / FACTS, rows=int, sha256=str)
            parts.append(_mapped(path, (shard["rows"], facts["dimension"]), facts["model"]["dtype"]))
        if not parts:
            raise InputError(f"{folder / FACTS} names no shard; remove it and encode again")
        return cls(ids, parts, facts, paths)

    @classmethod
    def of_array(cls, ids: Sequence[str], vectors: Float[np.ndarray, "n d"]) -> "Embeddings":
        """The same view over an array in memory."""
        content = artifacts.arrays_sha256({"vectors": vectors})
        return cls(ids, [vectors], {"n": len(ids), "content": content, "ids_sha256": artifacts.json_sha256(list(ids))})

    def rows(self, start: int, stop: int) -> Float[np.ndarray, "m d"]:
        """Rows [start, stop) as float32.

        Raises:
            InputError: one of them is NaN or Inf; its id is named. A shard was changed.
        """
        stop = min(stop, self.n)
        first, last = np.searchsorted(self._starts, [start, max(stop - 1, start)], side="right") - 1
        pieces = [
            self._part(part)[max(start - self._starts[part], 0) : stop - self._starts[part]]
            for part in range(int(first), min(int(last), len(self._parts) - 1) + 1)
        ]
        block = np.concatenate(pieces).astype(np.float32)
        _check_finite(block, self.ids, start, "")
        return block

    def blocks(self, size: int) -> Iterator[tuple[int, Float[np.ndarray, "m d"]]]:
        """(first row, float32 block) from front to back, each of `size` rows but the last."""
        for start in range(0, self.n, size):
            yield start, self.rows(start, start + size)

    def take(self, rows: Int[np.ndarray, " k"]) -> Float[np.ndarray, "k d"]:
        """Single rows by number, as float32.

        Raises:
            InputError: a shard was changed.
        """
        parts = np.searchsorted(self._starts, rows, side="right") - 1
        out = np.empty((len(rows), self.dimension), np.float32)
        for part in np.unique(parts):
            chosen = parts == part
            out[chosen] = self._part(int(part))[rows[chosen] - self._starts[part]]
        return out

    def _part(self, number: int) -> np.ndarray:
        path = self._unread.get(number)
        if path is not None:
            if artifacts.file_sha256(path) != self.facts["shards"][number]["sha256"]:
                raise InputError(f"{path} was changed after the vectors had been made; remove it and encode again")
            del self._unread[number]
        return self._parts[number]

    def whole(self) -> Float[np.ndarray, "n d"]:
        """All rows in memory as float32: n x dimension x 4 bytes."""
        out = np.empty((self.n, self.dimension), np.float32)
        for start, block in self.blocks(65536):
            out[start : start + len(block)] = block
        return out


def _check_finite(block: np.ndarray, ids: Sequence[str], start: int, note: str) -> None:
    bad = np.flatnonzero(~np.isfinite(block).all(axis=1))
    if len(bad):
        raise InputError(f"the vector of document {ids[start + bad[0]]!r} is not finite (NaN or Inf), one of {len(bad)} such{note}")

"""A share of the training queries, nested: those of 1% are among those of 5%, in whatever order the file has them."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from denseir_jax.core import artifacts
from denseir_jax.data import jsonl
from denseir_jax.data.lines import BadRows


def write_share(source: Path, target: Path, share: float, seed: int) -> tuple[Callable[[str], bool], int, int]:
    """Write the examples of a training set whose queries come first by a hash of (seed, query id), whole or not at all.

    Args:
        share: of the queries, in (0, 1]; rounded to whole queries, at least one.
    Returns:
        Whether a query id is among them; how many they are; how many there were.
    Raises:
        InputError: the file cannot be read, or a row has no query id.
    """
    places = np.fromiter((place_of(id, seed) for id, _ in _rows(source)), np.uint64)
    kept = max(1, round(share * len(places)))
    last = int(np.partition(places, kept - 1)[kept - 1]) if len(places) else 0

    def among(id: str) -> bool:
        return place_of(id, seed) <= last

    write_rows_of(source, target, among)
    return among, min(kept, len(places)), len(places)


def write_rows_of(source: Path, target: Path, among: Callable[[str], bool]) -> None:
    """Write the rows (of a training set, or of a teacher's scores) whose query id is `among` those wanted."""
    with artifacts.new_file(target) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as stream:
        for id, row in _rows(source):
            if among(id):
                stream.write(json.dumps(row, sort_keys=True, ensure_ascii=False) + "\n")


def place_of(id: str, seed: int) -> int:
    """64 bits: where a query stands in the seed's order, the same in every file that holds it."""
    text = f"{seed}\0{id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _rows(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    bad = BadRows("error")

    def parse(row: object) -> tuple[str, dict[str, object]]:
        assert isinstance(row, dict)
        return jsonl.id_of(row, ("query_id",)), row

    yield from (found for _, found in jsonl.parsed(jsonl.objects(str(path), bad), str(path), bad, parse))

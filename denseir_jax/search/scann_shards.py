"""The index that a run folder keeps: opened, or built and saved there.

Building takes about four times a corpus's float32 vectors of memory, so a large one is built in shards of consecutive rows, one
after another, and searched so too: at any time memory holds one of them. Lists are merged, so that it is one index to the caller.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from denseir_jax.core import artifacts
from denseir_jax.core.console import say
from denseir_jax.core.errors import InputError
from denseir_jax.data.facts import read_facts
from denseir_jax.search.embeddings import Embeddings
from denseir_jax.search.index import ExactIndex, Found, Index, Similarity, best_of
from denseir_jax.search.lexical import Vectors, dense_of
from denseir_jax.search.scann_index import FACT_KINDS, FACTS, Sample, ScannConfig, ScannIndex, build, need_dense


class ShardedScann:
    """ScaNN indexes of consecutive rows in ``00000``, ``00001``, ... of a folder, loaded and searched one after another.

    Attributes:
        n: rows. facts: as of `ScannIndex`, the recall over all; ``starts``: the first row of each shard.
    """

    def __init__(self, folder: Path, facts: Mapping[str, Any]):
        self._folder, self.n = folder, int(facts["n"])
        self.facts: Mapping[str, Any] = dict(facts)

    def search(self, queries: Vectors, k: int) -> Found:
        """As `ScannIndex.search`."""
        found = []
        for number, start in enumerate(self.facts["starts"]):
            scores, rows = ScannIndex.load(_shard(self._folder, number)).search(queries, k)
            found.append((scores, np.where(rows >= 0, rows + start, -1)))
        return best_of(found, min(k, self.n))


def _shard(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}"


def open_or_build(
    folder: Path, vectors: Embeddings, similarity: Similarity, queries: Vectors, k: int, config: ScannConfig, seed: int
) -> Index:
    """The index kept in `folder`, or a new one built from `vectors` and saved there. Small corpora get an `ExactIndex`.

    It is over rows: `documents.by_document` makes one over documents of it.

    Builds are not deterministic, so an index is kept and used again, never rebuilt to reproduce something. A build that was
    interrupted goes on after its last whole shard.

    Args:
        queries: what recall@k is measured on (a seeded sample of them). k: documents; recall is measured at as many rows as they have.
    Raises:
        InputError: the folder holds an index of other vectors; ScaNN is not installed; a vector is NaN or Inf; vectors have
            a lexical part.
    """
    need_dense(vectors.lexical)
    if vectors.n < config.min_points:
        note = f"{vectors.n:,} {'documents' if vectors.starts is None else 'blocks'}, fewer than min_points={config.min_points:,}"
        say(f"index: {note}: exact search instead of ScaNN")
        return ExactIndex(vectors, similarity, note=note)
    if not (folder / FACTS).exists():
        k *= -(-vectors.n // len(vectors.ids))
        return _build_in(folder, vectors, similarity, dense_of(queries), k, config, seed)
    index = _load(folder)
    _need_same(folder, index.facts, vectors, similarity)
    say(f"index: using the one in {folder} (recall@{index.facts['k']} {index.facts['recall']:.3f})")
    return index


def _load(folder: Path) -> ScannIndex | ShardedScann:
    facts = read_facts(folder / FACTS, n=int, dimension=int, similarity=str, k=int, vectors_sha256=str)
    return ShardedScann(folder, facts) if "starts" in facts else ScannIndex.load(folder)


def _need_same(folder: Path, facts: Mapping[str, Any], vectors: Embeddings, similarity: Similarity) -> None:
    if facts["vectors_sha256"] != vectors.sha256 or facts["similarity"] != similarity:
        raise InputError(f"the index in {folder} was built from other vectors; remove it or use another folder")


def _build_in(
    folder: Path, vectors: Embeddings, similarity: Similarity, queries: Float[np.ndarray, "q d"], k: int, config: ScannConfig, seed: int
) -> Index:
    sample = Sample.draw(vectors, similarity, queries, k, config, seed)
    parts = config.shards(vectors.n, vectors.dimension)
    if len(parts) == 1:
        build(vectors, similarity, sample, config).save(folder)
        return _load(folder)  # the one that a restart will search, not its twin in memory
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for number, rows in enumerate(parts):
        place = _shard(folder, number)
        if not place.exists():
            say(f"index: shard {number + 1} of {len(parts)}")
            build(vectors, similarity, sample, config, rows).save(place)
        made.append(read_facts(place / FACTS, start=int, found=int, wanted=int, **FACT_KINDS))
        _need_same(place, made[-1], vectors, similarity)
        if (made[-1]["start"], made[-1]["n"]) != (rows.start, len(rows)):
            raise InputError(f"the index in {folder} was begun with another shard_rows; remove it or use another folder")
    totals = {name: sum(shard[name] for shard in made) for name in ("n", "leaves", "leaves_to_search", "candidates", "found", "wanted")}
    facts = {**made[0], **totals, "recall": totals["found"] / max(totals["wanted"], 1), "starts": [rows.start for rows in parts]}
    artifacts.write_json(folder / FACTS, {name: value for name, value in facts.items() if name != "start"})
    say(f"index: recall@{facts['k']} {facts['recall']:.3f} in {len(parts)} shards")
    return _load(folder)

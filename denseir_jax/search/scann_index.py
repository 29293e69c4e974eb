"""ScaNN behind the `Index` protocol: a tree over asymmetric hashes, exact rescoring, and a recall that was measured.

What the library does silently is caught here: lines padded with document 0 and a NaN score where the probed leaves
hold too few points; NaN vectors accepted; results cut at the rescoring count; saved folders tied to their path.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from denseir_jax.core import artifacts
from denseir_jax.core.console import say
from denseir_jax.core.errors import InputError
from denseir_jax.data.facts import read_facts
from denseir_jax.models.embedder import WordVectors
from denseir_jax.search.embeddings import Embeddings
from denseir_jax.search.index import ExactIndex, Found, Similarity, best_of, check_queries, passage_side
from denseir_jax.search.lexical import Vectors, dense_of
from denseir_jax.search.quiet import quiet_library

FACTS = "index.json"
_SHARD_BYTES = 384 << 20
FACT_KINDS = {"n": int, "dimension": int, "similarity": str, "leaves_to_search": int, "candidates": int, "k": int, "vectors_sha256": str}


@dataclasses.dataclass(frozen=True)
class ScannConfig:
    """How the tree is built and how far it is searched.

    Attributes:
        min_points: smaller corpora are searched exactly. Below about 2,000 a whole scan costs less than a tree saves,
            and leaves of fewer than about 45 points cannot fill a list of 100 results.
        leaves: number of leaves of a shard; 0: the square root of its size, which balances choosing leaves and reading them.
        recall: leaves and candidates are added until recall@k against exact search, over a sample, is at least this.
        sample: queries in that sample. threshold: anisotropic quantisation (Guo et al. 2020, section 3.2).
        shard_rows: most vectors of a shard; 0: as many as take 384 MiB in float32.
    """

    min_points: int = 2000
    leaves: int = 0
    recall: float = 0.95
    sample: int = 200
    threshold: float = 0.2
    shard_rows: int = 0

    def __post_init__(self) -> None:
        if self.min_points < 16:
            raise ValueError(f"min_points={self.min_points}: hashing needs at least 16 points")
        if not 0 <= self.threshold < 1:
            raise ValueError(f"threshold={self.threshold} must be in [0, 1)")
        if self.shard_rows and self.shard_rows < 16:
            raise ValueError(f"shard_rows={self.shard_rows}: expected 0, or 16 points or more, which hashing needs")
        if not 0 < self.recall <= 1 or self.sample < 1 or self.leaves < 0:
            raise ValueError(f"recall={self.recall} must be in (0, 1], sample={self.sample} positive, leaves={self.leaves} not negative")

    def shards(self, n: int, dimension: int) -> list[range]:
        """The rows of each shard, all but equally many."""
        most = self.shard_rows or max(_SHARD_BYTES // (4 * dimension), 16)
        return [range(int(rows[0]), int(rows[-1]) + 1) for rows in np.array_split(np.arange(n), -(-n // most))]


class ScannIndex:
    """A built searcher and the breadth at which it is searched.

    Attributes:
        n: rows. facts: kind, recall, k it was measured at, leaves, leaves_to_search, candidates, vectors' hash.
    """

    def __init__(self, searcher: Any, facts: Mapping[str, Any]):
        self._searcher, self.n = searcher, int(facts["n"])
        self.facts: Mapping[str, Any] = dict(facts)

    def search(self, queries: Vectors, k: int) -> Found:
        """As `Index.search`; a line is short where the probed leaves held fewer than k points."""
        need_dense(queries.words.shape[1] if isinstance(queries, WordVectors) else 0)
        queries = check_queries(dense_of(queries), self.facts["dimension"], self.facts["similarity"])
        return _search(self._searcher, queries, min(k, self.n), self.facts["leaves_to_search"], self.facts["candidates"], self.n)

    def save(self, folder: Path) -> None:
        """Write a folder that can be moved or copied anywhere."""
        with artifacts.new_folder(folder.absolute()) as temporary:
            with quiet_library():
                self._searcher.serialize(str(temporary), relative_path=True)
            artifacts.write_json(temporary / FACTS, self.facts)

    @classmethod
    def load(cls, folder: Path) -> "ScannIndex":
        """Read what `save` wrote.

        Raises:
            InputError: no index there, or it cannot be read.
        """
        facts = read_facts(folder / FACTS, **FACT_KINDS)
        try:
            with quiet_library():
                return cls(_scann().load_searcher(str(folder.absolute())), facts)
        except (RuntimeError, ValueError, OSError) as error:
            raise InputError(f"the ScaNN index in {folder} cannot be read: {error}") from None


def need_dense(words: int) -> None:
    """Raises InputError where vectors have a lexical part, of so many words."""
    if words:
        raise InputError(f"ScaNN searches dense vectors alone; these have a lexical part of {words} words a text: use index=exact")


@dataclasses.dataclass(frozen=True)
class Sample:
    """Queries whose true neighbours are known.

    Attributes:
        queries: as `check_queries` makes them. scores, rows: of their k nearest vectors, by exact search.
    """

    queries: Float[np.ndarray, "q e"]
    scores: Float[np.ndarray, "q k"]
    rows: Int[np.ndarray, "q k"]

    @classmethod
    def draw(
        cls, vectors: Embeddings, similarity: Similarity, queries: Float[np.ndarray, "q d"], k: int, config: ScannConfig, seed: int
    ) -> "Sample":
        """A seeded draw among `queries`, searched exactly."""
        chosen = queries[np.sort(np.random.default_rng(seed).permutation(len(queries))[: config.sample])]
        scores, rows = ExactIndex(vectors, similarity).search(chosen, min(k, vectors.n))
        return cls(check_queries(chosen, vectors.dimension, similarity), scores, rows)


def build(vectors: Embeddings, similarity: Similarity, sample: Sample, config: ScannConfig, rows: range | None = None) -> ScannIndex:
    """Build in memory (the vectors as float32, once), then widen the search until the recall target is met.

    Args:
        sample: the nearest of all `vectors` to some queries. rows: of a shard; all if not given.
    """
    scann = _scann()
    rows = range(vectors.n) if rows is None else rows
    matrix = passage_side(vectors.whole(rows.start, rows.stop), similarity)
    n, k = len(rows), min(sample.scores.shape[1], len(rows))
    leaves = min(config.leaves or max(round(math.sqrt(n)), 1), n // 16)
    say(f"index: building ScaNN over {n:,} x {vectors.dimension} vectors, {leaves} leaves")
    plan = (
        scann.builder(matrix, k, "dot_product")
        .tree(num_leaves=leaves, num_leaves_to_search=leaves, training_sample_size=min(n, 250_000))
        .score_ah(2, anisotropic_quantization_threshold=config.threshold)
        .reorder(min(n, 4 * k))
    )
    with quiet_library():
        searcher = plan.build()
    breadth = _widen(searcher, matrix, sample, rows, leaves, config.recall)
    say(f"index: recall@{k} {breadth['recall']:.3f} with {breadth['leaves_to_search']} of {leaves} leaves")
    size = {
        "kind": "scann",
        "n": n,
        "start": rows.start,
        "dimension": vectors.dimension,
        "similarity": similarity,
        "leaves": leaves,
        "k": k,
    }
    return ScannIndex(
        searcher,
        {**size, **breadth, "sample": len(sample.queries), "recall_target": config.recall, "vectors_sha256": vectors.sha256},
    )


def _widen(searcher: Any, matrix: np.ndarray, sample: Sample, rows: range, leaves: int, target: float) -> dict[str, Any]:
    """Double the leaves, then the rescored candidates, until recall suffices. All leaves, all candidates is exact."""
    n, k = len(matrix), min(sample.scores.shape[1], len(matrix))
    probe, candidates = max(leaves // 16, 1), min(n, 4 * k)
    while True:
        _, lines = _search(searcher, sample.queries, k, probe, candidates, n)
        found, wanted = _hits(matrix, sample, lines, rows)
        recall = found / wanted if wanted else 1.0
        if recall >= target or (probe == leaves and candidates == n):
            return {"recall": recall, "found": found, "wanted": wanted, "leaves_to_search": probe, "candidates": candidates}
        if probe < leaves:
            probe = min(2 * probe, leaves)
        else:
            candidates = min(2 * candidates, n)


def _hits(matrix: Float[np.ndarray, "n e"], sample: Sample, lines: Int[np.ndarray, "q k"], rows: range) -> tuple[int, int]:
    """How many of the sample's nearest that lie in `rows` were found, and how many do.

    One counts as found if its true score reaches the exact k-th: equals are interchangeable.
    """
    worst = sample.scores[:, -1:]
    bars = worst - 1e-5 * np.maximum(np.abs(worst), 1)
    wanted = ((sample.rows >= rows.start) & (sample.rows < rows.stop)).sum(1)
    found = 0
    for query, line, bar, most in zip(sample.queries, lines, bars, wanted, strict=True):
        found += min(int((matrix[line[line >= 0]] @ query >= bar).sum()), int(most))
    return found, int(wanted.sum())


def _search(searcher: Any, queries: np.ndarray, k: int, probe: int, candidates: int, n: int) -> Found:
    """Search and clean: a NaN score marks padding (row 0 with a true score is a result); lines are closed up."""
    if not len(queries):
        return np.zeros((0, k), np.float32), np.zeros((0, k), np.int64)
    rows, scores = searcher.search_batched_parallel(
        queries, final_num_neighbors=k, pre_reorder_num_neighbors=min(max(candidates, k), n), leaves_to_search=probe
    )
    rows, scores = np.asarray(rows, np.int64), np.asarray(scores, np.float32)
    real = np.isfinite(scores) & (rows < n)
    rows, scores = np.where(real, rows, -1), np.where(real, scores, -np.inf)
    return best_of([(scores, rows)], k)


def _scann() -> Any:
    """The library, imported on first use: there is none for macOS or Windows.

    Raises:
        InputError: it is not installed; says what to use instead.
    """
    try:
        from scann.scann_ops.py import scann_ops_pybind
    except ImportError as error:
        raise InputError(f"ScaNN cannot be imported here ({error}): it exists for Linux only; use index=exact") from None
    return scann_ops_pybind

"""What ranks a dataset's passages for `evaluate`: a retriever, BM25, or both as a hybrid."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from denseir_jax.core.console import say
from denseir_jax.core.errors import InputError
from denseir_jax.data import pickled_vectors
from denseir_jax.data.records import Dataset, Ranking
from denseir_jax.evals import hybrid
from denseir_jax.evals.hybrid import Scorer
from denseir_jax.pipeline.stages.encode import VECTORS, given, passage_vectors
from denseir_jax.pipeline.stages.evaluate import EvaluateConfig, VectorFiles
from denseir_jax.search.bm25 import Bm25
from denseir_jax.search.documents import open_index
from denseir_jax.search.embeddings import Embeddings
from denseir_jax.search.encode import encode_queries
from denseir_jax.search.index import ExactIndex, Index, row_scorer, to_ranking
from denseir_jax.search.lexical import Vectors
from denseir_jax.search.retriever import load_retriever
from denseir_jax.search.scann_index import ScannConfig, need_dense

INDEX = "index"


@runtime_checkable
class Ranker(Protocol):
    """Ranks passages."""

    @property
    def ids(self) -> Sequence[str]:
        """Of all passages, in corpus order."""
        ...

    def rank(self, queries: Mapping[str, str]) -> tuple[Ranking, dict[str, Any]]:
        """The run of these queries (id -> text), and facts for the metrics."""
        ...


def build(config: EvaluateConfig, dataset: Dataset, folder: Path) -> Ranker:
    """The system that the config asks for; what it makes on the way is kept in `folder`."""
    if config.vectors.passages:
        return Given(config.vectors, config.depth)
    dense = None if config.retriever == "bm25" else Dense(config, dataset, folder)
    if dense is not None and not config.hybrid:
        return dense
    sparse = Sparse(Bm25.build(dataset.corpus(), config.bm25), config.depth)
    return Hybrid(config, dataset, sparse, dense) if dense is not None else sparse


class Sparse:
    """BM25."""

    def __init__(self, bm25: Bm25, depth: int):
        self._bm25, self._depth, self.ids = bm25, depth, bm25.ids

    def rank(self, queries: Mapping[str, str]) -> tuple[Ranking, dict[str, Any]]:
        """As `Ranker.rank`; a passage that shares no word with the query is not ranked."""
        return self._bm25.search(queries, self._depth), {}

    def scorer(self, queries: Mapping[str, str]) -> Scorer:
        """True scores of any passages for these queries."""
        return lambda query, ids: self._bm25.score_of(queries[query], ids)


class Given:
    """Vectors that another tool made, searched exactly."""

    def __init__(self, files: VectorFiles, depth: int):
        self._files, self._depth = files, depth
        self.ids, vectors = _pickled(files.passages)
        self._index = ExactIndex(Embeddings.of_array(self.ids, vectors), files.similarity)

    def rank(self, queries: Mapping[str, str]) -> tuple[Ranking, dict[str, Any]]:
        """As `Ranker.rank`.

        Raises:
            InputError: a query has no vector.
        """
        ids, vectors = _pickled(self._files.queries)
        row_of = {query: row for row, query in enumerate(ids)}
        lost = next((query for query in queries if query not in row_of), None)
        if lost is not None:
            raise InputError(
                f"{', '.join(self._files.queries)}: no vector for the query {lost!r}; expected one for every query of the split"
            )
        wanted = vectors[np.array([row_of[query] for query in queries], np.int64)]
        return to_ranking(list(queries), self.ids, *self._index.search(wanted, self._depth)), {"index": dict(self._index.facts)}


def _pickled(paths: Sequence[str]) -> tuple[list[str], Float[np.ndarray, "n d"]]:
    """Ids and float32 vectors of several files, as one.

    Raises:
        InputError: as `pickled_vectors.read`; files of different dimensions, or with one id twice.
    """
    parts = [pickled_vectors.read(path) for path in paths]
    ids = [id for found, _ in parts for id in found]
    if len({vectors.shape[1] for _, vectors in parts}) > 1:
        found = ", ".join(f"{path} {vectors.shape[1]}" for path, (_, vectors) in zip(paths, parts, strict=True))
        raise InputError(f"vectors of different dimensions: {found}; expected one")
    if len(set(ids)) < len(ids):
        raise InputError(f"{', '.join(paths)}: {len(ids) - len(set(ids)):,} ids are in several files; expected each once")
    return ids, np.concatenate([vectors.astype(np.float32) for _, vectors in parts])


class Dense:
    """A retriever over the vectors of the corpus, made here unless an encode run brings them."""

    def __init__(self, config: EvaluateConfig, dataset: Dataset, folder: Path):
        self._config, self._folder = config, folder
        self._retriever = load_retriever(config.retriever, given(config.template))
        if config.index == "scann":
            need_dense(self._retriever.lexical)  # before the corpus is encoded
        self._vectors = passage_vectors(config.embeddings, dataset.corpus(), self._retriever, folder / VECTORS)
        self.ids = self._vectors.ids
        self._row = {document: row for row, document in enumerate(self.ids)}
        self._index: Index | None = None

    def rank(self, queries: Mapping[str, str]) -> tuple[Ranking, dict[str, Any]]:
        """As `Ranker.rank`."""
        return self.search(queries, self.encode(queries)), self.facts

    def encode(self, queries: Mapping[str, str]) -> Vectors:
        """Vectors of the queries, in their order."""
        return encode_queries(self._retriever, queries)

    def search(self, queries: Mapping[str, str], vectors: Vectors) -> Ranking:
        """The best passages of queries with known vectors."""
        index = self._index = self._index or self._open(vectors)
        scores, rows = index.search(vectors, self._config.depth)
        return to_ranking(list(queries), self.ids, scores, rows)

    def _open(self, queries: Vectors) -> Index:
        config, folder, depth = self._config, self._folder / INDEX, min(self._config.depth, 100)
        return open_index(config.index, folder, self._vectors, self._retriever.similarity, queries, depth, ScannConfig(), config.seed)

    def scorer(self, queries: Mapping[str, str], vectors: Vectors) -> Scorer:
        """True scores of any passages for these queries."""
        scores = row_scorer(self._vectors, vectors, self._retriever.similarity)
        number = {query: place for place, query in enumerate(queries)}

        def score(query: str, ids: Sequence[str]) -> list[float]:
            rows = np.array([self._row[document] for document in ids], dtype=np.int64)
            return [float(s) for s in scores(number[query], rows)]

        return score

    @property
    def facts(self) -> dict[str, Any]:
        """For the metrics: which parameters, and how exact the index is."""
        return {"params_sha256": self._retriever.params_sha256, "index": dict(self._index.facts) if self._index else {}}


class Hybrid:
    """BM25 and dense lists fused; what one list lacks is scored truly, so the union of both is ranked as if exhaustively."""

    def __init__(self, config: EvaluateConfig, dataset: Dataset, sparse: Sparse, dense: Dense):
        self._config, self._dataset, self._sparse, self._dense = config, dataset, sparse, dense
        if set(sparse.ids) != set(dense.ids):
            raise InputError(f"{config.embeddings} holds vectors of other passages than {config.dataset} has")
        self.ids = sparse.ids

    def rank(self, queries: Mapping[str, str]) -> tuple[Ranking, dict[str, Any]]:
        """As `Ranker.rank`; the weight is tuned on the other split first."""
        if self._config.fusion == "reciprocal_rank":
            runs = [self._sparse.rank(queries)[0], self._dense.rank(queries)[0]]
            return hybrid.reciprocal_rank_fusion(runs, depth=self._config.depth), self._dense.facts
        split, measure = self._config.tune_split, self._config.tune_measure
        tuned = hybrid.tune_weight(self._candidates(self._dataset.queries(split)), self._dataset.qrels(split), measure)
        say(f"hybrid: BM25 + {tuned.weight:.4g} x dense, chosen on {split} ({measure} {tuned.value:.4f})")
        facts = {"hybrid": {**dataclasses.asdict(tuned), "split": split, "measure": measure}, **self._dense.facts}
        return hybrid.weighted_sum(self._candidates(queries), tuned.weight, self._config.depth), facts

    def _candidates(self, queries: Mapping[str, str]) -> dict[str, hybrid.Candidates]:
        vectors = self._dense.encode(queries)
        return hybrid.align(
            self._sparse.rank(queries)[0],
            self._dense.search(queries, vectors),
            self._config.normalisation,
            self._sparse.scorer(queries),
            self._dense.scorer(queries, vectors),
        )

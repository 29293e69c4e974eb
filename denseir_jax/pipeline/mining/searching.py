"""Queries -> rankings, by BM25 or by a trained retriever, and the scores of positives that a margin needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from denseir_jax.core import failpoints
from denseir_jax.core.artifacts import Run
from denseir_jax.data.records import Dataset
from denseir_jax.pipeline.mining.config import MineConfig
from denseir_jax.pipeline.stages.encode import VECTORS, given, passage_vectors
from denseir_jax.search import scann_index
from denseir_jax.search.bm25 import Bm25
from denseir_jax.search.documents import open_index
from denseir_jax.search.embeddings import Embeddings
from denseir_jax.search.encode import encode_queries
from denseir_jax.search.index import Index, row_scorer
from denseir_jax.search.lexical import Vectors
from denseir_jax.search.rankings import Rankings
from denseir_jax.search.retriever import Retriever, load_retriever


@dataclass(frozen=True)
class Searched:
    """Rankings, and where a margin needs it the score of each query's best positive, retrieved or not; nan where none is there."""

    rankings: Rankings
    best_score: dict[str, float]


@runtime_checkable
class Searcher(Protocol):
    """What ranks passages for queries (id -> text), whose positives are known. `facts`: for the manifest."""

    facts: Mapping[str, Any]

    def search(self, queries: Mapping[str, str], known: Mapping[str, Sequence[str]]) -> Searched: ...


def searcher(run: Run, dataset: Dataset) -> Searcher:
    """The one that the config names; its index and vectors are kept in the run folder."""
    if run.config.retriever == "bm25":
        return _Bm25(run, dataset)
    retriever = load_retriever(run.config.retriever, given(run.config.template))
    if run.config.index == "scann":
        scann_index.need_dense(retriever.lexical)  # before the corpus is encoded
    return Dense(run.config, retriever, encoded_passages(run, dataset, retriever), run.path / "index")


class _Bm25:
    def __init__(self, run: Run, dataset: Dataset):
        self._config: MineConfig = run.config
        folder = run.path / "bm25"
        if not folder.exists():
            Bm25.build(dataset.corpus(), self._config.bm25).save(folder)
        self._index = Bm25.load(folder)
        self.facts: Mapping[str, Any] = {"kind": "bm25", "n": len(self._index.ids)}

    def search(self, queries: Mapping[str, str], known: Mapping[str, Sequence[str]]) -> Searched:
        best = {}
        if self._config.has_margin:
            best = {query: _largest(self._index.score_of(text, known.get(query, ()))) for query, text in queries.items()}
        return Searched(self._index.rankings(queries, self._config.depth), best)


class Dense:
    """Searches the vectors of a corpus by the retriever that made them.

    The index is built at the first search, and a ScaNN index kept in `folder`: how well it finds is measured with those queries.
    """

    def __init__(self, config: MineConfig, retriever: Retriever, passages: Embeddings, folder: Path):
        self._config, self._retriever, self._passages, self._folder = config, retriever, passages, folder
        self._index: Index | None = None
        self.facts: Mapping[str, Any] = {}

    def search(self, queries: Mapping[str, str], known: Mapping[str, Sequence[str]]) -> Searched:
        vectors = encode_queries(self._retriever, queries, self._config.batch_tokens)
        index = self._index = self._index or self._open(vectors)
        rankings = Rankings(list(queries), self._passages.ids, *index.search(vectors, self._config.depth))
        return Searched(rankings, self._best(queries, vectors, known) if self._config.has_margin else {})

    def _open(self, vectors: Vectors) -> Index:
        config, similarity = self._config, self._retriever.similarity
        index = open_index(config.index, self._folder, self._passages, similarity, vectors, config.depth, config.scann, config.seed)
        failpoints.reach("mine_index")
        self.facts = {**index.facts, "params_sha256": self._retriever.params_sha256}
        return index

    def _best(self, queries: Mapping[str, str], vectors: Vectors, known: Mapping[str, Sequence[str]]) -> dict[str, float]:
        row_of = {item: row for row, item in enumerate(self._passages.ids)}
        scores, best = row_scorer(self._passages, vectors, self._retriever.similarity), {}
        for number, query in enumerate(queries):
            rows = np.array([row_of[item] for item in known.get(query, ()) if item in row_of], np.int64)
            best[query] = _largest(scores(number, rows).tolist() if len(rows) else [])
        return best


def _largest(scores: Sequence[float]) -> float:
    finite = [score for score in scores if np.isfinite(score)]
    return max(finite) if finite else float("nan")


def encoded_passages(run: Run, dataset: Dataset, retriever: Retriever) -> Embeddings:
    """The vectors of the corpus: those of the encode run that the config names (``embeddings``), or encoded here."""
    return passage_vectors(run.config.embeddings, dataset.corpus(), retriever, run.path / VECTORS, run.config.batch_tokens)

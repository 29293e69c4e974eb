"""Documents of several blocks in search: a document is as near as its best block, and comes back once (MaxP)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from denseir_jax.core.console import say
from denseir_jax.search.embeddings import Embeddings
from denseir_jax.search.index import ExactIndex, Found, Index, Similarity
from denseir_jax.search.lexical import Vectors, taken
from denseir_jax.search.scann_index import ScannConfig
from denseir_jax.search.scann_shards import open_or_build

_CELLS = 1 << 25  # results held at a time, 12 bytes each


def open_index(
    kind: Literal["exact", "scann"],
    folder: Path,
    vectors: Embeddings,
    similarity: Similarity,
    queries: Vectors,
    k: int,
    config: ScannConfig,
    seed: int,
) -> Index:
    """An index over the documents of `vectors`, exact or of ScaNN; arguments and errors as of `scann_shards.open_or_build`."""
    rows: Index = ExactIndex(vectors, similarity)
    if kind == "scann":
        rows = open_or_build(folder, vectors, similarity, queries, k, config, seed)
    return by_document(rows, vectors, similarity)


def by_document(index: Index, vectors: Embeddings, similarity: Similarity) -> Index:
    """An index over rows of `vectors` as one over their documents: itself where a document is a row."""
    return index if vectors.starts is None else DocumentIndex(index, vectors, similarity)


class DocumentIndex:
    """`Index` over the documents of `vectors`: rows are numbers of ``vectors.ids``, scores those of the best blocks.

    The blocks are searched twice as deep as documents are asked for, and deeper for those queries whose blocks were of too few
    documents. No document has more than b blocks, so among b k blocks there are k documents, and the search ends there. Where an
    approximate index cannot give so many, its probed leaves being too small, these queries are searched exactly: k documents
    always come back where there are as many. Equal scores are ordered by document. With an approximate index the best block is the
    best of those that it found.

    Args:
        index: over the rows of `vectors`, by `similarity`.
    Attributes:
        n: documents. facts: those of `index`, and ``documents``.
    """

    def __init__(self, index: Index, vectors: Embeddings, similarity: Similarity):
        starts = np.arange(vectors.n + 1) if vectors.starts is None else vectors.starts
        self._index, self._vectors, self._similarity = index, vectors, similarity
        self._most, self._document = int(np.diff(starts).max(initial=1)), np.repeat(np.arange(len(vectors.ids)), np.diff(starts))
        self.n = len(vectors.ids)
        self.facts: Mapping[str, Any] = {**index.facts, "documents": self.n}

    def search(self, queries: Vectors, k: int) -> Found:
        """As `Index.search`; every line is full."""
        k = max(min(k, self.n), 0)
        scores, documents = np.full((len(queries), k), -np.inf, np.float32), np.full((len(queries), k), -1, np.int64)
        waiting, most = np.arange(len(queries)), min(self._most * k, self._vectors.n)
        index, depth = self._index, min(2 * k, most)
        while len(waiting) and k:
            found = np.concatenate([self._fill(index, queries, part, depth, scores, documents) for part in _parts(waiting, depth)])
            waiting = waiting[~found]
            if depth < most:
                depth = min(2 * depth, most)
            elif len(waiting):
                say(f"index: {len(waiting):,} queries found fewer than {k:,} documents in the leaves that are probed: searched exactly")
                index = ExactIndex(self._vectors, self._similarity)
        return scores, documents

    def _fill(self, index: Index, queries: Vectors, part: np.ndarray, depth: int, scores: np.ndarray, documents: np.ndarray) -> np.ndarray:
        """Search for these queries, keep what is found, and say for which of them it suffices."""
        scores[part], documents[part] = best_blocks(*index.search(taken(queries, part), depth), self._document, scores.shape[1])
        return np.asarray(documents[part, -1] >= 0)


def best_blocks(
    scores: Float[np.ndarray, "q m"], rows: Int[np.ndarray, "q m"], document: Int[np.ndarray, " n"], k: int
) -> tuple[Float[np.ndarray, "q k"], Int[np.ndarray, "q k"]]:
    """The first k documents of each line of blocks, each with its first, best block's score; -inf and -1 where there are fewer.

    Args:
        rows: -1 in empty places, which are last. document: of each row.
    """
    found = np.where(rows >= 0, document[rows], -1)
    order = np.argsort(found, axis=1, kind="stable")
    ordered = np.take_along_axis(found, order, 1)
    first = np.ones(found.shape, bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    kept = np.zeros(found.shape, bool)
    np.put_along_axis(kept, order, first & (ordered >= 0), 1)
    place = np.cumsum(kept, axis=1) - 1
    line, column = np.nonzero(kept & (place < k))
    best, of = np.full((len(rows), k), -np.inf, np.float32), np.full((len(rows), k), -1, np.int64)
    best[line, place[line, column]], of[line, place[line, column]] = scores[line, column], found[line, column]
    return best, of


def _parts(queries: np.ndarray, depth: int) -> list[np.ndarray]:
    size = max(_CELLS // depth, 1)
    return [queries[i : i + size] for i in range(0, len(queries), size)]

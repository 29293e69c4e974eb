"""Nearest vectors: the protocol that every index keeps, and the exact one (device matmul + top-k)."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.sparse import csr_array

from denseir_jax.core.errors import InputError
from denseir_jax.data.records import Ranking
from denseir_jax.search import lexical
from denseir_jax.search.devices import rows_over_devices
from denseir_jax.search.embeddings import Embeddings
from denseir_jax.search.lexical import Vectors
from denseir_jax.search.rankings import Rankings

Similarity = Literal["dot", "cosine", "l2"]
Found = tuple[Float[np.ndarray, "q k"], Int[np.ndarray, "q k"]]


@runtime_checkable
class Index(Protocol):
    """Scores descending and their rows, k = min(asked, n) columns.

    Where a query has fewer results, the rest of its line is row -1 with score -inf: never a made-up document.

    Attributes:
        n: rows indexed. facts: how it was built, for manifests ("kind", and for approximate ones "recall").
    """

    n: int
    facts: Mapping[str, Any]

    def search(self, queries: Vectors, k: int) -> Found:
        """float32 scores [q, k] and int64 rows [q, k]; InputError for a query vector that is NaN or Inf."""
        ...


def unit(vectors: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """Rows divided by their length; a zero row stays zero, so that its cosine with anything is 0."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(vectors.dtype)


def query_side(vectors: Float[np.ndarray, "n d"], similarity: Similarity) -> Float[np.ndarray, "n e"]:
    """Vectors whose dot product with `passage_side` is the similarity: of length 1 for cosine; for l2 [2 q, 1, |q|^2]."""
    if similarity != "l2":
        return unit(vectors) if similarity == "cosine" else vectors
    square = np.square(vectors).sum(1, keepdims=True)
    return np.concatenate([2 * vectors, np.ones_like(square), square], axis=1)


def passage_side(vectors: Float[np.ndarray, "n d"], similarity: Similarity) -> Float[np.ndarray, "n e"]:
    """See `query_side`; for l2 [p, -|p|^2, -1], so that the product is -|q - p|^2."""
    if similarity != "l2":
        return unit(vectors) if similarity == "cosine" else vectors
    square = np.square(vectors).sum(1, keepdims=True)
    return np.concatenate([vectors, -square, -np.ones_like(square)], axis=1)


def check_queries(queries: Float[np.ndarray, "q d"], dimension: int, similarity: Similarity) -> Float[np.ndarray, "q e"]:
    """Queries as float32, as `query_side` makes them.

    Raises:
        InputError: another dimension than the index, or NaN or Inf among them.
    """
    if queries.shape[1] != dimension:
        raise InputError(f"query vectors have {queries.shape[1]} dimensions, the index {dimension}")
    queries = np.ascontiguousarray(queries, np.float32)
    bad = np.flatnonzero(~np.isfinite(queries).all(axis=1))
    if len(bad):
        raise InputError(f"query vector {bad[0]} is not finite (NaN or Inf), one of {len(bad)} such")
    return query_side(queries, similarity)


class ExactIndex:
    """Every score computed in float32, in blocks of the corpus merged by top-k: memory does not grow with the corpus.

    Equal scores are ordered by row, ascending. Queries are split over the local devices. Where vectors have a lexical part,
    its scores are computed on the host and added to the dense ones.

    Args:
        vectors: the corpus. similarity: dot, cosine (both sides of length 1), or l2: -|q - p|^2.
        block_rows, query_rows: sizes of one matmul; block_rows x query_rows x 4 bytes of scores exist at once.
    """

    def __init__(
        self,
        vectors: Embeddings,
        similarity: Similarity,
        block_rows: int = 16384,
        query_rows: int = 512,
        note: str = "every score computed",
    ):
        self.vectors, self.similarity, self.n = vectors, similarity, vectors.n
        self.block_rows, self.query_rows = min(block_rows, _power_of_two(vectors.n)), query_rows
        self.facts: Mapping[str, Any] = {"kind": "exact", "note": note, "n": self.n}

    def search(self, queries: Vectors, k: int) -> Found:
        """As `Index.search`; every line is full."""
        words = _query_words(queries, self.vectors)
        queries = check_queries(lexical.dense_of(queries), self.vectors.dimension, self.similarity)
        k = min(k, self.n)
        if k < 1 or not len(queries):
            return np.zeros((len(queries), max(k, 0)), np.float32), np.zeros((len(queries), max(k, 0)), np.int64)
        split, whole, devices = rows_over_devices()
        size = -(-min(self.query_rows, _power_of_two(len(queries))) // devices) * devices
        padded = np.zeros((-(-len(queries) // size) * size, queries.shape[1]), np.float32)
        padded[: len(queries)] = queries
        chunks = [jax.device_put(padded[i : i + size], split) for i in range(0, len(padded), size)]
        nothing = np.full((size, k), -np.inf, np.float32), np.full((size, k), -1, np.int32)
        best = [jax.device_put(nothing, split)] * len(chunks)
        for start, block in self.vectors.blocks(self.block_rows):
            rows = np.zeros((self.block_rows, queries.shape[1]), np.float32)
            rows[: len(block)] = passage_side(block, self.similarity)
            device_rows = jax.device_put(rows, whole)
            added = self._lexical_scores(words, start, range(0, len(padded), size))
            found = zip(chunks, best, added, strict=True)
            best = [_merge(chunk, device_rows, start, len(block), *before, more) for chunk, before, more in found]
        scores = np.concatenate([np.asarray(found[0]) for found in best])[: len(queries)]
        return scores, np.concatenate([np.asarray(found[1]) for found in best])[: len(queries)].astype(np.int64)

    def _lexical_scores(self, queries: csr_array | None, start: int, chunks: range) -> Iterator[jax.Array | None]:
        """Of each chunk of queries with the block at row `start`, padded as both are; None where there is no lexical part."""
        if queries is None:
            yield from itertools.repeat(None, len(chunks))
            return
        rows = self.vectors.lexical_rows(start, start + self.block_rows)
        for first in chunks:
            found = lexical.scores(queries[first : first + chunks.step], rows)
            padded = np.zeros((chunks.step, self.block_rows), np.float32)
            padded[: found.shape[0], : found.shape[1]] = found
            yield jax.device_put(padded, rows_over_devices()[0])


@jax.jit
def _merge(
    queries: Float[Array, "q d"],
    block: Float[Array, "m d"],
    start: Int[Array, ""],
    valid: Int[Array, ""],
    scores: Float[Array, "q k"],
    rows: Int[Array, "q k"],
    added: Float[Array, "q m"] | None,
) -> tuple[Float[Array, "q k"], Int[Array, "q k"]]:
    """Top-k of what was found before and of one block. Earlier rows stand first, and top_k keeps the first of equals.

    Args:
        valid: rows of the block that are real. added: to the dense scores.
    """
    new = jnp.einsum("qd,md->qm", queries, block, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32)
    new = new if added is None else new + added
    column = jnp.arange(block.shape[0], dtype=jnp.int32)
    new = jnp.where(column < valid, new, -jnp.inf)
    everything = jnp.concatenate([scores, new], axis=1)
    everywhere = jnp.concatenate([rows, jnp.broadcast_to(column + start, new.shape)], axis=1)
    top, position = jax.lax.top_k(everything, scores.shape[1])
    return top, jnp.take_along_axis(everywhere, position, axis=1)


def _query_words(queries: Vectors, vectors: Embeddings) -> csr_array | None:
    """The lexical part of queries.

    Raises:
        InputError: they have one and the corpus has not, or the other way round, or it is over another vocabulary; NaN or Inf.
    """
    words = lexical.rows_of(queries)
    if words is not None and not np.isfinite(words.data).all():
        raise InputError("the lexical part of the query vectors is not finite (NaN or Inf)")
    theirs = 0 if words is None else words.shape[1]
    if theirs != vectors.vocab_size:
        raise InputError(f"query vectors have a lexical part over {theirs} words, the index over {vectors.vocab_size}")
    return words


def best_of(found: Sequence[tuple[np.ndarray, np.ndarray]], k: int) -> Found:
    """The k best of several lists, scores and rows [q, _] over different rows: score descending, equal scores by row; empty places last."""
    scores, rows = (np.concatenate(parts, axis=1) for parts in zip(*found, strict=True))
    order = np.lexsort((rows, -scores))[:, :k]
    missing = ((0, 0), (0, k - order.shape[1]))
    scores, rows = np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)
    return np.pad(scores, missing, constant_values=-np.inf), np.pad(rows, missing, constant_values=-1)


def row_scorer(vectors: Embeddings, queries: Vectors, similarity: Similarity) -> Callable[[int, Int[np.ndarray, " k"]], np.ndarray]:
    """A function of a query's number and numbers of documents: their true scores (those of their best rows), computed on the host."""
    dense, words = query_side(lexical.dense_of(queries), similarity), _query_words(queries, vectors)

    def score(query: int, rows: Int[np.ndarray, " k"]) -> np.ndarray:
        found: np.ndarray = passage_side(vectors.take(rows), similarity) @ dense[query]
        return found if words is None else found + lexical.scores(words[query : query + 1], vectors.lexical_take(rows))[0]

    def best(query: int, documents: Int[np.ndarray, " k"]) -> np.ndarray:
        if vectors.starts is None or not len(documents):
            return score(query, documents)
        rows = [np.arange(*vectors.starts[document : document + 2]) for document in documents.tolist()]
        places = np.cumsum([0, *map(len, rows[:-1])])
        return np.asarray(np.maximum.reduceat(score(query, np.concatenate(rows)), places))

    return best


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def to_ranking(
    query_ids: Sequence[str], document_ids: Sequence[str], scores: Float[np.ndarray, "q k"], rows: Int[np.ndarray, "q k"]
) -> Ranking:
    """Query id -> [(document id, score)], best first; the empty places of short lines are left out."""
    return dict(Rankings(query_ids, document_ids, scores, rows))

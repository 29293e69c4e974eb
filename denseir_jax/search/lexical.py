"""Vectors with a lexical part, in search: the score is the dot product of the dense vectors plus that of the sparse rows."""

import numpy as np
from jaxtyping import Float, Int, Integer
from scipy.sparse import csr_array

from denseir_jax.models.embedder import WordVectors

Vectors = Float[np.ndarray, "n d"] | WordVectors  # without a lexical part, and with one


def dense_of(vectors: Vectors) -> Float[np.ndarray, "n d"]:
    """The dense vectors alone."""
    dense: np.ndarray = vectors.dense if isinstance(vectors, WordVectors) else vectors
    return dense


def taken(vectors: Vectors, rows: Int[np.ndarray, " k"]) -> Float[np.ndarray, "k d"] | WordVectors:
    """Some of the vectors, by number."""
    if not isinstance(vectors, WordVectors):
        return vectors[rows]
    return WordVectors(vectors.dense[rows], vectors.words[rows], vectors.weights[rows], vectors.vocab_size)


def rows_of(vectors: Vectors) -> csr_array | None:
    """The lexical part [n, vocabulary]; None where there is none."""
    return sparse_rows(vectors.words, vectors.weights, vectors.vocab_size) if isinstance(vectors, WordVectors) else None


def sparse_rows(words: Integer[np.ndarray, "m k"], weights: Float[np.ndarray, "m k"], vocab_size: int) -> csr_array:
    """Row i has `weights[i]` at `words[i]`, in float32."""
    m, k = words.shape
    places = words.astype(np.int32).reshape(-1)
    return csr_array((weights.astype(np.float32).reshape(-1), places, np.arange(m + 1, dtype=np.int64) * k), shape=(m, vocab_size))


def scores(queries: csr_array, passages: csr_array) -> Float[np.ndarray, "q m"]:
    """Dot products. One is summed in the order of the query's words, whatever other rows there are."""
    found: np.ndarray = (queries @ passages.T).toarray()
    return found


def word_type(vocab_size: int) -> str:
    """The type that word ids are stored in."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"

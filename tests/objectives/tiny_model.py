"""A context of a few numbers, and rows for it, shared by the tests of objectives."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.objectives.base import Context, Objective

PAD, UNK, CLS, SEP, MASK = range(5)
VOCAB, LENGTH, QUERY = 90, 16, 8


def context(**encoder: Any) -> Context:
    embedder = encoder.pop("embedder", EmbedderConfig())
    sizes: dict[str, Any] = {"hidden": 16, "layers": 2, "heads": 2, "intermediate": 32, "max_length": 32, "scan": True}
    return Context(EncoderConfig(VOCAB, **(sizes | encoder)), embedder, CLS, SEP, PAD, MASK, VOCAB, QUERY, LENGTH, seed=3, unk_id=UNK)


def texts(b: int, length: int, seed: int) -> tuple[jax.Array, jax.Array]:
    """ids [b, length] and real lengths [b]."""
    rng = np.random.default_rng(seed)
    size = rng.integers(5, length + 1, b)
    at = np.arange(length)
    ids = np.where(at < size[:, None] - 1, rng.integers(5, VOCAB, (b, length)), PAD)
    ids[:, 0], ids[np.arange(b), size - 1] = CLS, SEP
    return jnp.asarray(ids, jnp.int32), jnp.asarray(size, jnp.int32)


def masked_rows(b: int, seed: int = 0, length: int = LENGTH) -> dict[str, jax.Array]:
    ids, size = texts(b, length, seed)
    inside = (np.arange(length) > 0) & (np.arange(length) < np.asarray(size)[:, None] - 1)
    start = (np.random.default_rng(seed).random((b, length)) < 0.7) & inside
    return {"input_ids": ids, "length": size, "word_start": jnp.asarray(start, jnp.int32), "index": jnp.arange(b, dtype=jnp.int32) + 11}


def span_rows(b: int, seed: int = 0) -> dict[str, jax.Array]:
    """Two texts a row, as objectives on pairs of spans read them; rows 0 and 2 are one document."""
    one, other = masked_rows(b, seed), masked_rows(b, seed + 1)
    pairs = {name: jnp.stack([one[name], other[name]], axis=1) for name in one if name != "index"}
    return pairs | {"index": one["index"], "document": jnp.arange(b).at[2].set(0)}


def keys(rows: dict[str, jax.Array]) -> jax.Array:
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(5), rows["index"])


def quick(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled without much optimisation: compiling is most of what these tests cost."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


@functools.cache
def params_of(objective: Objective) -> Any:
    return quick(objective.init)(jax.random.key(0))


@functools.cache
def compiled(objective: Objective, train: bool) -> Callable[..., Any]:
    return quick(functools.partial(evaluate, objective, train))


def run(objective: Objective, params: Any, rows: Any, train: bool = False) -> Any:
    """(loss, metrics, vectors) on the whole batch."""
    return compiled(objective, train)(params, rows)


def evaluate(objective: Objective, train: bool, params: Any, rows: Any) -> Any:
    """As `run`, to be compiled or differentiated by the caller."""
    vectors, sums = objective.per_row(params, rows, keys(rows) if train else None, train)
    return *objective.over_batch(params, vectors, sums, rows), vectors


def in_parts(objective: Objective, params: Any, rows: Any, n: int) -> Any:
    """The loss with rows encoded in n parts, with dropout."""
    chunks = {name: value.reshape(n, -1, *value.shape[1:]) for name, value in rows.items()}
    vectors, sums = jax.lax.map(lambda chunk: objective.per_row(params, chunk, keys(chunk), True), chunks)
    vectors = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), vectors)
    sums = jax.tree.map(lambda x: x.sum(0), sums)
    return objective.over_batch(params, vectors, sums, rows)[0]


def same_in_parts(objective: Objective, rows: Any) -> None:
    """Loss and gradients are those of the whole batch, dropout on."""
    params = params_of(objective)
    whole = quick(jax.value_and_grad(lambda p: evaluate(objective, True, p, rows)[0]))(params)
    parts = quick(jax.value_and_grad(lambda p: in_parts(objective, p, rows, 2)))(params)
    np.testing.assert_allclose(parts[0], whole[0], rtol=1e-6)
    biggest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(whole[1]))
    for got, want in zip(jax.tree.leaves(parts[1]), jax.tree.leaves(whole[1]), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-6 * max(biggest, 1.0), rtol=1e-4)
    assert float(whole[0]) != float(run(objective, params, rows)[0]), "dropout was off"

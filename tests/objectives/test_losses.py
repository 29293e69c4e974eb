"""The streamed vocabulary loss against the plain one, in values, gradients and memory."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from scipy.special import log_softmax

from denseir_jax.objectives import losses
from denseir_jax.parallel import mesh as meshes


def data(n: int, d: int, vocab: int, rows: int, dtype: Any = np.float32) -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(rows, d))
    table[vocab:] = 50.0  # padding that would win if it were seen
    bias = np.where(np.arange(rows) < vocab, rng.normal(size=rows), 1e4)
    hidden, labels = rng.normal(size=(n, d)), rng.integers(0, vocab, n)
    return (*(jnp.asarray(a, dtype) for a in (hidden, table, bias)), jnp.asarray(labels, jnp.int32))


def plain(hidden: jax.Array, table: jax.Array, bias: jax.Array, labels: jax.Array, vocab: int) -> jax.Array:
    log_p = jax.nn.log_softmax(hidden @ table[:vocab].T + bias[:vocab])
    return -jnp.take_along_axis(log_p, labels[:, None], axis=1)[:, 0]


def weighted(loss: Any, weights: jax.Array) -> Any:
    return jax.jit(jax.value_and_grad(lambda h, t, b: (loss(h, t, b) * weights).sum(), argnums=(0, 1, 2)))


@pytest.mark.parametrize(
    ("vocab", "rows", "chunk"), [(300, 384, 128), (500, 512, 4096), (700, 768, 500), (130, 256, 128), (1000, 1024, 300)]
)
def test_streamed_equals_plain(vocab: int, rows: int, chunk: int) -> None:
    hidden, table, bias, labels = data(50, 16, vocab, rows)
    weights = jnp.asarray(np.random.default_rng(1).random(50), jnp.float32)
    value, gradients = weighted(lambda h, t, b: losses.chunked_cross_entropy(h, t, b, labels, vocab, chunk).nll, weights)(
        hidden, table, bias
    )
    expected, expected_gradients = weighted(lambda h, t, b: plain(h, t, b, labels, vocab), weights)(hidden, table, bias)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    for got, want in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6 * float(jnp.abs(want).max()))
    assert not np.asarray(gradients[1])[vocab:].any() and not np.asarray(gradients[2])[vocab:].any()


def test_float64_stays_float64() -> None:
    with jax.enable_x64(True):
        hidden, table, bias, labels = data(20, 8, 300, 384, np.float64)
        got = losses.chunked_cross_entropy(hidden, table, bias, labels, 300, 128)
        logits = np.asarray(hidden) @ np.asarray(table)[:300].T + np.asarray(bias)[:300]
        expected = -log_softmax(logits, axis=1)[np.arange(20), np.asarray(labels)]
        assert got.nll.dtype == jnp.float64
        np.testing.assert_allclose(got.nll, expected, rtol=1e-13)


def test_bfloat16_products_are_summed_in_float32() -> None:
    hidden, table, bias, labels = data(64, 32, 300, 384)
    got = losses.chunked_cross_entropy(hidden.astype(jnp.bfloat16), table, bias, labels, 300, 128).nll
    rounded = plain(*(x.astype(jnp.bfloat16).astype(jnp.float32) for x in (hidden, table)), bias, labels, 300)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, rounded, rtol=1e-5, atol=1e-5)


def test_correct_means_the_first_largest_logit() -> None:
    hidden, table, bias, labels = data(200, 16, 300, 384)
    best = np.argmax(np.asarray(hidden) @ np.asarray(table)[:300].T + np.asarray(bias)[:300], axis=1)
    half = jnp.where(jnp.arange(200) % 2 == 0, best, labels)
    correct = losses.chunked_cross_entropy(hidden, table, bias, half.astype(jnp.int32), 300, 128).correct
    np.testing.assert_array_equal(correct, np.asarray(half) == best)
    flat = losses.chunked_cross_entropy(jnp.zeros((3, 16)), table, jnp.zeros(384), jnp.array([0, 1, 299]), 300, 128)
    assert flat.correct.tolist() == [1, 0, 0]
    np.testing.assert_allclose(flat.nll, np.log(300), rtol=1e-6)


@pytest.mark.parametrize("vocab", [30522, 32769])
def test_uniform_logits_cost_ln_v(vocab: int) -> None:
    rows = -(-vocab // 128) * 128
    nll = losses.chunked_cross_entropy(jnp.ones((2, 4)), jnp.zeros((rows, 4)), jnp.zeros(rows), jnp.array([0, vocab - 1]), vocab).nll
    np.testing.assert_allclose(nll, {30522: 10.326203, 32769: 10.397239}[vocab], rtol=1e-6)


def test_logits_never_exist_at_once() -> None:
    n, d, vocab = 512, 32, 16384
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((n, d), (vocab, d), (vocab,))]
    labels = jnp.zeros(n, jnp.int32)

    def temporary(loss: Any) -> int:
        compiled = weighted(loss, jnp.ones(n)).lower(*shapes).compile()
        return int(compiled.memory_analysis().temp_size_in_bytes)

    whole = n * vocab * 4
    assert temporary(lambda h, t, b: plain(h, t, b, labels, vocab)) >= whole
    assert temporary(lambda h, t, b: losses.chunked_cross_entropy(h, t, b, labels, vocab, 1024).nll) < whole / 4


def on(shape: tuple[int, int, int]) -> tuple[Any, str]:
    """Loss and gradients on a mesh, and the compiled text; labels split by rows, the table as its rule says."""
    hidden, table, bias, labels = data(48, 16, 700, 768)
    weights = jnp.asarray(np.random.default_rng(1).random(48), jnp.float32)
    mesh = meshes.make(meshes.MeshConfig(*shape), jax.devices()[: int(np.prod(shape))])
    specs = P(meshes.BATCH_AXES), P("tensor", "fsdp"), P("tensor"), P(meshes.BATCH_AXES)
    with jax.set_mesh(mesh):
        args = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip((hidden, table, bias, labels), specs, strict=True)]

        def loss(h: jax.Array, t: jax.Array, b: jax.Array, at: jax.Array) -> jax.Array:
            return (losses.chunked_cross_entropy(h, t, b, at, 700, 128).nll * weights).sum()

        compiled = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2))).lower(*args).compile()
        return jax.tree.map(np.asarray, compiled(*args)), compiled.as_text()


@pytest.mark.parametrize("shape", [(8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 1, 8)])
def test_devices_sum_the_tables_gradient_once(shape: tuple[int, int, int]) -> None:
    (value, gradients), _ = on((1, 1, 1))
    (spread_value, spread_gradients), text = on(shape)
    np.testing.assert_allclose(spread_value, value, rtol=1e-6)
    for got, want in zip(spread_gradients, gradients, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max(), rtol=0)
    inside, entry = text.split("\nENTRY ")
    assert " while(" in entry
    assert not re.search(r" (all-reduce|all-gather|all-to-all|collective-permute)(-start)?\(", inside), (
        "no talk within the loop over chunks"
    )
    assert len(re.findall(r" all-reduce(?:-start)?\(", entry)) <= 3


def test_no_labels_cost_nothing() -> None:
    assert float(losses.mean((jnp.float32(0), jnp.float32(0)))) == 0.0
    assert float(losses.mean((jnp.float32(6), jnp.float32(4)))) == 1.5

"""The loss over candidates of the whole batch: worked values, masking, ranks, and the same on one device and on eight."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from scipy.special import logsumexp

from denseir_jax.parallel import contrastive

EYE = jnp.eye(2)
OWN = jnp.arange(2)


def test_worked_values() -> None:
    np.testing.assert_allclose(contrastive.in_batch_nll(EYE, EYE, OWN).nll, math.log(1 + math.exp(-1)), rtol=1e-6)
    assert contrastive.in_batch_nll(EYE, EYE, OWN, None, 0.05).nll.max() < 1e-8
    with jax.enable_x64(True):
        sharp = contrastive.in_batch_nll(jnp.eye(2), jnp.eye(2), OWN, None, 0.05).nll
        np.testing.assert_allclose(sharp, 2.0611536e-9, rtol=1e-6)
    for n in (1, 2, 7):  # orthonormal pairs
        pairs = contrastive.in_batch_nll(jnp.eye(n), jnp.eye(n), jnp.arange(n)).nll
        np.testing.assert_allclose(pairs, math.log(math.e + n - 1) - 1, atol=1e-6)


def test_duplicates_of_a_positive() -> None:
    same = jnp.full((2, 1), math.sqrt(5.0))  # two identical positives, all scores 5
    np.testing.assert_allclose(contrastive.in_batch_nll(same, same, OWN).nll, math.log(2), rtol=1e-6)
    blocked = contrastive.matches(jnp.array([[3], [3]]), jnp.array([3, 3]))
    assert blocked.all()
    assert contrastive.in_batch_nll(same, same, OWN, blocked).nll.tolist() == [0, 0]  # the target itself is never masked


def test_against_numpy_with_masks() -> None:
    rng = np.random.default_rng(0)
    q, c = rng.normal(size=(6, 8)), rng.normal(size=(18, 8))
    target, blocked = np.arange(6) * 3, rng.random((6, 18)) < 0.3
    got = contrastive.in_batch_nll(*(jnp.asarray(x, jnp.float32) for x in (q, c)), jnp.asarray(target), jnp.asarray(blocked), 0.5)
    scores = q @ c.T / 0.5
    for i in range(6):
        kept = [j for j in range(18) if j == target[i] or not blocked[i, j]]
        own = scores[i, target[i]]
        np.testing.assert_allclose(got.nll[i], logsumexp(scores[i, kept]) - own, rtol=1e-5)
        assert got.rank[i] == sum(scores[i, kept] >= own)


def test_masked_candidates_get_no_gradient() -> None:
    rng = np.random.default_rng(1)
    q, c = (jnp.asarray(rng.normal(size=(4, 8)), jnp.float32) for _ in range(2))
    blocked = jnp.ones((4, 4), bool).at[0, 1].set(False)
    grad = jax.grad(lambda c: contrastive.in_batch_nll(q, c, jnp.arange(4), blocked).nll.sum())(c)
    assert np.isfinite(grad).all() and np.abs(grad[:2]).min() > 0 and not np.asarray(grad[2:]).any()


def test_collapsed_vectors_are_wrong_not_right() -> None:
    flat = jnp.ones((5, 3))
    assert contrastive.in_batch_nll(flat, flat, jnp.arange(5)).rank.tolist() == [5] * 5


def test_matches() -> None:
    known = jnp.array([[4, 9, -1], [7, -1, -1], [-1, -1, -1]])
    found = contrastive.matches(known, jnp.array([9, 7, -1, 4, 5]))
    assert found.tolist() == [[True, False, False, True, False], [False, True, False, False, False], [False] * 5]


def test_matches_makes_no_array_of_all_three() -> None:
    shapes = jax.ShapeDtypeStruct((512, 32), jnp.int32), jax.ShapeDtypeStruct((4096,), jnp.int32)
    compiled = jax.jit(contrastive.matches).lower(*shapes).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= 3 * 512 * 4096  # bytes; all three would take 32 times one


def test_own_group_is_the_pair_loss() -> None:
    q, group = jnp.array([[1.0, 0.0]]), jnp.array([[[1.0, 0.0], [3.0, 0.0]]])
    got = contrastive.own_group_nll(q, group)
    np.testing.assert_allclose(got.nll, 2.1269280, rtol=1e-6)
    assert got.rank.tolist() == [2]
    assert contrastive.own_group_nll(q, group, jnp.array([[True, True]])).nll.tolist() == [0]


def mesh_of(data: int, fsdp: int = 1) -> Mesh:
    devices = np.asarray(jax.devices()[: data * fsdp]).reshape(data, fsdp, 1)
    return Mesh(devices, ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)


def loss(q: jax.Array, p: jax.Array, known: jax.Array, rows: jax.Array) -> jax.Array:
    blocked = contrastive.matches(known, rows)
    return contrastive.in_batch_nll(q, p, jnp.arange(len(q)) * 2, blocked, 0.1).nll.mean()


def batch() -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(2)
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (rng.normal(size=(32, 16)), rng.normal(size=(64, 16)))]
    return (*(jnp.asarray(x, jnp.float32) for x in unit), jnp.asarray(rng.integers(0, 40, (32, 3))), jnp.asarray(rng.integers(0, 40, 64)))


def on(mesh: Mesh) -> tuple[Any, Any, str]:
    """Loss, gradients and compiled text on a mesh, everything split by rows."""
    with jax.set_mesh(mesh):
        args = [jax.device_put(x, NamedSharding(mesh, P(("data", "fsdp")))) for x in batch()]
        step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
        compiled = step.lower(*args).compile()
        value, gradients = compiled(*args)
        return np.asarray(value), jax.tree.map(np.asarray, gradients), compiled.as_text()


@pytest.mark.parametrize("shape", [(8, 1), (4, 2)])
def test_the_same_on_one_device_and_on_eight(shape: tuple[int, int]) -> None:
    value, gradients, _ = on(mesh_of(1))
    spread_value, spread_gradients, text = on(mesh_of(*shape))
    np.testing.assert_allclose(spread_value, value, rtol=1e-6)
    for got, want in zip(spread_gradients, gradients, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max(), rtol=0)
    assert "f32[4,64]" in text, "each device must score its own 4 rows against all 64 candidates"
    assert "f32[32,64]" not in text, "the whole score matrix must not exist on one device"


def test_gathering_without_gradients_gives_one_eighth() -> None:
    """What data-parallel code does that re-inserts only its own slice and averages: the guard that ours does not."""
    q, p, known, rows = batch()
    exact = jax.grad(loss, argnums=0)(q, p, known, rows)
    workers = 8
    total = jnp.zeros_like(q)
    for w in range(workers):
        own = slice(w * len(q) // workers, (w + 1) * len(q) // workers)
        local = jax.grad(lambda mine, own=own: loss(q.at[own].set(mine), p, known, rows))(q[own])
        total = total.at[own].add(local / workers)
    np.testing.assert_allclose(total * workers, exact, atol=1e-6 * float(jnp.abs(exact).max()))
    ratio = float(jnp.linalg.norm(total) / jnp.linalg.norm(exact))
    assert abs(ratio - 1 / workers) < 1e-5

"""The loss over candidates of the whole batch: worked values, masking, ranks, and the same on one device and on eight."""

import functools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from scipy.special import logsumexp

from denseir_jax.objectives.cocondenser import span_nll
from denseir_jax.parallel import contrastive

EYE = jnp.eye(2)
OWN = jnp.arange(2)
MOVED = re.compile(r" = f32\[([\d,]*)\]\S* (all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)(?:-start)?\(")


def test_worked_values() -> None:
    """T8."""
    np.testing.assert_allclose(contrastive.in_batch_nll(EYE, EYE, OWN).nll, math.log(1 + math.exp(-1)), rtol=1e-6)
    assert contrastive.in_batch_nll(EYE, EYE, OWN, temperature=0.05).nll.max() < 1e-8
    with jax.enable_x64(True):
        sharp = contrastive.in_batch_nll(jnp.eye(2), jnp.eye(2), OWN, temperature=0.05).nll
        np.testing.assert_allclose(sharp, 2.0611536e-9, rtol=1e-6)
    for n in (1, 2, 7):  # orthonormal pairs
        pairs = contrastive.in_batch_nll(jnp.eye(n), jnp.eye(n), jnp.arange(n)).nll
        np.testing.assert_allclose(pairs, math.log(math.e + n - 1) - 1, atol=1e-6)


def test_duplicates_of_a_positive() -> None:
    same = jnp.full((2, 1), math.sqrt(5.0))  # two identical positives, all scores 5
    np.testing.assert_allclose(contrastive.in_batch_nll(same, same, OWN).nll, math.log(2), rtol=1e-6)
    one = jnp.array([[3], [3]])
    found = contrastive.in_batch_nll(same, same, OWN, one, one)
    assert found.nll.tolist() == [0, 0] and found.masked.tolist() == [1, 1]  # the target itself is never masked


def test_against_numpy_with_masks() -> None:
    rng = np.random.default_rng(0)
    q, c = rng.normal(size=(6, 8)), rng.normal(size=(18, 8))
    target, blocked = np.arange(6) * 3, rng.random((6, 18)) < 0.3
    ids = np.arange(36).reshape(18, 2)  # each candidate has two; a row knows one of them, or both
    known = np.where(np.repeat(blocked, 2, axis=1) & (rng.random((6, 36)) < 0.7), np.arange(36), -1)
    blocked = np.asarray((known >= 0).reshape(6, 18, 2).any(2))
    queries, candidates = (jnp.asarray(x, jnp.float32) for x in (q, c))
    got = contrastive.in_batch_nll(queries, candidates, jnp.asarray(target), jnp.asarray(known), jnp.asarray(ids), 0.5)
    scores = q @ c.T / 0.5
    for i in range(6):
        kept = [j for j in range(18) if j == target[i] or not blocked[i, j]]
        own = scores[i, target[i]]
        np.testing.assert_allclose(got.nll[i], logsumexp(scores[i, kept]) - own, rtol=1e-5)
        assert got.rank[i] == sum(scores[i, kept] >= own) and got.masked[i] == 18 - len(kept)
    share, negatives = contrastive.mask_metrics(got, 18)["masked_candidates"], contrastive.mask_metrics(got, 18)["negatives"]
    assert share == (got.masked.sum(), 6 * 17) and negatives == (6 * 17 - got.masked.sum(), 6)


def test_masked_candidates_get_no_gradient() -> None:
    rng = np.random.default_rng(1)
    q, c = (jnp.asarray(rng.normal(size=(4, 8)), jnp.float32) for _ in range(2))
    known, ids = jnp.broadcast_to(jnp.arange(4), (4, 4)).at[0, 1].set(-1), jnp.arange(4)[:, None]  # row 0 keeps candidate 1
    grad = jax.grad(lambda c: contrastive.in_batch_nll(q, c, jnp.arange(4), known, ids).nll.sum())(c)
    assert np.isfinite(grad).all() and np.abs(grad[:2]).min() > 0 and not np.asarray(grad[2:]).any()


def test_collapsed_vectors_are_wrong_not_right() -> None:
    flat = jnp.ones((5, 3))
    assert contrastive.in_batch_nll(flat, flat, jnp.arange(5)).rank.tolist() == [5] * 5


def test_matches() -> None:
    known = jnp.array([[4, 9, -1], [7, -1, -1], [-1, -1, -1]])
    found = contrastive.matches(known, jnp.array([[9], [7], [-1], [4], [5]]))
    assert found.tolist() == [[True, False, False, True, False], [False, True, False, False, False], [False] * 5]
    two = contrastive.matches(known, jnp.array([[5, 9], [7, 4], [-1, -1]]))
    assert two.tolist() == [[True, True, False], [False, True, False], [False] * 3]


def test_matches_makes_no_array_of_all_three() -> None:
    shapes = jax.ShapeDtypeStruct((512, 32), jnp.int32), jax.ShapeDtypeStruct((4096, 1), jnp.int32)
    compiled = jax.jit(contrastive.matches).lower(*shapes).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= 3 * 512 * 4096  # bytes; all three would take 32 times one


def test_own_group_is_the_pair_loss() -> None:
    q, group = jnp.array([[1.0, 0.0]]), jnp.array([[[1.0, 0.0], [3.0, 0.0]]])
    got = contrastive.own_group_nll(q, group, jnp.zeros((1, 2), bool))
    np.testing.assert_allclose(got.nll, 2.1269280, rtol=1e-6)
    assert got.rank.tolist() == [2]
    assert contrastive.own_group_nll(q, group, jnp.array([[True, True]])).nll.tolist() == [0]


def mesh_of(data: int, fsdp: int = 1) -> Mesh:
    devices = np.asarray(jax.devices()[: data * fsdp]).reshape(data, fsdp, 1)
    return Mesh(devices, ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)


def loss(q: jax.Array, p: jax.Array, known: jax.Array, rows: jax.Array, scores: int = contrastive.SCORES) -> jax.Array:
    return contrastive.in_batch_nll(q, p, jnp.arange(len(q)) * 2, known, rows[:, None], 0.1, scores).nll.mean()


def batch() -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(2)
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (rng.normal(size=(32, 16)), rng.normal(size=(64, 16)))]
    return (*(jnp.asarray(x, jnp.float32) for x in unit), jnp.asarray(rng.integers(0, 40, (32, 3))), jnp.asarray(rng.integers(0, 40, 64)))


def spans() -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(3)
    return jnp.asarray(rng.normal(size=(32, 2, 16)), jnp.float32), jnp.asarray(rng.integers(0, 40, 32))


def span_loss(vectors: jax.Array, document: jax.Array) -> jax.Array:
    return span_nll(vectors, document).nll.mean()


grouped_loss = functools.partial(loss, scores=2 * 64)
CASES: dict[str, tuple[Any, Any, int]] = {
    "queries_and_passages": (loss, batch, 2),
    "two_rows_at_a_time": (grouped_loss, batch, 2),
    "spans": (span_loss, spans, 1),
}


def on(mesh: Mesh, loss: Any = loss, batch: Any = batch, inputs: int = 2) -> tuple[Any, Any, str]:
    """Loss, gradients to the first `inputs` arrays and compiled text on a mesh, everything split by rows."""
    with jax.set_mesh(mesh):
        args = [jax.device_put(x, NamedSharding(mesh, P(("data", "fsdp")))) for x in batch()]
        step = jax.jit(jax.value_and_grad(loss, argnums=tuple(range(inputs))))
        compiled = step.lower(*args).compile()
        value, gradients = compiled(*args)
        return np.asarray(value), jax.tree.map(np.asarray, gradients), compiled.as_text()


@pytest.mark.parametrize("shape", [(2, 1), (4, 1), (8, 1), (4, 2)])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_same_on_one_device_and_on_several(case: tuple[Any, Any, int], shape: tuple[int, int]) -> None:
    """In the forward pass the candidates are gathered once, in the backward pass their gradients are summed once."""
    value, gradients, _ = on(mesh_of(1), *case)
    spread_value, spread_gradients, text = on(mesh_of(*shape), *case)
    np.testing.assert_allclose(spread_value, value, rtol=1e-6)
    for got, want in zip(spread_gradients, gradients, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max(), rtol=0)
    queries = 64 if case[0] is span_loss else 32
    mine = 2 if case[0] is grouped_loss else queries // (shape[0] * shape[1])
    assert f"f32[{mine},64]" in text, "each device must score its own rows against all 64 candidates"
    assert f"f32[{queries},64]" not in text, "the whole score matrix must not exist on one device"
    talk = [(sizes, kind) for sizes, kind in MOVED.findall(text) if sizes.endswith(",16")]
    each = 64 // (shape[0] * shape[1])
    assert sorted(talk) == sorted([("64,16", "all-gather"), (f"{each},16", "reduce-scatter")]), text


@pytest.mark.parametrize("scores", [1, 18, 18 * 4, 18 * 100])
def test_rows_by_groups_are_the_rows_at_once(scores: int) -> None:
    """Loss, ranks and gradients, with masks; 7 rows do not divide into groups."""
    rng = np.random.default_rng(4)
    q, c = (jnp.asarray(rng.normal(size=(n, 8)), jnp.float32) for n in (7, 18))
    known, ids = jnp.asarray(rng.integers(-1, 12, (7, 3))), jnp.asarray(rng.integers(0, 12, (18, 2)))

    def loss(q: jax.Array, c: jax.Array, scores: int) -> Any:
        found = contrastive.in_batch_nll(q, c, jnp.arange(7) * 2, known, ids, 0.3, scores)
        return found.nll.mean(), found

    both = [jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True), static_argnums=2)(q, c, n) for n in (scores, contrastive.SCORES)]
    assert both[1][0][1].masked.min() > 0
    for got, want in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_many_rows_need_memory_for_vectors_not_for_scores() -> None:
    vectors = jax.ShapeDtypeStruct((16384, 256), jnp.float32)

    def temporary(scores: int) -> float:
        """MiB of loss and gradients, besides inputs and outputs."""

        def loss(q: jax.Array, c: jax.Array) -> jax.Array:
            row = jnp.arange(len(q))
            return contrastive.in_batch_nll(q, c, row, row[:, None], row[:, None], 1.0, scores).nll.mean()

        memory = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(vectors, vectors).compile().memory_analysis()
        return int(memory.temp_size_in_bytes) / 2**20

    assert temporary(contrastive.SCORES) <= 64
    assert temporary(1 << 30) > 1024, "all scores at once"


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

"""Passages of several blocks in the contrastive losses: max over blocks by numpy, its gradient, the same on any mesh."""

import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp
from test_in_batch import mesh_of, on
from tiny_model import LENGTH, QUERY, context, params_of, quick, run, same_in_parts, texts

from denseir_jax.core.errors import ConfigError
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.objectives.cross_encoder import CrossEncoderConfig
from denseir_jax.objectives.distill import DistillConfig
from denseir_jax.parallel import contrastive

B, N, K = 6, 3, 3
SMALL = replace(context(layers=0, embedder=EmbedderConfig(pooling="mean")), blocks=K)
COLLECTIVE = re.compile(r" (all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)(?:-start)?\(")


def best(scores: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """[..., k] -> [...], over the first `blocks`."""
    return np.where(np.arange(scores.shape[-1]) < blocks[..., None], scores, -np.inf).max(-1)


def vectors(b: int, c: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, candidates of up to K blocks, and how many; what stands in place of no block is long and would win."""
    rng = np.random.default_rng(seed)
    q, p, blocks = rng.normal(size=(b, 8)), rng.normal(size=(c, K, 8)), rng.integers(1, K + 1, c)
    p[np.arange(K) >= blocks[:, None]] *= 100
    return q.astype(np.float32), p.astype(np.float32), blocks


@pytest.mark.parametrize("scores", [1, 18 * K * 4, contrastive.SCORES])
def test_in_batch_by_numpy(scores: int) -> None:
    q, p, blocks = vectors(6, 18)
    known, ids, target = np.random.default_rng(1).integers(-1, 40, (6, 4)), np.arange(18)[:, None], np.arange(6) * 3
    found = contrastive.in_batch_nll(*map(jnp.asarray, (q, p, target, known, ids)), 0.5, scores, blocks=jnp.asarray(blocks))
    plain = best(np.einsum("bd,ckd->bck", q, p), blocks) / 0.5
    blocked = (known[:, None, :] == ids[None]).any(-1) & (np.arange(18) != target[:, None])
    kept, own = np.where(blocked, -np.inf, plain), plain[np.arange(6), target]
    np.testing.assert_allclose(found.nll, logsumexp(kept, axis=1) - own, rtol=1e-4)
    assert found.rank.tolist() == (kept >= own[:, None]).sum(1).tolist() and found.masked.tolist() == blocked.sum(1).tolist()
    assert blocked.any()


def test_only_the_best_block_gets_a_gradient() -> None:
    q, p, blocks = vectors(4, 8)
    target = jnp.arange(4) * 2

    def loss(p: jax.Array) -> jax.Array:
        return contrastive.in_batch_nll(jnp.asarray(q), p, target, temperature=5.0, blocks=jnp.asarray(blocks)).nll.sum()

    gradient = np.asarray(jax.grad(loss)(jnp.asarray(p)))
    plain = np.where(np.arange(K) < blocks[:, None], np.einsum("bd,ckd->bck", q, p), -np.inf)
    chosen = plain.argmax(-1)
    weight = np.exp(log_softmax(plain.max(-1) / 5, axis=1)) - (np.arange(8) == np.asarray(target)[:, None])
    expected = np.zeros_like(p)
    for i in range(4):
        for c in range(8):
            expected[c, chosen[i, c]] += weight[i, c] * q[i] / 5
    np.testing.assert_allclose(gradient, expected, atol=1e-5)
    for c in range(8):
        assert set(np.flatnonzero(np.abs(gradient[c]).max(-1))) == set(chosen[:, c])


def test_one_real_block_each_is_no_block_at_all() -> None:
    q, p, _ = vectors(5, 5)
    one = jnp.ones(5, jnp.int32)
    several = contrastive.in_batch_nll(jnp.asarray(q), jnp.asarray(p), jnp.arange(5), blocks=one)
    plain = contrastive.in_batch_nll(jnp.asarray(q), jnp.asarray(p[:, 0]), jnp.arange(5))
    back = contrastive.in_batch_nll(jnp.asarray(p), jnp.asarray(q), jnp.arange(5), query_blocks=one)
    turned = contrastive.in_batch_nll(jnp.asarray(p[:, 0]), jnp.asarray(q), jnp.arange(5))
    for got, want in ((several, plain), (back, turned)):
        np.testing.assert_allclose(got.nll, want.nll, rtol=1e-5)
        assert got.rank.tolist() == want.rank.tolist()


def sharded_loss(q: jax.Array, p: jax.Array, known: jax.Array, rows: jax.Array, blocks: jax.Array) -> jax.Array:
    return contrastive.in_batch_nll(q, p, jnp.arange(len(q)) * 2, known, rows[:, None], 0.1, 16 * 64 * K, blocks=blocks).nll.mean()


def sharded_batch() -> tuple[jax.Array, ...]:
    rng, (q, p, blocks) = np.random.default_rng(2), vectors(32, 64)
    return tuple(map(jnp.asarray, (q, p, rng.integers(0, 40, (32, 3)), rng.integers(0, 40, 64), blocks)))


def first_loss(q: jax.Array, p: jax.Array, known: jax.Array, rows: jax.Array) -> jax.Array:
    return contrastive.in_batch_nll(q, p, jnp.arange(len(q)) * 2, known, rows[:, None], 0.1).nll.mean()


def first_batch() -> tuple[jax.Array, ...]:
    q, p, known, rows, _ = sharded_batch()
    return q, p[:, 0], known, rows


def test_the_same_on_one_device_and_on_eight_by_the_same_collectives() -> None:
    value, gradients, _ = on(mesh_of(1), sharded_loss, sharded_batch)
    found, spread, text = on(mesh_of(4, 2), sharded_loss, sharded_batch)
    np.testing.assert_allclose(found, value, rtol=1e-6)
    for got, want in zip(spread, gradients, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max(), rtol=0)
    assert f"f32[4,64,{K}]" in text and f"f32[32,64,{K}]" not in text, "each device scores its own rows"
    _, _, first = on(mesh_of(4, 2), first_loss, first_batch)
    assert sorted(COLLECTIVE.findall(text)) == sorted(COLLECTIVE.findall(first))


def rows() -> dict[str, jax.Array]:
    """Groups of passages of one to three blocks; what stands in place of no block is of other tokens, and its length 0."""
    query, passage, rng = texts(B, QUERY, 1), texts(B * N * K, LENGTH, 2), np.random.default_rng(5)
    blocks = rng.integers(1, K + 1, (B, N))
    length = np.where(np.arange(K) < blocks[..., None], np.asarray(passage[1]).reshape(B, N, K), 0)
    return {
        "query_ids": query[0],
        "query_length": query[1],
        "passage_ids": passage[0].reshape(B, N, K, LENGTH),
        "passage_length": jnp.asarray(length, jnp.int32),
        "passage_row": jnp.array([[10, 20, 21], [11, 40, 23], [10, 24, 25], [13, 30, 26], [14, 30, 27], [15, 11, 28]]),
        "known": jnp.array([[10, -1], [11, 40], [10, -1], [13, -1], [14, 13], [15, -1]]),
        "index": jnp.arange(B, dtype=jnp.int32),
        "teacher": jnp.asarray(rng.normal(size=(B, N)), jnp.float32),
    }


def scores_of(found: Any, similarity: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[B, B, N] of all queries with all passages, and where a passage is known to the query."""
    batch = rows()
    q, p = np.asarray(found["query"], np.float64), np.asarray(found["passage"], np.float64)
    each = -np.square(q[:, None, None, None] - p[None]).sum(-1) if similarity == "l2" else np.einsum("bd,cnkd->bcnk", q, p)
    scores = best(each, np.broadcast_to((np.asarray(batch["passage_length"]) > 0).sum(-1), each.shape[:-1]))
    known = np.concatenate([batch["known"], batch["passage_row"][:, :1]], axis=1)
    blocked = (np.asarray(batch["passage_row"])[None, :, :, None] == known[:, None, None, :]).any(-1)
    own = np.arange(B)
    return scores, blocked, blocked[own, own]


@pytest.mark.parametrize(
    "config",
    [
        ContrastiveConfig(group_size=N, temperature=0.1, similarity="cosine", tied=False),
        ContrastiveConfig(group_size=N, similarity="l2", symmetric=True),
        ContrastiveConfig(group_size=N, in_batch=False, loss="pairwise"),
        DistillConfig(group_size=N, teach="margin_mse", in_batch=False, nll_weight=1.0),
        DistillConfig(group_size=N, teach="global_kl", temperature=0.5),
    ],
    ids=lambda c: f"{c.name}-{c.similarity}-{c.loss}-{c.in_batch}-{c.symmetric}-{getattr(c, 'teach', '')}",
)
def test_losses_by_numpy(config: Any) -> None:
    objective, batch = config.build(SMALL), rows()
    loss, metrics, found = run(objective, params_of(objective), batch)
    assert found["passage"].shape[:3] == (B, N, K) and np.isfinite(np.asarray(found["passage"])).all()
    scores, blocked, own_blocked = scores_of(found, config.similarity)
    me, t = np.arange(B), config.temperature
    own, positive = scores[me, me], scores[me, me, 0]
    target = np.zeros((B, B, N), bool)
    target[me, me, 0] = True
    left = np.where(blocked & ~target, -np.inf, scores / t)
    total = logsumexp(left.reshape(B, -1), axis=1) if config.in_batch else logsumexp(left[me, me], axis=1)
    keep, teacher = ~own_blocked, np.asarray(batch["teacher"], np.float64)
    keep[:, 0] = True
    expected = (total - positive / t).mean()
    if config.symmetric:
        # The passage that answers query i against all queries, but for others that it is known to answer.
        back = np.where(blocked[:, :, 0].T & ~np.eye(B, dtype=bool), -np.inf, scores[:, :, 0].T / t)
        expected = (expected + (logsumexp(back, axis=1) - positive / t).mean()) / 2
    gaps = (own - own[:, :1])[:, 1:]
    if config.loss == "pairwise":
        expected = np.log1p(np.exp(gaps))[keep[:, 1:]].mean()
    if config.name == "distill" and config.teach == "margin_mse":
        expected += np.square(gaps - (teacher - teacher[:, :1])[:, 1:])[keep[:, 1:]].mean()
    if config.name == "distill" and config.teach == "global_kl":
        want = log_softmax(np.where(keep, teacher, -np.inf), axis=1)
        expected = (np.exp(want) * np.where(keep, want - (own / t - total[:, None]), 0)).sum(1).mean()
    np.testing.assert_allclose(loss, expected, rtol=2e-4)
    assert metrics["tokens"][0] == batch["query_length"].sum() + batch["passage_length"].sum(), "what is no block has no token"
    assert metrics["cells"][0] == B * (QUERY + N * K * LENGTH), "but its cells are computed"


def test_what_stands_in_place_of_no_block_changes_nothing() -> None:
    """Neither loss nor gradients, with an encoder that attends; both are finite."""
    objective, batch = ContrastiveConfig(group_size=N).build(replace(context(layers=1), blocks=K)), rows()
    none = (batch["passage_length"] == 0)[..., None]
    params = params_of(objective)
    loss = quick(jax.value_and_grad(lambda p, ids: sum_of(objective, p, batch | {"passage_ids": ids})))
    one, other = (loss(params, jnp.where(none, filled, batch["passage_ids"])) for filled in (0, 77))
    for got, want in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert np.isfinite(got).all()
        np.testing.assert_array_equal(got, want)


def sum_of(objective: Any, params: Any, batch: Any) -> jax.Array:
    found, sums = objective.per_row(params, batch, None, False)
    loss: jax.Array = objective.over_batch(params, found, sums, batch)[0]
    return loss


def test_what_knows_no_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"blocks=3: a cross-encoder reads a passage as one text; expected template\.blocks=1"):
        CrossEncoderConfig(group_size=N).build(SMALL)
    with pytest.raises(ConfigError, match=r"memory=8 keeps one vector a passage: it goes with template\.blocks=1"):
        ContrastiveConfig(group_size=N, memory=8).build(SMALL)


def test_parts_equal_the_whole() -> None:
    same_in_parts(ContrastiveConfig(group_size=N, symmetric=True).build(SMALL), rows())

"""The softmax loss over candidates of the whole batch, the same on any mesh.

It is written on global arrays: where a mesh is set, candidates are gathered with their gradients, each device scores its
own rows against all of them, and the mean is over the global batch. There is no factor of the number of devices to undo.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from denseir_jax.parallel.mesh import rows_over_devices

Pair = tuple[jax.Array, jax.Array]  # (sum, count)


class Ranked(NamedTuple):
    """What one row's scores say about its target.

    nll: -log softmax at the target, in nats. rank: of the target, from 1; candidates with an equal score stand before it,
    so vectors that have all become one count as wrong, not as right.
    """

    nll: Float[Array, " b"]
    rank: Int[Array, " b"]


def in_batch_nll(
    queries: Float[Array, "b d"],
    candidates: Float[Array, "c d"],
    target: Int[Array, " b"],
    blocked: Bool[Array, "b c"] | None = None,
    temperature: float = 1.0,
) -> Ranked:
    """Score every query against every candidate: L_i = logsumexp_c(q_i . p_c / t) - q_i . p_target(i) / t.

    Scores are float32 or wider. Candidates marked in `blocked` take no part, except a row's own target, which always does.
    Where a mesh is set, the score matrix is split by rows over the batch axes.
    """
    scores = rows_over_devices(_dot("bd,cd->bc", queries, candidates) / temperature)
    return _ranked(scores, jnp.arange(candidates.shape[0]) == target[:, None], blocked)


def own_group_nll(
    queries: Float[Array, "b d"], groups: Float[Array, "b n d"], blocked: Bool[Array, "b n"] | None = None, temperature: float = 1.0
) -> Ranked:
    """As `in_batch_nll`, each query against its own group alone, whose first member is the target."""
    scores = _dot("bd,bnd->bn", queries, groups) / temperature
    return _ranked(scores, jnp.broadcast_to(jnp.arange(groups.shape[1]) == 0, scores.shape), blocked)


def matches(known: Int[Array, "b p"], ids: Int[Array, " c"]) -> Bool[Array, "b c"]:
    """Where candidate c is one of the ids known to row b (negative entries are padding). Never makes a [b, c, p] array."""

    def one(i: Int[Array, ""], found: Bool[Array, "b c"]) -> Bool[Array, "b c"]:
        column = lax.dynamic_index_in_dim(known, i, axis=1)
        return found | ((column == ids) & (column >= 0))

    nothing = jnp.zeros((known.shape[0], ids.shape[0]), bool)
    return rows_over_devices(lax.fori_loop(0, known.shape[1], one, rows_over_devices(nothing)))


def rank_metrics(found: Ranked) -> dict[str, Pair]:
    """``accuracy`` (the target is first) and ``reciprocal_rank`` within the batch."""
    rank = found.rank.astype(found.nll.dtype)
    count = jnp.float32(rank.shape[0])
    return {"accuracy": ((rank == 1).sum(dtype=jnp.float32), count), "reciprocal_rank": ((1 / rank).sum(), count)}


def mask_metrics(blocked: Bool[Array, "b c"], target: Int[Array, " b"]) -> dict[str, Pair]:
    """``masked_candidates``, the share of candidates left out (targets aside), and ``negatives``, how many a row keeps."""
    rows, candidates = blocked.shape
    left_out = (blocked & (jnp.arange(candidates) != target[:, None])).sum(dtype=jnp.float32)
    cells = jnp.float32(rows * (candidates - 1))
    return {"masked_candidates": (left_out, cells), "negatives": (cells - left_out, jnp.float32(rows))}


def _dot(spec: str, a: Array, b: Array) -> Array:
    wide = jnp.promote_types(jnp.promote_types(a.dtype, b.dtype), jnp.float32)
    return jnp.einsum(spec, a.astype(wide), b.astype(wide), precision=lax.Precision.HIGHEST)


def _ranked(scores: Array, is_target: Array, blocked: Array | None) -> Ranked:
    if blocked is not None:
        scores = jnp.where(blocked & ~is_target, -jnp.inf, scores)
    own = jnp.sum(jnp.where(is_target, scores, 0), axis=1)
    return Ranked(jax.nn.logsumexp(scores, axis=1) - own, jnp.sum(scores >= own[:, None], axis=1))

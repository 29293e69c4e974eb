"""The softmax loss over candidates of the whole batch, the same on any mesh and at any size.

Where a mesh is set, every device gathers all candidates once and scores its own rows against them; the backward pass is one
reduce-scatter. The mean is over the global batch, so there is no factor of the number of devices to undo. Rows are scored
some at a time, each against all candidates, so that memory grows with rows x dimensions, never with rows x candidates.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from denseir_jax.parallel.mesh import BATCH_AXES, row_shards, whole_on_devices

Pair = tuple[jax.Array, jax.Array]  # (sum, count)
SCORES = 1 << 21  # held at a time by a device: 8 MiB in float32


class Queue(NamedTuple):
    """Candidates of earlier batches, whole on every device. An id below 0 is an empty place, which is no candidate at all."""

    vectors: Float[Array, "m d"]
    ids: Int[Array, " m"]


class Ranked(NamedTuple):
    """What one row's scores say about its target.

    nll: -log softmax at the target, in nats. rank: of the target, from 1; candidates with an equal score stand before it,
    so vectors that have all become one count as wrong, not as right. masked: candidates left out.
    """

    nll: Float[Array, " b"]
    rank: Int[Array, " b"]
    masked: Int[Array, " b"]


def in_batch_nll(
    queries: Float[Array, "b d"],
    candidates: Float[Array, "c d"],
    target: Int[Array, " b"],
    known: Int[Array, "b p"] | None = None,
    ids: Int[Array, "c _"] | None = None,
    temperature: float = 1.0,
    scores: int = SCORES,
    queue: Queue | None = None,
) -> Ranked:
    """Score every query against every candidate: L_i = logsumexp_c(q_i . p_c / t) - q_i . p_target(i) / t.

    Args:
        target: each query's own candidate, which always takes part.
        known, ids: a candidate takes no part where one of its `ids` is among those `known` to the query; negative entries
            are padding. None: all take part.
        scores: how many to hold at a time; rows are scored in groups of that many scores, and scored again in the backward
            pass where there is more than one group.
        queue: further candidates, through which no gradient flows. A device scores its own rows against its own copy: they
            add nothing to what devices say to each other.
    Returns:
        Float32 or wider, split by rows over the batch axes where a mesh is set.
    """
    if known is None or ids is None:
        known, ids = jnp.full((queries.shape[0], 1), -1), jnp.full((candidates.shape[0], 1), -1)
    rows = queries, target, known
    if row_shards(queries.shape[0]) == 1 or row_shards(candidates.shape[0]) == 1:
        return _by_groups(rows, candidates, ids, temperature, scores, queue)

    def own_rows(rows: tuple[Array, ...], candidates: Array, ids: Array, queue: Queue | None) -> Ranked:
        candidates, ids = lax.all_gather((candidates, ids), BATCH_AXES, tiled=True)
        return _by_groups(rows, candidates, ids, temperature, scores, queue)

    split = P(BATCH_AXES)
    return jax.shard_map(own_rows, in_specs=(split, split, split, P()), out_specs=split)(rows, candidates, ids, queue)


def own_group_nll(
    queries: Float[Array, "b d"], groups: Float[Array, "b n d"], blocked: Bool[Array, "b n"], temperature: float = 1.0
) -> Ranked:
    """As `in_batch_nll`, each query against its own group alone, whose first member is the target."""
    scores = own_scores(queries, groups) / temperature
    return _ranked(scores, jnp.broadcast_to(jnp.arange(groups.shape[1]) == 0, scores.shape), blocked)


def own_scores(queries: Float[Array, "b d"], groups: Float[Array, "b n d"]) -> Float[Array, "b n"]:
    """The dot products of each query with its own group, in float32 or wider."""
    return _dot("bd,bnd->bn", queries, groups)


def matches(known: Int[Array, "b p"], ids: Int[Array, "c q"]) -> Bool[Array, "b c"]:
    """Where an id of candidate c is known to row b (negative entries are padding). Never makes a [b, c, p] array."""

    def one(i: Int[Array, ""], found: Bool[Array, "b c"]) -> Bool[Array, "b c"]:
        row = lax.dynamic_index_in_dim(known, i // ids.shape[1], axis=1)
        column = lax.dynamic_index_in_dim(ids, i % ids.shape[1], axis=1)
        return found | ((row == column.T) & (row >= 0))

    nothing = (known[:, :1] == ids[:, :1].T) & False  # of the arrays themselves: as varying over devices as they are
    return lax.fori_loop(0, known.shape[1] * ids.shape[1], one, nothing)


def enqueue(queue: Queue, vectors: Float[Array, "c d"], ids: Int[Array, " c"]) -> Queue:
    """The queue after these candidates have entered it in their order; the oldest leave at the front.

    Of more candidates than places the last stay. Where a mesh is set, every device gathers the vectors once, c x d numbers,
    however long the queue is.
    """
    places = len(queue.ids)
    new = whole_on_devices(lax.stop_gradient(vectors)), whole_on_devices(ids)
    return Queue(*(jnp.concatenate([old, late.astype(old.dtype)])[-places:] for old, late in zip(queue, new, strict=True)))


def rank_metrics(found: Ranked) -> dict[str, Pair]:
    """``accuracy`` (the target is first) and ``reciprocal_rank`` among all candidates."""
    rank = found.rank.astype(found.nll.dtype)
    count = jnp.float32(rank.shape[0])
    return {"accuracy": ((rank == 1).sum(dtype=jnp.float32), count), "reciprocal_rank": ((1 / rank).sum(), count)}


def mask_metrics(found: Ranked, candidates: int | Float[Array, ""]) -> dict[str, Pair]:
    """``masked_candidates``, the share of candidates left out (targets aside), and ``negatives``, how many a row keeps."""
    rows = found.masked.shape[0]
    left_out = found.masked.sum(dtype=jnp.float32)
    cells = jnp.float32(rows * (candidates - 1))
    return {"masked_candidates": (left_out, cells), "negatives": (cells - left_out, jnp.float32(rows))}


def _by_groups(
    rows: tuple[Array, ...], candidates: Array, ids: Array, temperature: float, scores: int, queue: Queue | None = None
) -> Ranked:
    """One device's rows, as many at a time as `scores` allow."""
    if queue is not None:
        ids = jnp.concatenate([ids, jnp.broadcast_to(queue.ids[:, None], (len(queue.ids), ids.shape[1]))])
    n = rows[0].shape[0]
    size = max(1, scores // ids.shape[0])

    def group(rows: tuple[Array, ...]) -> Ranked:
        queries, target, known = rows
        found = _dot("bd,cd->bc", queries, candidates) / temperature
        if queue is not None:  # apart, so that the backward pass computes nothing for the queue
            earlier = _dot("bd,md->bm", queries, lax.stop_gradient(queue.vectors)) / temperature
            found = jnp.concatenate([found, jnp.where(queue.ids < 0, -jnp.inf, earlier)], axis=1)
        return _ranked(found, jnp.arange(found.shape[1]) == target[:, None], matches(known, ids))

    if n <= size:
        return group(rows)
    groups = -(-n // size)
    filled = jax.tree.map(lambda x: jnp.pad(x, ((0, groups * size - n), *((0, 0),) * (x.ndim - 1))), rows)
    split = jax.tree.map(lambda x: x.reshape(groups, size, *x.shape[1:]), filled)
    return jax.tree.map(lambda x: x.reshape(-1)[:n], lax.map(jax.checkpoint(group), split))


def _dot(spec: str, a: Array, b: Array) -> Array:
    wide = jnp.promote_types(jnp.promote_types(a.dtype, b.dtype), jnp.float32)
    return jnp.einsum(spec, a.astype(wide), b.astype(wide), precision=lax.Precision.HIGHEST)


def _ranked(scores: Array, is_target: Array, blocked: Array) -> Ranked:
    left_out = blocked & ~is_target
    scores = jnp.where(left_out, -jnp.inf, scores)
    own = jnp.sum(jnp.where(is_target, scores, 0), axis=1)
    nll = jax.nn.logsumexp(scores, axis=1) - own
    return Ranked(nll, jnp.sum(scores >= own[:, None], axis=1), jnp.sum(left_out, axis=1))

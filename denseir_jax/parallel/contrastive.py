"""The softmax loss over candidates of the whole batch, the same on any mesh and at any size.

Where a mesh is set, every device gathers all candidates once and scores its own rows against them; the backward pass is one
reduce-scatter. The mean is over the global batch, so there is no factor of the number of devices to undo. Rows are scored
some at a time, each against all candidates, so that memory grows with rows x dimensions, never with rows x candidates.

A candidate may be several vectors, its blocks, of which the best one counts: s(q, c) = max_j q . c_j (MaxP).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from denseir_jax.parallel.mesh import BATCH_AXES, row_shards
from denseir_jax.parallel.queue import Queue

Pair = tuple[jax.Array, jax.Array]  # (sum, count)
SCORES = 1 << 21  # held at a time by a device: 8 MiB in float32


class Ranked(NamedTuple):
    """What one row's scores say about its targets: one, or several (`Targets`).

    nll: -log softmax at the target, in nats. rank: of the best target among the candidates that are none, from 1; candidates
    with an equal score stand before it, so vectors that have all become one count as wrong, not as right. masked: candidates
    left out. targets: how many. log_total: logsumexp of the scores / temperature of all that take part, targets among them.
    kl: KL(teacher || student) over all that take part; agreed: what the student puts first is first for the teacher too. None
    without a teacher.
    """

    nll: Float[Array, " b"]
    rank: Int[Array, " b"]
    masked: Int[Array, " b"]
    targets: Int[Array, " b"]
    log_total: Float[Array, " b"]
    kl: Float[Array, " b"] | None = None
    agreed: Bool[Array, " b"] | None = None


class Targets(NamedTuple):
    """Several targets a row: `number` [b] candidates that follow each other, 1 or more, from the row's target on.

    apart: the loss is the mean over a row's targets of -log softmax of that one against all that are none; otherwise it is
    -log of the share that they have together of the softmax over all.
    """

    number: Int[Array, " b"]
    apart: bool


class Teacher(NamedTuple):
    """Vectors whose dot products are a teacher's scores of all pairs, and what these are divided by. No gradient."""

    queries: Float[Array, "b e"]
    candidates: Float[Array, "c e"]
    temperature: float


def in_batch_nll(
    queries: Float[Array, "b *j d"],
    candidates: Float[Array, "c *k d"],
    target: Int[Array, " b"],
    known: Int[Array, "b p"] | None = None,
    ids: Int[Array, "c _"] | None = None,
    temperature: float = 1.0,
    scores: int = SCORES,
    targets: Targets | None = None,
    teacher: Teacher | None = None,
    queue: Queue | None = None,
    blocks: Int[Array, "..."] | None = None,
    query_blocks: Int[Array, " b"] | None = None,
) -> Ranked:
    """Score every query against every candidate: L_i = logsumexp_c(q_i . p_c / t) - q_i . p_target(i) / t.

    Args:
        target: each query's own candidate, which always takes part; the first of them where there are `targets`.
        known, ids: a candidate takes no part where one of its `ids` is among those `known` to the query; negative entries
            are padding. None: all take part.
        scores: how many to hold at a time; rows are scored in groups of that many scores, and scored again in the backward
            pass where there is more than one group.
        teacher: adds `kl` and `agreed`; its candidates are gathered as the student's are, and its scores held as few at a time.
        queue: further candidates, through which no gradient flows. A device scores its own rows against its own copy: they
            add nothing to what devices say to each other.
        blocks: of each candidate [c, k, d], in any shape, how many of its k blocks are real, the first always; None: they are vectors.
        query_blocks: the same of the queries.
    Returns:
        Float32 or wider, split by rows over the batch axes where a mesh is set.
    """
    if known is None or ids is None:
        known, ids = jnp.full((queries.shape[0], 1), -1), jnp.full((candidates.shape[0], 1), -1)
    taught = (None, None) if teacher is None else lax.stop_gradient(teacher[:2])
    rows = queries, target, known, None if targets is None else targets.number, taught[0], query_blocks
    if blocks is not None:  # they travel as one more column beside what is gathered anyway
        ids = jnp.concatenate([ids, blocks.reshape(-1, 1)], axis=1)
    columns = candidates, ids, taught[1]

    apart, divisor = None if targets is None else targets.apart, None if teacher is None else teacher.temperature
    score = partial(_score, temperature=temperature, apart=apart, teacher_temperature=divisor)
    at_once = scores if teacher is None else scores // 2
    if row_shards(queries.shape[0]) == 1 or row_shards(candidates.shape[0]) == 1:
        return _by_groups(score, rows, columns, queue, at_once)

    def own_rows(rows: tuple[Any, ...], columns: tuple[Any, ...], queue: Queue | None) -> Ranked:
        return _by_groups(score, rows, lax.all_gather(columns, BATCH_AXES, tiled=True), queue, at_once)

    split = P(BATCH_AXES)
    return jax.shard_map(own_rows, in_specs=(split, split, P()), out_specs=split)(rows, columns, queue)


def own_group_nll(
    queries: Float[Array, "b d"],
    groups: Float[Array, "b n *k d"],
    blocked: Bool[Array, "b n"],
    temperature: float = 1.0,
    targets: Targets | None = None,
    blocks: Int[Array, "b n"] | None = None,
) -> Ranked:
    """As `in_batch_nll`, each query against its own group alone, whose first member is the target, or whose first ones are."""
    scores = own_scores(queries, groups, blocks) / temperature
    count = 1 if targets is None else targets.number[:, None]
    is_target = jnp.broadcast_to(jnp.arange(groups.shape[1]) < count, scores.shape)
    return _ranked(scores, is_target, blocked, None if targets is None else targets.apart)


def back_nll(
    queries: Float[Array, "b d"],
    groups: Float[Array, "b n *k d"],
    positives: Int[Array, "b m"],
    known: Int[Array, "b p"],
    temperature: float = 1.0,
    blocks: Int[Array, "b n"] | None = None,
) -> Float[Array, ""]:
    """The other way round: every positive must find its query among all. The mean over rows of the mean over a row's positives.

    Args:
        positives: ids of each group's first members, -1 where they are no positives; the first one is. known: ids of what
            answers each query; a query is no negative of a passage among them.
    """
    b, m = positives.shape
    first, own = groups[:, :m].reshape(b * m, *groups.shape[2:]), jnp.repeat(jnp.arange(b), m)
    each = None if blocks is None else blocks[:, :m].reshape(-1)
    found = in_batch_nll(first, queries, own, positives.reshape(-1, 1), known, temperature, query_blocks=each)
    real = positives >= 0
    return (jnp.where(real, found.nll.reshape(b, m), 0).sum(1) / real.sum(1)).mean()


def in_group(known: Int[Array, "b p"], ids: Int[Array, "b n"]) -> Bool[Array, "b n"]:
    """Where a member of a row's own group is known to answer its query."""
    return ((ids[:, :, None] == known[:, None, :]) & (known[:, None, :] >= 0)).any(-1)


def own_scores(
    queries: Float[Array, "b d"], groups: Float[Array, "b n *k d"], blocks: Int[Array, "b n"] | None = None
) -> Float[Array, "b n"]:
    """The dot products of each query with its own group, in float32 or wider; of blocks [b, n, k, d] the best of the real ones."""
    if blocks is None:
        return _dot("bd,bnd->bn", queries, groups)
    return _best(_dot("bd,bnkd->bnk", queries, groups), blocks)


def matches(known: Int[Array, "b p"], ids: Int[Array, "c q"]) -> Bool[Array, "b c"]:
    """Where an id of candidate c is known to row b (negative entries are padding). Never makes a [b, c, p] array."""

    def one(i: Int[Array, ""], found: Bool[Array, "b c"]) -> Bool[Array, "b c"]:
        row = lax.dynamic_index_in_dim(known, i // ids.shape[1], axis=1)
        column = lax.dynamic_index_in_dim(ids, i % ids.shape[1], axis=1)
        return found | ((row == column.T) & (row >= 0))

    nothing = (known[:, :1] == ids[:, :1].T) & False  # of the arrays themselves: as varying over devices as they are
    return lax.fori_loop(0, known.shape[1] * ids.shape[1], one, nothing)


def rank_metrics(found: Ranked) -> dict[str, Pair]:
    """``accuracy`` (the target is first) and ``reciprocal_rank`` among all candidates."""
    rank = found.rank.astype(found.nll.dtype)
    count = jnp.float32(rank.shape[0])
    return {"accuracy": ((rank == 1).sum(dtype=jnp.float32), count), "reciprocal_rank": ((1 / rank).sum(), count)}


def mask_metrics(found: Ranked, candidates: int | Float[Array, ""]) -> dict[str, Pair]:
    """``masked_candidates``, the share of candidates left out (targets aside), and ``negatives``, how many a row keeps."""
    rows = found.masked.shape[0]
    left_out = found.masked.sum(dtype=jnp.float32)
    cells = jnp.float32(rows * candidates) - found.targets.sum(dtype=jnp.float32)
    return {"masked_candidates": (left_out, cells), "negatives": (cells - left_out, jnp.float32(rows))}


def _score(
    rows: tuple[Any, ...],
    columns: tuple[Any, ...],
    queue: Queue | None,
    temperature: float,
    apart: bool | None,
    teacher_temperature: float | None,
) -> Ranked:
    """Some rows against all candidates; what is in `rows` and `columns`, `in_batch_nll` says."""
    (queries, target, known, count, asked, of_query), (candidates, ids, answers) = rows, columns
    ids, real = (ids, None) if candidates.ndim == 2 else (ids[:, :-1], ids[:, -1])
    found = _of_blocks(queries, candidates, of_query, real) / temperature
    if queue is not None:
        found, ids = _and_queue(found, ids, queries, queue, temperature)
    away = jnp.arange(found.shape[1]) - target[:, None]
    # Rows that only fill the last group have a count of 0: they too have a target, so that their gradient is finite.
    is_target = (away == 0) if count is None else (away >= 0) & (away < jnp.maximum(count, 1)[:, None])
    theirs = None if teacher_temperature is None else _dot("be,ce->bc", asked, answers) / teacher_temperature
    return _ranked(found, is_target, matches(known, ids), apart, theirs)


def _by_groups(score: Callable[..., Ranked], rows: tuple[Any, ...], columns: tuple[Any, ...], queue: Queue | None, scores: int) -> Ranked:
    """One device's rows, as many at a time as `scores` allow."""
    n, d = rows[0].shape[0], rows[0].shape[-1]
    vectors = columns[0].size // d + (0 if queue is None else len(queue.ids))
    size = max(1, scores // (vectors * (rows[0].size // (n * d))))
    if n <= size:
        return score(rows, columns, queue)
    groups = -(-n // size)
    filled = jax.tree.map(lambda x: jnp.pad(x, ((0, groups * size - n), *((0, 0),) * (x.ndim - 1))), rows)
    split = jax.tree.map(lambda x: x.reshape(groups, size, *x.shape[1:]), filled)
    found = lax.map(jax.checkpoint(lambda rows: score(rows, columns, queue)), split)
    return jax.tree.map(lambda x: x.reshape(-1)[:n], found)


def _and_queue(found: Array, ids: Array, queries: Array, queue: Queue, temperature: float) -> tuple[Array, Array]:
    """Scores and ids of the queue beside those of the batch: apart, so that the backward pass computes nothing for the queue."""
    earlier = _dot("bd,md->bm", queries, lax.stop_gradient(queue.vectors)) / temperature
    found = jnp.concatenate([found, jnp.where(queue.ids < 0, -jnp.inf, earlier)], axis=1)
    return found, jnp.concatenate([ids, jnp.broadcast_to(queue.ids[:, None], (len(queue.ids), ids.shape[1]))])


def _of_blocks(queries: Array, candidates: Array, query_blocks: Array | None, blocks: Array | None) -> Float[Array, "b c"]:
    """Scores of queries [b, (j,) d] with candidates [c, (k,) d], the best of the real blocks on either side."""
    found, d = _dot("bd,cd->bc", *(x.reshape(-1, x.shape[-1]) for x in (queries, candidates))), candidates.shape[-1]
    if blocks is not None:
        found = _best(found.reshape(queries.size // d, *candidates.shape[:-1]), blocks)
    if query_blocks is not None:
        found = _best(found.reshape(*queries.shape[:-1], -1).swapaxes(1, 2), query_blocks[:, None])
    return found


def _best(scores: Float[Array, "*s k"], blocks: Int[Array, "..."]) -> Float[Array, "..."]:
    """The largest of the first `blocks` scores of each line, and of one at least."""
    number = jnp.arange(scores.shape[-1])
    return jnp.max(jnp.where((number < blocks[..., None]) | (number == 0), scores, -jnp.inf), axis=-1)


def _dot(spec: str, a: Array, b: Array) -> Array:
    wide = jnp.promote_types(jnp.promote_types(a.dtype, b.dtype), jnp.float32)
    return jnp.einsum(spec, a.astype(wide), b.astype(wide), precision=lax.Precision.HIGHEST)


def _ranked(scores: Array, is_target: Array, blocked: Array, apart: bool | None = None, teacher: Array | None = None) -> Ranked:
    """`apart`: as in `Targets`; None where every row has one target."""
    left_out = blocked & ~is_target
    scores = jnp.where(left_out, -jnp.inf, scores)
    total = jax.nn.logsumexp(scores, axis=1)
    best = jnp.max(jnp.where(is_target, scores, -jnp.inf), axis=1)
    if apart is None:
        nll = total - jnp.sum(jnp.where(is_target, scores, 0), axis=1)
    elif apart:
        nll = _each_apart(scores, is_target, left_out)
    else:
        nll = total - jax.nn.logsumexp(jnp.where(is_target, scores, -jnp.inf), axis=1)
    rank = 1 + jnp.sum((scores >= best[:, None]) & ~is_target, axis=1)
    found = Ranked(nll, rank, jnp.sum(left_out, axis=1), jnp.sum(is_target, axis=1), total)
    if teacher is None:
        return found
    teacher = jnp.where(left_out, -jnp.inf, teacher)
    first = jnp.take_along_axis(teacher, jnp.argmax(scores, axis=1)[:, None], axis=1)  # equal texts have equal scores of a teacher
    return found._replace(kl=_divergence(scores, total, teacher, left_out), agreed=first[:, 0] >= teacher.max(axis=1))


def _each_apart(scores: Array, is_target: Array, left_out: Array) -> Array:
    """The mean over a row's targets of log(exp(s_t) + sum over others of exp(s)) - s_t; 0 where there is nothing but targets."""
    others = ~(is_target | left_out)
    some = others.any(axis=1)
    # Rows without others get numbers that are finite and then dropped: an infinite one would spoil the gradient.
    rest = jax.nn.logsumexp(jnp.where(others, scores, jnp.where(some[:, None], -jnp.inf, 0)), axis=1)
    cells = jnp.where(is_target, jax.nn.softplus(rest[:, None] - jnp.where(is_target, scores, 0)), 0)
    return jnp.where(some, cells.sum(axis=1) / is_target.sum(axis=1), 0)


def _divergence(scores: Array, total: Array, teacher: Array, left_out: Array) -> Array:
    """sum of p (log p - log q), p after the teacher, q after the scores, over all candidates that take part."""
    log_p = teacher - jax.nn.logsumexp(teacher, axis=1, keepdims=True)
    gaps = jnp.where(left_out, 0, log_p) - jnp.where(left_out, 0, scores - total[:, None])
    return jnp.sum(jnp.exp(log_p) * gaps, axis=1)

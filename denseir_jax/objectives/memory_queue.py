"""A queue of the passages of earlier batches as further negatives: cross-batch memory (Wang et al. 2020, arXiv 1912.06798).

A passage enters with the vector that it had when it was trained on; there is no second, slower encoder. Vectors are those of
the embedder, so the same memory serves dot, cosine and l2. A passage of the queue that is known to answer a query is masked
for it, and counted, as one of the batch is; what is in the batch and in the queue counts twice, once fresh, once stored. A
symmetric loss asks positives for their query, and the queue holds no queries: that direction is over the batch alone.

Every device holds the whole queue: memory x d x 4 bytes (4096 of 768 dimensions: 12 MiB), and as much again while a step
computes the next one. So of all that devices say to each other only the gathering of the batch's own vectors, to be stored, is
new, and nothing grows with the queue.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from denseir_jax.models.dense import unit
from denseir_jax.objectives.base import Batch, Memory, Pair
from denseir_jax.parallel.mesh import on_own_rows
from denseir_jax.parallel.queue import Queue, enqueue


def empty(places: int, width: int) -> Memory:
    """``stored`` [places, width], ``stored_row`` int32 [places], text ids as in ``passage_row``, -1 where nothing is, and
    ``stored_steps`` int32 [], how many batches came by. The oldest passage stands first."""
    return {
        "stored": jnp.zeros((places, width)),
        "stored_row": jnp.full(places, -1, jnp.int32),
        "stored_steps": jnp.zeros((), jnp.int32),
    }


def entered(batch: Batch, passage: Float[Array, "b n d"]) -> Memory:
    """The memory after the batch's passages have entered it, row by row."""
    queue = enqueue(_whole(batch), passage.reshape(-1, passage.shape[-1]), batch["passage_row"].reshape(-1))
    return {"stored": queue.vectors, "stored_row": queue.ids, "stored_steps": batch["stored_steps"] + 1}


def candidates(batch: Batch, start: int) -> Queue:
    """What takes part in this step: nothing before step `start` (the first is 0), though passages enter from the first on."""
    vectors, rows = _whole(batch)
    return Queue(vectors, jnp.where(batch["stored_steps"] >= start, rows, -1))


def filled(rows: Int[Array, " m"]) -> Float[Array, ""]:
    """How many places hold a passage."""
    return (rows >= 0).sum(dtype=jnp.float32)


def metrics(batch: Batch, passage: Float[Array, "b n d"]) -> dict[str, Pair]:
    """``memory_filled``, the share of places that hold a passage, and ``memory_cosine``: over the passages of the batch that are
    in the queue, the mean cosine between the fresh vector and the newest stored one. It is 1 where nothing drifts, less for
    what the parameters have changed since, and for dropout, which differs too."""
    rows = batch["stored_row"]
    cosine, found = on_own_rows(_newest_cosine, (lax.stop_gradient(passage), batch["passage_row"]), _whole(batch))
    return {
        "memory_filled": (filled(rows), jnp.float32(len(rows))),
        "memory_cosine": (cosine.sum(), found.sum(dtype=jnp.float32)),
    }


def _newest_cosine(
    passage: Float[Array, "b n d"], rows: Int[Array, "b n"], stored: Float[Array, "m d"], stored_rows: Int[Array, " m"]
) -> tuple[Float[Array, "b n"], Int[Array, "b n"]]:
    """0 where a passage is not in the queue; and 1 where it is."""
    order = jnp.argsort(stored_rows)  # stable: of equal ones the newest is last
    last = jnp.searchsorted(stored_rows[order], rows, side="right") - 1
    found = (last >= 0) & (stored_rows[order][last] == rows)
    cosine = (unit(passage) * unit(stored[order[last]])).sum(-1)
    return jnp.where(found, cosine, 0), found.astype(jnp.int32)


def _whole(batch: Batch) -> Queue:
    return Queue(batch["stored"], batch["stored_row"])

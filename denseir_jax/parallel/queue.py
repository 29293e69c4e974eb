"""A queue of candidates of earlier batches, whole on every device."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from denseir_jax.parallel.mesh import whole_on_devices


class Queue(NamedTuple):
    """Candidates of earlier batches, whole on every device. An id below 0 is an empty place, which is no candidate at all."""

    vectors: Float[Array, "m d"]
    ids: Int[Array, " m"]


def enqueue(queue: Queue, vectors: Float[Array, "c d"], ids: Int[Array, " c"]) -> Queue:
    """The queue after these candidates have entered it in their order; the oldest leave at the front.

    Of more candidates than places the last stay. Where a mesh is set, every device gathers the vectors once, c x d numbers,
    however long the queue is.
    """
    places = len(queue.ids)
    new = whole_on_devices(lax.stop_gradient(vectors)), whole_on_devices(ids)
    return Queue(*(jnp.concatenate([old, late.astype(old.dtype)])[-places:] for old, late in zip(queue, new, strict=True)))

"""Dropout whose bits depend on the row's key and the place in the network, never on where in a batch the row lies."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, UInt

LEVELS = 1 << 16


def keyed_dropout(
    x: Float[Array, "b *s d"], rate: float, keys: Key[Array, " b"] | None, site: int | Int[Array, ""]
) -> Float[Array, "b *s d"]:
    """Zero each element with probability `rate` and scale the others, so that the expectation stays.

    The bits of row i are drawn from ``fold_in(keys[i], site)`` alone: the same whatever the batch, the micro-batch or the
    device that the row is in. The rate is rounded to a multiple of 1/65536 (16 random bits an element), the scale with it.

    Args:
        x: rows along the first dimension. keys: one typed key a row; None means no dropout.
        site: the number of this place in the network; two places of one row need two numbers.
    Raises:
        ValueError: the rate is not in [0, 1), or the keys are not threefry keys: under vmap other generators do not draw
            row by row.
    """
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"dropout rate {rate} is not in [0, 1)")
    threshold = round(rate * LEVELS)
    if keys is None or threshold == 0:
        return x
    if str(jax.random.key_impl(keys)) != "threefry2x32":
        raise ValueError(f"dropout needs threefry2x32 keys, got {jax.random.key_impl(keys)}: its bits must not depend on the batch")
    drawn = jax.vmap(lambda key: _draw(jax.random.fold_in(key, site), x.shape[1:]))(keys)
    return jnp.where(drawn < threshold, 0, x * (LEVELS / (LEVELS - threshold)))


def _draw(key: Key[Array, ""], shape: tuple[int, ...]) -> UInt[Array, "..."]:
    """16 random bits an element: each 32-bit word serves two, since drawing words is what dropout costs."""
    words = jax.random.bits(key, (*shape[:-1], (shape[-1] + 1) // 2), jnp.uint32)
    return jnp.concatenate([words & (LEVELS - 1), words >> 16], axis=-1)[..., : shape[-1]]

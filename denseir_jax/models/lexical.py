"""What a text says in words: the MLM head's logits, the largest over its tokens (DupMAE, Liu et al. 2022; LexMAE; SPLADE).

The logits of all tokens are made for a part of the vocabulary at a time, and again in the backward pass: [tokens,
vocabulary] never exists, only [texts, vocabulary].
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from denseir_jax.models import heads
from denseir_jax.models.dense import einsum
from denseir_jax.models.shape import EncoderConfig, Params
from denseir_jax.parallel.mesh import on_own_rows

_CHUNK = 2048  # columns of the vocabulary at a time


def word_logits(encoder: EncoderConfig, params: Params, states: Float[Array, "b d"]) -> Float[Array, "b v"]:
    """The MLM head's logits of one state a row over the true vocabulary.

    Args:
        params: {"encoder", "mlm_head"}, others are ignored.
    """
    table, bias = heads.mlm_table(params["encoder"], params["mlm_head"])
    transformed = heads.mlm_transform(encoder, params["mlm_head"], states)
    return (einsum("bd,vd->bv", transformed, table, encoder.dtype) + bias)[:, : encoder.vocab_size]


def largest_word_logits(
    encoder: EncoderConfig, params: Params, states: Float[Array, "b l d"], taken: Bool[Array, "b l"]
) -> Float[Array, "b v"]:
    """max over the taken tokens of the MLM head's logits, for every word of the true vocabulary.

    A row of which no token is taken gets the lowest logits there are; the gradient goes to the largest token alone (shared
    where several are equal). Where a mesh is set, each device has its own rows and the whole table.
    """
    table, bias = heads.mlm_table(params["encoder"], params["mlm_head"])
    transformed = heads.mlm_transform(encoder, params["mlm_head"], states)
    parts = -(-table.shape[0] // _CHUNK)
    width = -(-table.shape[0] // parts)
    rest = parts * width - table.shape[0]
    chunks = (
        jnp.pad(table, ((0, rest), (0, 0))).reshape(parts, width, -1),
        jnp.pad(bias, (0, rest)).reshape(parts, width),
    )

    def over_parts(transformed: Array, taken: Array, table: Array, bias: Array) -> Array:
        @jax.checkpoint
        def one(carry: None, part: tuple[Array, Array]) -> tuple[None, Array]:
            logits = einsum("bld,vd->blv", transformed, part[0], encoder.dtype) + part[1]
            return carry, jnp.where(taken[:, :, None], logits, jnp.finfo(logits.dtype).min / 2).max(1)

        _, found = lax.scan(one, None, (table, bias))
        return jnp.moveaxis(found, 0, 1).reshape(transformed.shape[0], -1)

    return jnp.asarray(on_own_rows(over_parts, (transformed, taken), chunks))[:, : encoder.vocab_size]


def after_cls(length: Int[Array, " b"], width: int) -> Bool[Array, "b l"]:
    """The real tokens but the first, [SEP] included: those whose logits DupMAE takes the largest of."""
    at = jnp.arange(width)
    return (at >= 1) & (at < length[:, None])


def bag(ids: Int[Array, "b l"], taken: Bool[Array, "b l"], vocab_size: int, once: bool, dtype: Any = jnp.float32) -> Float[Array, "b v"]:
    """Weights of the words of each row's taken tokens, 1 together: their counts, or all alike however often they come (`once`).

    A row of which nothing is taken has no weight anywhere.
    """
    counts = jax.vmap(lambda words, mine: jnp.zeros(vocab_size, dtype).at[words].add(mine))(ids, taken.astype(dtype))
    weights = (counts > 0).astype(dtype) if once else counts
    return weights / jnp.maximum(weights.sum(1, keepdims=True), 1)

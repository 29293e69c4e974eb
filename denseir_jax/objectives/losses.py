"""Cross entropy over a vocabulary, streamed so that no [tokens, vocabulary] array of logits ever exists."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from denseir_jax.parallel.mesh import on_own_rows

_LANE = 128


class TokenLosses(NamedTuple):
    """nll: -log softmax(logits)[label] in nats; correct: 1 where the label is the (first) largest logit."""

    nll: Float[Array, " n"]
    correct: Float[Array, " n"]


def chunked_cross_entropy(
    hidden: Float[Array, "n d"],
    table: Float[Array, "v d"],
    bias: Float[Array, " v"],
    labels: Int[Array, " n"],
    vocab_size: int,
    chunk: int = 2048,
) -> TokenLosses:
    """Cross entropy of softmax(hidden @ table.T + bias) at `labels`, `chunk` columns of the vocabulary at a time.

    Rows of `table` from `vocab_size` on are padding and take no part. Matrix products run in the dtype of `hidden`,
    everything else in float32 or wider. The backward pass makes each chunk of logits again: one more product.
    Where a mesh is set, each device has its own labels and the whole table, whose gradient is summed over devices once.
    """
    if vocab_size > table.shape[0] or chunk < 1:
        raise ValueError(f"vocab_size={vocab_size} with a table of {table.shape[0]} rows, chunk={chunk}")
    width = _even_chunk(table.shape[0], chunk)

    def own_rows(hidden: Array, labels: Array, table: Array, bias: Array) -> tuple[Array, Array]:
        return _cross_entropy(hidden, table, bias, labels, vocab_size, width)

    return TokenLosses(*on_own_rows(own_rows, (hidden, labels), (table, bias)))


def mean(pair: tuple[Float[Array, ""], Float[Array, ""]]) -> Float[Array, ""]:
    """sum / max(count, 1): an empty batch of labels costs nothing instead of being NaN."""
    return pair[0] / jnp.maximum(pair[1], 1)


def _even_chunk(rows: int, chunk: int) -> int:
    """The width that splits `rows` into equal parts of at most `chunk`, rounded up to whole lanes where there is more than one."""
    parts = -(-rows // chunk)
    width = -(-rows // parts)
    return min(rows, -(-width // _LANE) * _LANE) if parts > 1 else rows


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _cross_entropy(
    hidden: Float[Array, "n d"], table: Float[Array, "v d"], bias: Float[Array, " v"], labels: Int[Array, " n"], vocab_size: int, chunk: int
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    return _forward(hidden, table, bias, labels, vocab_size, chunk)[0]


def _forward(
    hidden: Array, table: Array, bias: Array, labels: Array, vocab_size: int, chunk: int
) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    accumulate = jnp.promote_types(hidden.dtype, jnp.float32)

    def step(carry: Any, part: Array) -> tuple[Any, None]:
        top, total, of_label, best = carry
        logits, ids = _logits(hidden, table, bias, part, vocab_size, chunk)
        chunk_top = logits.max(-1)
        new_top = jnp.maximum(top, chunk_top)
        total = total * jnp.exp(top - new_top) + jnp.exp(logits - new_top[:, None]).sum(-1)
        of_label = of_label + jnp.where(ids == labels[:, None], logits, 0).sum(-1)
        first = jnp.where(logits == chunk_top[:, None], ids, table.shape[0]).min(-1)
        return (new_top, total, of_label, jnp.where(chunk_top > top, first, best)), None

    low = jnp.full_like(labels, jnp.finfo(accumulate).min, accumulate)
    zero = jnp.zeros_like(low)
    start = (low, zero, zero, jnp.full_like(labels, -1, jnp.int32))
    (top, total, of_label, best), _ = lax.scan(step, start, _parts(table, chunk))
    logsumexp = top + jnp.log(total)
    return (logsumexp - of_label, (best == labels).astype(accumulate)), (hidden, table, bias, labels, logsumexp)


def _backward(vocab_size: int, chunk: int, saved: tuple[Array, ...], cotangent: tuple[Array, Array]) -> tuple[Array | None, ...]:
    hidden, table, bias, labels, logsumexp = saved
    accumulate = logsumexp.dtype
    weight = cotangent[0][:, None]

    def step(carry: Any, part: Array) -> tuple[Any, None]:
        d_hidden, d_table, d_bias = carry
        logits, ids = _logits(hidden, table, bias, part, vocab_size, chunk)
        d_logits = (jnp.exp(logits - logsumexp[:, None]) - (ids == labels[:, None])) * weight
        narrow = d_logits.astype(hidden.dtype)
        rows = _rows(table, part, chunk).astype(hidden.dtype)
        d_hidden = d_hidden + _product(narrow, rows)
        d_rows = _product(narrow.T, hidden)
        return (d_hidden, _add_rows(d_table, d_rows, part, chunk), _add_rows(d_bias, d_logits.sum(0), part, chunk)), None

    start = tuple(jnp.zeros_like(x, accumulate) for x in (hidden, table, bias))
    (d_hidden, d_table, d_bias), _ = lax.scan(step, start, _parts(table, chunk))
    return d_hidden.astype(hidden.dtype), d_table.astype(table.dtype), d_bias.astype(bias.dtype), None


_cross_entropy.defvjp(_forward, _backward)


def _product(a: Array, b: Array) -> Array:
    # By default accelerators would round float32 inputs to fewer bits.
    precision = lax.Precision.DEFAULT if a.dtype == jnp.bfloat16 else lax.Precision.HIGHEST
    return jnp.dot(a, b, precision=precision, preferred_element_type=jnp.promote_types(a.dtype, jnp.float32))


def _parts(table: Array, chunk: int) -> Array:
    return jnp.arange(-(-table.shape[0] // chunk), dtype=jnp.int32)


def _start(table: Array, part: Array, chunk: int) -> Array:
    """The last chunk is moved back to end with the table; the rows it then shares with the one before are hidden."""
    return jnp.minimum(part * chunk, table.shape[0] - chunk)


def _rows(table: Array, part: Array, chunk: int) -> Array:
    return lax.dynamic_slice_in_dim(table, _start(table, part, chunk), chunk)


def _add_rows(total: Array, rows: Array, part: Array, chunk: int) -> Array:
    start = _start(total, part, chunk)
    return lax.dynamic_update_slice_in_dim(total, lax.dynamic_slice_in_dim(total, start, chunk) + rows, start, 0)


def _logits(hidden: Array, table: Array, bias: Array, part: Array, vocab_size: int, chunk: int) -> tuple[Array, Array]:
    """Logits [n, chunk] of one part, and the vocabulary ids [1, chunk] of its columns; hidden columns: lowest float, id -1."""
    accumulate = jnp.promote_types(hidden.dtype, jnp.float32)
    ids = (_start(table, part, chunk) + jnp.arange(chunk, dtype=jnp.int32))[None]
    rows = _rows(table, part, chunk).astype(hidden.dtype)
    logits = _product(hidden, rows.T) + _rows(bias, part, chunk).astype(accumulate)
    shown = (ids >= part * chunk) & (ids < vocab_size)
    return jnp.where(shown, logits, jnp.finfo(accumulate).min), jnp.where(shown, ids, -1)

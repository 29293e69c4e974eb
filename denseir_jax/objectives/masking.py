"""Whole-word masks for masked language modelling, drawn inside the compiled step.

A mask is a function of (seed, purpose, stream index) and the row itself, never of the batch, the chunk or the device that
holds the row. The rule is that of BERT's whole-word collator, which Condenser, CoT-MAE and RetroMAE inherit: shuffle the
words, take them one by one while they fit a budget, skip a word that does not fit, stop when the budget is spent.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key, Shaped

ENCODER_MASK = 1  # purposes: two masks of one row (an encoder's and a decoder's) need different ones

_MASKED, _RANDOM = 0.8, 0.9  # below .8: [MASK]; from .8 to .9: a random id; above: left as it is (BERT, section 3.1)


@dataclass(frozen=True)
class MaskConfig:
    """How many tokens are masked: `rate` of a row's text, of [CLS] and [SEP] too if `specials_in_budget` (as RetroMAE counts)."""

    rate: float = 0.15
    specials_in_budget: bool = False

    def __post_init__(self) -> None:
        if not 0.0 < self.rate <= 1.0:
            raise ValueError(f"mask rate {self.rate} is outside (0, 1]")


class Masked(NamedTuple):
    """Masked rows and their labelled positions, gathered to a fixed size.

    ids: the corrupted input. positions, labels: where and what to predict; slots beyond a row's labels hold 0.
    weight: 1 for a label, 0 for an unused slot.
    """

    ids: Int[Array, "b l"]
    positions: Int[Array, "b k"]
    labels: Int[Array, "b k"]
    weight: Float[Array, "b k"]


def budget_table(config: MaskConfig, length: int) -> Int[np.ndarray, " n"]:
    """Tokens to mask in a row of 0 .. `length` tokens ([CLS] and [SEP] counted): max(1, round half even(rate * T))."""
    specials = 0 if config.specials_in_budget else 2
    return np.array([max(1, round(config.rate * max(n - specials, 0))) for n in range(length + 1)], np.int32)


def row_keys(seed: int, purpose: int, index: Int[Array, " b"]) -> Key[Array, " b"]:
    """One key a row, from its stream index."""
    base = jax.random.fold_in(jax.random.key(seed), purpose)
    return jax.vmap(lambda i: jax.random.fold_in(base, i))(index)


def draw(
    config: MaskConfig,
    ids: Int[Array, "b l"],
    length: Int[Array, " b"],
    word_start: Int[Array, "b l"],
    keys: Key[Array, " b"],
    mask_id: int,
    special_ids: tuple[int, ...],
    vocab_size: int,
) -> Masked:
    """Mask whole words of every row: 80% [MASK], 10% a random id of the true vocabulary, 10% unchanged, token by token.

    Position 0, the last real token and padding are never chosen, nor is an id of `special_ids` inside the text. The
    result has as many label slots as the longest row can need, so no label is dropped.
    """
    table = budget_table(config, ids.shape[1])
    order, kind, random_ids = _random(keys, ids.shape[1], vocab_size)
    words = word_sizes(ids, length, word_start, special_ids)
    taken = fill(words, order, jnp.asarray(table)[length])
    chosen = _spread(taken, words)
    new = jnp.where(kind < _MASKED, mask_id, jnp.where(kind < _RANDOM, random_ids, ids))
    return _gather(ids, jnp.where(chosen, new, ids), chosen, int(table.max()))


def given(ids: Int[Array, "b l"], labels: Int[Array, "b l"]) -> Masked:
    """Rows masked elsewhere: `labels` over the whole length, negative where there is nothing to predict."""
    known = labels >= 0
    positions = jnp.broadcast_to(jnp.arange(ids.shape[1], dtype=jnp.int32), ids.shape)
    return Masked(ids, positions, jnp.where(known, labels, 0), known.astype(jnp.float32))


def word_sizes(
    ids: Int[Array, "b l"], length: Int[Array, " b"], word_start: Int[Array, "b l"], special_ids: tuple[int, ...]
) -> Int[Array, "b l"]:
    """Tokens of the word that starts at a position; 0 where no maskable word starts. A special id is a word of its own."""
    width = ids.shape[1]
    at = jnp.arange(width, dtype=jnp.int32)
    text = (at >= 1) & (at < length[:, None] - 1)
    special = (ids[..., None] == jnp.asarray(special_ids)).any(-1)
    after_special = jnp.pad(special[:, :-1], ((0, 0), (1, 0)))
    start = text & ((word_start > 0) | special | after_special)
    edge = jnp.where(start | ~text, at, width)  # a word ends where the next one starts, or the text ends
    following = lax.cummin(jnp.pad(edge[:, 1:], ((0, 0), (0, 1)), constant_values=width), axis=1, reverse=True)
    return jnp.where(start & ~special, following - at, 0)


def fill(words: Int[Array, "b l"], order: Int[Array, "b l"], budget: Int[Array, " b"]) -> Bool[Array, "b l"]:
    """Take words in `order` (a permutation of the positions) while they fit; one that exceeds what is left is skipped.

    True at the starts of the words taken.
    """

    def take(left: Int[Array, " b"], size: Int[Array, " b"]) -> tuple[Int[Array, " b"], Bool[Array, " b"]]:
        fits = (size > 0) & (size <= left)
        return left - jnp.where(fits, size, 0), fits

    _, taken = lax.scan(take, budget, jnp.take_along_axis(words, order, axis=1).T)
    return jax.vmap(lambda at, took: jnp.zeros(words.shape[1], bool).at[at].set(took, unique_indices=True))(order, taken.T)


def _random(keys: Key[Array, " b"], width: int, vocab_size: int) -> tuple[Int[Array, "b l"], Float[Array, "b l"], Int[Array, "b l"]]:
    def one(key: Key[Array, ""]) -> tuple[Array, Array, Array]:
        order, kind, ids = jax.random.split(key, 3)
        return (
            _permutation(jax.random.bits(order, (width,), jnp.uint32)),
            jax.random.uniform(kind, (width,), jnp.float32),
            jax.random.randint(ids, (width,), 0, vocab_size, jnp.int32),
        )

    return jax.vmap(one)(keys)


def _permutation(bits: Shaped[Array, " l"]) -> Int[Array, " l"]:
    """The positions by rising random bits. The low bits hold the position: sorting one array is ten times faster than two."""
    low = jnp.uint32((1 << max(1, (bits.shape[0] - 1).bit_length())) - 1)
    return (jnp.sort((bits & ~low) | jnp.arange(bits.shape[0], dtype=jnp.uint32)) & low).astype(jnp.int32)


def _spread(taken: Bool[Array, "b l"], words: Int[Array, "b l"]) -> Bool[Array, "b l"]:
    """Every token of the taken words: those before the end of the last taken word that starts at or before them."""
    at = jnp.arange(words.shape[1], dtype=jnp.int32)
    end = lax.cummax(jnp.where(taken, at + words, 0), axis=1)
    return at < end


def _gather(ids: Int[Array, "b l"], masked: Int[Array, "b l"], chosen: Bool[Array, "b l"], slots: int) -> Masked:
    """The chosen positions in rising order, in `slots` places a row."""
    at = jnp.arange(ids.shape[1], dtype=jnp.int32)
    order = jnp.sort(jnp.where(chosen, at, ids.shape[1]), axis=1)[:, :slots]
    used = order < ids.shape[1]
    positions = jnp.where(used, order, 0)
    labels = jnp.where(used, jnp.take_along_axis(ids, positions, axis=1), 0)
    return Masked(masked, positions, labels, used.astype(jnp.float32))

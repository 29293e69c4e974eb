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
DECODER_MASK = 2

_STAGES = 64  # a scheduled rate moves in so many equal steps, for which budgets are tabled


@dataclass(frozen=True)
class MaskConfig:
    """How many tokens are masked, and what stands in their place.

    Attributes:
        rate: share of a row's text, of [CLS] and [SEP] too if `specials_in_budget` (as RetroMAE counts).
        final_rate, ramp: the rate moves from `rate` to `final_rate` over the first `ramp` rows of the stream (steps x batch
            size), evenly; ramp=0: it is constant.
        masked, random: shares of the chosen tokens that become [MASK] and a random id; the rest stay as they are (BERT,
            section 3.1). masked=1, random=0 is SimLM's.
    """

    rate: float = 0.15
    specials_in_budget: bool = False
    final_rate: float | None = None
    ramp: int = 0
    masked: float = 0.8
    random: float = 0.1

    @property
    def rates(self) -> tuple[float, ...]:
        """The rate at the start and, where it is scheduled, at the end of the ramp."""
        return (self.rate,) if self.final_rate is None else (self.rate, self.final_rate)

    def __post_init__(self) -> None:
        for rate in self.rates:
            if not 0.0 < rate <= 1.0:
                raise ValueError(f"mask rate {rate} is outside (0, 1]")
        if self.ramp < 0 or (self.final_rate is None) != (self.ramp == 0):
            raise ValueError(f"final_rate={self.final_rate} and ramp={self.ramp}: a schedule needs both, a constant rate neither")
        if self.ramp >= 2**31:
            raise ValueError(f"ramp={self.ramp} is beyond the rows that a stream can have: expected less than 2^31")
        if min(self.masked, self.random) < 0 or self.masked + self.random > 1 + 1e-9:
            raise ValueError(
                f"masked={self.masked} and random={self.random} are shares of the chosen tokens: expected 0 or more, 1 together"
            )


Chosen = Bool[Array, "b l"]  # True at the tokens that a mask picks


class Masked(NamedTuple):
    """Masked rows and their labelled positions, gathered to a fixed size.

    ids: the corrupted input. positions, labels: where and what to predict; slots beyond a row's labels hold 0.
    weight: 1 for a label, 0 for an unused slot.
    """

    ids: Int[Array, "b l"]
    positions: Int[Array, "b k"]
    labels: Int[Array, "b k"]
    weight: Float[Array, "b k"]


def budget_table(config: MaskConfig, length: int) -> Int[np.ndarray, "stages n"]:
    """Tokens to mask in a row of 0 .. `length` tokens ([CLS] and [SEP] counted): max(1, round half even(rate * T)).

    One line for a constant rate, one a stage for a scheduled one.
    """
    specials = 0 if config.specials_in_budget else 2
    last = config.rate if config.final_rate is None else config.final_rate
    rates = np.linspace(config.rate, last, 1 if config.final_rate is None else _STAGES + 1).tolist()
    return np.array([[max(1, round(rate * max(n - specials, 0))) for n in range(length + 1)] for rate in rates], np.int32)


def most_labels(config: MaskConfig, width: int) -> int:
    """Label slots that the longest row can need."""
    return int(budget_table(config, width).max())


def row_keys(seed: int, purpose: int, index: Int[Array, " b"]) -> Key[Array, " b"]:
    """One key a row, from its stream index."""
    base = jax.random.fold_in(jax.random.key(seed), purpose)
    return jax.vmap(lambda i: jax.random.fold_in(base, i))(index)


@dataclass(frozen=True)
class Text:
    """Clean rows and all that masks depend on.

    ids: tokens. length: real ones. words: as `word_sizes` gives. index: in the stream. side: number of the text within its
    row, where a row holds several. seed: of the run.
    """

    ids: Int[Array, "b l"]
    length: Int[Array, " b"]
    words: Int[Array, "b l"]
    index: Int[Array, " b"]
    side: Int[Array, " b"]
    seed: int

    @classmethod
    def of(
        cls,
        ids: Int[Array, "b l"],
        length: Int[Array, " b"],
        word_start: Int[Array, "b l"],
        index: Int[Array, " b"],
        special_ids: tuple[int, ...],
        seed: int,
        side: Int[Array, " b"] | None = None,
    ) -> "Text":
        """`side`: number of the text within its row, where a row holds several; their masks differ."""
        words = word_sizes(ids, length, word_start, special_ids)
        return cls(ids, length, words, index, jnp.zeros_like(index) if side is None else side, seed)

    def keys(self, purpose: int) -> Key[Array, " b"]:
        """One key a text, from (seed, purpose, stream index, side)."""
        return jax.vmap(jax.random.fold_in)(row_keys(self.seed, purpose, self.index), self.side)


def budgets(config: MaskConfig, text: Text) -> Int[Array, " b"]:
    """Each row's budget, from its length and, where the rate is scheduled, from its stream index."""
    table, index = jnp.asarray(budget_table(config, text.ids.shape[1])), text.index
    stage = jnp.zeros_like(index) if table.shape[0] == 1 else jnp.minimum(index / config.ramp * _STAGES, _STAGES).astype(jnp.int32)
    return table[stage, text.length]


def draw(config: MaskConfig, text: Text, mask_id: int, vocab_size: int, purpose: int = ENCODER_MASK) -> tuple[Masked, Chosen]:
    """Mask whole words of every row; by default 80% [MASK], 10% a random id of the true vocabulary, 10% unchanged, token by token.

    Position 0, the last real token and padding are never chosen, nor is a special id inside the text. The result has as
    many label slots as the longest row can need, so no label is dropped.
    """
    chosen = choose(config, text, purpose)
    return masked_at(config, text, chosen, most_labels(config, text.ids.shape[1]), mask_id, vocab_size, purpose), chosen


def choose(config: MaskConfig, text: Text, purpose: int) -> Chosen:
    """Which tokens the rule picks, without regard to other masks."""
    return _choose(text.words, budgets(config, text), text.keys(purpose))


def choose_more(config: MaskConfig, text: Text, first: Chosen, purpose: int) -> Chosen:
    """A larger mask around `first` (SimLM; LexMAE's "inclusive"): words are added until the budget is that of `config`."""
    budget = budgets(config, text) - first.sum(1, dtype=jnp.int32)
    return first | _choose(jnp.where(first, 0, text.words), jnp.maximum(budget, 0), text.keys(purpose))


def choose_apart(config: MaskConfig, text: Text, first: Chosen, purpose: int) -> Chosen:
    """A mask that has no token in common with `first` (LexMAE's "exclusive")."""
    return _choose(jnp.where(first, 0, text.words), budgets(config, text), text.keys(purpose))


def choose_many(config: MaskConfig, text: Text, n: int, purpose: int) -> Bool[Array, "b n l"]:
    """`n` masks of every row, drawn one apart from the other (RetroMAE's enhanced decoding)."""
    b, width = text.ids.shape
    keys = jax.vmap(lambda key: jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(n)))(text.keys(purpose))
    return _choose(jnp.repeat(text.words, n, axis=0), jnp.repeat(budgets(config, text), n), keys.reshape(-1)).reshape(b, n, width)


def masked_at(config: MaskConfig, text: Text, chosen: Chosen, slots: int, mask_id: int, vocab_size: int, purpose: int) -> Masked:
    """Corrupt the chosen tokens and gather them as labels, in `slots` places a row."""
    kind, random_ids = _corruption(text.keys(purpose), text.ids.shape[1], vocab_size)
    random_until = config.masked + config.random
    new = jnp.where(kind < config.masked, mask_id, jnp.where(kind < random_until, random_ids, text.ids))
    return _gather(text.ids, jnp.where(chosen, new, text.ids), chosen, slots)


def word_numbers(text: Text) -> Int[Array, "b l"]:
    """Equal for the tokens of one maskable word; every other token ([CLS], [UNK], padding) has a number of its own."""
    starts = text.words > 0
    return jnp.where(_spread(starts, text.words), jnp.cumsum(starts, axis=1), -1 - jnp.arange(text.ids.shape[1]))


def text_tokens(text: Text) -> Bool[Array, "b l"]:
    """Real tokens but the first ([CLS]) and the last ([SEP])."""
    return _between_specials(text.length, text.ids.shape[1])


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
    text = _between_specials(length, width)
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


def _between_specials(length: Int[Array, " b"], width: int) -> Bool[Array, "b l"]:
    at = jnp.arange(width, dtype=jnp.int32)
    return (at >= 1) & (at < length[:, None] - 1)


def _choose(words: Int[Array, "b l"], budget: Int[Array, " b"], keys: Key[Array, " b"]) -> Chosen:
    def order(key: Key[Array, ""]) -> Int[Array, " l"]:
        return _permutation(jax.random.bits(jax.random.fold_in(key, 0), (words.shape[1],), jnp.uint32))

    return _spread(fill(words, jax.vmap(order)(keys), budget), words)


def _corruption(keys: Key[Array, " b"], width: int, vocab_size: int) -> tuple[Float[Array, "b l"], Int[Array, "b l"]]:
    def one(key: Key[Array, ""]) -> tuple[Array, Array]:
        kind, ids = jax.random.split(jax.random.fold_in(key, 1))
        return jax.random.uniform(kind, (width,), jnp.float32), jax.random.randint(ids, (width,), 0, vocab_size, jnp.int32)

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

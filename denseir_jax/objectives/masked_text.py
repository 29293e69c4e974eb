"""What objectives over masked text share: rows, masks, and the vocabulary loss at the labelled positions."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from denseir_jax.data.batches import Crop, MaskedTextRows, RowSource
from denseir_jax.data.tokenizer import Tokenizer
from denseir_jax.data.tokens import TokenStore
from denseir_jax.models import heads
from denseir_jax.objectives import masking
from denseir_jax.objectives.base import Batch, Field, OneTower, Pair, Params
from denseir_jax.objectives.losses import TokenLosses, chunked_cross_entropy
from denseir_jax.objectives.masking import MaskConfig, Masked


@dataclass(frozen=True)
class MaskedText(OneTower):
    """Base of the masked-text objectives. A subclass turns masked rows into vectors and sums in `score`."""

    mask: MaskConfig
    crop: Crop

    def fields(self) -> dict[str, Field]:
        """Text, its length, where words start, and the stream index from which masks are drawn."""
        text = Field((self.context.passage_length,))
        return {"input_ids": text, "length": Field(), "word_start": text, "index": Field()}

    def rows(self, store: TokenStore, groups: Path | None = None, tokenizer: Tokenizer | None = None) -> RowSource:
        """Pieces of the corpus, cropped to a passage's length; a training set adds nothing."""
        return MaskedTextRows(store, self.context.passage_length, self.context.seed, self.crop)

    def masked(self, rows: Batch) -> Masked:
        """The rows under this run's masks: a function of the seed and each row's stream index."""
        keys = masking.row_keys(self.context.seed, masking.ENCODER_MASK, rows["index"])
        special, vocab_size = self.context.special_ids, self.context.vocab_size
        text = rows["input_ids"], rows["length"], rows["word_start"]
        return masking.draw(self.mask, *text, keys, self.context.mask_id, special, vocab_size)

    def per_row(
        self, params: Params, rows: Batch, keys: Key[Array, " b"] | None, train: bool
    ) -> tuple[dict[str, jax.Array], dict[str, Pair]]:
        """Masks are drawn in evaluation too, the same ones for the same rows."""
        masked = self.masked(rows)
        vectors, sums = self.score(params, masked, rows["length"], keys if train else None)
        text = jnp.maximum(rows["length"] - 2, 0).sum(dtype=jnp.float32)
        return vectors, {**sums, "masked_share": (masked.weight.sum(), text)}

    def score(
        self, params: Params, masked: Masked, length: Int[Array, " b"], keys: Key[Array, " b"] | None
    ) -> tuple[dict[str, jax.Array], dict[str, Pair]]:
        """Vectors and sums of rows that are already masked."""
        raise NotImplementedError

    def label_losses(self, params: Params, states: Sequence[Float[Array, "b l d"]], masked: Masked) -> list[TokenLosses]:
        """For each of several state sequences: the MLM head's loss [b, k] at the labelled positions alone."""
        b, k = masked.positions.shape
        at = masked.positions[:, :, None]
        # Side by side in the second dimension: the first one is split over devices and must stay first.
        labelled = jnp.concatenate([jnp.take_along_axis(state, at, axis=1) for state in states], axis=1)
        encoder = self.context.encoder
        transformed = heads.mlm_transform(encoder, params["mlm_head"], labelled.reshape(-1, labelled.shape[-1]))
        compute = jnp.bfloat16 if encoder.dtype == "bfloat16" else transformed.dtype
        table, bias = heads.mlm_table(params["encoder"], params["mlm_head"])
        labels = jnp.tile(masked.labels, (1, len(states))).reshape(-1)
        nll, correct = chunked_cross_entropy(transformed.astype(compute), table, bias, labels, self.context.vocab_size)
        parts = nll.reshape(b, len(states), k), correct.reshape(b, len(states), k)
        return [TokenLosses(parts[0][:, i], parts[1][:, i]) for i in range(len(states))]


def label_sums(name: str, losses: TokenLosses, masked: Masked) -> dict[str, Pair]:
    """`name` and `name`_accuracy as (sum, count) over the labels."""
    count = masked.weight.sum()
    return {name: ((losses.nll * masked.weight).sum(), count), f"{name}_accuracy": ((losses.correct * masked.weight).sum(), count)}

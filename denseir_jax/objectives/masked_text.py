"""What objectives over masked text share: rows, masks, one encoder pass, and vocabulary losses at the labelled positions."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from denseir_jax.data.batches import Crop, MaskedTextRows, RowSource
from denseir_jax.data.span_pairs import Pairing, SpanPairRows
from denseir_jax.data.tokenizer import Tokenizer
from denseir_jax.data.tokens import TokenStore
from denseir_jax.models import bert, heads
from denseir_jax.models.bert import Hidden
from denseir_jax.objectives import masking
from denseir_jax.objectives.base import Batch, Field, Pair, Params, token_counts
from denseir_jax.objectives.losses import TokenLosses, chunked_cross_entropy, mean
from denseir_jax.objectives.masking import Chosen, MaskConfig, Masked, Text
from denseir_jax.objectives.towers import OneTower


@dataclass(frozen=True)
class Reading:
    """What is read and how it is masked. Objectives that agree on it can share one encoder pass.

    Attributes:
        mask: the encoder's. crop: which window of a text that is too long. pairs: two spans of one document a row, and how they are paired;
        None: one piece of text a row.
    """

    mask: MaskConfig
    crop: Crop
    pairs: Pairing | None = None

    @property
    def texts(self) -> int:
        """Texts a row."""
        return 1 if self.pairs is None else 2


class Encoded(NamedTuple):
    """One encoder pass over masked texts; n = rows x texts a row, the texts of a row next to each other.

    text: what was read, unmasked. chosen: what the encoder's mask picked. masked: what the encoder saw, and its labels.
    hidden: its states. keys: dropout keys, one a text, or None. instead: vectors that decoders get in the place of the
    encoder's, to see what they make of them; None: its own.
    """

    text: Text
    chosen: Chosen
    masked: Masked
    hidden: Hidden
    keys: Key[Array, " n"] | None
    instead: Float[Array, "n d"] | None = None

    @property
    def cls(self) -> Float[Array, "n d"]:
        """The last layer's [CLS] states, raw."""
        return self.hidden.last[:, 0]


@dataclass(frozen=True)
class MaskedText(OneTower, ABC):
    """Base of the masked-text objectives. A subclass turns an encoder pass into vectors and sums in `score`."""

    reading: Reading

    @property
    @abstractmethod
    def terms(self) -> Mapping[str, float]:
        """The weights of the means that make the loss, by the name of their sums."""

    @abstractmethod
    def score(self, params: Params, encoded: Encoded) -> tuple[dict[str, jax.Array], dict[str, Pair]]:
        """Vectors [n, ...] and sums of one encoder pass."""

    @property
    def decoder_term(self) -> str:
        """The name of the loss that is computed through the vector; "" where there is none."""
        return ""

    def vector(self, params: Params, encoded: Encoded) -> Float[Array, "n d"]:
        """What the text is decoded from: the raw [CLS] states, unless `encoded.instead` holds others."""
        return encoded.cls if encoded.instead is None else encoded.instead

    def init(self, key: Key[Array, ""]) -> Params:
        """Encoder (and projection, where the embedder has one) and MLM head."""
        encoder_key, head_key = jax.random.split(key)
        return self.embedder.init(encoder_key) | {"mlm_head": heads.init_mlm_head(self.context.encoder, head_key)}

    @property
    def reads_layers(self) -> bool:
        """Whether `score` needs the states of layers between the first and the last."""
        return False

    def fields(self) -> dict[str, Field]:
        """Text, its length, where words start, and the stream index from which masks are drawn."""
        texts = () if self.reading.pairs is None else (2,)
        text = Field((*texts, self.context.passage_length))
        return {"input_ids": text, "length": Field(texts), "word_start": text, "index": Field()}

    def rows(self, store: TokenStore, groups: Path | None = None, tokenizer: Tokenizer | None = None) -> RowSource:
        """Pieces of the corpus, cropped to a passage's length; a training set adds nothing."""
        room, seed, crop = self.context.passage_length, self.context.seed, self.reading.crop
        if self.reading.pairs is None:
            return MaskedTextRows(store, room, seed, crop)
        return SpanPairRows(store, room, seed, crop, self.reading.pairs)

    def read(self, params: Params, rows: Batch, keys: Key[Array, " b"] | None, collect: bool) -> Encoded:
        """Mask the rows and run the encoder. `keys`: dropout keys, one a row, or None. `collect`: keep every layer's states."""
        n = self.reading.texts
        index, side = jnp.repeat(rows["index"], n), jnp.tile(jnp.arange(n), rows["index"].shape[0])
        if keys is not None and n > 1:
            keys = jax.vmap(jax.random.fold_in)(jnp.repeat(keys, n), side)
        ids, length, starts = (_by_text(rows[name], n) for name in ("input_ids", "length", "word_start"))
        text = Text.of(ids, length, starts, index, self.context.special_ids, self.context.seed, side)
        masked, chosen = masking.draw(self.reading.mask, text, self.context.mask_id, self.context.vocab_size)
        hidden = bert.encode(self.context.encoder, params["encoder"], masked.ids, length, keys, collect=collect)
        return Encoded(text, chosen, masked, hidden, keys)

    def per_row(
        self, params: Params, rows: Batch, keys: Key[Array, " b"] | None, train: bool
    ) -> tuple[dict[str, jax.Array], dict[str, Pair]]:
        """Masks are drawn in evaluation too, the same ones for the same rows."""
        return self.scored(params, self.read(params, rows, keys if train else None, self.reads_layers))

    def scored(self, params: Params, encoded: Encoded) -> tuple[dict[str, jax.Array], dict[str, Pair]]:
        """`score`, with the vectors by row ([b, d], or [b, 2, d] for pairs), and the share of the text that is masked."""
        vectors, sums = self.score(params, encoded)
        if self.reading.pairs is not None:
            vectors = {name: value.reshape(-1, 2, *value.shape[1:]) for name, value in vectors.items()}
        real = masking.text_tokens(encoded.text).sum(dtype=jnp.float32)
        return vectors, {**sums, "masked_share": (encoded.chosen.sum(dtype=jnp.float32), real)}

    def over_batch(
        self, params: Params, vectors: Mapping[str, jax.Array], sums: Mapping[str, Pair], batch: Batch
    ) -> tuple[jax.Array, dict[str, Pair]]:
        """The weighted sum of the means over the global batch."""
        loss = jnp.asarray(sum(weight * mean(sums[name]) for name, weight in self.terms.items()))
        return loss, dict(sums) | token_counts((batch["length"], self.context.passage_length))

    def label_losses(
        self, params: Params, seen: Sequence[tuple[Float[Array, "n l d"], Masked]], head: str = "mlm_head"
    ) -> list[TokenLosses]:
        """For each of several state sequences with labels: the MLM head's loss [n, k] at the labelled positions alone.

        Args:
            head: the parameters of the head; its output table is the encoder's unless it has one of its own.
        """
        # Side by side in the second dimension: the first one is split over devices and must stay first.
        labelled = jnp.concatenate([jnp.take_along_axis(states, at.positions[:, :, None], axis=1) for states, at in seen], axis=1)
        labels = jnp.concatenate([at.labels for _, at in seen], axis=1)
        encoder = self.context.encoder
        transformed = heads.mlm_transform(encoder, params[head], labelled.reshape(-1, labelled.shape[-1]))
        table, bias = heads.mlm_table(params["encoder"], params[head])
        found = self.token_losses(transformed, table, bias, labels)
        widths = [at.labels.shape[1] for _, at in seen]
        starts = [sum(widths[:i]) for i in range(len(widths))]
        return [TokenLosses(*(part[:, start : start + width] for part in found)) for start, width in zip(starts, widths, strict=True)]

    def token_losses(
        self, states: Float[Array, "nk d"], table: Float[Array, "v d"], bias: Float[Array, " v"], labels: Int[Array, "n k"]
    ) -> TokenLosses:
        """Losses [n, k] of states that are compared with the vocabulary table as they are."""
        compute = jnp.bfloat16 if self.context.encoder.dtype == "bfloat16" else states.dtype
        found = chunked_cross_entropy(states.astype(compute), table, bias, labels.reshape(-1), self.context.vocab_size)
        return TokenLosses(*(part.reshape(labels.shape) for part in found))


def label_sums(name: str, losses: TokenLosses, weight: Float[Array, "n k"]) -> dict[str, Pair]:
    """`name` and `name`_accuracy as (sum, count) over the labels."""
    count = weight.sum()
    return {name: ((losses.nll * weight).sum(), count), f"{name}_accuracy": ((losses.correct * weight).sum(), count)}


def all_text(text: Text) -> Masked:
    """Every token between [CLS] and the last one as a label, the input as it is."""
    return masking.given(text.ids, jnp.where(masking.text_tokens(text), text.ids, -1))


def _by_text(x: Any, n: int) -> Any:
    """[b, n, ...] to [b n, ...]; one text a row has no such dimension."""
    return x if n == 1 else x.reshape(x.shape[0] * n, *x.shape[2:])

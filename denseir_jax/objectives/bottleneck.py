"""Objectives in which a decoder must read the text through one vector: decoder(concat(bottleneck, token states[1:])).

Condenser (Gao & Callan 2021, section 3) is the setting in which the bottleneck is the last layer's [CLS] state, the token
states are those of an early layer, and a few fresh layers with the encoder's own MLM head decode.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from denseir_jax.core.errors import ConfigError
from denseir_jax.data.batches import Crop
from denseir_jax.models import bert, heads
from denseir_jax.models.bert import Hidden
from denseir_jax.objectives.base import Batch, Context, Objective, Pair, Params, token_counts
from denseir_jax.objectives.losses import mean
from denseir_jax.objectives.masked_text import MaskedText, label_sums
from denseir_jax.objectives.masking import MaskConfig, Masked
from denseir_jax.objectives.registry import register


@register
@dataclass(frozen=True)
class CondenserConfig:
    """Condenser.

    Attributes:
        mask, crop: as for MLM. skip_from: the layer whose token states the head reads, 0 = embeddings; None = the middle one.
        n_head_layers: fresh layers of the head. late_mlm: add the MLM loss of the last layer's own states.
    """

    name: str = "condenser"
    mask: MaskConfig = MaskConfig()
    crop: Crop = "random"
    skip_from: int | None = None
    n_head_layers: int = 2
    late_mlm: bool = True

    def __post_init__(self) -> None:
        if self.n_head_layers < 0:
            raise ValueError(f"n_head_layers={self.n_head_layers} is negative")

    def build(self, context: Context) -> Objective:
        """The objective for a model and its data.

        Raises:
            ConfigError: the encoder has no layer `skip_from`.
        """
        layers = context.encoder.layers
        skip_from = layers // 2 if self.skip_from is None else self.skip_from
        if not 0 <= skip_from <= layers:
            raise ConfigError(f"skip_from={skip_from} is outside the encoder: expected 0 (embeddings) to {layers} (its last layer)")
        return Bottleneck(context, self.mask, self.crop, skip_from, self.n_head_layers, self.late_mlm)


@dataclass(frozen=True)
class Bottleneck(MaskedText):
    """L = MLM(head) [+ MLM(last layer)], weights 1, same labels; parameters encoder, mlm_head, head (the decoder's layers)."""

    skip_from: int
    n_head_layers: int
    late_mlm: bool

    def init(self, key: Key[Array, ""]) -> Params:
        """Encoder (and projection, where the embedder has one), MLM head, and the decoder's layers if there are any."""
        encoder_key, mlm_key, head_key = jax.random.split(key, 3)
        encoder = self.context.encoder
        params = self.embedder.init(encoder_key) | {"mlm_head": heads.init_mlm_head(encoder, mlm_key)}
        if self.n_head_layers:
            params["head"] = bert.init_layers(encoder, self.n_head_layers, head_key)
        return params

    def score(
        self, params: Params, masked: Masked, length: Int[Array, " b"], keys: Key[Array, " b"] | None
    ) -> tuple[dict[str, jax.Array], dict[str, Pair]]:
        """Vector ``cls`` [b, d]; sums ``head_mlm``, ``late_mlm`` and their accuracies."""
        hidden = self.encode(params, masked.ids, length, keys)
        states = [self.decode(params, hidden, length, keys)] + ([hidden.last] if self.late_mlm else [])
        losses = self.label_losses(params, states, masked)
        sums: dict[str, Pair] = {}
        for name, found in zip(("head_mlm", "late_mlm"), losses, strict=False):
            sums |= label_sums(name, found, masked)
        return {"cls": hidden.last[:, 0]}, sums

    def encode(self, params: Params, ids: Int[Array, "b l"], length: Int[Array, " b"], keys: Key[Array, " b"] | None) -> Hidden:
        """The encoder's states, those of every layer if the decoder reads one in between."""
        between = 0 < self.skip_from < self.context.encoder.layers
        return bert.encode(self.context.encoder, params["encoder"], ids, length, keys, collect=between)

    def decode(self, params: Params, hidden: Hidden, length: Int[Array, " b"], keys: Key[Array, " b"] | None) -> Float[Array, "b l d"]:
        """The decoder's states: it sees position 0 of the last layer and positions 1.. of the skip layer, nothing else."""
        x = jnp.concatenate([hidden.last[:, :1], self._token_states(hidden)[:, 1:]], axis=1)
        if not self.n_head_layers:
            return x
        return bert.run_layers(self.context.encoder, self.n_head_layers, params["head"], x, length, keys)

    def _token_states(self, hidden: Hidden) -> Float[Array, "b l d"]:
        if hidden.all is not None:
            return hidden.all[self.skip_from]
        return hidden.last if self.skip_from else hidden.embedded

    def over_batch(
        self, params: Params, vectors: Mapping[str, jax.Array], sums: Mapping[str, Pair], batch: Batch
    ) -> tuple[jax.Array, dict[str, Pair]]:
        """The sum of the token means over the global batch."""
        loss = mean(sums["head_mlm"]) + (mean(sums["late_mlm"]) if self.late_mlm else 0)
        return loss, dict(sums) | token_counts((batch["length"], self.context.passage_length))

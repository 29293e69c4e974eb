"""Masked language modelling alone (Devlin et al. 2019, section 3.1, with whole words): the control of every other objective."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
from jaxtyping import Array, Int, Key

from denseir_jax.data.batches import Crop
from denseir_jax.models import bert, heads
from denseir_jax.objectives.base import Batch, Context, Objective, Pair, Params, token_counts
from denseir_jax.objectives.losses import mean
from denseir_jax.objectives.masked_text import MaskedText, label_sums
from denseir_jax.objectives.masking import MaskConfig, Masked
from denseir_jax.objectives.registry import register


@register
@dataclass(frozen=True)
class MlmConfig:
    """mask: how much text is hidden. crop: which window of a text that is too long."""

    name: str = "mlm"
    mask: MaskConfig = MaskConfig()
    crop: Crop = "random"

    def build(self, context: Context) -> Objective:
        """The objective for a model and its data."""
        return Mlm(context, self.mask, self.crop)


@dataclass(frozen=True)
class Mlm(MaskedText):
    """L = - mean over masked tokens of log p(token), over the global batch; parameters encoder, mlm_head."""

    def init(self, key: Key[Array, ""]) -> Params:
        """Encoder (and projection, where the embedder has one) and MLM head."""
        encoder_key, head_key = jax.random.split(key)
        return self.embedder.init(encoder_key) | {"mlm_head": heads.init_mlm_head(self.context.encoder, head_key)}

    def score(
        self, params: Params, masked: Masked, length: Int[Array, " b"], keys: Key[Array, " b"] | None
    ) -> tuple[dict[str, jax.Array], dict[str, Pair]]:
        """Vector ``cls`` [b, d]; sums ``mlm`` and ``mlm_accuracy``."""
        last = bert.encode(self.context.encoder, params["encoder"], masked.ids, length, keys).last
        (losses,) = self.label_losses(params, [last], masked)
        return {"cls": last[:, 0]}, label_sums("mlm", losses, masked)

    def over_batch(
        self, params: Params, vectors: Mapping[str, jax.Array], sums: Mapping[str, Pair], batch: Batch
    ) -> tuple[jax.Array, dict[str, Pair]]:
        """The token mean over the global batch."""
        return mean(sums["mlm"]), dict(sums) | token_counts((batch["length"], self.context.passage_length))

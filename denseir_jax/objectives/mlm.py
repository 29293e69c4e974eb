"""Masked language modelling alone (Devlin et al. 2019, section 3.1, with whole words): the control of every other objective."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax

from denseir_jax.data.batches import Crop
from denseir_jax.objectives.base import Context, Objective, Pair, Params
from denseir_jax.objectives.masked_text import Encoded, MaskedText, Reading, label_sums
from denseir_jax.objectives.masking import MaskConfig
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
        return Mlm(context, Reading(self.mask, self.crop))


@dataclass(frozen=True)
class Mlm(MaskedText):
    """L = - mean over masked tokens of log p(token), over the global batch; parameters encoder, mlm_head."""

    @property
    def terms(self) -> Mapping[str, float]:
        """One mean, weight 1."""
        return {"mlm": 1.0}

    def score(self, params: Params, encoded: Encoded) -> tuple[dict[str, jax.Array], dict[str, Pair]]:
        """Vector ``cls`` [n, d]; sums ``mlm`` and ``mlm_accuracy``."""
        (losses,) = self.label_losses(params, [(encoded.hidden.last, encoded.masked)])
        return {"cls": encoded.cls}, label_sums("mlm", losses, encoded.masked.weight)

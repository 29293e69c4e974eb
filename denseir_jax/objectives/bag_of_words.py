"""The vector predicts which words its text holds, without a decoder (Ma et al. 2024, "Drop your Decoder", arXiv 2401.11248)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from denseir_jax.data.batches import Crop
from denseir_jax.models import lexical
from denseir_jax.objectives import masking
from denseir_jax.objectives.base import Context, Objective, Pair, Params
from denseir_jax.objectives.masked_text import Encoded, MaskedText, Reading, label_sums
from denseir_jax.objectives.masking import MaskConfig, Text
from denseir_jax.objectives.registry import register


@register
@dataclass(frozen=True)
class BagOfWordsConfig:
    """mask, crop: as for MLM. bow_weight: of the bag's loss beside MLM. bow: a word weighs once, or as often as it occurs."""

    name: str = "bag_of_words"
    mask: MaskConfig = MaskConfig(rate=0.3)
    crop: Crop = "random"
    bow_weight: float = 1.0
    bow: Literal["set", "counts"] = "set"

    def __post_init__(self) -> None:
        if self.bow_weight <= 0:
            raise ValueError(f"bow_weight={self.bow_weight} must be positive (objective mlm has no bag)")

    def build(self, context: Context) -> Objective:
        """The objective for a model and its data."""
        return BagOfWords(context, Reading(self.mask, self.crop), self)


@dataclass(frozen=True)
class BagOfWords(MaskedText):
    """L = MLM + weight x mean over texts of -sum_v w_v log softmax(MLM head([CLS] state))_v; parameters encoder, mlm_head."""

    config: BagOfWordsConfig

    @property
    def terms(self) -> Mapping[str, float]:
        """MLM and bag."""
        return {"mlm": 1.0, "bow": self.config.bow_weight}

    @property
    def decoder_term(self) -> str:
        """The bag's loss."""
        return "bow"

    def score(self, params: Params, encoded: Encoded) -> tuple[dict[str, jax.Array], dict[str, Pair]]:
        """Vector ``cls`` [n, d]; sums ``mlm``, ``mlm_accuracy`` and ``bow``."""
        (losses,) = self.label_losses(params, [(encoded.hidden.last, encoded.masked)])
        logits = lexical.word_logits(self.context.encoder, params, self.vector(params, encoded))
        sums = label_sums("mlm", losses, encoded.masked.weight)
        return {"cls": encoded.cls}, sums | {"bow": bag_loss(logits, encoded.text, self.config.bow == "set")}


def bag_loss(logits: Float[Array, "n v"], text: Text, once: bool) -> Pair:
    """(sum over texts of -sum_v w_v log softmax(logits)_v, texts): w are the words between [CLS] and [SEP], 1 together.

    Args:
        once: words weigh alike, however often they come (DupMAE's paper); else by their counts (its code).
    """
    weights = lexical.bag(text.ids, masking.text_tokens(text), logits.shape[1], once, logits.dtype)
    each = -(weights * jax.nn.log_softmax(logits, axis=-1)).sum(-1)
    return each.sum(), jnp.asarray(each.shape[0], each.dtype)

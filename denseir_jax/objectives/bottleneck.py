"""Objectives in which a decoder must read the text through one vector: decoder(concat(bottleneck, token states[1:])).

One family, of which published systems are settings (see the recipe cards):

* Condenser (Gao & Callan 2021, section 3): the token states are those of an early layer, under the encoder's own mask.
* RetroMAE's basic decoding (Xiao et al. 2022, section 3.2): embeddings of the text under a second, heavier mask.
* CoT-MAE (Wu et al. 2023): the same, of another span of the document.
* SimLM (Wang et al. 2023): a mask around the encoder's, all tokens predicted, layers that start as the encoder's last ones.
* LexMAE (Shen et al. 2023): the bottleneck is a mixture of word embeddings, weighted by what the encoder predicts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, Shaped

from denseir_jax.core.errors import ConfigError
from denseir_jax.data.batches import Crop
from denseir_jax.data.span_pairs import Pairing
from denseir_jax.models import bert, heads, lexical
from denseir_jax.models.bert import Hidden
from denseir_jax.models.dense import einsum
from denseir_jax.objectives import masking
from denseir_jax.objectives.base import Context, Objective, Pair, Params
from denseir_jax.objectives.masked_text import Encoded, MaskedText, Reading, all_text, label_sums
from denseir_jax.objectives.masking import MaskConfig, Masked
from denseir_jax.objectives.registry import register

TOKENS_SITE = 1 << 18  # dropout of the embeddings that the decoder reads


@register
@dataclass(frozen=True)
class BottleneckConfig:
    """The family's settings; the defaults are Condenser's.

    Attributes:
        mask, crop: as for MLM. late_mlm: add the MLM loss of the encoder's last layer. late_predict: its labels: the masked
            tokens, or all of the text.
        bottleneck: "cls": the last layer's [CLS] state. "lexical": softmax(largest MLM logits over the text) @ word table.
        tokens: what else the decoder reads. "layer": states of layer `skip_from` (0 = embeddings, None = the middle one), whose
            labels are the encoder's. "masked": embeddings of the text under `decoder_mask`. "other": of the other span.
        relation: of the decoder's mask to the encoder's: drawn apart, around it, or with no token in common.
        decoder_mask: unused where tokens="layer". predict: the decoder's labels: its masked tokens, or all of the text.
        pairs: two spans of a document a row ("random" or "nearby"), or None; needed by tokens="other".
        n_head_layers: the decoder's. head_init: "last": they start as copies of the encoder's last layers.
        own_mlm_head: the decoder predicts through a head of its own; the word table stays shared. head_weight: of its loss.
    """

    name: str = "bottleneck"
    mask: MaskConfig = MaskConfig()
    crop: Crop = "random"
    late_mlm: bool = True
    late_predict: Literal["masked", "all"] = "masked"
    bottleneck: Literal["cls", "lexical"] = "cls"
    tokens: Literal["layer", "masked", "other"] = "layer"
    skip_from: int | None = None
    decoder_mask: MaskConfig = MaskConfig(rate=0.5)
    relation: Literal["apart", "around", "disjoint"] = "apart"
    predict: Literal["masked", "all"] = "masked"
    pairs: Pairing | None = None
    n_head_layers: int = 2
    head_init: Literal["fresh", "last"] = "fresh"
    own_mlm_head: bool = False
    head_weight: float = 1.0

    def __post_init__(self) -> None:
        if self.n_head_layers < 0:
            raise ValueError(f"n_head_layers={self.n_head_layers} is negative")
        if self.head_weight < 0 or not (self.head_weight or self.late_mlm):
            raise ValueError(f"head_weight={self.head_weight}, late_mlm={self.late_mlm}: expected 0 or more, and some loss")
        encoder, decoder = self.mask.rates, self.decoder_mask.rates
        if (self.relation == "around" and min(decoder) < max(encoder)) or (self.relation == "disjoint" and max(encoder) + max(decoder) > 1):
            raise ValueError(f"relation={self.relation!r} does not go with mask rates {encoder} (encoder) and {decoder} (decoder)")
        if self.tokens == "other" and (self.pairs is None or self.relation != "apart"):
            raise ValueError("tokens='other' reads the other span of a pair: it needs pairs='random' or 'nearby', and relation='apart'")
        if self.tokens == "layer" and self.relation != "apart":
            raise ValueError(f"relation={self.relation!r} has no meaning where tokens='layer': there is one mask only")

    def build(self, context: Context) -> Objective:
        """The objective for a model and its data.

        Raises:
            ConfigError: the encoder lacks layers that this config names, or a bottleneck of words has another width than states.
        """
        if self.bottleneck != "cls":
            context.need_one_width(f"bottleneck={self.bottleneck!r}")
        return Bottleneck(context, Reading(self.mask, self.crop, self.pairs), self, self.skip_layer(context))

    def skip_layer(self, context: Context) -> int:
        """The layer whose states the decoder reads.

        Raises:
            ConfigError: the encoder lacks layers that this config names.
        """
        layers = context.encoder.layers
        skip_from = layers // 2 if self.skip_from is None else self.skip_from
        if not 0 <= skip_from <= layers:
            raise ConfigError(f"skip_from={skip_from} is outside the encoder: expected 0 (embeddings) to {layers} (its last layer)")
        if self.head_init == "last" and self.n_head_layers > layers:
            raise ConfigError(f"head_init='last' copies the encoder's last {self.n_head_layers} layers; it has {layers}")
        return skip_from


@dataclass(frozen=True)
class Bottleneck(MaskedText):
    """L = MLM(decoder) [+ MLM(last layer)]; parameters encoder, mlm_head, head (the decoder's layers) [, head_mlm_head]."""

    config: BottleneckConfig
    skip_from: int

    @property
    def terms(self) -> Mapping[str, float]:
        """The decoder's loss and, with `late_mlm`, the encoder's."""
        return {"head_mlm": self.config.head_weight} | ({"late_mlm": 1.0} if self.config.late_mlm else {})

    @property
    def decoder_term(self) -> str:
        """The decoder's loss."""
        return "head_mlm"

    @property
    def reads_layers(self) -> bool:
        """Whether the decoder reads a layer in between."""
        return self.config.tokens == "layer" and 0 < self.skip_from < self.context.encoder.layers

    def init(self, key: Key[Array, ""]) -> Params:
        """Encoder (and projection, where the embedder has one), MLM head, and the decoder's layers if there are any."""
        head_key, own_key = jax.random.split(jax.random.fold_in(key, 2))
        encoder, c, params = self.context.encoder, self.config, super().init(key)
        if c.n_head_layers:
            params["head"] = bert.init_layers(encoder, c.n_head_layers, head_key)
            if c.head_init == "last":
                params["head"] = jax.tree.map(self._last, params["encoder"]["layers"])
        if c.own_mlm_head:
            params["head_mlm_head"] = heads.init_mlm_head(encoder, own_key, own_table=False)
        return params

    def derived(self, leaves: Mapping[str, Any]) -> dict[str, Any]:
        """The decoder's layers as copies of the warm-started encoder's last ones, where they start so and none are given."""
        prefix = "encoder/layers/"
        if self.config.head_init != "last" or not self.config.n_head_layers or any(name.startswith("head/") for name in leaves):
            return {}
        return {f"head/{name.removeprefix(prefix)}": self._last(leaf) for name, leaf in leaves.items() if name.startswith(prefix)}

    def _last(self, layers: Shaped[Any, "n ..."]) -> Any:
        return layers[self.context.encoder.layers - self.config.n_head_layers :]

    def score(self, params: Params, encoded: Encoded) -> tuple[dict[str, jax.Array], dict[str, Pair]]:
        """Vector ``cls`` [n, d]; sums ``head_mlm``, ``late_mlm`` and their accuracies."""
        x, labels = self.decoder_input(params, encoded)
        seen = self.decode(params, x, encoded), labels
        late_labels = all_text(encoded.text) if self.config.late_predict == "all" else encoded.masked
        late = [(encoded.hidden.last, late_labels)] if self.config.late_mlm else []
        if self.config.own_mlm_head:
            found = self.label_losses(params, [seen], "head_mlm_head") + (self.label_losses(params, late) if late else [])
        else:
            found = self.label_losses(params, [seen, *late])
        sums = label_sums("head_mlm", found[0], labels.weight)
        if late:
            sums |= label_sums("late_mlm", found[1], late_labels.weight)
        return {"cls": encoded.cls}, sums

    def decoder_input(self, params: Params, encoded: Encoded) -> tuple[Float[Array, "n l d"], Masked]:
        """The bottleneck at position 0 and token states elsewhere; and what is to be predicted there."""
        c, vector = self.config, self.vector(params, encoded)
        if c.tokens == "layer":
            states, labels = self._layer(encoded.hidden), encoded.masked
        else:
            if c.tokens == "other":  # each vector decodes its partner's text
                vector = vector.reshape(-1, 2, vector.shape[-1])[:, ::-1].reshape(vector.shape)
            labels = self._decoder_mask(encoded)
            states = bert.embed_tokens(self.context.encoder, params["encoder"], labels.ids, encoded.keys, site=TOKENS_SITE)
        if c.predict == "all":
            labels = all_text(encoded.text)
        return jnp.concatenate([vector[:, None].astype(states.dtype), states[:, 1:]], axis=1), labels

    def decode(self, params: Params, x: Float[Array, "n l d"], encoded: Encoded) -> Float[Array, "n l d"]:
        """The decoder's states: it sees what `decoder_input` gives, nothing else."""
        if not self.config.n_head_layers:
            return x
        visible = bert.real_tokens(encoded.text.length, x.shape[1])
        return bert.run_layers(self.context.encoder, self.config.n_head_layers, params["head"], x, visible, encoded.keys)

    def vector(self, params: Params, encoded: Encoded) -> Float[Array, "n d"]:
        """The bottleneck: the [CLS] state, or LexMAE's mixture of word embeddings."""
        if self.config.bottleneck == "cls" or encoded.instead is not None:
            return super().vector(params, encoded)
        text = masking.text_tokens(encoded.text)
        logits = lexical.largest_word_logits(self.context.encoder, params, encoded.hidden.last, text)
        words = jax.lax.stop_gradient(params["encoder"]["embeddings"]["word"][: self.context.vocab_size])
        return einsum("nv,vd->nd", jax.nn.softmax(logits, axis=-1), words, "float32")

    def _layer(self, hidden: Hidden) -> Float[Array, "n l d"]:
        if 0 < self.skip_from < self.context.encoder.layers:
            assert hidden.all is not None
            return hidden.all[self.skip_from]
        return hidden.last if self.skip_from else hidden.embedded

    def _decoder_mask(self, encoded: Encoded) -> Masked:
        c, context, text = self.config.decoder_mask, self.context, encoded.text
        slots = masking.most_labels(c, text.ids.shape[1])
        if self.config.relation == "around":
            chosen = masking.choose_more(c, text, encoded.chosen, masking.DECODER_MASK)
            slots = max(slots, masking.most_labels(self.config.mask, text.ids.shape[1]))
        elif self.config.relation == "disjoint":
            chosen = masking.choose_apart(c, text, encoded.chosen, masking.DECODER_MASK)
        else:
            chosen = masking.choose(c, text, masking.DECODER_MASK)
        return masking.masked_at(c, text, chosen, slots, context.mask_id, context.vocab_size, masking.DECODER_MASK)

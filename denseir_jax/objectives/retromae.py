"""RetroMAE's enhanced decoding (Xiao et al. 2022, section 3.3) and DupMAE (Liu et al. 2022): two streams, a mask a position.

The query stream, the vector at every position, asks one decoder layer for the token of its own position; the context stream,
the vector and the clean text's embeddings, answers as far as a mask drawn for that position lets it be seen. Basic decoding
is a setting of objectives/bottleneck.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from denseir_jax.data.batches import Crop
from denseir_jax.models import bert, lexical
from denseir_jax.objectives import masking
from denseir_jax.objectives.bag_of_words import bag_loss
from denseir_jax.objectives.base import Context, Objective, Pair, Params
from denseir_jax.objectives.masked_text import Encoded, MaskedText, Reading, all_text, label_sums
from denseir_jax.objectives.masking import DECODER_MASK, MaskConfig, Text
from denseir_jax.objectives.registry import register

CONTEXT_SITE, QUERY_SITE, STREAMS_SITE = 1 << 19, (1 << 19) + 1, (1 << 19) + 8
_PICK = 1 << 30  # among the numbers of the masks: no text has so many


@register
@dataclass(frozen=True)
class RetroMaeConfig:
    """RetroMAE with enhanced decoding; with `bow_weight` and `query_norm`, DupMAE.

    Attributes:
        mask, crop: the encoder's. decoder_mask: how much of the text is hidden from each position.
        base_masks: how many masks a text draws; each position takes one of them. 256 in the authors' code (128 in BGE); a
            text never draws more than it has tokens. 0: every position draws its own, as in the paper (a sort each).
        hide: "column": from a position its own token is hidden, whatever its mask; "word": all of its word (in the authors'
            code the other pieces of the word may stay in sight).
        query_norm: False: the query stream is position embedding + vector as it is (RetroMAE). True: the embedding
            module on the vector, with token type, LayerNorm and dropout (DupMAE, BGE).
        n_decoder_layers: 1 as published; each reads the same context.
        bow_weight: of DupMAE's loss: the words of the text from the largest MLM logit of its tokens. 0: none. The authors'
            code has 0.1. bow: a word weighs as often as it occurs (the code) or once (the paper).
    """

    name: str = "retromae"
    mask: MaskConfig = MaskConfig(rate=0.3)
    crop: Crop = "random"
    decoder_mask: MaskConfig = MaskConfig(rate=0.5)
    base_masks: int = 256
    hide: Literal["column", "word"] = "column"
    query_norm: bool = False
    n_decoder_layers: int = 1
    bow_weight: float = 0.0
    bow: Literal["counts", "set"] = "counts"

    def __post_init__(self) -> None:
        if self.base_masks < 0 or self.n_decoder_layers < 1:
            raise ValueError(f"base_masks={self.base_masks} must not be negative, n_decoder_layers={self.n_decoder_layers} at least 1")
        if self.bow_weight < 0:
            raise ValueError(f"bow_weight={self.bow_weight} is negative")

    def build(self, context: Context) -> Objective:
        """The objective for a model and its data.

        Raises:
            ConfigError: the encoder's embedding tables have another width than its states.
        """
        context.need_one_width("retromae")
        return RetroMae(context, Reading(self.mask, self.crop), self)


@dataclass(frozen=True)
class RetroMae(MaskedText):
    """L = MLM + mean over all text tokens of -log p(x_i | what i sees) [+ bow]; parameters encoder, mlm_head, two_stream."""

    config: RetroMaeConfig

    @property
    def terms(self) -> Mapping[str, float]:
        """Encoder and decoder, 1 each, and the bag of words."""
        return {"mlm": 1.0, "decoder": 1.0} | ({"bow": self.config.bow_weight} if self.config.bow_weight else {})

    @property
    def decoder_term(self) -> str:
        """The decoder's loss."""
        return "decoder"

    def init(self, key: Key[Array, ""]) -> Params:
        """Encoder (and projection, where the embedder has one), MLM head, the decoder's layers."""
        decoder = bert.init_layers(self.context.encoder, self.config.n_decoder_layers, jax.random.fold_in(key, 2))
        return super().init(key) | {"two_stream": decoder}

    def score(self, params: Params, encoded: Encoded) -> tuple[dict[str, jax.Array], dict[str, Pair]]:
        """Vector ``cls`` [n, d]; sums ``mlm``, ``decoder``, their accuracies, and ``bow``."""
        masks = masking.choose_many(self.config.decoder_mask, encoded.text, self.masks, DECODER_MASK)
        return self.score_seen(params, encoded, visible_to(encoded.text, masks, self.config.hide, own=not self.config.base_masks))

    def score_seen(self, params: Params, encoded: Encoded, visible: Bool[Array, "n l l"]) -> tuple[dict[str, jax.Array], dict[str, Pair]]:
        """`score`, where position i of the decoder sees position j if `visible` says so."""
        states, labels = self.decode(params, encoded, visible), all_text(encoded.text)
        found = self.label_losses(params, [(encoded.hidden.last, encoded.masked), (states, labels)])
        sums = label_sums("mlm", found[0], encoded.masked.weight) | label_sums("decoder", found[1], labels.weight)
        if self.config.bow_weight:
            sums["bow"] = bag_loss(self.lexical(params, encoded), encoded.text, self.config.bow == "set")
        return {"cls": encoded.cls}, sums

    @property
    def masks(self) -> int:
        """Base masks that the longest text draws."""
        return min(self.config.base_masks or self.context.passage_length, self.context.passage_length)

    def decode(self, params: Params, encoded: Encoded, visible: Bool[Array, "n l l"]) -> Float[Array, "n l d"]:
        """The decoder's states. `visible`: True where position i may see position j of the context."""
        encoder, text, keys = self.context.encoder, encoded.text, encoded.keys
        clean = bert.embed_tokens(encoder, params["encoder"], text.ids, keys, site=CONTEXT_SITE)
        vector = self.vector(params, encoded)
        context = jnp.concatenate([vector[:, None].astype(clean.dtype), clean[:, 1:]], axis=1)
        query = bert.embed_vector(encoder, params["encoder"], vector, clean.shape[1], self.config.query_norm, keys, QUERY_SITE)
        n, layers = self.config.n_decoder_layers, params["two_stream"]
        return bert.run_layers(encoder, n, layers, query, visible[:, None], keys, STREAMS_SITE, memory=context)

    def lexical(self, params: Params, encoded: Encoded) -> Float[Array, "n v"]:
        """The largest MLM logit of every word over the real tokens after [CLS] (DupMAE, section 3.2)."""
        taken = lexical.after_cls(encoded.text.length, encoded.text.ids.shape[1])
        return lexical.largest_word_logits(self.context.encoder, params, encoded.hidden.last, taken)


def visible_to(text: Text, masks: Bool[Array, "n k l"], hide: Literal["column", "word"], own: bool = False) -> Bool[Array, "n l l"]:
    """What each position i may see: all real tokens but those of the mask it takes, and itself.

    Which one: its own, number i (`own`), or one of the first min(real tokens, k), uniformly, by (seed, stream index). [CLS] and
    [SEP] are in no mask, so every labelled position sees them.
    """
    n, k, width = masks.shape

    def pick(key: Array, length: Array) -> Array:
        return jax.random.randint(jax.random.fold_in(key, _PICK), (width,), 0, jnp.minimum(length, k))

    if not own:
        picked = jax.vmap(pick)(text.keys(DECODER_MASK), text.length)
        masks = jnp.take_along_axis(masks, picked[:, :, None], axis=1)
    at = jnp.arange(width)
    itself = jnp.broadcast_to(at[:, None] == at, (n, width, width))
    if hide == "word":
        word = masking.word_numbers(text)
        itself = word[:, :, None] == word[:, None, :]
    return ~masks & ~itself & (at < text.length[:, None])[:, None, :]

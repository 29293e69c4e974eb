"""SEED-Encoder (Lu et al. 2021): a decoder that sees little of the text must write it from the encoder's vector.

The encoder reads masked text; the decoder (models/decoders.py) is asked for every next token of the clean text. With many
layers, no window and, if wanted, a variational latent it is the strong decoder of Optimus (Li et al. 2020), SEED's control.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from denseir_jax.core.errors import ConfigError
from denseir_jax.data.batches import Crop
from denseir_jax.models import decoders
from denseir_jax.models.decoders import DecoderConfig
from denseir_jax.objectives.base import Context, Objective, Pair, Params
from denseir_jax.objectives.masked_text import Encoded, MaskedText, Reading, label_sums
from denseir_jax.objectives.masking import MaskConfig
from denseir_jax.objectives.registry import register

NOISE_SITE = (1 << 17) - 1  # of the latent's noise, among the dropout sites


@dataclass(frozen=True)
class LatentConfig:
    """The variational bottleneck of Optimus (Li et al. 2020, section 3).

    Attributes:
        size: dimensions of the latent; 0: there is none, the vector goes to the decoder as it is.
        free_nats: dimensions whose KL is at most this are left out of it. weight: of the KL at the top of its schedule.
        cycle: rows of the stream (steps x batch size) from one rise of the weight to the next; 0: it is constant.
        zero, rise: shares of a cycle at 0, and in which the weight rises to the top.
    """

    size: int = 0
    free_nats: float = 1.0
    weight: float = 1.0
    cycle: int = 0
    zero: float = 0.5
    rise: float = 0.25

    def __post_init__(self) -> None:
        if self.size < 0 or self.cycle < 0 or self.free_nats < 0 or self.weight < 0:
            raise ValueError(
                f"latent size={self.size}, cycle={self.cycle}, free_nats={self.free_nats}, weight={self.weight}: expected 0 or more"
            )
        if self.cycle >= 2**31 or (self.cycle and not self.size):
            raise ValueError(
                f"latent cycle={self.cycle}, size={self.size}: a cycle is of less than 2^31 rows, and of a latent that there is"
            )
        if min(self.zero, self.rise) < 0 or self.zero + self.rise > 1:
            raise ValueError(f"zero={self.zero} and rise={self.rise} are shares of a cycle: expected 0 or more, at most 1 together")


@register
@dataclass(frozen=True)
class SeedConfig:
    """mask, crop: the encoder's, as for MLM. decoder: its shape. latent: of Optimus. mlm_weight, decoder_weight: 1 and 1 as in
    the paper; mlm_weight=0 leaves the encoder's own loss out (it reads masked text all the same). predict_sep: the end of the
    text is a token to predict too."""

    name: str = "seed"
    mask: MaskConfig = MaskConfig()
    crop: Crop = "random"
    decoder: DecoderConfig = DecoderConfig()
    latent: LatentConfig = LatentConfig()
    mlm_weight: float = 1.0
    decoder_weight: float = 1.0
    predict_sep: bool = True

    def __post_init__(self) -> None:
        if self.mlm_weight < 0 or self.decoder_weight <= 0:
            raise ValueError(f"mlm_weight={self.mlm_weight} must be 0 or more, decoder_weight={self.decoder_weight} above 0")

    def build(self, context: Context) -> Objective:
        """The objective for a model and its data.

        Raises:
            ConfigError: the encoder's width does not divide into the decoder's heads, or is not its word table's.
        """
        try:
            self.decoder.shape(context.encoder)
        except ValueError as error:
            raise ConfigError(f"config.objective.decoder: {error}") from None
        return Seed(context, Reading(self.mask, self.crop), self)


@dataclass(frozen=True)
class Seed(MaskedText):
    """L = MLM + mean over next tokens of -log p(x_t | window, vector) [+ KL a token]; parameters encoder, mlm_head, decoder [, latent]."""

    config: SeedConfig

    @property
    def terms(self) -> Mapping[str, float]:
        """Encoder, decoder and, with a latent, KL."""
        terms = {"decoder": self.config.decoder_weight}
        if self.config.mlm_weight:
            terms["mlm"] = self.config.mlm_weight
        return terms | ({"weighted_kl": self.config.decoder_weight} if self.config.latent.size else {})

    @property
    def decoder_term(self) -> str:
        """The decoder's loss."""
        return "decoder"

    def init(self, key: Key[Array, ""]) -> Params:
        """Encoder (and projection, where the embedder has one), MLM head, decoder, latent maps."""
        decoder_key, latent_key = jax.random.split(jax.random.fold_in(key, 2))
        encoder, params = self.context.encoder, super().init(key)
        params["decoder"] = decoders.init_decoder(encoder, self.config.decoder, decoder_key)
        if self.config.latent.size:
            params["latent"] = decoders.init_latent(encoder, self.config.latent.size, latent_key)
        return params

    def score(self, params: Params, encoded: Encoded) -> tuple[dict[str, jax.Array], dict[str, Pair]]:
        """Vector ``cls`` [n, d]; sums ``mlm``, ``decoder`` and their accuracies, ``kl`` a text (all of it) and ``weighted_kl`` a
        token (free nats left out)."""
        text, vector, sums = encoded.text, self.vector(params, encoded), dict[str, Pair]()
        if self.config.mlm_weight:
            (losses,) = self.label_losses(params, [(encoded.hidden.last, encoded.masked)])
            sums |= label_sums("mlm", losses, encoded.masked.weight)
        targets, weight = next_tokens(text.ids, text.length, self.config.predict_sep)
        if self.config.latent.size:
            vector, kl = self._latent(params, vector, encoded.keys)
            beta = kl_weight(self.config.latent, text.index, kl.dtype)
            kept = without_free_nats(kl, self.config.latent.free_nats)
            sums |= {"kl": (kl.sum(), jnp.asarray(kl.shape[0], kl.dtype)), "weighted_kl": ((beta * kept).sum(), weight.sum())}
        states = self.decode(params, text.ids, vector, encoded.keys)
        word = params["encoder"]["embeddings"]["word"]
        found = self.token_losses(states.reshape(-1, states.shape[-1]), word, jnp.zeros(word.shape[0], word.dtype), targets)
        return {"cls": encoded.cls}, sums | label_sums("decoder", found, weight)

    def decode(
        self, params: Params, ids: Int[Array, "n l"], vector: Float[Array, "n d"], keys: Key[Array, " n"] | None
    ) -> Float[Array, "n l d"]:
        """The decoder's states, to be compared with the word table."""
        word = params["encoder"]["embeddings"]["word"]
        return decoders.decode(self.context.encoder, self.config.decoder, params["decoder"], word, ids, vector, keys)

    def _latent(
        self, params: Params, vector: Float[Array, "n d"], keys: Key[Array, " n"] | None
    ) -> tuple[Float[Array, "n d"], Float[Array, "n z"]]:
        """The vector that the decoder gets, and the KL of each dimension of the latent."""
        size = self.config.latent.size
        noise = jnp.zeros((vector.shape[0], size), vector.dtype)
        if keys is not None:
            noise = jax.vmap(lambda key: jax.random.normal(jax.random.fold_in(key, NOISE_SITE), (size,), vector.dtype))(keys)
        vector, mean, log_variance = decoders.through_latent(self.context.encoder, size, params["latent"], vector, noise)
        return vector, kl_divergence(mean, log_variance)


def next_tokens(ids: Int[Array, "n l"], length: Int[Array, " n"], with_sep: bool = True) -> tuple[Int[Array, "n l"], Float[Array, "n l"]]:
    """What each position must predict, the last real token ([SEP]) included or not, and 1 where there is something to predict."""
    weight = (jnp.arange(ids.shape[1]) < length[:, None] - (1 if with_sep else 2)).astype(jnp.float32)
    return jnp.roll(ids, -1, axis=1), weight


def kl_divergence(mean: Float[Array, "n z"], log_variance: Float[Array, "n z"]) -> Float[Array, "n z"]:
    """KL(N(mean, variance) || N(0, 1)) of each dimension: 1/2 (mean^2 + e^lv - lv - 1), in nats."""
    return 0.5 * (jnp.square(mean) + jnp.exp(log_variance) - log_variance - 1)


def without_free_nats(kl: Float[Array, "n z"], free_nats: float) -> Float[Array, " n"]:
    """The KL of each text over the dimensions that cost more than `free_nats`; the others are left alone (Optimus, fb_mode 1)."""
    return jnp.where(kl > free_nats, kl, 0).sum(-1)


def kl_weight(config: LatentConfig, index: Int[Array, " n"], dtype: Any = jnp.float32) -> Float[Array, " n"]:
    """The weight at these places of the stream: in every cycle 0 first, then an even rise, then `weight`."""
    if not config.cycle:
        return jnp.full(index.shape, config.weight, dtype)
    place = (index % config.cycle).astype(dtype) / config.cycle
    rise = jnp.where(config.rise > 0, (place - config.zero) / max(config.rise, 1e-9), 1.0)
    return config.weight * jnp.where(place < config.zero, 0, jnp.minimum(rise, 1))

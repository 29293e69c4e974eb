"""The causal decoder of SEED-Encoder (Lu et al. 2021, section 3): pre-LayerNorm layers that see a short window and one vector.

Position i sees positions j with 0 <= i - j < window, and position 0. The encoder's vector enters by cross-attention over a
memory of length one in every layer, as a prefix, or added to every input. Many layers and no window make the strong decoder
of Optimus (Li et al. 2020). Words are embedded by the encoder's own table, which also predicts them.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from denseir_jax.models.bert import SITES_PER_LAYER, attend, look_up, stacked, transform
from denseir_jax.models.dense import LayerNorm, Linear, apply, einsum, init_params
from denseir_jax.models.dropout import keyed_dropout
from denseir_jax.models.shape import EncoderConfig, Params
from denseir_jax.parallel.mesh import rows_over_devices

DECODER_SITE = 1 << 17


@dataclass(frozen=True)
class DecoderConfig:
    """The decoder's shape; its width is the encoder's, whose word table it shares.

    Attributes:
        layers: at least 1. window: positions seen, the current one included; None: all before it. injection: how the
        encoder's vector comes in. heads, intermediate: 0 takes the encoder's. eps: of its LayerNorms.
    """

    layers: int = 3
    window: int | None = 2
    injection: Literal["cross", "prefix", "add"] = "cross"
    heads: int = 0
    intermediate: int = 0
    eps: float = 1e-5

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ValueError(f"layers={self.layers} must be at least 1")
        if self.window is not None and self.window < 1:
            raise ValueError(f"window={self.window} must be at least 1 (the current token), or None for all tokens before it")
        if self.eps <= 0:
            raise ValueError(f"eps={self.eps} must be positive")
        if self.heads < 0 or self.intermediate < 0:
            raise ValueError(f"heads={self.heads}, intermediate={self.intermediate} must be positive, or 0 for the encoder's")

    def shape(self, encoder: EncoderConfig) -> EncoderConfig:
        """Sizes of the decoder's layers beside this encoder.

        Raises:
            ValueError: the width does not divide into the heads, or is not that of the word table.
        """
        if encoder.width != encoder.hidden:
            raise ValueError(f"shares a word table of {encoder.width} dimensions; expected the encoder's {encoder.hidden}")
        heads, intermediate = self.heads or encoder.heads, self.intermediate or encoder.intermediate
        return replace(encoder, layers=self.layers, heads=heads, intermediate=intermediate, eps=self.eps)


def window_mask(length: int, window: int | None) -> Bool[np.ndarray, "l l"]:
    """True where row i sees column j: ``0 <= i - j < window``, and column 0 always (SEED-Encoder's own code)."""
    back = np.arange(length)[:, None] - np.arange(length)
    near = back >= 0 if window is None else (back >= 0) & (back < window)
    near[:, 0] = True
    return near


class PreNormAttention(nn.Module):
    """x + attention(LayerNorm(x))."""

    config: EncoderConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "b l d"], visible: Bool[Array, "_ _ _ l"], keys: Key[Array, " b"] | None, site: Int[Array, ""]
    ) -> Float[Array, "b l d"]:
        inner = LayerNorm(self.config.eps, name="norm")(x)
        return x + attend(self.config, inner, inner, visible, keys, site)


class ToVector(nn.Module):
    """x + attention to one vector. The softmax over a single key is 1 whatever the query, so value and output are all there is."""

    config: EncoderConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "b l d"], vector: Float[Array, "b d"], keys: Key[Array, " b"] | None, site: Int[Array, ""]
    ) -> Float[Array, "b l d"]:
        c, (b, l, d) = self.config, x.shape
        value = Linear(d, c.init_std, c.dtype, name="value")(vector)[:, None]
        if keys is not None and c.attention_dropout:  # drops the one weight of a head at a position
            weights = keyed_dropout(jnp.ones((b, l, c.heads), value.dtype), c.attention_dropout, keys, site)
            value = jnp.repeat(weights, d // c.heads, axis=-1) * value
        return x + keyed_dropout(jnp.broadcast_to(Linear(d, c.init_std, c.dtype, name="output")(value), x.shape), c.dropout, keys, site + 1)


class PreNormFeedForward(nn.Module):
    """x + feed-forward(LayerNorm(x))."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, x: Float[Array, "b l d"], keys: Key[Array, " b"] | None, site: Int[Array, ""]) -> Float[Array, "b l d"]:
        return x + transform(self.config, LayerNorm(self.config.eps, name="norm")(x), keys, site)


class DecoderLayer(nn.Module):
    """One layer, in the form that `stacked` takes. `vector`: for the cross-attention; None: there is none."""

    config: EncoderConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b l d"],
        site: Int[Array, ""],
        visible: Bool[Array, "_ _ _ l"],
        keys: Key[Array, " b"] | None,
        vector: Float[Array, "b d"] | None,
    ) -> tuple[Float[Array, "b l d"], None]:
        x = PreNormAttention(self.config, name="attention")(x, visible, keys, site)
        if vector is not None:
            x = ToVector(self.config, name="cross")(x, vector, keys, site + 3)
        return rows_over_devices(PreNormFeedForward(self.config, name="ffn")(x, keys, site + 2)), None


class Decoder(nn.Module):
    """Position table, embedding LayerNorm, layers, final LayerNorm. Takes word states, gives the states that predict."""

    encoder: EncoderConfig
    config: DecoderConfig

    @nn.compact
    def __call__(self, words: Float[Array, "b l d"], vector: Float[Array, "b d"], keys: Key[Array, " b"] | None) -> Float[Array, "b l d"]:
        c, shape = self.config, self.config.shape(self.encoder)
        position = self.param("position", nn.initializers.normal(shape.init_std), (shape.max_length, shape.hidden))
        x = LayerNorm(c.eps, name="embedding_norm")(words + position[: words.shape[1]])
        x = keyed_dropout(x, shape.dropout, keys, DECODER_SITE)
        if c.injection == "add":
            x = x + vector[:, None]
        if c.injection == "prefix":
            x = jnp.concatenate([vector[:, None].astype(x.dtype), x[:, 1:]], axis=1)
        visible = jnp.asarray(window_mask(words.shape[1], c.window))[None, None]
        sites = DECODER_SITE + SITES_PER_LAYER * (1 + jnp.arange(c.layers))
        layers = stacked(DecoderLayer, shape, c.layers, broadcast=3)(shape, name="layers")
        x, _ = layers(rows_over_devices(x), sites, visible, keys, vector if c.injection == "cross" else None)
        return LayerNorm(c.eps, name="norm")(x)


def init_decoder(encoder: EncoderConfig, config: DecoderConfig, key: Key[Array, ""]) -> dict[str, Any]:
    """Fresh parameters: ``{"position", "embedding_norm", "layers", "norm"}``."""
    return init_params(Decoder(encoder, config), key, jnp.zeros((1, 1, encoder.hidden)), jnp.zeros((1, encoder.hidden)), None)


def decode(
    encoder: EncoderConfig,
    config: DecoderConfig,
    params: Params,
    word: Float[Array, "v d"],
    ids: Int[Array, "b l"],
    vector: Float[Array, "b d"],
    keys: Key[Array, " b"] | None = None,
) -> Float[Array, "b l d"]:
    """States that predict the next token: logits = states @ word.T, without a bias.

    Args:
        params: the decoder's. word: the encoder's word table. ids: input tokens, [CLS] first. vector: the encoder's.
        keys: dropout keys, one a row; None: no dropout.
    """
    out: Array = apply(Decoder(encoder, config), params, look_up(word, ids), vector, keys)
    return out


class Latent(nn.Module):
    """Two linear maps without bias: a vector to mean and log variance, and a latent back to a vector (Optimus, section 3.1)."""

    config: EncoderConfig
    size: int

    def setup(self) -> None:
        init = nn.initializers.normal(self.config.init_std)
        self.into = self.param("into", init, (self.config.hidden, 2 * self.size))
        self.back = self.param("back", init, (self.size, self.config.hidden))

    def __call__(self, vector: Float[Array, "b d"], noise: Float[Array, "b z"]) -> tuple[Array, Array, Array]:
        mean, log_variance = jnp.split(einsum("bd,dz->bz", vector, self.into, self.config.dtype), 2, axis=-1)
        z = mean + noise * jnp.exp(log_variance / 2)
        return einsum("bz,zd->bd", z, self.back, self.config.dtype), mean, log_variance


def init_latent(encoder: EncoderConfig, size: int, key: Key[Array, ""]) -> dict[str, Any]:
    """Fresh parameters ``{"into" [d, 2 size], "back" [size, d]}``."""
    return init_params(Latent(encoder, size), key, jnp.zeros((1, encoder.hidden)), jnp.zeros((1, size)))


def through_latent(
    encoder: EncoderConfig, size: int, params: Params, vector: Float[Array, "b d"], noise: Float[Array, "b z"]
) -> tuple[Float[Array, "b d"], Float[Array, "b z"], Float[Array, "b z"]]:
    """(the vector that the decoder gets, mean, log variance); `noise` is standard normal, or zero for the mean itself."""
    out: tuple[Array, Array, Array] = apply(Latent(encoder, size), params, vector, noise)
    return out

"""From token states to one vector a text: pool, project, normalise. The one place, for training and for encoding alike."""

from dataclasses import dataclass
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from denseir_jax.models import bert
from denseir_jax.models.bert import EncoderConfig, Params
from denseir_jax.models.dense import LayerNorm, Linear, apply, einsum, init_params, wide

PROJECTION_EPS = 1e-5  # of PyTorch's LayerNorm, as which it is exported


@dataclass(frozen=True)
class EmbedderConfig:
    """How token states become a vector.

    Attributes:
        pooling: "cls" (the first token's state), "mean" (over all real tokens, [CLS] and [SEP] included, as
            sentence-transformers does), "first" (mean over the first `first_k` real tokens).
        projection: output size of a Linear + LayerNorm after pooling; 0: none. normalize: scale to length 1.
    """

    pooling: Literal["cls", "mean", "first"] = "cls"
    first_k: int = 1
    projection: int = 0
    normalize: bool = False

    def __post_init__(self) -> None:
        if self.pooling not in ("cls", "mean", "first"):
            raise ValueError(f"pooling is {self.pooling!r}; expected 'cls', 'mean' or 'first'")
        if self.first_k < 1:
            raise ValueError(f"first_k is {self.first_k}; expected at least 1")
        if self.projection < 0:
            raise ValueError(f"projection is {self.projection}; expected 0 (none) or an output size")


class Projection(nn.Module):
    """Linear + LayerNorm."""

    config: EncoderConfig
    features: int

    @nn.compact
    def __call__(self, x: Float[Array, "b d"]) -> Float[Array, "b e"]:
        linear = Linear(self.features, self.config.init_std, self.config.dtype, name="dense")
        return LayerNorm(PROJECTION_EPS, name="norm")(linear(x))


@dataclass(frozen=True)
class Embedder:
    """An encoder with pooling, optional projection and optional normalisation; params ``{"encoder", ["projection"]}``."""

    encoder: EncoderConfig
    config: EmbedderConfig

    @property
    def size(self) -> int:
        """Dimensions of a vector."""
        return self.config.projection or self.encoder.hidden

    def init(self, key: Key[Array, ""]) -> dict[str, Any]:
        """Fresh parameters."""
        encoder_key, projection_key = jax.random.split(key)
        params = {"encoder": bert.init_encoder(self.encoder, encoder_key)}
        if self.config.projection:
            module = Projection(self.encoder, self.config.projection)
            params["projection"] = init_params(module, projection_key, jnp.zeros((1, self.encoder.hidden)))
        return params

    def pool(self, params: Params, hidden: Float[Array, "b l d"], length: Int[Array, " b"]) -> Float[Array, "b e"]:
        """Last-layer states to vectors, in at least float32: pooled, projected, normalised as configured.

        Args:
            params: may hold more than this embedder uses. length: real tokens a row.
        """
        vectors = self._pooled(wide(hidden), length)
        if self.config.projection:
            vectors = apply(Projection(self.encoder, self.config.projection), params["projection"], vectors)
        if self.config.normalize:
            squares = jnp.square(vectors).sum(-1, keepdims=True)
            vectors = vectors * jax.lax.rsqrt(jnp.maximum(squares, 1e-24))
        return vectors

    def _pooled(self, hidden: Float[Array, "b l d"], length: Int[Array, " b"]) -> Float[Array, "b d"]:
        if self.config.pooling == "cls":
            return hidden[:, 0]
        count = length if self.config.pooling == "mean" else jnp.minimum(length, self.config.first_k)
        taken = (jnp.arange(hidden.shape[1]) < count[:, None]).astype(hidden.dtype)
        return einsum("bl,bld->bd", taken, hidden, "float32") / jnp.maximum(count, 1)[:, None].astype(hidden.dtype)

    def embed(
        self, params: Params, ids: Int[Array, "b l"], length: Int[Array, " b"], keys: Key[Array, " b"] | None = None
    ) -> Float[Array, "b e"]:
        """Texts to vectors. `keys`: dropout keys, one a row; None: no dropout."""
        return self.pool(params, bert.encode(self.encoder, params["encoder"], ids, length, keys).last, length)

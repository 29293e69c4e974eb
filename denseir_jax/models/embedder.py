"""From token states to one vector a text: pool, project, normalise; beside it, if wanted, the words that the text says most.

The one place, for training and for encoding alike.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from denseir_jax.models import bert, heads, lexical
from denseir_jax.models.dense import LayerNorm, Linear, apply, einsum, init_params, unit, wide
from denseir_jax.models.shape import EncoderConfig, Params
from denseir_jax.parallel.mesh import on_own_rows

PROJECTION_EPS = 1e-5  # of PyTorch's LayerNorm, as which it is exported


@dataclass(frozen=True)
class EmbedderConfig:
    """How token states become a vector.

    Attributes:
        pooling: "cls" (the first token's state), "mean" (over all real tokens, [CLS] and [SEP] included, as
            sentence-transformers does), "first" (mean over the first `first_k` real tokens).
        projection: output size of a Linear + LayerNorm after pooling; 0: none. normalize: scale to length 1.
        lexical: words kept of a text's lexical part, which follows the pooled vector (DupMAE, Liu et al. 2022); 0: none.
            At most the whole vocabulary is kept.
    """

    pooling: Literal["cls", "mean", "first"] = "cls"
    first_k: int = 1
    projection: int = 0
    normalize: bool = False
    lexical: int = 0

    def __post_init__(self) -> None:
        if self.pooling not in ("cls", "mean", "first"):
            raise ValueError(f"pooling is {self.pooling!r}; expected 'cls', 'mean' or 'first'")
        if self.first_k < 1:
            raise ValueError(f"first_k is {self.first_k}; expected at least 1")
        if self.projection < 0:
            raise ValueError(f"projection is {self.projection}; expected 0 (none) or an output size")
        if self.lexical < 0:
            raise ValueError(f"lexical is {self.lexical}; expected 0 (none) or how many words are kept")
        if self.lexical and self.normalize:
            raise ValueError(f"lexical={self.lexical} goes with normalize=false: dense and lexical scores are added as they are")


class Projection(nn.Module):
    """Linear + LayerNorm."""

    config: EncoderConfig
    features: int

    @nn.compact
    def __call__(self, x: Float[Array, "b d"]) -> Float[Array, "b e"]:
        linear = Linear(self.features, self.config.init_std, self.config.dtype, name="dense")
        return LayerNorm(PROJECTION_EPS, name="norm")(linear(x))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class WordVectors:
    """Vectors with a lexical part, without its zeros; arrays of NumPy or JAX.

    Attributes:
        dense: the pooled vectors [n, d]. words, weights: the word ids that are kept and their values, the largest first [n, k].
    """

    dense: Any
    words: Any
    weights: Any
    vocab_size: int = field(metadata={"static": True})

    def __len__(self) -> int:
        return len(self.dense)


def _top_k(x: Float[Array, "b v"], k: int) -> tuple[Float[Array, "b k"], Int[Array, "b k"]]:
    """``lax.top_k``; where a mesh is set, each device has its own rows: left to itself, the compiler would gather all of x."""

    def own_rows(x: Array) -> tuple[Array, Array]:
        values, places = jax.lax.top_k(x, k)
        return values, places

    found: tuple[Array, Array] = on_own_rows(own_rows, (x,))
    return found


@dataclass(frozen=True)
class Embedder:
    """An encoder with pooling, optional projection, normalisation and lexical part."""

    encoder: EncoderConfig
    config: EmbedderConfig

    @property
    def size(self) -> int:
        """Dimensions of a vector, as `embed` gives it."""
        return (self.config.projection or self.encoder.hidden) + (self.encoder.vocab_size if self.config.lexical else 0)

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parameters that vectors are made with; there may be others beside them."""
        return ("encoder", *(["projection"] if self.config.projection else []), *(["mlm_head"] if self.config.lexical else []))

    def init(self, key: Key[Array, ""]) -> dict[str, Any]:
        """Fresh parameters."""
        encoder_key, projection_key = jax.random.split(key)
        params = {"encoder": bert.init_encoder(self.encoder, encoder_key)}
        if self.config.projection:
            module = Projection(self.encoder, self.config.projection)
            params["projection"] = init_params(module, projection_key, jnp.zeros((1, self.encoder.hidden)))
        if self.config.lexical:
            params["mlm_head"] = heads.init_mlm_head(self.encoder, jax.random.fold_in(key, 2))
        return params

    def pool(self, params: Params, hidden: Float[Array, "b l d"], length: Int[Array, " b"]) -> Float[Array, "b e"]:
        """Last-layer states to dense vectors, in at least float32: pooled, projected, normalised as configured.

        Args:
            params: may hold more than this embedder uses. length: real tokens a row.
        """
        vectors = self._pooled(wide(hidden), length)
        if self.config.projection:
            vectors = apply(Projection(self.encoder, self.config.projection), params["projection"], vectors)
        if self.config.normalize:
            vectors = unit(vectors)
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
        """Texts to vectors [b, size]. `keys`: dropout keys, one a row; None: no dropout.

        With a lexical part the pooled vector is followed by one number a word of the vocabulary, all but the largest
        `lexical` of which are 0; so the dot product of two vectors is the sum of a dense and a lexical score.
        """
        if not self.config.lexical:
            return self.pool(params, bert.encode(self.encoder, params["encoder"], ids, length, keys).last, length)
        kept = self.embed_words(params, ids, length, keys)
        sparse = jax.vmap(lambda words, weights: jnp.zeros(kept.vocab_size, weights.dtype).at[words].set(weights))
        return jnp.concatenate([kept.dense, sparse(kept.words, kept.weights)], axis=1)

    def embed_words(
        self, params: Params, ids: Int[Array, "b l"], length: Int[Array, " b"], keys: Key[Array, " b"] | None = None
    ) -> WordVectors:
        """As `embed`, for an embedder with a lexical part, whose zeros are left out: the words with the largest MLM logit
        over the real tokens after [CLS]. Of equal ones the lower word id is kept. A negative logit weighs 0: a word that
        neither text speaks of adds nothing to their score.
        """
        hidden = bert.encode(self.encoder, params["encoder"], ids, length, keys).last
        logits = lexical.largest_word_logits(self.encoder, params, hidden, lexical.after_cls(length, ids.shape[1]))
        weights, words = _top_k(jnp.maximum(logits, 0), min(self.config.lexical, self.encoder.vocab_size))
        return WordVectors(self.pool(params, hidden, length), words, weights, self.encoder.vocab_size)

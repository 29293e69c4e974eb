"""The BERT encoder: embeddings, then post-LayerNorm layers whose parameters are stacked [layers, ...].

Whether the layers are scanned, unrolled or rematerialised is a setting of the run, not of the checkpoint: the parameters
are the same. Other rooms use the plain functions at the end and need no Flax.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from denseir_jax.models.dense import LayerNorm, Linear, apply, einsum, gelu, init_params
from denseir_jax.models.dropout import keyed_dropout
from denseir_jax.parallel.mesh import rows_over_devices, whole_on_devices

# Dropout places. A layer owns SITES_PER_LAYER numbers from its stack's first site on; other stacks take other ranges.
EMBEDDING_SITE = 0
LAYERS_SITE = 8
HEAD_SITE = 1 << 16
SITES_PER_LAYER = 8
Params = Mapping[str, Any]


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes and compute of the encoder.

    Attributes:
        vocab_size: tokens; the tables are padded inside to a multiple of 128. types: token types.
        eps: of every LayerNorm. dropout, attention_dropout: used only where row keys are given.
        dtype: of matrix product inputs; parameters, sums, LayerNorm, softmax and residuals stay in float32.
        scan: compile one layer and loop over it. remat: compute a layer again in the backward pass instead of keeping it.
        tied_output: the MLM head's output table is the word embedding table.
    """

    vocab_size: int
    hidden: int = 256
    layers: int = 2
    heads: int = 4
    intermediate: int = 1024
    max_length: int = 512
    types: int = 2
    eps: float = 1e-12
    dropout: float = 0.1
    attention_dropout: float = 0.1
    dtype: Literal["float32", "bfloat16"] = "float32"
    scan: bool = False
    remat: bool = False
    init_std: float = 0.02
    tied_output: bool = True

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden", "heads", "intermediate", "max_length", "types"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
        if self.layers < 0:
            raise ValueError(f"layers is {self.layers}; expected 0 (embeddings only) or more")
        if self.hidden % self.heads:
            raise ValueError(f"hidden {self.hidden} does not divide into {self.heads} heads")
        for name in ("dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected a rate in [0, 1)")


class Hidden(NamedTuple):
    """What the encoder gives: the last layer's states, the embedding output, and, if collected, every layer's states.

    ``all[0]`` is the embedding output and ``all[k]`` the output of layer k.
    """

    last: Float[Array, "b l d"]
    embedded: Float[Array, "b l d"]
    all: Float[Array, "n b l d"] | None = None


def padded_vocab(vocab_size: int) -> int:
    """Rows of the vocabulary tables: the next multiple of 128. No loss and no draw may see the rows beyond the vocabulary."""
    return -(-vocab_size // 128) * 128


def length_bias(length: Int[Array, " b"], width: int, dtype: Any) -> Float[Array, "b 1 1 l"]:
    """What is added to attention scores: 0 at real tokens, a large negative finite number at positions >= length."""
    real = jnp.arange(width) < length[:, None]
    return jnp.where(real, 0.0, jnp.finfo(dtype).min / 2).astype(dtype)[:, None, None, :]


class Embeddings(nn.Module):
    """Word + position + token type, LayerNorm, dropout."""

    config: EncoderConfig

    @nn.compact
    def __call__(
        self, ids: Int[Array, "b l"], keys: Key[Array, " b"] | None, types: Int[Array, "b l"] | None, site: int
    ) -> Float[Array, "b l d"]:
        c, init = self.config, nn.initializers.normal(self.config.init_std)
        word = self.param("word", init, (padded_vocab(c.vocab_size), c.hidden))
        position = self.param("position", init, (c.max_length, c.hidden))
        kind = self.param("type", init, (c.types, c.hidden))
        # Types are few: a product with one-hot rows has a cheaper gradient than a scatter.
        typed = kind[0] if types is None else einsum("blt,td->bld", jax.nn.one_hot(types, c.types, dtype=kind.dtype), kind, "float32")
        # Cut as it is stored, the table would send a slice of every row's states from each device to each other one.
        word = whole_on_devices(word)
        x = jnp.take(word, ids, axis=0, mode="clip") + position[: ids.shape[1]] + typed
        return rows_over_devices(keyed_dropout(LayerNorm(c.eps, name="norm")(x), c.dropout, keys, site))


class Attention(nn.Module):
    """Multi-head self-attention with the residual and its LayerNorm."""

    config: EncoderConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "b l d"], bias: Float[Array, "b _ _ l"], keys: Key[Array, " b"] | None, site: Int[Array, ""]
    ) -> Float[Array, "b l d"]:
        c, (b, l, d) = self.config, x.shape
        query, key, value = (
            Linear(d, c.init_std, c.dtype, name=name)(x).reshape(b, l, c.heads, d // c.heads) for name in ("query", "key", "value")
        )
        scores = einsum("bqhd,bkhd->bhqk", query * (d // c.heads) ** -0.5, key, c.dtype)
        weights = keyed_dropout(jax.nn.softmax(scores + bias, axis=-1), c.attention_dropout, keys, site)
        mixed = einsum("bhqk,bkhd->bqhd", weights, value, c.dtype).reshape(b, l, d)
        out = keyed_dropout(Linear(d, c.init_std, c.dtype, name="output")(mixed), c.dropout, keys, site + 1)
        return LayerNorm(c.eps, name="norm")(x + out)


class FeedForward(nn.Module):
    """Linear, GELU, Linear, with the residual and its LayerNorm."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, x: Float[Array, "b l d"], keys: Key[Array, " b"] | None, site: Int[Array, ""]) -> Float[Array, "b l d"]:
        c = self.config
        inner = gelu(Linear(c.intermediate, c.init_std, c.dtype, name="up")(x))
        out = keyed_dropout(Linear(x.shape[-1], c.init_std, c.dtype, name="down")(inner), c.dropout, keys, site)
        return LayerNorm(c.eps, name="norm")(x + out)


class Layer(nn.Module):
    """One BERT layer, in the form that a scan over layers takes: (states, ...) -> (states, what is collected)."""

    config: EncoderConfig
    collect: bool = False

    @nn.compact
    def __call__(
        self, x: Float[Array, "b l d"], site: Int[Array, ""], bias: Float[Array, "b _ _ l"], keys: Key[Array, " b"] | None
    ) -> tuple[Float[Array, "b l d"], Float[Array, "b l d"] | None]:
        x = Attention(self.config, name="attention")(x, bias, keys, site)
        x = rows_over_devices(FeedForward(self.config, name="ffn")(x, keys, site + 2))
        return x, x if self.collect else None


class Layers(nn.Module):
    """A stack of `n` layers with parameters stacked [n, ...]; also the Condenser head. No layers: the identity."""

    config: EncoderConfig
    n: int

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b l d"],
        length: Int[Array, " b"],
        keys: Key[Array, " b"] | None = None,
        first_site: int | Int[Array, ""] = LAYERS_SITE,
        collect: bool = False,
    ) -> tuple[Float[Array, "b l d"], Float[Array, "n b l d"] | None]:
        if not self.n:
            return x, None
        c = self.config
        layer = nn.remat(Layer, prevent_cse=not c.scan) if c.remat else Layer
        stack = nn.scan(
            layer,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(0, nn.broadcast, nn.broadcast),
            length=self.n,
            unroll=1 if c.scan else self.n,
        )(c, collect)
        nn.share_scope(self, stack)
        sites = first_site + SITES_PER_LAYER * jnp.arange(self.n)
        out: tuple[Array, Array | None] = stack(rows_over_devices(x), sites, length_bias(length, x.shape[1], x.dtype), keys)
        return out


class Encoder(nn.Module):
    """Embeddings and layers."""

    config: EncoderConfig

    @nn.compact
    def __call__(
        self,
        ids: Int[Array, "b l"],
        length: Int[Array, " b"],
        keys: Key[Array, " b"] | None = None,
        types: Int[Array, "b l"] | None = None,
        collect: bool = False,
    ) -> Hidden:
        if ids.shape[1] > self.config.max_length:
            raise ValueError(f"texts of {ids.shape[1]} tokens do not fit an encoder of max_length {self.config.max_length}")
        embedded = Embeddings(self.config, name="embeddings")(ids, keys, types, EMBEDDING_SITE)
        last, states = Layers(self.config, self.config.layers, name="layers")(embedded, length, keys, LAYERS_SITE, collect)
        if not collect:
            return Hidden(last, embedded)
        return Hidden(last, embedded, embedded[None] if states is None else jnp.concatenate([embedded[None], states]))


def init_encoder(config: EncoderConfig, key: Key[Array, ""]) -> dict[str, Any]:
    """Fresh parameters: N(0, init_std) weights, zero biases, LayerNorm at identity; ``{"embeddings", "layers"}``."""
    ids = jnp.zeros((1, 1), jnp.int32)
    return init_params(Encoder(config), key, ids, jnp.ones((1,), jnp.int32))


def encode(
    config: EncoderConfig,
    params: Params,
    ids: Int[Array, "b l"],
    length: Int[Array, " b"],
    keys: Key[Array, " b"] | None = None,
    types: Int[Array, "b l"] | None = None,
    collect: bool = False,
) -> Hidden:
    """Run the encoder.

    Args:
        params: as `init_encoder` gives. ids: tokens, [CLS] first. length: real tokens a row; later positions are hidden.
        keys: dropout keys, one a row; None: no dropout. types: token types; None: all 0. collect: keep every layer's states.
    Raises:
        ValueError: the rows are longer than ``max_length``.
    """
    hidden: Hidden = apply(Encoder(config), params, ids, length, keys, types, collect)
    return hidden


def embed_tokens(
    config: EncoderConfig,
    params: Params,
    ids: Int[Array, "b l"],
    keys: Key[Array, " b"] | None = None,
    types: Int[Array, "b l"] | None = None,
    site: int = EMBEDDING_SITE,
) -> Float[Array, "b l d"]:
    """The embedding output alone: word + position + type, LayerNorm, dropout. `params` are the whole encoder's."""
    out: Array = apply(Embeddings(config), params["embeddings"], ids, keys, types, site)
    return out


def init_layers(config: EncoderConfig, n: int, key: Key[Array, ""]) -> dict[str, Any]:
    """Fresh parameters of a stack of `n` layers."""
    return init_params(Layers(config, n), key, jnp.zeros((1, 1, config.hidden)), jnp.ones((1,), jnp.int32))


def run_layers(
    config: EncoderConfig,
    n: int,
    params: Params,
    x: Float[Array, "b l d"],
    length: Int[Array, " b"],
    keys: Key[Array, " b"] | None = None,
    first_site: int | Int[Array, ""] = HEAD_SITE,
) -> Float[Array, "b l d"]:
    """Run a stack of `n` layers on states, with its own range of dropout sites from `first_site` on."""
    out: Array = apply(Layers(config, n), params, x, length, keys, first_site)[0]
    return out

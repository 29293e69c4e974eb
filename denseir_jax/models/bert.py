"""The BERT encoder, also RoBERTa's and ELECTRA's: embeddings, then post-LayerNorm layers with parameters stacked [layers, ...].

Whether the layers are scanned, unrolled or rematerialised is a setting of the run, not of the checkpoint: the parameters
are the same. Other rooms use the plain functions at the end and need no Flax.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from denseir_jax.models.dense import LayerNorm, Linear, apply, einsum, gelu, init_params
from denseir_jax.models.dropout import keyed_dropout
from denseir_jax.models.shape import EncoderConfig, Params, padded_vocab
from denseir_jax.parallel.mesh import rows_over_devices, whole_on_devices

# Dropout places. A layer owns SITES_PER_LAYER numbers from its stack's first site on; other stacks take other ranges.
EMBEDDING_SITE = 0
LAYERS_SITE = 8
HEAD_SITE = 1 << 16
SITES_PER_LAYER = 8


class Hidden(NamedTuple):
    """What the encoder gives: the last layer's states, the embedding output, and, if collected, every layer's states.

    ``all[0]`` is the embedding output and ``all[k]`` the output of layer k.
    """

    last: Float[Array, "b l d"]
    embedded: Float[Array, "b l d"]
    all: Float[Array, "n b l d"] | None = None


def real_tokens(length: Int[Array, " b"], width: int) -> Bool[Array, "b 1 1 l"]:
    """Which keys a query may see where only padding is hidden: positions < length."""
    return (jnp.arange(width) < length[:, None])[:, None, None, :]


def attend(
    config: EncoderConfig,
    x: Float[Array, "b l d"],
    memory: Float[Array, "b m d"],
    visible: Bool[Array, "_ _ _ m"],
    keys: Key[Array, " b"] | None,
    site: int | Int[Array, ""],
) -> Float[Array, "b l d"]:
    """Multi-head attention from `x` to `memory`, for use inside a compact module: query, key, value, output.

    A query that may see nothing attends to everything alike, which is finite; whoever hides everything ignores the result.
    """
    c, (b, l, d), m = config, x.shape, memory.shape[1]
    query, key, value = (
        Linear(d, c.init_std, c.dtype, name=name)(states).reshape(b, width, c.heads, d // c.heads)
        for name, states, width in (("query", x, l), ("key", memory, m), ("value", memory, m))
    )
    scores = einsum("bqhd,bkhd->bhqk", query * (d // c.heads) ** -0.5, key, c.dtype)
    hidden = jnp.finfo(scores.dtype).min / 2
    weights = jax.nn.softmax(scores + jnp.where(visible, 0, hidden).astype(scores.dtype), axis=-1)
    weights = keyed_dropout(weights, c.attention_dropout, keys, site)
    mixed = einsum("bhqk,bkhd->bqhd", weights, value, c.dtype).reshape(b, l, d)
    return keyed_dropout(Linear(d, c.init_std, c.dtype, name="output")(mixed), c.dropout, keys, site + 1)


def transform(
    config: EncoderConfig, x: Float[Array, "b l d"], keys: Key[Array, " b"] | None, site: int | Int[Array, ""]
) -> Float[Array, "b l d"]:
    """Linear, GELU, Linear, for use inside a compact module: up, down."""
    inner = gelu(Linear(config.intermediate, config.init_std, config.dtype, name="up")(x))
    return keyed_dropout(Linear(x.shape[-1], config.init_std, config.dtype, name="down")(inner), config.dropout, keys, site)


def look_up(word: Float[Array, "v d"], ids: Int[Array, "b l"]) -> Float[Array, "b l d"]:
    """Rows of the word table. Cut as it is stored, it would send a slice of every row's states from each device to each
    other one."""
    return jnp.take(whole_on_devices(word), ids, axis=0, mode="clip")


class Embeddings(nn.Module):
    """Word + position + token type, LayerNorm, dropout; then a Linear to the layers' width where the tables have another."""

    config: EncoderConfig

    @nn.compact
    def __call__(
        self, ids: Int[Array, "b l"], keys: Key[Array, " b"] | None, types: Int[Array, "b l"] | None, site: int
    ) -> Float[Array, "b l d"]:
        c, init = self.config, nn.initializers.normal(self.config.init_std)
        word = self.param("word", init, (padded_vocab(c.vocab_size), c.width))
        position = self.param("position", init, (c.position_offset + c.max_length, c.width))
        kind = self.param("type", init, (c.types, c.width))
        # Types are few: a product with one-hot rows has a cheaper gradient than a scatter.
        typed = kind[0] if types is None else einsum("blt,td->bld", jax.nn.one_hot(types, c.types, dtype=kind.dtype), kind, "float32")
        x = look_up(word, ids) + position[c.position_offset :][: ids.shape[1]] + typed
        x = keyed_dropout(LayerNorm(c.eps, name="norm")(x), c.dropout, keys, site)
        return rows_over_devices(x if c.width == c.hidden else Linear(c.hidden, c.init_std, c.dtype, name="project")(x))


class Attention(nn.Module):
    """Multi-head attention with the residual and its LayerNorm."""

    config: EncoderConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b l d"],
        visible: Bool[Array, "_ _ _ m"],
        keys: Key[Array, " b"] | None,
        site: Int[Array, ""],
        memory: Float[Array, "b m d"] | None,
    ) -> Float[Array, "b l d"]:
        out = attend(self.config, x, x if memory is None else memory, visible, keys, site)
        return LayerNorm(self.config.eps, name="norm")(x + out)


class FeedForward(nn.Module):
    """Linear, GELU, Linear, with the residual and its LayerNorm."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, x: Float[Array, "b l d"], keys: Key[Array, " b"] | None, site: Int[Array, ""]) -> Float[Array, "b l d"]:
        return LayerNorm(self.config.eps, name="norm")(x + transform(self.config, x, keys, site))


class Layer(nn.Module):
    """One BERT layer, in the form that a scan over layers takes: (states, ...) -> (states, what is collected)."""

    config: EncoderConfig
    collect: bool = False

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b l d"],
        site: Int[Array, ""],
        visible: Bool[Array, "_ _ _ m"],
        keys: Key[Array, " b"] | None,
        memory: Float[Array, "b m d"] | None,
    ) -> tuple[Float[Array, "b l d"], Float[Array, "b l d"] | None]:
        x = Attention(self.config, name="attention")(x, visible, keys, site, memory)
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
        visible: Bool[Array, "_ _ _ m"],
        keys: Key[Array, " b"] | None = None,
        first_site: int | Int[Array, ""] = LAYERS_SITE,
        collect: bool = False,
        memory: Float[Array, "b m d"] | None = None,
    ) -> tuple[Float[Array, "b l d"], Float[Array, "n b l d"] | None]:
        if not self.n:
            return x, None
        stack = stacked(Layer, self.config, self.n, broadcast=3)(self.config, collect)
        nn.share_scope(self, stack)
        sites = first_site + SITES_PER_LAYER * jnp.arange(self.n)
        out: tuple[Array, Array | None] = stack(rows_over_devices(x), sites, visible, keys, memory)
        return out


def stacked(layer: type[nn.Module], config: EncoderConfig, n: int, broadcast: int) -> Any:
    """`n` layers over parameters stacked [n, ...], scanned or unrolled, rematerialised or not, as `config` says.

    A layer takes (states, its first dropout site, `broadcast` arguments that are the same for all).
    """
    return nn.scan(
        nn.remat(layer, prevent_cse=not config.scan) if config.remat else layer,
        variable_axes={"params": 0},
        split_rngs={"params": True},
        in_axes=(0, *(nn.broadcast,) * broadcast),
        length=n,
        unroll=1 if config.scan else n,
    )


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
        visible = real_tokens(length, ids.shape[1])
        last, states = Layers(self.config, self.config.layers, name="layers")(embedded, visible, keys, LAYERS_SITE, collect)
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
    """The embedding output alone: word + position + type, LayerNorm, dropout, projection. `params` are the whole encoder's."""
    out: Array = apply(Embeddings(config), params["embeddings"], ids, keys, types, site)
    return out


def embed_vector(
    config: EncoderConfig,
    params: Params,
    vector: Float[Array, "b d"],
    width: int,
    normed: bool,
    keys: Key[Array, " b"] | None = None,
    site: int = EMBEDDING_SITE,
) -> Float[Array, "b l d"]:
    """A vector in the place of a word at every position: vector + position, and with `normed` all that the embedding
    module does to a word (type 0, LayerNorm, dropout). `params` are the whole encoder's, whose embeddings are of its width."""
    tables = params["embeddings"]
    x = vector[:, None] + jnp.asarray(tables["position"])[config.position_offset :][:width]
    if not normed:
        return x
    x = apply(LayerNorm(config.eps), tables["norm"], x + jnp.asarray(tables["type"])[0])
    return keyed_dropout(x, config.dropout, keys, site)


def init_layers(config: EncoderConfig, n: int, key: Key[Array, ""]) -> dict[str, Any]:
    """Fresh parameters of a stack of `n` layers."""
    return init_params(Layers(config, n), key, jnp.zeros((1, 1, config.hidden)), jnp.ones((1, 1, 1, 1), bool))


def run_layers(
    config: EncoderConfig,
    n: int,
    params: Params,
    x: Float[Array, "b l d"],
    visible: Bool[Array, "_ _ _ m"],
    keys: Key[Array, " b"] | None = None,
    first_site: int | Int[Array, ""] = HEAD_SITE,
    memory: Float[Array, "b m d"] | None = None,
) -> Float[Array, "b l d"]:
    """Run a stack of `n` layers on states, with its own range of dropout sites from `first_site` on.

    Args:
        visible: which keys each query may see ([b, 1, 1, l] as `real_tokens` gives, or [b, 1, l, l]).
        memory: states that every layer takes keys and values from; None: its own input.
    """
    out: Array = apply(Layers(config, n), params, x, visible, keys, first_site, False, memory)[0]
    return out

"""SEED's decoder against plain numpy in float64, how far a token reaches, and what its vector does."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from denseir_jax.models import decoders
from denseir_jax.models.decoders import DecoderConfig, ToVector, window_mask
from denseir_jax.models.dense import apply
from denseir_jax.models.shape import EncoderConfig

ENCODER = EncoderConfig(60, hidden=12, heads=3, intermediate=20, max_length=10, scan=True)
RNG = np.random.default_rng(0)
WORD, VECTOR = RNG.normal(0, 0.5, (128, 12)), RNG.normal(size=(3, 12))
IDS = RNG.integers(0, 60, (3, 8)).astype(np.int32)


def quick(function: Any) -> Any:
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


def params_of(config: DecoderConfig, encoder: EncoderConfig = ENCODER) -> Any:
    """Random in every leaf, so that no term can be forgotten; float64. Without cross-attention its leaves are left out."""
    rng, shapes = np.random.default_rng(1), jax.eval_shape(lambda: decoders.init_decoder(encoder, config, jax.random.key(0)))
    return jax.tree.map(lambda leaf: rng.normal(0, 0.4, leaf.shape), shapes)


def states(config: DecoderConfig, params: Any, ids: np.ndarray = IDS, vector: np.ndarray = VECTOR) -> np.ndarray:
    with jax.enable_x64(True):
        run = quick(lambda *args: decoders.decode(ENCODER, config, *args))
        return np.asarray(run(params, jnp.asarray(WORD), jnp.asarray(ids), jnp.asarray(vector)))


def norm(x: np.ndarray, p: Any, eps: float = 1e-5) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * p["scale"] + p["bias"]


def linear(x: np.ndarray, p: Any) -> np.ndarray:
    return x @ p["kernel"] + p["bias"]


def attention(query: np.ndarray, key: np.ndarray, value: np.ndarray, heads: int, see: Any) -> np.ndarray:
    """One row's attention, by loops over heads and positions; `see(i)` are the keys that position i sees."""
    out, size = np.zeros_like(query), query.shape[1] // heads
    for i, head in itertools.product(range(len(query)), range(heads)):
        part, seen = slice(head * size, (head + 1) * size), see(i)
        score = np.exp([query[i, part] @ key[j, part] / math.sqrt(size) for j in seen])
        out[i, part] = score / score.sum() @ value[seen, part]
    return out


def numpy_decoder(config: DecoderConfig, params: Any, heads: int) -> np.ndarray:
    """The decoder as its paper and code describe it: cross-attention is a softmax over the one key, from random queries."""
    gelu = np.vectorize(lambda v: 0.5 * v * (1 + math.erf(v / math.sqrt(2))))
    window, rows = config.window or 99, []
    for ids, vector in zip(IDS, VECTOR, strict=True):
        x = norm(WORD[ids] + params["position"][: len(ids)], params["embedding_norm"])
        if config.injection == "add":
            x = x + vector
        if config.injection == "prefix":
            x[0] = vector
        for layer in range(config.layers):
            p = jax.tree.map(lambda leaf, layer=layer: leaf[layer], params["layers"])
            a = p["attention"]
            q, k, v = (linear(norm(x, a["norm"]), a[name]) for name in ("query", "key", "value"))
            see = lambda i: sorted({0} | {j for j in range(i + 1) if i - j < window})  # noqa: E731
            x = x + linear(attention(q, k, v, heads, see), a["output"])
            if config.injection == "cross":
                one = vector[None]
                some = np.random.default_rng(layer).normal(size=(2, 12, 12))
                mixed = attention(x @ some[0], one @ some[1], linear(one, p["cross"]["value"]), heads, lambda i: [0])
                x = x + linear(mixed, p["cross"]["output"])
            x = x + linear(gelu(linear(norm(x, p["ffn"]["norm"]), p["ffn"]["up"])), p["ffn"]["down"])
        rows.append(norm(x, params["norm"]))
    return np.stack(rows)


def test_window_masks_by_hand() -> None:
    """T1: rows see themselves, window - 1 tokens before, and column 0."""
    expected = {
        1: "10000 11000 10100 10010 10001",
        2: "10000 11000 11100 10110 10011",
        3: "10000 11000 11100 11110 10111",
        5: "10000 11000 11100 11110 11111",
        None: "10000 11000 11100 11110 11111",
    }
    for window, rows in expected.items():
        assert [[int(cell) for cell in row] for row in rows.split()] == window_mask(5, window).astype(int).tolist(), window
    for window in (1, 2, 7):
        assert window_mask(20, window).sum(1).tolist() == [min(i + 1, window + 1) for i in range(20)]


@pytest.mark.parametrize(
    "config",
    [
        DecoderConfig(2, 2, "cross"),
        DecoderConfig(2, None, "prefix"),
        DecoderConfig(1, 3, "add", heads=2, intermediate=8),
    ],
)
def test_the_decoder_is_that_of_numpy(config: DecoderConfig) -> None:
    """T16 for the prefix without a window: a language model whose first input is the vector."""
    params = params_of(config)
    assert ("cross" in params["layers"]) == (config.injection == "cross")
    np.testing.assert_allclose(states(config, params), numpy_decoder(config, params, config.heads or 3), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("window", [1, 2, None])
def test_a_token_reaches_so_far(window: int | None) -> None:
    """T14: with N layers a token reaches N (window - 1) positions to the right and none to the left; the first reaches all."""
    config, at = DecoderConfig(3, window), 2
    params = params_of(config)
    changed = IDS.copy()
    changed[:, at] = (IDS[:, at] + 1) % 60
    reach = [i for i in range(8) if at <= i and (window is None or i <= at + 3 * (window - 1))]
    moved = np.abs(states(config, params, changed) - states(config, params)).max((0, 2))
    assert np.flatnonzero(moved).tolist() == reach
    changed = IDS.copy()
    changed[:, 0] = (IDS[:, 0] + 1) % 60
    assert (np.abs(states(config, params, changed) - states(config, params)).max(2) > 1e-6).all()


def test_cross_attention_adds_one_vector() -> None:
    """T15: W_o (W_v h + b_v) + b_o at every position, whatever the query."""
    rng = np.random.default_rng(2)
    params = {name: {"kernel": rng.normal(size=(12, 12)), "bias": rng.normal(size=12)} for name in ("value", "output")}
    x = rng.normal(size=(3, 8, 12))
    with jax.enable_x64(True):
        out = np.asarray(apply(ToVector(ENCODER), params, jnp.asarray(x), jnp.asarray(VECTOR), None, jnp.asarray(0)))
    constant = linear(linear(VECTOR, params["value"]), params["output"])
    np.testing.assert_allclose(out - x, np.broadcast_to(constant[:, None], x.shape), rtol=1e-12, atol=1e-12)


def test_attention_dropout_drops_a_head_of_the_vector_at_a_position() -> None:
    """T15, with dropout: each head's single weight is 0 or scaled, position by position."""
    encoder = EncoderConfig(60, hidden=12, heads=3, dropout=0.0, attention_dropout=0.5)
    rng = np.random.default_rng(2)
    params = {name: {"kernel": rng.normal(size=(12, 12)), "bias": rng.normal(size=12)} for name in ("value", "output")}
    keys = jax.vmap(jax.random.key)(jnp.arange(3, dtype=jnp.uint32))
    x = jnp.zeros((3, 8, 12))
    out = np.asarray(apply(ToVector(encoder), params, x, jnp.asarray(VECTOR, jnp.float32), keys, jnp.asarray(0)))
    patterns = list(itertools.product((0, 2), repeat=3))
    value = linear(VECTOR, params["value"]).reshape(3, 3, 4)
    possible = np.stack([linear((value * np.array(p)[:, None]).reshape(3, 12), params["output"]) for p in patterns])
    distance = np.abs(possible[:, :, None] - out).max(-1)
    assert (distance.min(0) < 1e-4).all()
    assert len(np.unique(distance.argmin(0))) > 4, "positions and rows drop heads of their own"


def test_no_window_is_a_window_as_long_as_the_text() -> None:
    """T16: the strong decoder of 12 layers is the same module, bit for bit."""
    params = params_of(DecoderConfig(12, None))
    whole = states(DecoderConfig(12, None), params)
    for window in (8, 100):
        np.testing.assert_array_equal(states(DecoderConfig(12, window), params), whole)
    short = states(DecoderConfig(12, 6), params)  # of 8 positions the last one misses the second; the first is always seen
    assert np.abs(short - whole)[:, 7].max() > 1e-6
    np.testing.assert_array_equal(short[:, :7], whole[:, :7])


def test_each_way_in_carries_the_vector() -> None:
    """The first prediction already depends on it, and all later ones; of other rows' vectors on nothing."""
    for injection in ("cross", "prefix", "add"):
        config = DecoderConfig(1, 1, injection)
        params = params_of(config)
        other = VECTOR.copy()
        other[1] = RNG.normal(size=12)
        moved = np.abs(states(config, params, vector=other) - states(config, params)).max(2)
        assert (moved[1] > 1e-6).all() and not moved[[0, 2]].any(), injection


def test_a_latent_is_mean_and_noise() -> None:
    """Optimus: mean and log variance from one map without bias, the sample through another."""
    rng = np.random.default_rng(3)
    params = {"into": rng.normal(size=(12, 10)), "back": rng.normal(size=(5, 12))}
    noise = rng.normal(size=(3, 5))
    with jax.enable_x64(True):
        found = decoders.through_latent(ENCODER, 5, params, jnp.asarray(VECTOR), jnp.asarray(noise))
    mean, spread = VECTOR @ params["into"][:, :5], VECTOR @ params["into"][:, 5:]
    for got, want in zip(found, ((mean + noise * np.sqrt(np.exp(spread))) @ params["back"], mean, spread), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    made = decoders.init_latent(ENCODER, 5, jax.random.key(0))
    assert {name: leaf.shape for name, leaf in made.items()} == {"into": (12, 10), "back": (5, 12)}


def test_impossible_decoders_are_refused() -> None:
    with pytest.raises(ValueError, match=r"window=0 must be at least 1 \(the current token\), or None"):
        DecoderConfig(window=0)
    with pytest.raises(ValueError, match="layers=0 must be at least 1"):
        DecoderConfig(layers=0)
    with pytest.raises(ValueError, match="heads=-1"):
        DecoderConfig(heads=-1)
    with pytest.raises(ValueError, match="hidden 12 does not divide into 5 heads"):
        DecoderConfig(heads=5).shape(ENCODER)

"""What a text says in words, against all logits at once in float64, and that they are never there at once."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from denseir_jax.models import bert, heads, lexical
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.parallel import mesh as meshes
from denseir_jax.parallel.mesh import MeshConfig

ENCODER = EncoderConfig(90, hidden=8, layers=1, heads=2, intermediate=8, max_length=12)
RNG = np.random.default_rng(0)
STATES = RNG.normal(size=(8, 12, 8))
TAKEN = np.arange(12) < RNG.integers(1, 13, 8)[:, None]


def params_of(encoder: EncoderConfig) -> Any:
    """Random in every leaf, float64; padding rows of the tables are as large as others."""
    shapes = jax.eval_shape(
        lambda: {
            "encoder": bert.init_encoder(encoder, jax.random.key(0)),
            "mlm_head": heads.init_mlm_head(encoder, jax.random.key(1)),
        }
    )
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), shapes)


def all_logits(params: Any, states: Any) -> Any:
    """The MLM head written out; no loop over the vocabulary."""
    head = params["mlm_head"]
    x = states @ head["dense"]["kernel"] + head["dense"]["bias"]
    x = x * jax.scipy.stats.norm.cdf(x)
    x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-12) * head["norm"]["scale"] + head["norm"]["bias"]
    table = head.get("table", params["encoder"]["embeddings"]["word"])
    return (x @ table.T + head["bias"])[..., :90]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("chunk", [2048, 40])  # of 128 columns; 40: four parts
def test_largest_logits_and_gradients_are_those_of_all_logits(monkeypatch: pytest.MonkeyPatch, tied: bool, chunk: int) -> None:
    """DupMAE: values and gradients in float64 to 1e-10, the vocabulary in one part or in several."""
    monkeypatch.setattr(lexical, "_CHUNK", chunk)
    encoder = EncoderConfig(90, hidden=8, layers=1, heads=2, intermediate=8, max_length=12, tied_output=tied)
    weights = RNG.normal(size=(8, 90))

    def streamed(params: Any, states: Any) -> Any:
        found = lexical.largest_word_logits(encoder, params, states, jnp.asarray(TAKEN))
        return (found * weights).sum(), found

    def plain(params: Any, states: Any) -> Any:
        found = jnp.where(jnp.asarray(TAKEN)[:, :, None], all_logits(params, states), -jnp.inf).max(1)
        return (found * weights).sum(), found

    with jax.enable_x64(True):
        params = jax.tree.map(jnp.asarray, params_of(encoder))
        (a, found), got = jax.jit(jax.value_and_grad(streamed, (0, 1), has_aux=True))(params, jnp.asarray(STATES))
        (b, expected), want = jax.jit(jax.value_and_grad(plain, (0, 1), has_aux=True))(params, jnp.asarray(STATES))
        assert found.dtype == jnp.float64
    np.testing.assert_allclose([a, *np.ravel(found)], [b, *np.ravel(expected)], rtol=0, atol=1e-10)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-10)
    assert not np.asarray(got[1])[~TAKEN].any(), "tokens that are not taken learn nothing"


def test_uneven_parts_lose_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    params = params_of(ENCODER)
    with jax.enable_x64(True):
        whole = lexical.largest_word_logits(ENCODER, params, jnp.asarray(STATES), jnp.asarray(TAKEN))
        monkeypatch.setattr(lexical, "_CHUNK", 50)  # 128 columns as 3 x 43, one of them made up
        parts = lexical.largest_word_logits(ENCODER, params, jnp.asarray(STATES), jnp.asarray(TAKEN))
    assert parts.shape == (8, 90)
    np.testing.assert_allclose(parts, whole, rtol=1e-12)


def test_one_states_logits() -> None:
    params = params_of(ENCODER)
    with jax.enable_x64(True):
        found = lexical.word_logits(ENCODER, params, jnp.asarray(STATES[:, 0]))
        np.testing.assert_allclose(found, all_logits(params, jnp.asarray(STATES[:, 0])), rtol=1e-10, atol=1e-10)


def test_a_text_without_tokens_has_the_lowest_logits_there_are() -> None:
    params = jax.tree.map(jnp.float32, params_of(ENCODER))
    found = lexical.largest_word_logits(ENCODER, params, jnp.float32(STATES), jnp.zeros((8, 12), bool))
    assert np.isfinite(found).all() and (np.asarray(found) < -1e37).all()
    assert np.isfinite(jax.nn.log_softmax(found)).all()


def test_devices_share_the_rows() -> None:
    params = jax.tree.map(jnp.float32, params_of(ENCODER))
    weights = jnp.float32(RNG.normal(size=(8, 90)))

    def loss(params: Any, states: Any, taken: Any) -> Any:
        return (lexical.largest_word_logits(ENCODER, params, states, taken) * weights).sum()

    args = jnp.float32(STATES), jnp.asarray(TAKEN)
    one = jax.jit(jax.value_and_grad(loss))(params, *args)
    mesh = meshes.make(MeshConfig(4, 2, 1), jax.devices()[:8])
    with jax.set_mesh(mesh):
        many = jax.jit(jax.value_and_grad(loss))(params, *jax.device_put(args, meshes.batch_sharding(mesh)))
    for got, want in zip(jax.tree.leaves(many), jax.tree.leaves(one), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * float(jnp.abs(want).max()))


def test_tokens_by_vocabulary_is_never_in_memory() -> None:
    """Neither forward nor backward: the temporary memory is far below one array of logits."""
    encoder = EncoderConfig(30522, hidden=8, layers=1, heads=2, intermediate=8, max_length=64)
    tokens = 8 * 128
    params = jax.eval_shape(
        lambda key: {"encoder": bert.init_encoder(encoder, key), "mlm_head": heads.init_mlm_head(encoder, key)}, jax.random.key(0)
    )

    def loss(params: Any, states: Any, taken: Any) -> Any:
        return jax.nn.logsumexp(lexical.largest_word_logits(encoder, params, states, taken), axis=-1).sum()

    states, taken = jax.ShapeDtypeStruct((8, 128, 8), jnp.float32), jax.ShapeDtypeStruct((8, 128), jnp.bool_)
    analysis = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(params, states, taken).compile().memory_analysis()
    assert analysis is not None and 0 < analysis.temp_size_in_bytes < tokens * 30522 * 4 / 3


def test_bags_by_hand() -> None:
    """T10: tokens a, a, b: 2/3 and 1/3 by counts, 1/2 and 1/2 as a set; what is not taken does not count."""
    ids = jnp.asarray([[7, 7, 8, 9], [3, 4, 4, 4], [5, 5, 5, 5]], jnp.int32)
    taken = jnp.asarray([[1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 0, 0]], bool)
    counts, once = (np.asarray(lexical.bag(ids, taken, 10, once)) for once in (False, True))
    expected = np.zeros((2, 3, 10))
    expected[0, 0, [7, 8]], expected[1, 0, [7, 8]] = (2 / 3, 1 / 3), 1 / 2
    expected[:, 1, 4] = 1
    np.testing.assert_allclose([counts, once], expected, rtol=1e-7)

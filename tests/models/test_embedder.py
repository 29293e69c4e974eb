"""Pooling, projection, normalisation, against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from denseir_jax.models import bert
from denseir_jax.models.embedder import Embedder, EmbedderConfig
from denseir_jax.models.shape import EncoderConfig

ENCODER = EncoderConfig(vocab_size=40, hidden=8, layers=1, heads=2, intermediate=16, max_length=10)
HIDDEN = np.random.default_rng(0).normal(size=(3, 6, 8)).astype(np.float32)
LENGTH = np.array([2, 6, 4], np.int32)


def vectors(config, params=None):
    return np.asarray(Embedder(ENCODER, config).pool(params or {}, jnp.asarray(HIDDEN), jnp.asarray(LENGTH)))


def test_pooling():
    np.testing.assert_array_equal(vectors(EmbedderConfig("cls")), HIDDEN[:, 0])
    means = np.stack([row[:n].mean(0) for row, n in zip(HIDDEN, LENGTH, strict=True)])
    np.testing.assert_allclose(vectors(EmbedderConfig("mean")), means, rtol=1e-6, atol=1e-6)
    firsts = np.stack([row[: min(n, 3)].mean(0) for row, n in zip(HIDDEN, LENGTH, strict=True)])
    np.testing.assert_allclose(vectors(EmbedderConfig("first", first_k=3)), firsts, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(vectors(EmbedderConfig("first")), HIDDEN[:, 0])


def test_projection_then_normalisation():
    config = EmbedderConfig("mean", projection=5, normalize=True)
    embedder = Embedder(ENCODER, config)
    params = jax.eval_shape(lambda: embedder.init(jax.random.key(0)))
    assert embedder.size == 5 and sorted(params) == ["encoder", "projection"]
    rng = np.random.default_rng(1)
    params["projection"] = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), params["projection"])
    p = params["projection"]
    x = vectors(EmbedderConfig("mean")) @ p["dense"]["kernel"] + p["dense"]["bias"]
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * p["norm"]["scale"] + p["norm"]["bias"]
    np.testing.assert_allclose(vectors(config, params), x / np.linalg.norm(x, axis=-1, keepdims=True), rtol=1e-5, atol=1e-6)


def test_embed_is_the_pooled_encoder_and_zero_vectors_have_a_gradient():
    embedder = Embedder(ENCODER, EmbedderConfig("cls", normalize=True))
    params = jax.tree.map(lambda leaf: np.full(leaf.shape, 0.1, np.float32), jax.eval_shape(lambda: embedder.init(jax.random.key(0))))
    params["encoder"]["embeddings"]["word"][:] = np.random.default_rng(0).normal(size=(128, 8))
    ids = jnp.asarray(np.arange(12, dtype=np.int32).reshape(2, 6))
    length = jnp.array([6, 3])
    last = jax.jit(lambda p: bert.encode(ENCODER, p, ids, length).last[:, 0])(params["encoder"])
    np.testing.assert_allclose(
        jax.jit(embedder.embed)(params, ids, length), last / jnp.linalg.norm(last, axis=-1, keepdims=True), rtol=1e-5
    )
    gradient = jax.grad(lambda h: embedder.pool(params, h, length).sum())(jnp.zeros((2, 6, 8)))
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize(("values", "message"), [({"pooling": "max"}, "max"), ({"first_k": 0}, "first_k is 0"), ({"projection": -1}, "-1")])
def test_impossible_settings_are_refused(values, message):
    with pytest.raises(Exception, match=message):
        EmbedderConfig(**values)

"""The lexical part of vectors (DupMAE's representation), against numpy; and who carries the MLM head that it needs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from denseir_jax.core.errors import ConfigError
from denseir_jax.models import bert
from denseir_jax.models.embedder import Embedder, EmbedderConfig
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.objectives.base import Context
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.objectives.mlm import MlmConfig
from denseir_jax.objectives.retromae import RetroMaeConfig
from denseir_jax.parallel import mesh as meshes
from denseir_jax.parallel.mesh import MeshConfig

ENCODER = EncoderConfig(vocab_size=40, hidden=8, layers=1, heads=2, intermediate=16, max_length=10, tied_output=False)
EMBEDDER = Embedder(ENCODER, EmbedderConfig("mean", lexical=6))
IDS = jnp.asarray(np.random.default_rng(0).integers(5, 40, (4, 6)).astype(np.int32))
LENGTH = jnp.array([6, 2, 4, 5])


def random_params(embedder: Embedder) -> Any:
    """Every leaf random, the rows that pad the vocabulary too."""
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(embedder.init, jax.random.key(0))
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)


def expected(params: Any, k: int) -> np.ndarray:
    """The k largest over tokens 1.. of the MLM head's logits, written out; equal ones by word id, all others and negative ones 0."""
    states = np.asarray(bert.encode(ENCODER, params["encoder"], IDS, LENGTH).last)
    head = jax.tree.map(lambda leaf: leaf.astype(np.float64), params["mlm_head"])
    x = states @ head["dense"]["kernel"] + head["dense"]["bias"]
    x = np.asarray(x * jax.scipy.stats.norm.cdf(x))
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12) * head["norm"]["scale"] + head["norm"]["bias"]
    logits = (x @ head["table"].T + head["bias"])[..., :40]
    out = np.zeros((4, 40))
    for row, (at, n) in enumerate(zip(logits, LENGTH, strict=True)):
        largest = np.maximum(at[1 : int(n)].max(0), 0)
        kept = np.argsort(-largest, kind="stable")[:k]
        out[row, kept] = largest[kept]
    return out


@pytest.mark.parametrize("k", [6, 1000])
def test_the_words_that_the_text_says_most_follow_the_dense_vector(k: int) -> None:
    embedder = Embedder(ENCODER, EmbedderConfig("mean", lexical=k))
    params = random_params(embedder)
    found = np.asarray(embedder.embed(params, IDS, LENGTH))
    assert found.shape == (4, embedder.size) == (4, 8 + 40)
    plain = Embedder(ENCODER, EmbedderConfig("mean"))
    np.testing.assert_array_equal(found[:, :8], plain.embed(params, IDS, LENGTH))
    np.testing.assert_allclose(found[:, 8:], expected(params, k), rtol=1e-4, atol=1e-4)
    short = embedder.embed_words(params, IDS, LENGTH)
    assert short.words.shape == (4, min(k, 40)) and (np.diff(short.weights) <= 0).all()
    np.testing.assert_array_equal(np.take_along_axis(found[:, 8:], np.asarray(short.words), 1), short.weights)


def test_of_equal_words_the_lower_id_is_kept() -> None:
    params = random_params(EMBEDDER)
    params["mlm_head"]["table"][10:30], params["mlm_head"]["bias"][10:30] = 0, 50  # exactly 50, above all others
    found = EMBEDDER.embed_words(params, IDS, LENGTH)
    np.testing.assert_array_equal(found.words, np.broadcast_to(np.arange(10, 16), (4, 6)))
    np.testing.assert_array_equal(found.weights, np.full((4, 6), 50))


def test_only_words_that_are_kept_have_a_gradient() -> None:
    """The bias of a word gets 1 for every text that keeps it."""
    params = random_params(EMBEDDER)
    lexical = jax.jit(jax.grad(lambda p: EMBEDDER.embed(p, IDS, LENGTH)[:, 8:].sum()))(params)
    kept = (expected(params, 6) != 0).sum(0)
    np.testing.assert_allclose(lexical["mlm_head"]["bias"], np.pad(kept, (0, 88)), atol=1e-6)
    assert 0 < (kept == 0).sum() < 40


def test_parameters_that_were_there_before_begin_as_before() -> None:
    key = jax.random.key(3)
    dense, both = Embedder(ENCODER, EmbedderConfig(projection=4)), Embedder(ENCODER, EmbedderConfig(projection=4, lexical=2))
    mine, theirs = both.init(key), dense.init(key)
    assert sorted(mine) == sorted(both.parts) == ["encoder", "mlm_head", "projection"]
    jax.tree.map(np.testing.assert_array_equal, {name: mine[name] for name in dense.parts}, theirs)
    assert both.size == 4 + 40 and dense.size == 4


@pytest.mark.parametrize(
    ("values", "message"), [({"lexical": -1}, "lexical is -1"), ({"lexical": 4, "normalize": True}, "lexical=4 goes with normalize=false")]
)
def test_impossible_settings_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EmbedderConfig(**values)


def test_the_head_is_exported_with_vectors_that_need_it_and_never_compared_by_cosine() -> None:
    for lexical, wanted in ((0, ["encoder"]), (4, ["encoder", "mlm_head"])):
        context = Context(ENCODER, EmbedderConfig(lexical=lexical), 2, 3, 0, 4, 40, 6, 8, seed=0)
        for config in (MlmConfig(), RetroMaeConfig(bow_weight=0.1), ContrastiveConfig()):
            objective = config.build(context)
            shapes = jax.eval_shape(objective.init, jax.random.key(0))
            assert sorted(objective.towers(shapes)["encoder"]) == wanted
    untied = jax.eval_shape(ContrastiveConfig(tied=False).build(context).init, jax.random.key(0))
    assert sorted(untied["query"]) == ["encoder", "mlm_head"]
    with pytest.raises(ConfigError, match=r"embedder\.lexical=4 goes with objective\.similarity=dot"):
        ContrastiveConfig(similarity="cosine").build(context)


def test_devices_keep_their_rows_to_themselves() -> None:
    """On a mesh: the same vectors, and nothing as wide as the vocabulary travels between devices."""
    params = random_params(EMBEDDER)
    ids, length = jnp.tile(IDS, (2, 1)), jnp.tile(LENGTH, 2)
    plain = jax.jit(EMBEDDER.embed)(params, ids, length)
    mesh = meshes.make(MeshConfig())
    with jax.set_mesh(mesh):
        rows = jax.device_put((ids, length), meshes.batch_sharding(mesh))
        compiled = jax.jit(EMBEDDER.embed).lower(params, *rows).compile()
        np.testing.assert_allclose(compiled(params, *rows), plain, rtol=1e-6)
    assert "all-gather" not in compiled.as_text()

"""The encoder: against a numpy layer written from the paper's formulas, and against itself scanned, unrolled, rematerialised."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from denseir_jax.models import bert, heads
from denseir_jax.models.shape import EncoderConfig

CONFIG = EncoderConfig(vocab_size=50, hidden=16, layers=2, heads=4, intermediate=24, max_length=12, init_std=0.3)
IDS = np.array([[2, 7, 9, 3, 0, 0], [2, 11, 12, 13, 14, 3], [2, 3, 0, 0, 0, 0]], np.int32)
LENGTH = np.array([4, 6, 2], np.int32)


def row_keys(n=3):
    return jax.random.split(jax.random.key(5), n)


def compiled(function):
    """These shapes are too small to optimise for: most of such a test would be compilation."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


def last_states(config, params, ids, length, keys=None):
    run = compiled(lambda *args: bert.encode(config, *args).last)
    return np.asarray(run(params, jnp.asarray(ids), jnp.asarray(length), keys))


def params_of(config, dtype=np.float32):
    """Random in every leaf, LayerNorm and biases too, so that no term can be forgotten."""
    shapes = jax.eval_shape(lambda: bert.init_encoder(config, jax.random.key(0)))
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.normal(0, 0.4, leaf.shape).astype(dtype), shapes)


def numpy_encoder(config, params, ids, length):
    """BERT in plain loops over rows and heads, in float64."""

    def norm(x, p):
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / np.sqrt(variance + config.eps) * p["scale"] + p["bias"]

    def linear(x, p):
        return x @ p["kernel"] + p["bias"]

    gelu = np.vectorize(lambda v: 0.5 * v * (1 + math.erf(v / math.sqrt(2))))
    e, out = params["embeddings"], []
    for row, n in zip(ids, length, strict=True):
        states = [norm(e["word"][row] + e["position"][: len(row)] + e["type"][0], e["norm"])]
        for layer in range(config.layers):
            p, x = jax.tree.map(lambda a, layer=layer: a[layer], params["layers"]), states[-1]
            q, k, v = (np.split(linear(x, p["attention"][name]), config.heads, -1) for name in ("query", "key", "value"))
            mixed = []
            for head in range(config.heads):
                scores = np.exp(q[head] @ k[head].T / math.sqrt(config.hidden / config.heads))
                scores[:, n:] = 0
                mixed.append(scores / scores.sum(-1, keepdims=True) @ v[head])
            x = norm(x + linear(np.concatenate(mixed, -1), p["attention"]["output"]), p["attention"]["norm"])
            inner = gelu(linear(x, p["ffn"]["up"]))
            states.append(norm(x + linear(inner, p["ffn"]["down"]), p["ffn"]["norm"]))
        out.append(states)
    return np.array(out).swapaxes(0, 1)


@pytest.mark.parametrize("layers", [0, 2])
def test_against_numpy_in_float64(layers):
    config = dataclasses.replace(CONFIG, layers=layers)
    with jax.enable_x64(True):
        params = params_of(config, np.float64)
        hidden = compiled(lambda p: bert.encode(config, p, jnp.asarray(IDS), jnp.asarray(LENGTH), collect=True))(params)
        assert hidden.last.dtype == jnp.float64
        expected = numpy_encoder(config, params, IDS, LENGTH)
        np.testing.assert_allclose(hidden.all, expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(hidden.last, hidden.all[-1])
        np.testing.assert_array_equal(hidden.embedded, hidden.all[0])


def losses_and_gradients(config, params, keys):
    def loss(params):
        hidden = bert.encode(config, params, jnp.asarray(IDS), jnp.asarray(LENGTH), keys, collect=True)
        return jnp.mean(hidden.last**3) + jnp.mean(hidden.all[1] ** 2), hidden.last

    return compiled(jax.value_and_grad(loss, has_aux=True))(params)


@pytest.mark.parametrize("with_dropout", [False, True])
def test_scanned_unrolled_and_rematerialised_are_equal(with_dropout):
    """In float64, so that nothing but the order of the same sums is left to differ; dropout bits are the same too."""
    with jax.enable_x64(True):
        params, keys = params_of(CONFIG, np.float64), row_keys() if with_dropout else None
        results = [
            losses_and_gradients(dataclasses.replace(CONFIG, scan=scan, remat=remat), params, keys)
            for scan, remat in (((False, False), (True, True)) if with_dropout else ((False, False), (True, False), (False, True)))
        ]
        for other in results[1:]:
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-12), results[0], other)
        plain = last_states(CONFIG, params, IDS, LENGTH)
        assert np.allclose(plain, results[0][0][1]) != with_dropout


def test_dropout_of_a_row_is_the_same_in_any_chunk():
    config = dataclasses.replace(CONFIG, dropout=0.3, attention_dropout=0.3)
    params, keys = params_of(config), row_keys()
    whole = last_states(config, params, IDS, LENGTH, keys)
    turned = last_states(config, params, IDS[::-1], LENGTH[::-1], keys[::-1])[::-1]
    pair = last_states(config, params, IDS[1:], LENGTH[1:], keys[1:])
    np.testing.assert_allclose(whole, turned, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(whole[1:], pair, rtol=1e-5, atol=1e-5)


def test_padding_never_reaches_real_tokens():
    params, other = params_of(CONFIG), IDS.copy()
    other[0, 4:] = 41
    one, two = (last_states(CONFIG, params, ids, LENGTH) for ids in (IDS, other))
    np.testing.assert_array_equal(one[0, :4], two[0, :4])
    short = last_states(CONFIG, params, IDS[:1, :4], LENGTH[:1])
    np.testing.assert_allclose(one[0, :4], short[0], rtol=1e-5, atol=1e-5)


def test_token_types_and_embedding_output():
    params = params_of(CONFIG)
    types = jnp.asarray(np.array([[0, 0, 1, 1, 0, 0]] * 3, np.int32))
    given = bert.embed_tokens(CONFIG, params, jnp.asarray(IDS), types=types)
    plain = bert.embed_tokens(CONFIG, params, jnp.asarray(IDS))
    np.testing.assert_array_equal(plain, bert.encode(CONFIG, params, jnp.asarray(IDS), jnp.asarray(LENGTH)).embedded)
    np.testing.assert_allclose(given[:, [0, 1, 4, 5]], plain[:, [0, 1, 4, 5]], rtol=1e-6)
    swapped = {**params["embeddings"], "type": params["embeddings"]["type"][::-1]}
    ones = bert.embed_tokens(CONFIG, {**params, "embeddings": swapped}, jnp.asarray(IDS))
    np.testing.assert_allclose(given[:, 2:4], ones[:, 2:4], rtol=1e-6)


def test_a_stack_of_layers_is_the_encoders_own():
    """Run on the embedding output with the encoder's layers, a stack gives the encoder's states; elsewhere its dropout differs."""
    params = params_of(CONFIG)
    hidden = compiled(lambda p: bert.encode(CONFIG, p, jnp.asarray(IDS), jnp.asarray(LENGTH), row_keys()))(params)
    visible = bert.real_tokens(jnp.asarray(LENGTH), IDS.shape[1])
    run = compiled(lambda x, site: bert.run_layers(CONFIG, 2, params["layers"], x, visible, row_keys(), site))
    np.testing.assert_allclose(run(hidden.embedded, bert.LAYERS_SITE), hidden.last, rtol=1e-5, atol=1e-6)
    assert not np.allclose(run(hidden.embedded, bert.HEAD_SITE), hidden.last)
    fresh = bert.init_layers(CONFIG, 2, jax.random.key(1))
    assert jax.tree.map(np.shape, fresh) == jax.tree.map(lambda leaf: (2, *leaf.shape[1:]), params["layers"])


def test_initial_values():
    config = EncoderConfig(vocab_size=500, hidden=64, heads=4, intermediate=128, init_std=0.02)
    params = bert.init_encoder(config, jax.random.key(0)) | {"mlm_head": heads.init_mlm_head(config, jax.random.key(1))}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = jax.tree_util.keystr(path)
        assert leaf.dtype == jnp.float32
        if "scale" in name:
            assert (leaf == 1).all(), name
        elif "bias" in name:
            assert (leaf == 0).all(), name
        else:
            assert abs(leaf.std() - 0.02) < 4 * 0.02 / math.sqrt(2 * leaf.size), name
    kernels = params["layers"]["attention"]["query"]["kernel"]
    assert not np.array_equal(kernels[0], kernels[1])
    assert params["embeddings"]["word"].shape == (512, 64)


def test_bfloat16_products_stay_near_and_give_float32():
    single = dataclasses.replace(CONFIG, layers=1)
    params, config = params_of(single), dataclasses.replace(single, dtype="bfloat16")
    (loss, last), gradient = losses_and_gradients(single, params, None)
    (rounded_loss, rounded_last), rounded_gradient = losses_and_gradients(config, params, None)
    assert rounded_last.dtype == jnp.float32
    assert 0 < np.abs(last - rounded_last).max() < 0.1
    assert abs(loss - rounded_loss) < 0.02 * abs(loss)
    for one, two in zip(jax.tree.leaves(gradient), jax.tree.leaves(rounded_gradient), strict=True):
        assert two.dtype == jnp.float32
        assert np.abs(one - two).max() < 0.1 * max(np.abs(one).max(), 1e-3)


def test_mlm_head_tied_and_untied():
    h = np.random.default_rng(0).normal(size=(2, 5, 16)).astype(np.float32)
    encoder = jax.tree.map(jnp.asarray, params_of(CONFIG))
    for tied in (True, False):
        config = dataclasses.replace(CONFIG, tied_output=tied)
        head = heads.init_mlm_head(config, jax.random.key(2))
        out = heads.mlm_transform(config, head, jnp.asarray(h))
        inner = h @ np.asarray(head["dense"]["kernel"])
        inner = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
        expected = (inner - inner.mean(-1, keepdims=True)) / inner.std(-1, keepdims=True)
        np.testing.assert_allclose(out, expected, rtol=1e-3, atol=1e-4)
        table, bias = heads.mlm_table(encoder, head)
        assert (table is encoder["embeddings"]["word"]) == tied and table.shape == (128, 16) and bias.shape == (128,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 3}, "hidden 16 does not divide into 3 heads"),
        ({"layers": -1}, "layers is -1"),
        ({"dropout": 1.0}, r"dropout is 1\.0"),
        ({"vocab_size": 0}, "vocab_size is 0"),
    ],
)
def test_impossible_sizes_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **change)


def test_rows_longer_than_the_positions_are_refused():
    with pytest.raises(ValueError, match="13 tokens do not fit an encoder of max_length 12"):
        bert.encode(CONFIG, params_of(CONFIG), jnp.zeros((1, 13), jnp.int32), jnp.array([13]))

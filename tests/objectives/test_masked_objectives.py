"""MLM and Condenser: known losses, which paths carry information and gradients, padding, micro-batches, bad settings."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_model import MASK, context, evaluate, masked_rows, params_of, quick, run, same_in_parts
from tiny_passes import flat_head, padding_changes_nothing, read

from denseir_jax.core.config import parse
from denseir_jax.core.errors import ConfigError
from denseir_jax.models import bert
from denseir_jax.objectives import masking
from denseir_jax.objectives.bottleneck import Bottleneck, BottleneckConfig
from denseir_jax.objectives.masking import MaskConfig, Masked, Text
from denseir_jax.objectives.mlm import Mlm, MlmConfig

ROWS = masked_rows(6)


def condenser(ctx: Any = None, **config: Any) -> Bottleneck:
    built = BottleneckConfig(mask=MaskConfig(0.3), **config).build(ctx or context())
    assert isinstance(built, Bottleneck)
    return built


def masked(objective: Any, rows: Any = ROWS) -> Masked:
    """The rows as the objective's encoder sees them."""
    context = objective.context
    text = Text.of(rows["input_ids"], rows["length"], rows["word_start"], rows["index"], context.special_ids, context.seed)
    return masking.draw(objective.reading.mask, text, context.mask_id, context.vocab_size)[0]


def mlm(ctx: Any = None) -> Mlm:
    built = MlmConfig(mask=MaskConfig(0.3)).build(ctx or context())
    assert isinstance(built, Mlm)
    return built


@pytest.mark.parametrize(("objective", "terms"), [(mlm(), 1), (condenser(), 2), (condenser(context(embedding=8)), 2)])
def test_uniform_logits_cost_ln_v(objective: Any, terms: int) -> None:
    loss, metrics, _ = run(objective, flat_head(params_of(objective)), ROWS)
    np.testing.assert_allclose(loss, terms * np.log(90), rtol=1e-6)
    labels = sum(masked(objective).weight.sum(1))
    assert metrics["masked_share"][0] == labels and metrics["masked_share"][1] == (ROWS["length"] - 2).sum()
    assert metrics["tokens"][0] == ROWS["length"].sum() and metrics["cells"][0] == 6 * 16


@pytest.mark.parametrize("shape", [{}, {"embedding": 8}, {"position_offset": 3}], ids=["bert", "electra", "roberta"])
def test_mlm_by_hand(shape: dict[str, int]) -> None:
    objective = mlm(context(**shape))
    params = params_of(objective)
    loss, metrics, _ = run(objective, params, ROWS)
    seen = masked(objective)
    encode = quick(lambda ids: bert.encode(objective.context.encoder, params["encoder"], ids, ROWS["length"]).last)
    last = encode(seen.ids)
    head = params["mlm_head"]
    x = jax.nn.gelu(last @ head["dense"]["kernel"] + head["dense"]["bias"], approximate=False)
    x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-12)
    log_p = jax.nn.log_softmax((x @ params["encoder"]["embeddings"]["word"].T)[..., :90])
    changed = [(b, int(t)) for b in range(6) for t in seen.positions[b][seen.weight[b] > 0]]
    nll = [-float(log_p[b, t, ROWS["input_ids"][b, t]]) for b, t in changed]
    np.testing.assert_allclose(loss, np.mean(nll), rtol=1e-5)
    right = [int(log_p[b, t].argmax()) == int(ROWS["input_ids"][b, t]) for b, t in changed]
    assert metrics["mlm_accuracy"][0] == sum(right) and metrics["mlm_accuracy"][1] == len(changed)


def test_without_head_layers_late_layers_learn_nothing() -> None:
    """T11: Labelled tokens come from the early layer, and [CLS], the only late state that is read, has no label."""
    objective = condenser(n_head_layers=0, late_mlm=False)
    params = params_of(objective)
    assert "head" not in params
    gradients = quick(jax.grad(lambda p: evaluate(objective, False, p, ROWS)[0]))(params)["encoder"]["layers"]
    for leaf in jax.tree.leaves(gradients):
        assert not np.asarray(leaf[1]).any(), "the second of two layers must get exactly nothing"
    assert any(np.asarray(leaf[0]).any() for leaf in jax.tree.leaves(gradients))


def test_skip_from_the_last_layer_is_a_deeper_bert() -> None:
    """T12."""
    objective = condenser(skip_from=2, late_mlm=False)
    params = params_of(objective)
    deeper = mlm(context(layers=4))
    layers = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), params["encoder"]["layers"], params["head"])
    stacked = {"encoder": params["encoder"] | {"layers": layers}, "mlm_head": params["mlm_head"]}
    np.testing.assert_allclose(run(objective, params, ROWS)[0], run(deeper, stacked, ROWS)[0], rtol=1e-6)


def test_skip_from_zero_reads_the_embeddings() -> None:
    """T12."""
    objective = condenser(skip_from=0, n_head_layers=0)
    params = params_of(objective)
    encoded = read(objective, params, ROWS)
    embedded = bert.embed_tokens(objective.context.encoder, params["encoder"], encoded.masked.ids)
    decoded = objective.decode(params, objective.decoder_input(params, encoded)[0], encoded)
    np.testing.assert_allclose(decoded[:, 1:], embedded[:, 1:], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(decoded[:, 0], encoded.hidden.last[:, 0])


def test_the_head_sees_the_last_layer_through_cls_alone() -> None:
    """T13."""
    objective = condenser(skip_from=1)
    params = params_of(objective)
    encoded = read(objective, params, ROWS)
    last, hidden = encoded.hidden.last, encoded.hidden

    def plain(last: jax.Array) -> jax.Array:
        seen = encoded._replace(hidden=hidden._replace(last=last))
        return objective.decode(params, objective.decoder_input(params, seen)[0], seen)

    decode, noise = quick(plain), jax.random.normal(jax.random.key(1), last.shape)
    out = decode(last)
    tokens = decode(last.at[:, 1:].set(noise[:, 1:]))
    cls = decode(last.at[:, 0].set(noise[:, 0]))
    np.testing.assert_array_equal(tokens, out)
    assert float(jnp.abs(cls - out)[:, 1:].max()) > 1e-3


def test_more_padding_changes_nothing() -> None:
    for objective in (mlm(), condenser()):
        padding_changes_nothing(objective, ROWS)


def test_parts_equal_the_whole() -> None:
    same_in_parts(condenser(), ROWS)


def test_a_row_is_alone_in_the_batch() -> None:
    """per_row of one row is its share of per_row of all: masks, vectors and sums."""
    objective = condenser()
    params = params_of(objective)
    whole = run(objective, params, ROWS)[2]
    alone = run(objective, params, {name: value[3:4] for name, value in ROWS.items()})[2]
    np.testing.assert_allclose(alone["cls"], whole["cls"][3:4], rtol=1e-5, atol=1e-6)


def test_bfloat16_products_give_a_float32_loss_near_float32s() -> None:
    params = params_of(condenser())
    exact = run(condenser(), params, ROWS)[0]
    rough = run(condenser(context(dtype="bfloat16")), params, ROWS)[0]
    assert rough.dtype == jnp.float32 and 0 < abs(float(rough - exact)) < 0.05


@pytest.mark.parametrize("objective", [mlm(), condenser()])
def test_float64_parameters_give_float64_sums(objective: Any) -> None:
    params, drop = params_of(objective), jax.vmap(jax.random.key)(jnp.arange(6, dtype=jnp.uint32))
    narrow = quick(lambda p, rows, keys: objective.per_row(p, rows, keys, True))(params, ROWS, drop)
    with jax.enable_x64(True):
        wide_params = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), jnp.float64), params)
        wide = quick(lambda p, rows, keys: objective.per_row(p, rows, keys, True))(wide_params, ROWS, drop)
        seen = masked(objective)
        assert {x.dtype for x in (seen.ids, seen.positions, seen.labels)} == {jnp.dtype(jnp.int32)}
        assert wide[0]["cls"].dtype == jnp.float64
        assert all(total.dtype == jnp.float64 for name, (total, _) in wide[1].items() if name.endswith("mlm"))
    for got, want in zip(jax.tree.leaves(wide), jax.tree.leaves(narrow), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_float32_products_keep_their_bits_and_bfloat16_ones_are_fast() -> None:
    """Forward and backward, as an accelerator is told: its own default would round float32 inputs."""

    def products(dtype: str) -> list[str]:
        objective = condenser(context(dtype=dtype))
        params = jax.eval_shape(objective.init, jax.random.key(0))
        gradient = jax.jit(jax.grad(lambda p: evaluate(objective, False, p, ROWS)[0]))
        text = gradient.trace(params).lower(lowering_platforms=("cuda",)).as_text()
        return [line for line in text.splitlines() if "dot_general" in line]

    exact, fast = products("float32"), products("bfloat16")
    assert len(exact) > 20 and all("precision = [HIGHEST, HIGHEST]" in line for line in exact)
    assert len(fast) > 20 and all("bf16" in line and "HIGHEST" not in line for line in fast)


def test_defaults_are_the_recipe() -> None:
    built = BottleneckConfig().build(context(layers=6))
    assert isinstance(built, Bottleneck)
    c = built.config
    assert (built.skip_from, c.n_head_layers, c.late_mlm, c.mask) == (3, 2, True, MaskConfig(0.15, False))
    assert (c.bottleneck, c.tokens, c.predict, c.pairs, c.own_mlm_head) == ("cls", "layer", "masked", None, False)
    assert MASK in built.context.special_ids


@pytest.mark.parametrize("skip_from", [-1, 3])
def test_a_skip_layer_outside_the_encoder_is_refused(skip_from: int) -> None:
    with pytest.raises(ConfigError, match=r"outside the encoder: expected 0 \(embeddings\) to 2"):
        condenser(skip_from=skip_from)


def test_impossible_settings_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"config\.mask: mask rate 1\.2 is outside \(0, 1\]"):
        parse(BottleneckConfig, {"mask": {"rate": 1.2}})
    with pytest.raises(ConfigError, match="n_head_layers=-1"):
        parse(BottleneckConfig, {"n_head_layers": -1})


def test_heads_stay_behind_at_export() -> None:
    objective = condenser()
    params = params_of(objective)
    assert set(params) == {"encoder", "mlm_head", "head"}
    (tower,) = objective.towers(params).values()
    assert set(tower) == {"encoder"} and tower["encoder"] is params["encoder"]
    vectors = objective.embed_passage(params, ROWS["input_ids"], ROWS["length"])
    plain = bert.encode(
        dataclasses.replace(objective.context.encoder, scan=False), params["encoder"], ROWS["input_ids"], ROWS["length"]
    ).last
    np.testing.assert_allclose(vectors, plain[:, 0], rtol=1e-5, atol=1e-6)

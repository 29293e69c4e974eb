"""The bottleneck family beyond Condenser: each published setting against its formula, in parts, under more padding."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_model import MASK, VOCAB, context, masked_rows, params_of, quick, run, same_in_parts, span_rows
from tiny_passes import exported_tower_is_the_encoder, padding_changes_nothing, read

from denseir_jax.core.config import parse
from denseir_jax.core.errors import ConfigError
from denseir_jax.models import bert
from denseir_jax.objectives import masking
from denseir_jax.objectives.bottleneck import Bottleneck, BottleneckConfig
from denseir_jax.objectives.masking import DECODER_MASK, MaskConfig

THIRD, HALF = MaskConfig(0.3, masked=1.0, random=0.0), MaskConfig(0.5, masked=1.0, random=0.0)
FAMILY: dict[str, dict[str, Any]] = {
    "condenser": {"n_head_layers": 1},
    "retromae_basic": {"tokens": "masked", "n_head_layers": 1, "head_weight": 0.5},
    "cot_mae": {"tokens": "other", "pairs": "nearby", "n_head_layers": 1},
    "simlm": {"tokens": "masked", "relation": "around", "predict": "all", "n_head_layers": 2, "head_init": "last"},
    "lexmae": {"bottleneck": "lexical", "tokens": "masked", "relation": "disjoint", "own_mlm_head": True, "late_mlm": False},
}
ROWS = {name: span_rows(4) if "pairs" in config else masked_rows(6) for name, config in FAMILY.items()}
NEW = [name for name in FAMILY if name != "condenser"]


def build(name: str, layers: int = 2, **changes: Any) -> Bottleneck:
    built = BottleneckConfig(mask=THIRD, decoder_mask=HALF, **(FAMILY[name] | changes)).build(context(layers=layers))
    assert isinstance(built, Bottleneck)
    return built


def without_encoder_layers(name: str) -> Bottleneck:
    """Compiled sooner; what the encoder does with its rows is tested elsewhere."""
    return build(name, layers=0, n_head_layers=1, head_init="fresh")


def shaken(params: Any) -> Any:
    """Away from the start, where biases are 0 and all logits small."""
    leaves, tree = jax.tree.flatten(params)
    return jax.tree.unflatten(tree, [leaf + 0.1 * jax.random.normal(jax.random.key(i), leaf.shape) for i, leaf in enumerate(leaves)])


def normed(x: jax.Array, norm: Any) -> jax.Array:
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-12) * norm["scale"] + norm["bias"]


def logits(params: Any, states: jax.Array, head: str = "mlm_head") -> jax.Array:
    h = params[head]
    x = normed(jax.nn.gelu(states @ h["dense"]["kernel"] + h["dense"]["bias"], approximate=False), h["norm"])
    return (x @ params["encoder"]["embeddings"]["word"].T + h["bias"])[..., :VOCAB]


def mean_nll(logits: jax.Array, ids: jax.Array, labelled: jax.Array) -> jax.Array:
    nll = -jnp.take_along_axis(jax.nn.log_softmax(logits), ids[..., None], axis=-1)[..., 0]
    return (nll * labelled).sum() / labelled.sum()


def by_formula(name: str, objective: Bottleneck, params: Any) -> jax.Array:
    """The loss with all logits at once, from an encoder pass and the masks' rule."""
    encoded, tables = read(objective, params, ROWS[name]), params["encoder"]["embeddings"]
    text, first, last = encoded.text, encoded.chosen, encoded.hidden.last
    at = jnp.arange(text.ids.shape[1])
    inside = (at > 0) & (at < text.length[:, None] - 1)
    vector, hidden = last[:, 0], first
    if name == "condenser":
        assert encoded.hidden.all is not None
        states = encoded.hidden.all[1]
    else:
        if name == "simlm":
            hidden = masking.choose_more(HALF, text, first, DECODER_MASK)
        elif name == "lexmae":
            hidden = masking.choose_apart(HALF, text, first, DECODER_MASK)
        else:
            hidden = masking.choose(HALF, text, DECODER_MASK)
        ids = jnp.where(hidden, MASK, text.ids)
        states = normed(tables["word"][ids] + tables["position"][at] + tables["type"][0], tables["norm"])
    if name == "cot_mae":
        vector = jnp.stack([vector[i + 1 if i % 2 == 0 else i - 1] for i in range(len(vector))])
    if name == "lexmae":
        largest = jnp.where(inside[..., None], logits(params, last), -jnp.inf).max(1)
        vector = jax.nn.softmax(largest) @ jax.lax.stop_gradient(tables["word"][:VOCAB])
    x, config = jnp.concatenate([vector[:, None], states[:, 1:]], axis=1), objective.config
    visible = (at < text.length[:, None])[:, None, None]
    out = bert.run_layers(objective.context.encoder, config.n_head_layers, params["head"], x, visible)
    decoded = logits(params, out, "head_mlm_head" if name == "lexmae" else "mlm_head")
    loss = config.head_weight * mean_nll(decoded, text.ids, inside if name == "simlm" else hidden)
    return loss + mean_nll(logits(params, last), text.ids, first) if config.late_mlm else loss


@pytest.mark.parametrize("name", FAMILY)
def test_each_setting_is_its_formula(name: str) -> None:
    objective = build(name, layers=2 if name == "condenser" else 1, **({"n_head_layers": 1} if name == "simlm" else {}))
    params = shaken(params_of(objective))

    def ours(params: Any) -> jax.Array:
        vectors, sums = objective.per_row(params, ROWS[name], None, False)
        return objective.over_batch(params, vectors, sums, ROWS[name])[0]

    both = quick(lambda p: [jax.value_and_grad(f)(p) for f in (ours, lambda p: by_formula(name, objective, p))])(params)
    (loss, gradients), (want, expected) = both
    np.testing.assert_allclose(loss, want, rtol=1e-5)
    for got, exact in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got[:VOCAB], exact[:VOCAB], rtol=0, atol=2e-5 * max(float(jnp.abs(exact).max()), 1e-2))


@pytest.mark.parametrize("name", ["cot_mae", "lexmae"])  # what is special about the others is no matter of rows
def test_parts_equal_the_whole(name: str) -> None:
    same_in_parts(without_encoder_layers(name), ROWS[name])


@pytest.mark.parametrize("name", NEW)
def test_more_padding_changes_nothing(name: str) -> None:
    padding_changes_nothing(without_encoder_layers(name), ROWS[name])


def test_embeddings_under_the_encoders_mask_are_layer_zero() -> None:
    """Condenser that skips from the embeddings is RetroMAE's basic decoder with one mask for both sides: a mask around
    another of the same rate has no room to grow."""
    layer = build("condenser", skip_from=0)
    masked = BottleneckConfig(mask=THIRD, decoder_mask=THIRD, tokens="masked", relation="around", n_head_layers=1).build(context())
    params = params_of(layer)
    np.testing.assert_allclose(run(masked, params, ROWS["condenser"])[0], run(layer, params, ROWS["condenser"])[0], rtol=1e-6)


def test_a_decoder_that_starts_as_the_encoders_last_layers() -> None:
    objective = build("simlm", n_head_layers=1)
    params = params_of(objective)
    jax.tree.map(lambda head, layers: np.testing.assert_array_equal(head, layers[1:]), params["head"], params["encoder"]["layers"])
    started = {"encoder/layers/ffn/up/kernel": np.arange(4.0).reshape(2, 2), "encoder/embeddings/word": np.ones((3, 2))}
    derived = objective.derived(started)
    assert list(derived) == ["head/ffn/up/kernel"] and derived["head/ffn/up/kernel"].tolist() == [[2.0, 3.0]]
    assert objective.derived({**started, "head/ffn/up/kernel": np.zeros((1, 2))}) == {}, "a decoder of the warm start is kept"
    assert build("condenser").derived(started) == {}
    exported_tower_is_the_encoder(objective, ROWS["simlm"])


def test_a_decoder_with_a_head_of_its_own_shares_the_word_table() -> None:
    params = params_of(build("lexmae"))
    assert set(params) == {"encoder", "mlm_head", "head", "head_mlm_head"}
    assert "table" not in params["head_mlm_head"]


RISING = {"rate": 0.3, "final_rate": 0.7, "ramp": 100}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tokens": "other"}, "needs pairs='random' or 'nearby'"),
        ({"tokens": "other", "pairs": "nearby", "relation": "around"}, "and relation='apart'"),
        ({"relation": "around"}, "no meaning where tokens='layer'"),
        ({"tokens": "masked", "relation": "around", "mask": RISING}, r"'around' does not go with mask rates \(0\.3, 0\.7\) \(encoder\)"),
        ({"tokens": "masked", "relation": "disjoint", "mask": RISING, "decoder_mask": {"rate": 0.4}}, "does not go with mask rates"),
        ({"head_weight": -1.0}, r"head_weight=-1\.0, late_mlm=True: expected 0 or more"),
        ({"tokens": "layers"}, "did you mean 'layer'"),
    ],
)
def test_impossible_settings_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(BottleneckConfig, values)


def test_more_copied_layers_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigError, match="copies the encoder's last 3 layers; it has 2"):
        build("simlm", n_head_layers=3)

"""Mixtures, and finding objectives by name."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_pair_objectives import B, group_rows, pair_rows
from tiny_model import context, evaluate, masked_rows, params_of, quick, run, same_in_parts

from denseir_jax.core.config import card, identity, parse
from denseir_jax.core.errors import ConfigError
from denseir_jax.models import bert
from denseir_jax.objectives.base import Objective
from denseir_jax.objectives.mixture import MixedRows, MixtureConfig
from denseir_jax.objectives.registry import register, registry

SMALL = context(layers=0)


def mixture(**weights: float) -> MixtureConfig:
    parts = {"pairs": {"name": "ict", "temperature": 0.5}, "text": {"name": "bottleneck", "n_head_layers": 0, "late_mlm": False}}
    return parse(MixtureConfig, {"parts": parts, "weights": weights})


def rows() -> dict[str, jax.Array]:
    pairs, text = pair_rows(), masked_rows(B)
    mixed = {f"pairs/{name}": value for name, value in pairs.items()} | {f"text/{name}": value for name, value in text.items()}
    return {name: value for name, value in mixed.items() if not name.endswith("/index")} | {"index": pairs["index"]}


def test_the_weighted_sum_of_its_parts() -> None:
    objective = mixture(pairs=1.0, text=0.25).build(SMALL)
    params = params_of(objective)
    assert set(params) == {"encoder", "mlm_head"}
    loss, metrics, _ = run(objective, params, rows())
    alone = {name: objective.parts[name] for name in ("pairs", "text")}  # type: ignore[attr-defined]
    pairs = run(alone["pairs"], params, pair_rows())
    text = run(alone["text"], params, masked_rows(B) | {"index": pair_rows()["index"]})
    np.testing.assert_allclose(loss, pairs[0] + 0.25 * text[0], rtol=1e-6)
    np.testing.assert_allclose(metrics["text/loss"][0], text[0], rtol=1e-6)
    np.testing.assert_allclose(metrics["pairs/accuracy"][0], pairs[1]["accuracy"][0])
    for name in ("tokens", "cells"):
        assert metrics[name][0] == pairs[1][name][0] + text[1][name][0]
    assert set(objective.fields()) == set(rows()) - {"text/document"}
    same_in_parts(objective, rows())


def test_a_part_of_weight_zero_is_left_out() -> None:
    objective = mixture(pairs=1.0, text=0.0).build(SMALL)
    assert set(params_of(objective)) == {"encoder"}
    assert not any(name.startswith("text/") for name in objective.fields())
    only_pairs = {name: value for name, value in rows().items() if not name.startswith("text/")}
    alone = objective.parts["pairs"]  # type: ignore[attr-defined]
    np.testing.assert_allclose(
        run(objective, params_of(objective), only_pairs)[0], run(alone, params_of(objective), pair_rows())[0], rtol=1e-6
    )


def masked_mixture(**second: Any) -> Any:
    """MLM and a bottleneck; equal masks unless `second` says otherwise."""
    parts = {"bottleneck": {"name": "bottleneck", "n_head_layers": 1, "late_mlm": False, **second}, "plain": {"name": "mlm"}}
    return parse(MixtureConfig, {"parts": parts, "weights": {"bottleneck": 1.0, "plain": 0.5}}).build(context())


def encoder_passes(objective: Any, rows: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    params, calls, encode = params_of(objective), list[int](), bert.encode

    def counted(*args: Any, **more: Any) -> Any:
        calls.append(1)
        return encode(*args, **more)

    monkeypatch.setattr(bert, "encode", counted)
    jax.eval_shape(lambda: objective.per_row(params, rows, None, False)[1])
    monkeypatch.undo()
    return len(calls)


def test_parts_that_read_alike_share_rows_and_one_encoder_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the loss and gradients of the parts apart, and the work of the first."""
    objective, alone = masked_mixture(), masked_rows(4)
    shared = {name if name == "index" else f"bottleneck/{name}": value for name, value in alone.items()}
    assert set(objective.fields()) == set(shared)
    assert encoder_passes(objective, shared, monkeypatch) == 1
    params = params_of(objective)

    def apart(params: Any) -> jax.Array:
        own = params | params["bottleneck"]
        return (
            evaluate(objective.parts["bottleneck"], False, own, alone)[0] + 0.5 * evaluate(objective.parts["plain"], False, own, alone)[0]
        )

    losses = [lambda p: evaluate(objective, False, p, shared)[0], apart]
    (loss, gradients), (want, expected) = quick(lambda p: [jax.value_and_grad(f)(p) for f in losses])(params)
    np.testing.assert_allclose(loss, want, rtol=1e-6)
    for got, exact in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-6)
    metrics = run(objective, params, shared)[1]
    assert metrics["tokens"][0] == alone["length"].sum() and metrics["cells"][0] == alone["input_ids"].size, "read once, counted once"
    same_in_parts(objective, shared)


@pytest.mark.parametrize("second", [{"mask": {"rate": 0.3}}, {"crop": "head"}])
def test_parts_that_read_differently_do_not_share(second: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    objective = masked_mixture(**second)
    own = {f"{part}/{name}": value for part in objective.parts for name, value in masked_rows(4).items() if name != "index"}
    rows = own | {"index": masked_rows(4)["index"]}
    assert set(objective.fields()) == set(rows)
    assert encoder_passes(objective, rows, monkeypatch) == 2
    assert len({objective.parts[name].reading for name in objective.parts}) == 2


def test_the_shared_pass_keeps_the_layers_that_any_part_reads() -> None:
    """The first part alone would not collect them."""
    parts = {"a": {"name": "mlm"}, "b": {"name": "bottleneck", "n_head_layers": 0, "late_mlm": False}}
    objective: Any = parse(MixtureConfig, {"parts": parts, "weights": {"a": 1.0, "b": 1.0}}).build(context())
    alone = masked_rows(4)
    shared = {name if name == "index" else f"a/{name}": value for name, value in alone.items()}
    found = quick(
        lambda p: [
            objective.per_row(p, shared, None, False)[1]["b/head_mlm"],
            objective.parts["b"].per_row(p, alone, None, False)[1]["head_mlm"],
        ]
    )
    for got, want in zip(*found(params_of(objective)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


class Source:
    def __init__(self, n_items: int, name: str):
        self.n_items, self.name, self.counts = n_items, name, {"skipped": n_items}

    def rows(self, stream: np.ndarray) -> dict[str, np.ndarray]:
        return {"index": stream.astype(np.int32), self.name: (stream * self.n_items).astype(np.int32)}

    def names(self, stream: np.ndarray) -> list[str]:
        return [f"{self.name}{i}" for i in stream]


def test_rows_side_by_side() -> None:
    source = MixedRows({"a": Source(3, "x"), "b": Source(5, "y")})
    assert source.n_items == 5 and source.names(np.array([7])) == ["x7 + y7"]
    found = source.rows(np.array([2, 9]))
    assert {name: values.tolist() for name, values in found.items()} == {"index": [2, 9], "a/x": [6, 27], "b/y": [10, 45]}


@pytest.mark.parametrize(
    ("parts", "weights", "message"),
    [
        ({"a": {"name": "mlm"}}, {"b": 1.0}, "expected the same names"),
        ({"a": {"name": "mlm"}}, {"a": 0.0}, "nor all 0"),
        ({"a": {"name": "mlm"}, "b": {"name": "mlm"}}, {"a": 1.0, "b": -1.0}, "must not be negative"),
        ({"a": {"name": "mlmm"}}, {"a": 1.0}, "did you mean 'mlm'"),
    ],
)
def test_impossible_mixtures_are_refused(parts: Any, weights: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(MixtureConfig, {"parts": parts, "weights": weights})


def test_a_part_without_an_encoder_to_share_is_refused() -> None:
    two = parse(
        MixtureConfig, {"parts": {"a": {"name": "mlm"}, "b": {"name": "contrastive", "tied": False}}, "weights": {"a": 1.0, "b": 1.0}}
    )
    with pytest.raises(ConfigError, match="'b' of the mixture has no encoder"):
        two.build(SMALL)
    with pytest.raises(ConfigError, match="'b' of the mixture gives no vectors"):
        parse(MixtureConfig, {"parts": {"a": {"name": "mlm"}, "b": {"name": "cross_encoder"}}, "weights": {"a": 1.0, "b": 1.0}}).build(
            SMALL
        )
    with pytest.raises(ConfigError, match="part name 'encoder'"):
        parse(MixtureConfig, {"parts": {"encoder": {"name": "mlm"}}, "weights": {"encoder": 1.0}})


def test_heads_are_a_parts_own() -> None:
    """Two members of one family train one backbone and two decoders, which start apart."""
    heads = {name: {"name": "bottleneck", "n_head_layers": n, "tokens": t} for name, n, t in (("a", 1, "layer"), ("b", 2, "masked"))}
    heads["c"] = heads["a"]
    objective: Any = parse(MixtureConfig, {"parts": heads, "weights": {"a": 1.0, "b": 1.0, "c": 1.0}}).build(SMALL)
    params = params_of(objective)
    assert set(params) == {"encoder", "mlm_head", "a", "b", "c"}
    sizes = [params[part]["head"]["ffn"]["up"]["kernel"].shape[0] for part in "abc"]
    assert sizes == [1, 2, 1]
    assert not np.array_equal(params["a"]["head"]["ffn"]["up"]["kernel"], params["c"]["head"]["ffn"]["up"]["kernel"])


def test_objectives_are_found_by_themselves() -> None:
    alone = {"bag_of_words", "bottleneck", "cocondenser", "contrastive", "cross_encoder", "distill", "ict", "mlm", "retromae", "seed"}
    assert set(registry()) == alone | {"mixture"}
    for name in alone:
        config = registry()[name]()
        assert parse(registry()[name], card(config)) == config, "a card holds the whole config"
        assert isinstance(config.build(context()), Objective) and identity(config)["name"] == name
    with pytest.raises(ValueError, match="two objectives are named 'ict'"):
        register(registry()["ict"])


def test_a_mixture_survives_its_card() -> None:
    config = mixture(pairs=1.0, text=0.25)
    assert parse(MixtureConfig, card(config)) == config


def test_group_rows_have_what_the_objective_declares() -> None:
    objective = registry()["contrastive"](group_size=3).build(context())
    data = group_rows()
    for name, field in objective.fields().items():
        assert data[name].ndim == 1 + len(field.tail) and data[name].dtype == jnp.int32
        assert all(want in (have, "known") for want, have in zip(field.tail, data[name].shape[1:], strict=True))

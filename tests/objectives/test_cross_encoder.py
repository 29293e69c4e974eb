"""The cross-encoder's objective: pairs by plain loops, losses by numpy and by worked values, masking, parts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax
from test_pair_objectives import B, N, group_rows
from tiny_model import CLS, LENGTH, PAD, QUERY, SEP, context, params_of, run, same_in_parts

from denseir_jax.core.config import parse
from denseir_jax.core.errors import ConfigError, InputError
from denseir_jax.data.tokens import TokenStore
from denseir_jax.models.cross_encoder import CrossEncoder
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.objectives.base import Embeds, ScoresPairs
from denseir_jax.objectives.cross_encoder import CrossEncoderConfig

SMALL = context(layers=1)
ROWS = group_rows()
KEEP = np.ones((B, N), bool)
KEEP[1, 1] = False  # known to answer query 1
SHAPES = {"bert": {}, "roberta": {"position_offset": 1, "types": 1}, "electra": {"embedding": 4}}


@settings(max_examples=30, deadline=None)
@given(
    query=st.lists(st.integers(5, 99), max_size=6),
    passage=st.lists(st.integers(5, 99), max_size=10),
    width=st.sampled_from([11, 18]),
    kind=st.sampled_from(sorted(SHAPES)),
)
def test_a_pair_by_lists(query: list[int], passage: list[int], width: int, kind: str) -> None:
    model = CrossEncoder(EncoderConfig(100, hidden=8, heads=2, max_length=24, **SHAPES[kind]), SEP, PAD)
    texts = [np.array([[CLS, *ids, SEP] + [PAD] * (room - len(ids))], np.int32) for ids, room in ((query, 6), (passage, 10))]
    lengths = [np.array([len(ids) + 2], np.int32) for ids in (query, passage)]
    found = model.join(*(jnp.asarray(x) for x in (texts[0], lengths[0], texts[1], lengths[1])), width)
    before = [CLS, *query, SEP] + [SEP] * (kind == "roberta")
    after = [*passage[: width - len(before) - 1], SEP]
    assert found.ids[0].tolist() == before + after + [PAD] * (width - len(before) - len(after))
    assert found.length.tolist() == [len(before) + len(after)] and model.room(len(query) + 2, len(passage) + 2) >= found.length[0]
    assert found.types[0].tolist() == [0] * len(before) + [1] * len(after) + [0] * (width - len(before) - len(after))


def by_numpy(config: CrossEncoderConfig, scores: np.ndarray) -> float:
    """In float64 and loops."""
    s, total = scores.astype(np.float64), 0.0
    for row, keep in zip(s, KEEP, strict=True):
        if config.loss == "lce":
            total -= log_softmax(row[keep])[0]
        else:
            total += np.log1p(np.exp(-row[0])) + np.log1p(np.exp(row[1:][keep[1:]])).sum()
    return float(total / B)


@pytest.mark.parametrize(("loss", "outputs"), [("lce", 1), ("pointwise", 1), ("pointwise", 2)])
def test_losses_by_numpy(loss: Any, outputs: int) -> None:
    config = CrossEncoderConfig(loss=loss, outputs=outputs, group_size=N, pair_length=20)
    objective: Any = config.build(SMALL)
    found, metrics, vectors = run(objective, params_of(objective), ROWS)
    scores = np.asarray(vectors["score"])
    np.testing.assert_allclose(found, by_numpy(config, scores), rtol=1e-5)
    assert metrics["masked_candidates"] == (1, B * (N - 1)) and metrics["cells"][0] == B * N * 20
    best = np.where(KEEP, scores, -np.inf).max(1)
    assert metrics["accuracy"] == ((scores[:, 0] == best).sum(), B)
    assert isinstance(objective, ScoresPairs) and not isinstance(objective, Embeds)
    one = [ROWS[name][:, 1] if name.startswith("passage") else ROWS[name] for name in tuple(objective.fields())[:4]]
    np.testing.assert_allclose(jax.jit(objective.score)(params_of(objective), *one), scores[:, 1], atol=1e-5)


def test_two_outputs_are_the_cross_entropy_of_two_classes() -> None:
    objective: Any = CrossEncoderConfig(loss="pointwise", outputs=2, group_size=N).build(SMALL)
    params = params_of(objective)
    logits = np.asarray(jax.jit(objective.model.logits)(params, objective._pairs(ROWS))).reshape(B, N, 2).astype(np.float64)
    said = log_softmax(logits, axis=2)
    expected = -(said[:, 0, 1].sum() + np.where(KEEP[:, 1:], said[:, 1:, 0], 0).sum()) / B
    np.testing.assert_allclose(run(objective, params, ROWS)[0], expected, rtol=1e-5)


@pytest.mark.parametrize(("loss", "expected"), [("lce", 2.1269280), ("pointwise", np.log1p(np.exp(-1)) + np.log1p(np.exp(3)))])
def test_worked_values(loss: Any, expected: float) -> None:
    """s+ = 1, s- = 3."""
    objective = CrossEncoderConfig(loss=loss, group_size=2).build(SMALL)
    rows = {name: value[:1, :2] if value.ndim > 1 else value[:1] for name, value in ROWS.items()}
    value, metrics = objective.over_batch({}, {"score": jnp.array([[1.0, 3.0]])}, {}, rows)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert metrics["accuracy"] == (0, 1) and metrics["reciprocal_rank"] == (0.5, 1)
    tie = objective.over_batch({}, {"score": jnp.array([[1.0, 1.0]])}, {}, rows)[1]
    assert tie["accuracy"] == (0, 1)  # scores that have all become one are no success


def test_parts_equal_the_whole() -> None:
    same_in_parts(CrossEncoderConfig(group_size=N).build(SMALL), ROWS)


def test_padding_and_the_other_rows_change_no_score() -> None:
    objective: Any = CrossEncoderConfig(group_size=N, pair_length=20).build(SMALL)
    params = params_of(objective)
    whole = run(objective, params, ROWS)[2]["score"]
    wider = CrossEncoderConfig(group_size=N).build(SMALL)
    cut = jnp.minimum(ROWS["passage_length"], 20 + 1 - ROWS["query_length"][:, None])
    at = jnp.arange(LENGTH)
    ids = jnp.where(at < cut[..., None] - 1, ROWS["passage_ids"], jnp.where(at < cut[..., None], SEP, PAD))
    found = run(wider, params, ROWS | {"passage_ids": ids, "passage_length": cut})[2]["score"]
    np.testing.assert_allclose(found, whole, atol=1e-5)
    turned = {name: value[::-1] for name, value in ROWS.items()}
    np.testing.assert_allclose(run(objective, params, turned)[2]["score"][::-1], whole, atol=1e-5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"group_size": 1}, "a positive and nothing to tell it from"),
        ({"group_size": 2, "sources": ("bm25", "random")}, "leave 'random' no place: expected group_size > 2"),
        ({"outputs": 3}, "outputs=3; expected 1"),
        ({"loss": "softmax"}, "loss='softmax'"),
        ({"pair_length": -1}, "pair_length=-1"),
    ],
)
def test_impossible_settings_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(CrossEncoderConfig, values)


def test_pairs_that_do_not_fit_are_refused() -> None:
    for length in (QUERY + 1, 33):
        with pytest.raises(ConfigError, match=f"pairs of {length} tokens; expected {QUERY + 2}"):
            CrossEncoderConfig(pair_length=length).build(SMALL)
    with pytest.raises(InputError, match="needs a training set"):
        CrossEncoderConfig().build(SMALL).rows(object.__new__(TokenStore))

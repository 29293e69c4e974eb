"""The bag-of-words objective: its loss by hand, known values, padding, micro-batches, export, bad settings."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_model import context, masked_rows, params_of, run, same_in_parts
from tiny_passes import exported_tower_is_the_encoder, flat_head, padding_changes_nothing

from denseir_jax.core.config import parse
from denseir_jax.core.errors import ConfigError
from denseir_jax.objectives.bag_of_words import BagOfWords, BagOfWordsConfig, bag_loss
from denseir_jax.objectives.masking import Text

ROWS = masked_rows(6)
ROWS["input_ids"] = ROWS["input_ids"].at[:, 2].set(ROWS["input_ids"][:, 1])  # a word that comes twice


def bag_of_words(**config: Any) -> BagOfWords:
    built = BagOfWordsConfig(**config).build(context())
    assert isinstance(built, BagOfWords)
    return built


@pytest.mark.parametrize("bow", ["set", "counts"])
def test_the_vector_is_asked_for_the_words_of_the_clean_text(bow: Any) -> None:
    """T10: [CLS], [SEP] and padding are no words; the masked ones are, as they were before they were masked."""
    objective = bag_of_words(bow=bow, bow_weight=0.5)
    params = params_of(objective)
    loss, metrics, vectors = run(objective, params, ROWS)
    head = params["mlm_head"]
    x = jax.nn.gelu(vectors["cls"] @ head["dense"]["kernel"] + head["dense"]["bias"], approximate=False)
    x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-12)
    logits = np.asarray((x @ params["encoder"]["embeddings"]["word"].T + head["bias"])[:, :90], np.float64)
    costs = []
    for ids, length, row in zip(np.asarray(ROWS["input_ids"]).tolist(), np.asarray(ROWS["length"]).tolist(), logits, strict=True):
        words = ids[1 : length - 1]
        words = sorted(set(words)) if bow == "set" else words
        costs.append(np.mean([np.log(np.exp(row).sum()) - row[word] for word in words]))
    np.testing.assert_allclose(metrics["bow"], (np.sum(costs), 6), rtol=1e-5)
    np.testing.assert_allclose(loss, metrics["mlm"][0] / metrics["mlm"][1] + 0.5 * np.mean(costs), rtol=1e-6)


def test_a_bag_costs_least_where_logits_are_its_logarithm() -> None:
    """Words a, a, b: the entropy ln 3 - 2/3 ln 2 by counts, ln 2 as a set; a text without words costs nothing."""
    ids = jnp.asarray([[2, 7, 7, 8, 3], [2, 3, 0, 0, 0]], jnp.int32)
    zero = jnp.zeros_like(ids)
    text = Text.of(ids, jnp.asarray([5, 2]), zero, zero[:, 0], (0, 1, 2, 3, 4), 0)
    logits = jnp.full((2, 10), -100.0).at[:, 7].set(np.log(2)).at[:, 8].set(0)
    np.testing.assert_allclose(bag_loss(logits, text, once=False), (np.log(3) - 2 / 3 * np.log(2), 2), rtol=1e-6)
    np.testing.assert_allclose(bag_loss(logits.at[:, 7].set(0), text, once=True), (np.log(2), 2), rtol=1e-6)


def test_uniform_logits_cost_ln_v() -> None:
    """T6."""
    objective = bag_of_words(bow_weight=0.25)
    np.testing.assert_allclose(run(objective, flat_head(params_of(objective)), ROWS)[0], 1.25 * np.log(90), rtol=1e-6)


def test_parts_equal_the_whole() -> None:
    """T21."""
    same_in_parts(bag_of_words(), ROWS)


def test_padding() -> None:
    padding_changes_nothing(bag_of_words(), ROWS)


def test_export() -> None:
    exported_tower_is_the_encoder(bag_of_words(), ROWS)


def test_impossible_settings_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"bow_weight=0\.0 must be positive \(objective mlm has no bag\)"):
        parse(BagOfWordsConfig, {"bow_weight": 0.0})
    with pytest.raises(ConfigError, match=r"config\.mask: mask rate -0\.1 is outside"):
        parse(BagOfWordsConfig, {"mask": {"rate": -0.1}})

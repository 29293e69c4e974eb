"""Fusion against values worked by hand and a brute-force search."""

import numpy as np
import pytest

from denseir_jax.core.errors import InputError
from denseir_jax.evals import hybrid
from denseir_jax.evals.evaluation import evaluate

FIRST = {"q": [("a", 12.0), ("b", 8.0), ("c", 2.0)]}
SECOND = {"q": [("c", 0.9), ("d", 0.5), ("a", 0.1)]}


def test_missing_documents_get_the_lowest_score_of_the_list():
    c = hybrid.align(FIRST, SECOND)["q"]
    assert list(c.ids) == ["a", "b", "c", "d"]
    np.testing.assert_array_equal(c.first, [12, 8, 2, 2])
    np.testing.assert_array_equal(c.second, [0.1, 0.1, 0.9, 0.5])


def test_weighted_sum_by_hand():
    fused = hybrid.weighted_sum(hybrid.align(FIRST, SECOND), 10.0)["q"]
    assert [d for d, _ in fused] == ["a", "c", "b", "d"]
    np.testing.assert_allclose([s for _, s in fused], [13.0, 11.0, 9.0, 7.0])
    assert hybrid.weighted_sum(hybrid.align(FIRST, SECOND), 10.0, depth=2)["q"] == fused[:2]


def test_minmax_by_hand():
    c = hybrid.align(FIRST, SECOND, "minmax")["q"]
    np.testing.assert_allclose(c.first, [1.0, 0.6, 0.0, 0.0])
    np.testing.assert_allclose(c.second, [0.0, 0.0, 1.0, 0.5])
    flat = hybrid.align({"q": [("a", 3.0), ("b", 3.0)]}, SECOND, "minmax")["q"]
    assert not flat.first.any()


def test_true_scores_are_asked_for_only_where_missing():
    asked = []

    def scorer(query, ids):
        asked.append((query, list(ids)))
        return [0.7 for _ in ids]

    c = hybrid.align(FIRST, SECOND, second_scorer=scorer)["q"]
    assert asked == [("q", ["b"])]
    np.testing.assert_array_equal(c.second, [0.1, 0.7, 0.9, 0.5])


def test_a_query_of_one_run_alone_keeps_its_order():
    fused = hybrid.weighted_sum(hybrid.align({**FIRST, "p": [("x", 2.0), ("y", 1.0)]}, SECOND), 3.0)
    assert [d for d, _ in fused["p"]] == ["x", "y"]


def test_a_cut_through_ties_follows_the_tie_rule():
    c = hybrid.align({"q": [("a", 1.0), ("b", 1.0), ("c", 1.0)]}, {"q": [("a", 0.0)]})
    assert [d for d, _ in hybrid.weighted_sum(c, 1.0, depth=2)["q"]] == ["c", "b"]


def test_reciprocal_rank_by_hand():
    fused = dict(hybrid.reciprocal_rank_fusion([FIRST, SECOND])["q"])
    assert fused["a"] == pytest.approx(1 / 61 + 1 / 63)
    assert fused["c"] == pytest.approx(1 / 63 + 1 / 61)
    assert fused["b"] == pytest.approx(1 / 62)
    assert [d for d, _ in hybrid.reciprocal_rank_fusion([FIRST, SECOND])["q"]] == ["c", "a", "d", "b"]  # ties: greater id first


def random_runs(seed):
    rng = np.random.default_rng(seed)
    qrels, first, second = {}, {}, {}
    for q in range(30):
        relevant = f"d{rng.integers(40)}"
        qrels[f"q{q}"] = {relevant: 1}
        noise = rng.normal(size=(2, 40))
        hit = np.array([f"d{d}" == relevant for d in range(40)])
        first[f"q{q}"] = [(f"d{d}", float(20 + 5 * (noise[0, d] + 1.5 * hit[d]))) for d in range(40)]
        second[f"q{q}"] = [(f"d{d}", float(0.05 * (noise[1, d] + 1.5 * hit[d]))) for d in range(40)]
    return first, second, qrels


def test_tuning_finds_the_best_of_the_grid_and_beats_both():
    first, second, qrels = random_runs(0)
    tuned = hybrid.tune_weight(hybrid.align(first, second), qrels)
    values = []
    for weight, value in tuned.tried:
        run = {q: [(d, s + weight * dict(second[q])[d]) for d, s in first[q]] for q in first}
        assert value == pytest.approx(evaluate(run, qrels, ["nDCG@10"]).means()["nDCG@10"])
        values.append(value)
    assert tuned.value == max(values) and len(values) == len(hybrid.FACTORS)
    assert tuned.value > max(evaluate(r, qrels, ["nDCG@10"]).means()["nDCG@10"] for r in (first, second))


def test_the_grid_does_not_depend_on_units():
    first, second, qrels = random_runs(1)
    scaled = {q: [(d, s * 1000) for d, s in second[q]] for q in second}
    a, b = (hybrid.tune_weight(hybrid.align(first, s), qrels) for s in (second, scaled))
    assert b.weight == pytest.approx(a.weight / 1000) and b.value == pytest.approx(a.value)


def test_constant_scores_cannot_be_tuned():
    with pytest.raises(InputError, match="all scores of one run are equal"):
        hybrid.tune_weight(hybrid.align({"q": [("a", 1.0), ("b", 1.0)]}, SECOND), {"q": {"a": 1}})

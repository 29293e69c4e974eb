"""Tests and intervals against scipy.stats, enumeration and closed forms."""

import itertools
import time

import numpy as np
import pytest
import scipy.stats

from denseir_jax.evals import significance


@pytest.mark.parametrize("n", [3, 6, 9])
def test_randomisation_is_exact_for_few_queries(n):
    rng = np.random.default_rng(n)
    a, b = rng.random(n), rng.random(n)
    expected = scipy.stats.permutation_test(
        (a, b), lambda x, y, axis: (x - y).mean(axis=axis), permutation_type="samples", n_resamples=np.inf, vectorized=True
    ).pvalue
    assert significance.randomisation_test(a, b) == pytest.approx(expected)


def test_randomisation_sampled_is_near_the_exact_p():
    rng = np.random.default_rng(0)
    a, b = rng.random(16), rng.random(16) + 0.12
    exact = significance.randomisation_test(a, b, draws=2**16)
    sampled = significance.randomisation_test(a, b, draws=20_000)
    assert sampled == pytest.approx(exact, abs=5 * np.sqrt(exact / 20_000))
    assert sampled == significance.randomisation_test(a, b, draws=20_000)  # seeded
    assert sampled != significance.randomisation_test(a, b, draws=20_000, seed=1)


def test_randomisation_closed_form_and_no_difference():
    a = np.arange(8.0)
    assert significance.randomisation_test(a + 1, a) == 2 / 2**8  # only all-plus and all-minus are as extreme
    assert significance.randomisation_test(a, a) == 1.0
    assert significance.randomisation_test(a + 1e-12, a) == 1.0  # rounding is not a difference
    assert significance.randomisation_test(np.full(100, 1.0), np.zeros(100)) == 1 / 10_001  # never 0


def test_t_test_is_scipys():
    rng = np.random.default_rng(1)
    a, b = rng.random(40), rng.random(40)
    assert significance.t_test(a, b) == pytest.approx(scipy.stats.ttest_rel(a, b).pvalue)
    assert significance.t_test(a, a) == 1.0
    assert significance.t_test(a + 0.5, a) == pytest.approx(0.0, abs=1e-12)
    assert np.isnan(significance.t_test(a[:1], b[:1]))


def test_bootstrap_interval_is_scipys():
    values = np.random.default_rng(2).random(200) ** 3
    low, high = significance.bootstrap_interval(values)
    expected = scipy.stats.bootstrap((values,), np.mean, n_resamples=10_000, method="percentile", rng=np.random.default_rng(9))
    spread = values.std() / np.sqrt(len(values))
    assert low == pytest.approx(expected.confidence_interval.low, abs=0.1 * spread)
    assert high == pytest.approx(expected.confidence_interval.high, abs=0.1 * spread)
    assert (low, high) == significance.bootstrap_interval(values)
    assert significance.bootstrap_interval(np.array([0.0, 1.0])) == (0.0, 1.0)  # means 0, 1/2, 1 with chances 1/4, 1/2, 1/4
    assert significance.bootstrap_interval(np.array([0.0, 1.0]), level=0.4) == (0.5, 0.5)


def test_blocks_do_not_change_the_number_of_draws(monkeypatch):
    monkeypatch.setattr(significance, "_BLOCK", 700)
    values = np.random.default_rng(3).random(100)
    low, high = significance.bootstrap_interval(values, draws=2_000)
    half = 1.96 * values.std() / 10
    assert (low, high) == (pytest.approx(values.mean() - half, abs=0.01), pytest.approx(values.mean() + half, abs=0.01))
    p = significance.randomisation_test(values, np.zeros(100), draws=1_999)
    assert p == 1 / 2_000


def test_holm_is_the_closed_bonferroni_test():
    p = [0.01, 0.04, 0.03, 0.005, 0.6]
    subsets = [s for k in range(1, 6) for s in itertools.combinations(range(5), k)]
    expected = [max(min(1.0, len(s) * min(p[j] for j in s)) for s in subsets if i in s) for i in range(5)]
    np.testing.assert_allclose(significance.holm(p), expected)
    assert significance.holm([0.02, float("nan"), 0.03])[::2] == pytest.approx([0.04, 0.04])
    assert significance.holm([]) == []


def test_compare_counts_and_refuses_other_queries():
    c = significance.compare(np.array([1.0, 0.5, 0.2, 0.0]), np.array([0.5, 0.5, 0.2, 0.1]))
    assert (c.wins, c.ties, c.losses) == (1, 2, 1) and c.difference == pytest.approx(0.1)
    assert c.low <= c.difference <= c.high
    with pytest.raises(ValueError, match="same queries"):
        significance.compare(np.zeros(0), np.zeros(0))


def test_the_demo_size_takes_less_than_a_second():
    rng = np.random.default_rng(4)
    a, b = rng.random(789), rng.random(789)
    start = time.process_time()
    significance.compare(a, b)
    assert time.process_time() - start < 1.0

"""How sure a mean and a difference are: bootstrap intervals, paired tests over queries, Holm's correction.

They speak of queries drawn again from the same source with the models as they are; the spread over training seeds is
not in them. Every random draw is seeded: equal input gives equal output.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import scipy.stats
from jaxtyping import Float

DRAWS = 10_000
_BLOCK = 4_000_000  # numbers drawn at once: bounds memory at any number of queries
_TIE = 1e-9  # values closer than this are one value: two summation orders of one measure


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A system against a baseline on the same queries.

    Attributes:
        difference: mean of (system - baseline), with its bootstrap interval [low, high].
        p_randomisation, p_t: two-sided p of the paired randomisation test and of the paired t-test, uncorrected.
        wins, ties, losses: queries on which the system is better, equal, worse.
    """

    difference: float
    low: float
    high: float
    p_randomisation: float
    p_t: float
    wins: int
    ties: int
    losses: int


def compare(system: Float[np.ndarray, " q"], baseline: Float[np.ndarray, " q"], draws: int = DRAWS, seed: int = 0) -> Comparison:
    """All of `Comparison` at once; the two arrays hold the same queries in the same order."""
    differences = _differences(system, baseline)
    low, high = bootstrap_interval(differences, draws=draws, seed=seed)
    return Comparison(
        difference=float(differences.mean()),
        low=low,
        high=high,
        p_randomisation=randomisation_test(system, baseline, draws, seed),
        p_t=t_test(system, baseline),
        wins=int((differences > 0).sum()),
        ties=int((differences == 0).sum()),
        losses=int((differences < 0).sum()),
    )


def bootstrap_interval(values: Float[np.ndarray, " q"], level: float = 0.95, draws: int = DRAWS, seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap interval of a mean: queries drawn with replacement `draws` times (Efron 1979)."""
    n = len(values)
    if n == 0:
        return float("nan"), float("nan")
    rng = np.random.default_rng(seed)
    means = np.empty(draws)
    for start, stop in _blocks(draws, n):
        means[start:stop] = values[rng.integers(0, n, size=(stop - start, n), dtype=np.int32)].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def randomisation_test(system: Float[np.ndarray, " q"], baseline: Float[np.ndarray, " q"], draws: int = DRAWS, seed: int = 0) -> float:
    """Two-sided paired randomisation test of the mean difference (Fisher; Smucker et al. 2007).

    If the two systems were one, each query's difference would have either sign with equal chance. All sign patterns are
    enumerated where there are at most `draws` of them; else `draws` are sampled and p = (1 + as extreme) / (1 + draws).
    """
    differences = _differences(system, baseline)
    differences = differences[differences != 0]  # a zero has no sign: it changes no sum
    n = len(differences)
    if n == 0:
        return 1.0
    observed = abs(differences.sum()) * (1 - 1e-12) - 1e-12 * np.abs(differences).sum()  # equal sums differ in rounding
    if n < 63 and 2**n <= draws:
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=n)))
        return float((np.abs(signs @ differences) >= observed).mean())
    rng = np.random.default_rng(seed)
    extreme = 0
    total = differences.sum()
    for start, stop in _blocks(draws, n):
        flipped = rng.integers(0, 2, size=(stop - start, n), dtype=np.int8).astype(np.float64)
        extreme += int((np.abs(total - 2 * (flipped @ differences)) >= observed).sum())
    return (1 + extreme) / (1 + draws)


def t_test(system: Float[np.ndarray, " q"], baseline: Float[np.ndarray, " q"]) -> float:
    """Two-sided p of the paired t-test; 1 if no query differs, nan for a single query."""
    differences = _differences(system, baseline)
    if not differences.any():
        return 1.0
    if len(differences) < 2:
        return float("nan")
    if np.ptp(differences) < _TIE:  # no variance, and scipy would divide by it
        return 0.0
    return float(scipy.stats.ttest_1samp(differences, 0.0).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment over a family of tests (Holm 1979); nan stays nan and is not of the family."""
    p = np.asarray(p_values, dtype=np.float64)
    tested = np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    steps = p[order] * np.arange(len(order), 0, -1)
    adjusted = np.full(len(p), np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return [float(a) for a in adjusted]


def _differences(system: np.ndarray, baseline: np.ndarray) -> np.ndarray:
    if system.shape != baseline.shape or len(system) == 0:
        raise ValueError(f"paired values need the same queries, at least one; got {system.shape} and {baseline.shape}")
    differences = np.asarray(system - baseline, dtype=np.float64)
    return np.where(np.abs(differences) < _TIE, 0.0, differences)


def _blocks(draws: int, n: int) -> list[tuple[int, int]]:
    size = max(1, _BLOCK // n)
    return [(start, min(start + size, draws)) for start in range(0, draws, size)]

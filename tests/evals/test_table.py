"""The table's numbers against a direct computation, and its forms."""

import json

import numpy as np
import pytest
import scipy.stats

from denseir_jax.core.artifacts import finite
from denseir_jax.core.errors import InputError
from denseir_jax.evals import table
from denseir_jax.evals.evaluation import Evaluation


def evaluation(values, in_run=None, queries=None):
    q = values.shape[1]
    return Evaluation(
        measures=("RR@10", "nDCG@10"),
        queries=queries or tuple(f"q{i}" for i in range(q)),
        values=values,
        in_run=np.ones(q, dtype=bool) if in_run is None else in_run,
        has_positive=np.ones(q, dtype=bool),
    )


@pytest.fixture(scope="module")
def three():
    rng = np.random.default_rng(0)
    base = rng.random((2, 60))
    return {
        "BM25": evaluation(base),
        "dense": evaluation(np.clip(base + rng.normal(0.1, 0.1, (2, 60)), 0, 1)),
        "stage | 2": evaluation(np.clip(base + rng.normal(0.0, 0.1, (2, 60)), 0, 1)),
    }


def test_means_tests_and_correction(three):
    made = table.make_table(three, ["RR@10", "nDCG@10"], baseline="BM25")
    assert made.queries == 60 and made.row("BM25").cells["RR@10"].comparison is None
    for name in ("dense", "stage | 2"):
        for i, measure in enumerate(made.measures):
            cell = made.row(name).cells[measure]
            differences = three[name].values[i] - three["BM25"].values[i]
            assert cell.value == pytest.approx(three[name].values[i].mean())
            assert cell.low < cell.value < cell.high
            assert cell.comparison.difference == pytest.approx(differences.mean())
            assert cell.comparison.p_t == pytest.approx(scipy.stats.ttest_1samp(differences, 0).pvalue)
    small, large = sorted(made.row(n).cells["nDCG@10"].comparison.p_randomisation for n in ("dense", "stage | 2"))
    assert made.row("dense").cells["nDCG@10"].p_holm == pytest.approx(2 * small)
    assert made.row("stage | 2").cells["nDCG@10"].p_holm == pytest.approx(large)


def test_every_row_is_over_the_same_queries():
    values = np.array([[1.0, 0.5, 0.0, 0.0]] * 2)
    full = evaluation(values, np.array([True, True, True, False]))
    part = evaluation(values * np.array([1, 0, 0, 0]), np.array([True, False, False, False]))
    made = table.make_table({"full": full, "part": part}, ["RR@10"])
    assert made.queries == 3  # the fourth is in no run
    assert made.row("part").cells["RR@10"].value == pytest.approx(1 / 3)  # not 1: what it lacks counts as 0


def test_forms(three):
    made = table.make_table(three, ["RR@10", "nDCG@10"], baseline="BM25")
    lines = table.as_text(made).splitlines()
    assert len({len(line) for line in lines[0:1] + lines[2:3]}) <= 2 and lines[0].endswith("p") and "nDCG@10 vs BM25" in lines[0]
    position = lines[0].index("RR@10 [95%]") + len("RR@10 [95%]")
    assert all(line[position - 1] == "]" for line in lines[2:5])  # aligned
    markdown = table.as_markdown(made).splitlines()
    assert "stage \\| 2" in markdown[4] and markdown[1].startswith("| --- | ---:")
    text = json.dumps(finite(table.as_json(made)))
    assert json.loads(text)["rows"][1]["cells"]["RR@10"]["comparison"]["wins"] > 0


@pytest.mark.parametrize(
    ("value", "plain", "signed"), [(0.7502, ".750", "+.750"), (1.0, "1.000", "+1.000"), (-0.02, "-.020", "-.020"), (float("nan"), "-", "-")]
)
def test_fractions(value, plain, signed):
    assert (table.fraction(value), table.fraction(value, True)) == (plain, signed)
    assert table.p_value(0.0004) == "<.001" and table.p_value(0.0321) == ".032"


def test_systems_that_cannot_be_compared_are_refused(three):
    other = evaluation(np.zeros((2, 60)), queries=tuple(f"p{i}" for i in range(60)))
    with pytest.raises(InputError, match="evaluated on other queries"):
        table.make_table({**three, "other": other}, ["RR@10"])
    with pytest.raises(InputError, match="was not evaluated by AP"):
        table.make_table(three, ["AP"])
    with pytest.raises(InputError, match="no row 'bm25'"):
        table.make_table(three, ["RR@10"], baseline="bm25")

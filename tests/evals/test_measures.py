"""Measures against pytrec_eval, ir_measures and worked values."""

import ir_measures
import numpy as np
import pytest
import pytrec_eval

from denseir_jax.core.errors import InputError
from denseir_jax.evals.evaluation import evaluate, read_per_query, write_per_query
from denseir_jax.evals.measures import parse_measure
from denseir_jax.evals.ranking import ranked_ids

QRELS = {"q1": {"d1": 1, "d3": 2, "d9": 1}, "q2": {"d2": 1}, "q3": {"d7": 1}, "q4": {"d5": 0}}
RUN = {
    "q1": [("d1", 9.0), ("d2", 8.0), ("d3", 7.0), ("d4", 6.0)],
    "q2": [("d5", 3.0), ("d6", 2.0), ("d2", 1.0)],
    "q4": [("d5", 1.0)],
}


def value(run, qrels, measure, query="q", order="score"):
    evaluation = evaluate(run, qrels, [measure], order)
    return evaluation.values[0, evaluation.queries.index(query)]


@pytest.mark.parametrize(
    ("query", "measure", "expected"),
    [
        ("q1", "nDCG@3", 0.638788),
        ("q1", "nDCG@10", 0.638788),
        ("q1", "RR", 1.0),
        ("q1", "R@2", 0.333333),
        ("q1", "R@10", 0.666667),
        ("q1", "AP", 0.555556),
        ("q1", "P@2", 0.5),
        ("q1", "R_cap@2", 0.5),
        ("q1", "nDCG(rel=1)@10", 0.703918),
        ("q1", "RR(rel=2)", 1 / 3),
        ("q1", "Judged@4", 0.5),
        ("q2", "nDCG", 0.5),
        ("q2", "RR", 0.333333),
        ("q2", "RR@2", 0.0),
        ("q2", "AP", 0.333333),
        ("q2", "Success@3", 1.0),
        ("q4", "nDCG", 0.0),
        ("q4", "RR", 0.0),
        ("q4", "R@10", 0.0),
    ],
)
def test_worked_values(query, measure, expected):
    assert value(RUN, QRELS, measure, query) == pytest.approx(expected, abs=1e-6)


def test_three_denominators():
    evaluation = evaluate(RUN, QRELS, ["RR"])
    assert evaluation.means("run")["RR"] == pytest.approx(4 / 9)  # q1, q2, q4
    assert evaluation.means("judged")["RR"] == pytest.approx(1 / 3)  # and q3
    assert evaluation.means("positives")["RR"] == pytest.approx(4 / 9)  # q1, q2, q3
    assert evaluation.differing_means("run").keys() == {"judged", "positives"}
    counts = evaluation.counts
    assert (counts.judged, counts.with_positives, counts.in_run, counts.positives_missing_from_run) == (4, 3, 3, 1)


def test_queries_without_judgments_are_counted_not_averaged():
    evaluation = evaluate({**RUN, "q9": [("d1", 1.0)]}, QRELS, ["RR"])
    assert evaluation.counts.run_without_judgments == 1 and evaluation.counts.in_run == 4
    assert evaluation.means()["RR"] == pytest.approx(4 / 9)


@pytest.mark.parametrize("reverse", [False, True])
def test_ties_go_to_the_greater_id_whatever_the_order_of_insertion(reverse):
    qrels = {"q": {"a": 0, "b": 1, "c": 0}}
    step = -1 if reverse else 1
    assert value({"q": [("a", 1.0), ("b", 1.0)][::step]}, qrels, "RR") == 1.0
    assert value({"q": [("b", 1.0), ("c", 1.0)][::step]}, qrels, "RR") == 0.5
    assert value({"q": [("b", 1.0), ("c", 1.0)][::step]}, qrels, "nDCG") == pytest.approx(0.63093, abs=1e-5)


def test_scores_are_compared_as_float32():
    assert value({"q": [("a", 1.00000002), ("b", 1.00000001)]}, {"q": {"a": 1}}, "RR") == 0.5


def test_ids_are_compared_by_bytes_not_by_locale():
    ids = ["é", "z", "Z", "10", "9", "\U0001f600", "｡"]
    expected = sorted(ids, key=lambda i: i.encode(), reverse=True)
    assert ranked_ids([(i, 1.0) for i in ids]) == expected


def test_negative_judgment_is_not_relevant():
    run, qrels = {"q": [("a", 2.0), ("b", 1.0)]}, {"q": {"a": -1, "b": 1}}
    assert value(run, qrels, "RR") == 0.5
    assert value(run, qrels, "nDCG") == pytest.approx(0.63093, abs=1e-5)
    assert value(run, qrels, "R@10") == 1.0
    assert value(run, qrels, "Judged@2") == 1.0


def test_file_order_ignores_scores():
    run = {"q": [("a", 0.0), ("b", 5.0)]}
    assert value(run, {"q": {"a": 1}}, "RR", order="file") == 1.0
    assert value(run, {"q": {"a": 1}}, "RR") == 0.5


@pytest.mark.parametrize("seed", range(3))
def test_equal_to_pytrec_eval_on_random_runs_with_ties(seed):
    rng = np.random.default_rng(seed)
    documents = [f"d{i}" for i in range(60)] + ["é1", "日本", "10", "9"]
    qrels, run = {}, {}
    for q in range(25):
        judged = rng.choice(documents, size=int(rng.integers(1, 30)), replace=False)
        qrels[f"q{q}"] = {str(d): int(rng.integers(-1, 4)) for d in judged}
        found = rng.choice(documents, size=int(rng.integers(1, 60)), replace=False)
        run[f"q{q}"] = [(str(d), float(rng.integers(0, 8)) / 3) for d in found]  # about 8 levels: many ties
    ours = {
        "RR": "recip_rank",
        "nDCG": "ndcg",
        "nDCG@10": "ndcg_cut_10",
        "R@5": "recall_5",
        "R@100": "recall_100",
        "P@5": "P_5",
        "AP": "map",
        "AP@10": "map_cut_10",
        "Success@5": "success_5",
    }
    for level in (1, 2):
        theirs = pytrec_eval.RelevanceEvaluator(qrels, set(pytrec_eval.supported_measures), relevance_level=level).evaluate(
            {q: dict(r) for q, r in run.items()}
        )
        for name, other in ours.items():
            if level == 2 and name.startswith("nDCG"):
                continue
            head, at, cut = name.partition("@")
            evaluation = evaluate(run, qrels, [f"{head}(rel={level}){at}{cut}" if level == 2 else name])
            expected = [theirs[q][other] for q in evaluation.queries]
            np.testing.assert_allclose(evaluation.values[0], expected, atol=1e-6, err_msg=name)


def test_equal_to_ir_measures_where_it_is_consistent():
    rng = np.random.default_rng(7)
    qrels = {f"q{q}": {f"d{d}": int(rng.integers(0, 4)) for d in range(q + 1, 40, 3)} for q in range(10)}
    run = {q: [(f"d{d}", float(s)) for d, s in enumerate(rng.permutation(40))] for q in qrels}  # no ties
    names = ["RR@10", "nDCG@5", "Judged@7", "P(rel=2)@5", "R(rel=3)@10", "Success@1"]
    evaluation = evaluate(run, qrels, names)
    for m in ir_measures.iter_calc([ir_measures.parse_measure(n) for n in names], qrels, {q: dict(r) for q, r in run.items()}):
        row = evaluation.measures.index(str(m.measure))
        assert evaluation.values[row, evaluation.queries.index(m.query_id)] == pytest.approx(m.value, abs=1e-6)


def test_exponential_gains():
    expected = (1 + 3 / 2) / (3 + 1 / np.log2(3) + 1 / 2)
    assert value(RUN, QRELS, "nDCG(dcg='exp-log2')@10", "q1") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nDGC@10", "did you mean nDCG"),
        ("mrr@10", "did you mean MRR"),
        ("recal@10", "did you mean Recall"),
        ("Zzzzqx", "known: RR"),
        ("R", "needs a cutoff"),
        ("P@0", "needs a cutoff"),
        ("P(depth=3)@5", "rel=<whole number>"),
        ("RR@ten", "cannot be read"),
    ],
)
def test_unusable_measures_are_named(text, said):
    with pytest.raises(InputError, match=said):
        parse_measure(text)


@pytest.mark.parametrize("text", ["RR@10", "nDCG(rel=1)@5", "nDCG(dcg='exp-log2')@10", "AP", "P(rel=2)@5", "R_cap@100"])
def test_text_round_trip(text):
    assert str(parse_measure(text)) == text
    assert parse_measure(str(parse_measure(f"{text}"))) == parse_measure(text)


@pytest.mark.parametrize(
    ("run", "qrels", "said"),
    [
        ({"1": [("d1", 1.0)]}, {"q1": {"d1": 1}}, "no query id of the run is in the qrels .*'1'.*'q1'"),
        ({"q1": [("1", 1.0)]}, {"q1": {"d1": 1}}, "no document id of the run is in the qrels .*'1'.*'d1'"),
        ({"q1": [("d1", float("nan"))]}, {"q1": {"d1": 1}}, "query 'q1', document 'd1': the score is not a number"),
        ({"q1": [("d1", 1.0), ("d1", 2.0)]}, {"q1": {"d1": 1}}, "document 'd1' is in the run twice"),
        ({}, {"q1": {"d1": 1}}, "the run holds no query"),
    ],
)
def test_bad_runs_are_refused(run, qrels, said):
    with pytest.raises(InputError, match=said):
        evaluate(run, qrels, ["RR"])


def test_a_bad_ranking_of_a_known_corpus_is_zero_not_an_error():
    assert evaluate({"q1": [("other", 1.0)]}, {"q1": {"d1": 1}}, ["RR"], documents_known=True).means()["RR"] == 0.0


def test_per_query_file_round_trip(tmp_path):
    evaluation = evaluate(RUN, QRELS, ["RR@10", "nDCG@10"])
    write_per_query(tmp_path / "per_query.jsonl", evaluation, {"q1": "first\u2028question"})
    read = read_per_query(tmp_path / "per_query.jsonl")
    assert read.queries == evaluation.queries and read.measures == evaluation.measures
    np.testing.assert_array_equal(read.values, evaluation.values)
    np.testing.assert_array_equal(read.in_run, evaluation.in_run)
    with pytest.raises(InputError, match="does not exist"):
        read_per_query(tmp_path / "absent.jsonl")


def test_qrels_without_anything_relevant_are_refused():
    with pytest.raises(InputError, match=r"no relevant judgment \(1 or above\) for any of 2 queries"):
        evaluate({"q": [("a", 1.0)]}, {"q": {"a": 0}, "p": {"b": -1}}, ["RR"])
    with pytest.raises(InputError, match=r"no relevant judgment \(2 or above\)"):
        evaluate({"q": [("a", 1.0)]}, {"q": {"a": 1}}, ["RR(rel=2)"])
    assert value({"q": [("a", 1.0)]}, {"q": {"a": 0}}, "Judged@1") == 1.0


def test_a_gain_beyond_all_floats_is_refused():
    run = {"q": [("a", 1.0), ("b", 0.5)]}
    assert value(run, {"q": {"a": 900, "b": 900}}, "nDCG(dcg='exp-log2')") == pytest.approx(1.0)
    assert value(run, {"q": {"a": 2**31 - 1}}, "nDCG") == 1.0
    with pytest.raises(InputError, match="one is 2147483647; expected at most 900"):
        evaluate(run, {"q": {"a": 2**31 - 1}}, ["nDCG(dcg='exp-log2')"])


@pytest.mark.parametrize("text", ["RR@" + "9" * 5000, f"P(rel={'9' * 5000})@5", "RR@9999999999"])
def test_endless_numbers_in_measures_are_refused(text):
    with pytest.raises(InputError):
        parse_measure(text)

from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from denseir_jax.core.errors import InputError
from denseir_jax.data.lines import BadRows
from denseir_jax.data.trec import read_qrels, read_run, write_qrels, write_run

FILES = Path(__file__).parents[3] / "shared" / "data" / "trec_files"


def write(path: Path, *rows: str) -> str:
    path.write_text("".join(row + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_trec_run_follows_scores_not_ranks(tmp_path):
    path = write(
        tmp_path / "r", "q1 Q0 a 1 1.5 me", "q1\tQ0 \t b  2  2.5\tme", "q2 Q0 a 9 -3 me", "q1 Q0 c 3 1.5 me", "q1 Q0 d 4 1.50000001 me"
    )
    run = read_run(path)
    assert run.ranking == {"q1": [("b", 2.5), ("d", 1.5), ("c", 1.5), ("a", 1.5)], "q2": [("a", -3.0)]}
    assert run.scored
    assert run.tag == "me"


def test_msmarco_run(tmp_path):
    run = read_run(write(tmp_path / "r", "10\t7\t2", "10\t5\t1", "11 3 1", "10 9 30"))
    assert [passage for passage, _ in run.ranking["10"]] == ["5", "7", "9"]
    assert not run.scored
    scores = [score for _, score in run.ranking["10"]]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["q Q0 d 1 nan t"], "1: bad score 'nan'; expected a finite number"),
        (["q Q0 d 1 -inf t"], "1: bad score"),
        (["q Q0 d 1 1e39 t"], "1: bad score"),
        (["q Q0 d 1 x t"], "1: bad score 'x'"),
        (["q Q0 d 1 2 t", "q Q0 d 2 1 t"], "2: passage twice for one query: 'd' for query 'q'"),
        (["q d 0"], "1: bad rank '0'; expected a whole number from 1"),
        (["q d 1.0"], "1: bad rank"),
        (["q d 1", "q e 1"], "2: rank twice for one query: 1 for query 'q'"),
        (["q d 1", "q d 2"], "2: passage twice"),
        (["q d 1", "q Q0 e 2 1 t"], "2: wrong number of columns: 6; expected 3 as in the rows above"),
        (["q 0 d 1"], r"1: wrong number of columns: 4; expected 6 \(TREC.*or 3 \(MS MARCO"),
        ([""], "holds no row of a run"),
    ],
)
def test_bad_runs(tmp_path, rows, message):
    with pytest.raises(InputError, match=message):
        read_run(write(tmp_path / "r", *rows))


def test_bad_rows_of_a_run_can_be_skipped(tmp_path):
    bad = BadRows("skip")
    run = read_run(write(tmp_path / "r", "q Q0 d 1 nan t", "q Q0 e 2 1 t", "q Q0 e 3 1 t", "broken"), bad)
    assert run.ranking == {"q": [("e", 1.0)]}
    assert bad.counts == {"bad score": 1, "passage twice for one query": 1, "wrong number of columns": 1}


words = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=3)
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(words, st.dictionaries(words, finite, min_size=1, max_size=5), min_size=1, max_size=3))
def test_a_run_written_is_the_run_read(tmp_path_factory, scores):
    path = tmp_path_factory.mktemp("run") / "r"
    write_run(path, {query: list(scored.items()) for query, scored in scores.items()}, tag="t")
    found = read_run(str(path))
    assert list(found.ranking) == list(scores)
    for query, scored in scores.items():
        # trec_eval's rule by another road: sort by id, then by score, each descending and stable
        by_id = sorted(scored.items(), key=lambda row: row[0], reverse=True)
        assert found.ranking[query] == sorted(by_id, key=lambda row: row[1], reverse=True)
    again = path.with_name("again")
    write_run(again, found.ranking, found.tag)
    assert again.read_bytes() == path.read_bytes()


def test_float64_scores_are_read_in_the_order_written(tmp_path):
    rng = np.random.default_rng(0)
    scored = [(f"d{i}", float(score)) for i, score in enumerate(rng.normal(size=300).round(3) + rng.normal(size=300) * 1e-8)]
    write_run(tmp_path / "r", {"q": scored})
    rows = [line.split() for line in (tmp_path / "r").read_text().splitlines()]
    assert [row[2] for row in rows] == [passage for passage, _ in read_run(str(tmp_path / "r")).ranking["q"]]
    assert [int(row[3]) for row in rows] == list(range(1, 301))
    # pytrec_eval, which sorts by itself, must see the same order: RR of every single relevant passage is 1 / our rank
    run = {f"q{i}": {row[2]: float(row[4]) for row in rows} for i in range(0, 300, 7)}
    qrels = {f"q{i}": {rows[i][2]: 1} for i in range(0, 300, 7)}
    values = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank"}).evaluate(run)
    assert all(values[f"q{i}"]["recip_rank"] == pytest.approx(1 / (i + 1)) for i in range(0, 300, 7))


def test_write_refuses_what_could_not_be_read(tmp_path):
    path = tmp_path / "r"
    with pytest.raises(InputError, match="passage id 'a b': id with whitespace"):
        write_run(path, {"q": [("ok", 1.0)], "p": [("a b", 1.0)]})
    with pytest.raises(ValueError, match="is not a finite float32"):
        write_run(path, {"q": [("a", float("nan"))]})
    with pytest.raises(InputError, match="query id '': empty id"):
        write_qrels(path, {"": {"d": 1}})
    assert list(tmp_path.iterdir()) == []


def test_qrels_layouts(tmp_path):
    expected = {"q1": {"d1": 2, "d2": -1}, "q2": {"d1": 0}}
    rows = [("q1", "d1", "2"), ("q1", "d2", "-1"), ("q2", "d1", "0")]
    layouts = {
        "trec": [f"{q}  0 \t{d} {r}" for q, d, r in rows],
        "beir": ["query-id\tcorpus-id\tscore", *map("\t".join, rows)],
        "bare": list(map("\t".join, rows)),
    }
    for name, lines in layouts.items():
        assert read_qrels(write(tmp_path / name, *lines)) == expected, name
    write_qrels(tmp_path / "out", expected)
    assert read_qrels(str(tmp_path / "out")) == expected


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            ["q\td\t1.0"],
            "1: relevance is not an integer: '1.0'; expected an integer, or the header query-id <tab> corpus-id <tab> score first",
        ),
        (["query_id\tdoc_id\trel", "q\td\t1"], "1: relevance is not an integer: 'rel'"),
        (["q 0 d 1_0"], "1: relevance is not an integer"),
        (["q 0 d 1", "q 0 e 2147483648"], "2: relevance out of range: '2147483648'; expected -2147483647 to 2147483647"),
        (["q 0 d " + "9" * 23], "1: relevance out of range"),
        (["q 0 d -" + "9" * 5000], r"1: relevance out of range: '-9{19}\.\.\.9{10}'; expected"),
        (["q\td\t1", "query-id\tcorpus-id\tscore"], "2: relevance is not an integer"),
        (["q 0 d 1", "q 0 d 2"], "2: judgments in conflict: 'd' for query 'q' is 1 above and 2 here"),
        (["q 0 d 1", "q d 1"], "2: wrong number of columns: 3; expected 4 as in the rows above"),
        (["q d"], "1: wrong number of columns: 2; expected 4"),
        (["query-id\tcorpus-id\tscore"], "holds no judgment"),
    ],
)
def test_bad_qrels(tmp_path, rows, message):
    with pytest.raises(InputError, match=message):
        read_qrels(write(tmp_path / "r", *rows))


def test_repeated_judgments_are_counted(tmp_path):
    bad = BadRows()
    assert read_qrels(write(tmp_path / "r", "q 0 d 1", "q 1 d 1", "q 0 d +1"), bad) == {"q": {"d": 1}}
    assert bad.counts == {"judgment repeated": 2}


REAL = {  # queries, judgments
    "qrels.msmarco-passage.dev-subset.txt": (6980, 7437),
    "qrels.dl19-passage.txt": (43, 9260),
    "qrels.beir-v1.0.0-scifact.test.txt": (300, 339),
    "qrels.beir-v1.0.0-nfcorpus.test.txt": (323, 12334),
}


@pytest.mark.parametrize("name", REAL)
def test_real_qrels(name):
    if not FILES.exists():
        pytest.skip("the shared files are not here")
    bad = BadRows()
    qrels = read_qrels(str(FILES / name), bad)
    assert (len(qrels), sum(map(len, qrels.values()))) == REAL[name]
    with open(FILES / name) as stream:
        assert qrels == pytrec_eval.parse_qrel(stream)


def test_the_largest_relevance_and_rank_are_read(tmp_path):
    assert read_qrels(write(tmp_path / "q", "q 0 d 2147483647", "q 0 e -2147483647")) == {"q": {"d": 2**31 - 1, "e": 1 - 2**31}}
    assert read_run(write(tmp_path / "r", "q\td\t16777216")).ranking == {"q": [("d", -16777216.0)]}
    for rank in ("16777217", "0", "-1", "9" * 5000):
        with pytest.raises(InputError, match=r"r:1: bad rank .*; expected a whole number from 1 to 16777216") as caught:
            read_run(write(tmp_path / "r", f"q\td\t{rank}"))
        assert len(str(caught.value)) < 300

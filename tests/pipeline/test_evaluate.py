"""The stage evaluate on run files, as a user calls it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import pytrec_eval

from denseir_jax.core.command import run_command
from denseir_jax.pipeline.stages.evaluate import stage

ROOT = Path(__file__).parents[2]
CARD = str(ROOT / "configs" / "evaluate" / "run.py")
# ties, a wrong rank column, a graded and a negative judgment, a query only in the run, two only in the qrels
RUN = """q1 Q0 d1 3 2.0 me
q1 Q0 d3 1 2.0 me
q1 Q0 d9 2 5.5 me
q2 Q0 d2 1 1.0 me
q2 Q0 d5 2 1.0 me
q8 Q0 d5 1 1.0 me
"""
QRELS = "q1 0 d1 2\nq1 0 d3 1\nq1 0 d4 1\nq1 0 d9 -1\nq2 0 d2 1\nq2 0 d5 0\nq3 0 d7 1\nq4 0 d7 0\n"


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("a.run").write_text(RUN)
    Path("a.qrels").write_text(QRELS)

    def run(*arguments):
        code = run_command(stage, ["evaluate", "--config", CARD, *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def files(run="a.run", qrels="a.qrels"):
    return f"--config.run={run}", f"--config.qrels={qrels}"


def test_values_are_trec_evals(call):
    code, out, err = call(*files(), "--config.measures=RR@10,nDCG@10,R@100,AP", "--workdir=w")
    assert code == 0, err
    metrics = json.loads(out.splitlines()[-1])["metrics"]
    scores = {q: {} for q in ("q1", "q2", "q8")}
    for line in RUN.splitlines():
        query, _, document, _, score, _ = line.split()
        scores[query][document] = float(score)
    qrels = {}
    for line in QRELS.splitlines():
        query, _, document, judgment = line.split()
        qrels.setdefault(query, {})[document] = int(judgment)
    theirs = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank", "ndcg_cut.10", "recall.100", "map"}).evaluate(scores)
    for ours, other in {"RR@10": "recip_rank", "nDCG@10": "ndcg_cut_10", "R@100": "recall_100", "AP": "map"}.items():
        assert metrics[ours] == pytest.approx(sum(v[other] for v in theirs.values()) / len(theirs), abs=1e-6)
    assert metrics["queries"] == len(theirs) == 2


def test_denominators_are_said_and_kept(call):
    code, _, err = call(*files(), "--workdir=w")
    assert code == 0
    assert "4 queries judged, 3 with a relevant document, 3 in the run (1 of these without judgments" in err
    assert err.count("warning: the mean depends on who is counted") == 2
    metrics = json.loads(Path("w/metrics.json").read_text())
    assert metrics["RR@10"] == pytest.approx(0.5)  # q1: d9 (negative), d3 -> 1/2; q2: the tie puts d5 before d2 -> 1/2
    assert metrics["other_means"]["judged"]["RR@10"] == pytest.approx(0.25)
    assert metrics["other_means"]["positives"]["RR@10"] == pytest.approx(1 / 3)
    lines = [json.loads(line) for line in Path("w/per_query.jsonl").read_text().splitlines()]
    assert [line["query_id"] for line in lines] == ["q1", "q2", "q3", "q4"] and not lines[2]["in_run"]
    assert json.loads(Path("w/manifest.json").read_text())["outputs"].keys() == {"per_query.jsonl", "table.json", "table.txt"}


def test_a_table_is_printed_also_by_a_finished_run(call):
    first = call(*files())
    again = call(*files())
    assert first[0] == again[0] == 0 and "already finished" in again[2]
    lines, later = first[1].splitlines(), again[1].splitlines()
    assert lines[:-1] == later[:-1] and json.loads(lines[-1]) == json.loads(later[-1])
    assert "RR@10 [95%]" in lines[0] and lines[2].startswith("a.run  .500 [") and lines[-1].startswith('{"stage": "evaluate"')
    Path("a.run").write_text(RUN + "q3 Q0 d7 1 1.0 me\n")
    assert "already finished" not in call(*files())[2]  # another content is another folder


def test_averaging_and_measures_with_parameters(call):
    code, out, _ = call(*files(), "--config.measures=RR(rel=2)@10,nDCG@3", "--config.averaging=positives", "--workdir=w")
    metrics = json.loads(out.splitlines()[-1])["metrics"]
    assert code == 0 and metrics["queries"] == 3
    assert metrics["RR(rel=2)@10"] == pytest.approx(1 / 9)  # q1: d1 third


def test_a_baseline_is_compared_query_by_query(call):
    Path("b.run").write_text(RUN.replace("d2 1 1.0", "d2 1 9.0"))
    assert call(*files(), "--workdir=base")[0] == 0
    code, out, err = call(*files("b.run"), "--config.baseline=base", "--workdir=w")
    assert code == 0, err
    assert "nDCG@10 vs baseline base" in out
    rows = json.loads(Path("w/table.json").read_text())["rows"]
    comparison = rows[1]["cells"]["RR@10"]["comparison"]
    assert (comparison["wins"], comparison["ties"], comparison["losses"]) == (1, 1, 0) and comparison["difference"] == 0.25


def test_ms_marco_run_without_scores(call):
    Path("m.run").write_text("q1\td9\t1\nq1\td3\t2\nq2\td2\t1\nq2\td5\t2\n")
    _, out, _ = call(*files("m.run"), "--workdir=w")
    assert json.loads(out.splitlines()[-1])["metrics"]["RR@10"] == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "nothing to evaluate"),
        (("--config.run=a.run",), "config.qrels is empty"),
        (files("gone.run"), "gone.run does not exist"),
        ((*files(), "--config.measures=nDGC@10"), "unknown measure 'nDGC@10': did you mean nDCG?"),
        ((*files(), "--config.measures=R"), "needs a cutoff"),
        ((*files(), "--config.averagin=run"), "did you mean 'averaging'"),
        ((*files(), "--config.retriever=bm25"), "config.run is a ranking already"),
        ((*files(), "--config.hybrid=True"), "config.hybrid and config.embeddings are about a retriever"),
        ((*files(), "--config.fusion=reciprocal_rank"), "are about a hybrid; ask for one by hybrid=True"),
        ((*files(), "--config.tune_measure=R@10"), "are about a hybrid; ask for one by hybrid=True"),
        (("--config.dataset=beir:.",), "needs something that ranks"),
        ((*files(), "--config.dataset=beir:."), "qrels and dataset are both given"),
        (files("other.run"), "no query id of the run is in the qrels (run: 'x1' ..., qrels: 'q1' ...)"),
        (files("foreign.run"), "no document id of the run is in the qrels (run: 'm1' ..., qrels: 'd1' ...)"),
        (files("nan.run"), "nan.run:1: bad score 'nan'; expected a finite number"),
        (files("twice.run"), "twice.run:2: passage twice for one query"),
        (files(qrels="huge.qrels"), "huge.qrels:1: relevance out of range: '99999999999999999999999'; expected -2147483647 to 2147483647"),
        (files(qrels="endless.qrels"), "endless.qrels:1: relevance out of range"),
        (files("endless.run"), "endless.run:1: bad rank"),
        (files(qrels="none.qrels"), "the qrels hold no relevant judgment (1 or above) for any of 2 queries"),
        (files(qrels="words.qrels"), "words.qrels:1: relevance is not an integer"),
        ((*files(), "--config.baseline=gone"), "gone does not exist"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(call, arguments, said):
    Path("other.run").write_text("x1 Q0 d1 1 1.0 me\n")
    Path("foreign.run").write_text("q1 Q0 m1 1 1.0 me\n")
    Path("nan.run").write_text("q1 Q0 d1 1 nan me\n")
    Path("twice.run").write_text("q1 Q0 d1 1 2.0 me\nq1 Q0 d1 2 1.0 me\n")
    Path("huge.qrels").write_text("q1 0 d1 99999999999999999999999\n")
    Path("endless.qrels").write_text(f"q1 0 d1 {'9' * 5000}\n")
    Path("endless.run").write_text(f"q1\td1\t{'9' * 5000}\n")
    Path("none.qrels").write_text("q1 0 d1 0\nq2 0 d5 -1\n")
    Path("words.qrels").write_text("q1 0 d1 yes\n")
    code, out, err = call(*arguments, "--workdir=w")
    assert code == 2 and out == ""
    assert err.startswith("error: ") and said in err and err.count("\n") == 1
    assert not Path("w/manifest.json").exists()


def test_bad_rows_are_skipped_and_counted_on_request(call):
    Path("c.run").write_text(RUN + "q1 Q0 dx 1 nan me\n")
    code, _, err = call(*files("c.run"), "--config.on_bad_row=skip", "--workdir=w")
    assert code == 0, err
    assert json.loads(Path("w/manifest.json").read_text())["skipped_rows"] == {"bad score": 1}


def test_a_run_is_judged_by_a_data_set(call):
    """As by the same judgments in a file, and with the texts of its queries."""
    assert call(*files(), "--workdir=file")[0] == 0
    Path("data/qrels").mkdir(parents=True)
    Path("data/corpus.jsonl").write_text("".join(json.dumps({"_id": f"d{n}", "text": "some"}) + "\n" for n in range(1, 10)))
    Path("data/queries.jsonl").write_text("".join(json.dumps({"_id": f"q{n}", "text": f"about {n}"}) + "\n" for n in range(1, 5)))
    rows = [line.split() for line in QRELS.splitlines()]
    Path("data/qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(f"{q}\t{d}\t{grade}\n" for q, _, d, grade in rows))
    code, _, err = call("--config.run=a.run", "--config.dataset=beir:data", "--workdir=w")
    assert code == 0, err
    by_file, by_data = (json.loads(Path(name, "metrics.json").read_text()) for name in ("file", "w"))
    assert all(by_data[measure] == by_file[measure] for measure in ("RR@10", "nDCG@10", "R@100", "queries"))
    assert "about 1" in Path("w/per_query.jsonl").read_text() and Path("w/run.trec").exists()


def test_the_command_of_the_readme_needs_no_jax(tmp_path):
    (tmp_path / "a.run").write_text(RUN)
    (tmp_path / "a.qrels").write_text(QRELS)
    code = f"""
import sys, runpy
sys.argv = ["evaluate.py", *sys.argv[2:]]
try:
    runpy.run_path({str(ROOT / "launch" / "evaluate.py")!r}, run_name="__main__")
except SystemExit as end:
    assert end.code == 0
assert "jax" not in sys.modules
"""
    arguments = ["--config", CARD, *files(), "--config.measures=RR@10,nDCG@10,R@100"]
    done = subprocess.run([sys.executable, "-c", code, "--", *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["metrics"]["RR@10"] == pytest.approx(0.5)


def test_a_baseline_that_was_changed_is_refused(call):
    assert call(*files(), "--workdir=base")[0] == 0
    path = Path("base/per_query.jsonl")
    path.write_text(path.read_text().replace("0.5", "0.25"))
    code, _, err = call(*files(), "--config.baseline=base", "--workdir=w")
    assert code == 2 and "per_query.jsonl was changed" in err

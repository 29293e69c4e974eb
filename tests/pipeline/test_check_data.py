"""The stage check_data, as a user calls it, and its parts against plain loops."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from denseir_jax.core.command import execute, run_command
from denseir_jax.core.config import parse
from denseir_jax.data.examples import Example, write_examples
from denseir_jax.data.findings import Findings
from denseir_jax.data.records import Passage
from denseir_jax.data.template import TextTemplate
from denseir_jax.data.tokenizer import load_tokenizer
from denseir_jax.models import bert
from denseir_jax.models.sizes import encoder
from denseir_jax.pipeline.checks import judged, passages, plan
from denseir_jax.pipeline.stages import prepare
from denseir_jax.pipeline.stages.check_data import CheckConfig, stage
from denseir_jax.pipeline.stages.finetune import FinetuneConfig

ROOT = Path(__file__).parents[2]
CARD = ROOT / "configs" / "check_data.py"
HEADER = "query-id\tcorpus-id\tscore\n"
GOOD = {
    "corpus.jsonl": b'{"_id": "d1", "title": "One", "text": "a first text"}\n{"_id": "d2", "text": "the second"}\n',
    "queries.jsonl": b'{"_id": "q1", "text": "first"}\n{"_id": "q2", "text": "second"}\n',
    "qrels/train.tsv": (HEADER + "q1\td1\t1\n").encode(),
    "qrels/test.tsv": (HEADER + "q2\td2\t1\n").encode(),
}
BAD = {
    "corpus.jsonl": "\n".join(
        [
            '{"_id": "d0", "title": "Mercury", "text": "Mercury is the planet closest to the sun."}',
            '{"_id": "d1", "text": "Venus is the second planet from the sun."}',
            '{"_id": "d1", "text": "Venus again."}',
            '{"_id": "d2", "text": "Caf\udce9"}',
            '{"_id": "d3", "text": "Das CafÃ© am Fluss"}',
            '{"_id": "d4", "text": "lost \ufffd letter"}',
            '{"_id": "d5", "text": ""}',
            '{"_id": "d6", "text": "MERCURY  is the planet closest to the sun."}',
            "",
            '{"_id": "d8", "text": "Earth is the third planet."}',
        ]
    ).encode("utf-8", "surrogateescape"),
    "queries.jsonl": b"".join(
        b'{"_id": "%s", "text": "%s"}\n' % row
        for row in [(b"q0", b"closest planet"), (b"q1", b"second planet"), (b"q2", b"third"), (b"q3", b" "), (b"q4", b"Closest  planet")]
    ),
    "qrels/train.tsv": (HEADER + "q0\td0\t1\nq1\td1\t1\nq1\td8\t2\nq2\td99\t1\nq2\td98\t0\nq7\td0\t1\nq4\td5\t0\n").encode(),
    "qrels/test.tsv": (HEADER + "q4\td0\t1\nq4\td0\t1\nq2\td8\tone\n").encode(),
}


def write(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*arguments, size="smoke"):
        code = run_command(stage, ["check_data", "--config", f"{CARD}:{size}", "--config.plan.group_size=2", *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def kinds(workdir="w", fault=True):
    report = json.loads(Path(workdir, "report.json").read_text())
    return {found["what"]: (found["count"], found["first"]) for found in report["findings"] if found["fault"] == fault}


def test_good_data(call):
    write(Path("data"), GOOD)
    code, out, err = call("--config.dataset=beir:data")
    assert (code, err) == (0, "")
    assert out.startswith("beir:data holds 2 passages\n") and "0 kinds of fault, 0 kinds of warning: nothing here stops training" in out
    last = json.loads(out.splitlines()[-1])
    assert last["metrics"] == {"faults": 0, "warnings": 0, "passages": 2, "rows": 1}
    again = call("--config.dataset=beir:data")
    assert "already finished" in again[2] and again[1].splitlines()[:-1] == out.splitlines()[:-1]
    write(Path("data"), {"corpus.jsonl": GOOD["corpus.jsonl"].replace(b"d2", b"d3")})
    code, out, _ = call("--config.dataset=beir:data")  # another content is another folder
    assert code == 2 and "FAULT 1 x relevant passage of test that the corpus lacks; first: passage 'd2' of query 'q2'" in out
    assert len(list(Path("runs").iterdir())) == 2


def test_a_corpus_too_small_for_a_group(call):
    write(Path("data"), GOOD)
    assert call("--config.dataset=beir:data", "--config.plan.group_size=3", "--workdir=w")[0] == 2
    first = "2 different texts; a query with its positives and negatives needs 3"
    assert kinds() == {"corpus too small for groups": (1, first)}


def test_every_fault_at_once(call):
    write(Path("data"), BAD)
    code, out, err = call("--config.dataset=beir:data", "--workdir=w")
    assert code == 2 and err.splitlines()[-1] == "error: beir:data: 7 kinds of fault, 7 in all, listed in " + str(
        Path("w/report.txt").absolute()
    )
    assert kinds() == {
        "duplicate id": (1, "data/corpus.jsonl:3: 'd1'; expected every id once"),
        "not UTF-8": (1, "data/corpus.jsonl:4: (byte 0xe9 at column 27); expected text in UTF-8"),
        "empty query": (1, "data/queries.jsonl:4; expected text"),
        "relevance is not an integer": (1, "data/qrels/test.tsv:4: 'one'; expected an integer"),
        "query judged in train that has no text": (1, "query 'q7'"),
        "query in train without a relevant passage": (1, "query 'q4'"),
        "relevant passage of train that the corpus lacks": (1, "passage 'd99' of query 'q2'"),
    }
    assert kinds(fault=False) == {
        "blank line": (1, "data/corpus.jsonl"),
        "judgment repeated": (1, "data/qrels/test.tsv"),
        "text that looks like UTF-8 read as Latin-1": (1, "data/corpus.jsonl:5 (passage 'd3'): 'Ã©'"),
        "text with replacement characters (U+FFFD)": (1, "data/corpus.jsonl:6 (passage 'd4')"),
        "passage without text": (1, "data/corpus.jsonl:7 (passage 'd5')"),
        "passage with the text of an earlier one": (1, "'d6' has the text of 'd0'"),
        "passage judged not relevant in train that the corpus lacks": (1, "passage 'd98' of query 'q2'"),
        "query in train with the text of an earlier one": (1, "train: query 'q4' has the text of 'q0'"),
        "query text of test that is in train too": (1, "test: query 'q4' has the text of train: 'q0'"),
    }
    assert out == Path("w/report.txt").read_text() and "do not train on this yet" in out  # and no line of JSON
    for what, (count, first) in kinds().items():
        assert f"FAULT {count} x {what}; first: {first}\n" in out
    assert not Path("w/manifest.json").exists()
    assert call("--config.dataset=beir:data", "--workdir=w")[0] == 2  # and not "already finished"


def test_rows_that_will_be_skipped_do_not_stop_training(call):
    write(Path("data"), {**GOOD, "corpus.jsonl": GOOD["corpus.jsonl"] + b"not json\n"})
    assert call("--config.dataset=beir:data", "--workdir=a")[0] == 2
    assert call("--config.dataset=beir:data", "--config.on_bad_row=skip", "--workdir=b")[0] == 0
    assert list(kinds("a")) == list(kinds("b", fault=False)) == ["not JSON"]


def test_a_training_set_is_held_against_corpus_and_judgments(call):
    write(Path("data"), BAD)
    rows = [
        {"query_id": "q0", "query": "closest planet", "positives": ["d0"], "negatives": {"bm25": ["d6", "d1", "d77"]}},
        {"query_id": "q1", "query": "second planet", "positives": ["d1"], "negatives": {"bm25": ["d1"]}},
        {"query_id": "q1", "query": "second planet", "positives": ["d1"], "negatives": {"bm25": ["d8", "d77"], "mined": ["d0"]}},
        {"query_id": "q5", "query": "cafÃ©", "positives": ["d3", "d66"], "negatives": {}},
        {"query_id": "q9", "query": "nothing", "positives": [], "negatives": {}},
    ]
    Path("t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, _ = call("--config.dataset=beir:data", "--config.training_set=t.jsonl", "--workdir=w")
    assert code == 2
    found = kinds()
    assert found["positive among the negatives"] == (1, "t.jsonl:2: 'd1' in negatives.bm25; expected ids that are not in positives")
    assert found["query without positives"] == (1, "t.jsonl:5: 'q9'; expected at least one")
    assert found["negative with the text of a positive"] == (1, "t.jsonl:1 (query 'q0'): 'd6' in bm25")
    assert found["negative that the judgments call relevant"] == (1, "t.jsonl:3 (query 'q1'): 'd8' in bm25")
    assert found["passage of the training set that the corpus lacks"] == (2, "t.jsonl:1 (query 'q0'): 'd77'")  # d77, d66
    warnings = kinds(fault=False)
    assert warnings["text that looks like UTF-8 read as Latin-1"][0] == 2
    assert warnings["query text of test that is in training set too"][0] == 1
    assert warnings["query of the training set without negatives"][0] == 1
    assert "query in train without a relevant passage" in warnings  # nothing is learnt from that split now
    assert "training set: 3 queries with a text, 3 with a positive in the corpus, 5 negatives bm25, 1 negatives mined" in out


def test_a_broken_corpus_does_not_hide_the_rest(call):
    damaged = gzip.compress(GOOD["corpus.jsonl"])[:-5]
    write(Path("data"), {**GOOD, "corpus.jsonl.gz": damaged, "qrels/dev.tsv": b"q1 d1\n"})
    Path("data/corpus.jsonl").unlink()
    code, _, _ = call("--config.dataset=beir:data", "--workdir=w")
    assert code == 2
    count, first = kinds()["source that cannot be read"]
    assert count == 2 and first.startswith("data/corpus.jsonl.gz is damaged")  # and dev.tsv holds no judgment
    assert kinds()["wrong number of columns"][1].startswith("data/qrels/dev.tsv:1: 2; expected")


def test_what_is_missing_altogether(call):
    write(Path("data"), {"corpus.jsonl": b'{"_id": "a", "text": ""}\n', "qrels/test.tsv": b"q1 0 a 1\n"})
    code, out, _ = call("--config.dataset=beir:data", "--workdir=w")
    assert code == 2 and set(kinds()) == {"corpus of empty texts", "source that cannot be read"}
    assert "data holds no queries.jsonl" in kinds()["source that cannot be read"][1]
    assert "split 'train' missing" in kinds(fault=False) and "  rows " not in out
    for arguments, message in (
        ((), "nothing to check"),
        (("--config.corpus=jsonl:x", "--config.training_set=t"), "held against config.dataset"),
        (("--config.dataset=beir:nowhere",), "nowhere does not exist"),
        (("--config.dataset=beir:data", "--config.tokens=a", "--config.tokenizer=b"), "both given"),
        (("--config.dataset=beir:data", "--config.plan.rows_per_second=-1.0"), "rows_per_second"),
    ):
        code, _, err = call(*arguments)
        assert code == 2 and message in err and len(err.splitlines()) == 1


def test_tokens_and_what_is_cut(call, tmp_path):
    write(Path("data"), GOOD)
    texts = [f"passage number {i} " + "word " * (i % 40) for i in range(200)]
    Path("data/corpus.jsonl").write_text("".join(json.dumps({"_id": f"d{i}", "text": t}) + "\n" for i, t in enumerate(texts)))
    template = TextTemplate(query_length=4, passage_length=20, query_prefix="query: ", passage_prefix="passage: ")
    execute(prepare.stage, prepare.PrepareConfig(corpus="beir:data", vocab_size=300, workers=1, template=template), tmp_path / "tokens")
    code, out, _ = call("--config.dataset=beir:data", "--config.tokens=tokens", "--workdir=w")
    assert code == 0, out
    report = json.loads(Path("w/report.json").read_text())
    tokenizer = load_tokenizer(tmp_path / "tokens")
    counts = [len(tokenizer.encode("passage: " + text).ids) + 2 for text in texts]
    found = report["corpus"]["tokens"]
    assert found["longest"] == max(counts) and found["limit"] == 20
    assert found["truncated"] == pytest.approx(np.mean([n > 20 for n in counts])) and f"{found['truncated']:.1%} cut at 20" in out
    assert report["splits"]["train"]["tokens"]["longest"] == len(tokenizer.encode("query: first").ids) + 2
    same = ("--config.tokenizer=tokens", "--config.template.passage_length=20", "--config.template.passage_prefix=passage: ")
    assert call("--config.dataset=beir:data", *same, "--workdir=w2")[0] == 0
    assert json.loads(Path("w2/report.json").read_text())["corpus"]["tokens"] == found  # counted here or read from the store
    with open("data/corpus.jsonl", "a") as stream:
        stream.write('{"_id": "new", "text": "x"}\n')
    assert call("--config.dataset=beir:data", "--config.tokens=tokens", "--workdir=w3")[0] == 2
    assert kinds("w3") == {"passage that the tokens lack": (1, "tokens: 200 documents")}


def test_standard_input_and_no_jax(tmp_path):
    """A corpus alone, from a pipe; JAX is not even imported."""
    code = (
        "import sys; from denseir_jax.core.command import run_command; from denseir_jax.pipeline.stages.check_data import stage\n"
        f"code = run_command(stage, ['x', '--config', {str(CARD)!r}, '--config.corpus=jsonl:-', '--workdir=w'])\n"
        "assert 'jax' not in sys.modules\nsys.exit(code)"
    )
    for text, expected in ((GOOD["corpus.jsonl"], 0), (GOOD["corpus.jsonl"] * 2, 2)):  # the second is not taken for the first
        done = subprocess.run([sys.executable, "-c", code], input=text, capture_output=True, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
        assert done.returncode == expected, done.stderr.decode()
    assert "FAULT 2 x duplicate id; first: standard input:3: 'd1'" in done.stdout.decode()


@pytest.mark.parametrize("size", ["smoke", "tiny", "small", "base"])
def test_the_card_has_the_numbers_of_fine_tuning(size):
    from test_cards import load

    check = parse(CheckConfig, load("check_data.py")(size))
    tuned = parse(FinetuneConfig, load("finetune/contrastive.py")(size))
    assert (check.plan.steps, check.plan.batch_size) == (tuned.steps, tuned.batch_size)
    assert (check.plan.group_size, check.plan.tied) == (tuned.objective.group_size, tuned.objective.tied)
    assert check.encoder == tuned.encoder and check.template == tuned.prepare.template


@pytest.mark.parametrize(("size", "vocabulary"), [("smoke", 1000), ("tiny", 30522), ("base", 30522)])
def test_parameters_are_those_of_the_encoder(size, vocabulary):
    config = encoder(size, vocabulary)
    ids, length = jax.ShapeDtypeStruct((1, 8), "int32"), jax.ShapeDtypeStruct((1,), "int32")
    made = jax.eval_shape(lambda ids, length: bert.Encoder(config).init(jax.random.key(0), ids, length), ids, length)
    assert plan.parameters(config) == sum(leaf.size for leaf in jax.tree.leaves(made))


def test_estimates_worked_by_hand():
    settings = plan.PlanConfig(steps=100, batch_size=32, group_size=8, tied=False, dimension=128, rows_per_second=64.0)
    found = {line.name: line for line in plan.lines(settings, encoder("tiny"), 1_000_000, 1600)}
    assert (found["rows"].value, found["steps an epoch"].value, found["texts a step"].value) == (1600, 50, 288)
    assert "100 steps are 2.0 epochs" in found["texts a step"].formula
    assert found["vectors on disk"].value == 256e6 and found["exact index"].value == 512e6
    assert found["ScaNN index"].value == 512e6 + 32e6 + 1000 * 128 * 4
    assert found["training time"].shown == "50s"
    assert found["training state"].value == 2 * 16 * plan.parameters(encoder("tiny"))
    assert {name for name, line in found.items() if line.exact} == {"rows", "steps an epoch", "texts a step", "parameters"}


IDS, TEXTS = st.sampled_from([f"p{i}" for i in range(8)]), st.sampled_from(["one", "ONE ", "two", "thrée", "", " "])


class InMemory:
    splits, attribution = ("train",), ""

    def __init__(self, texts, qrels):
        self._texts, self._qrels = texts, qrels

    def queries(self, split):
        return {query: text for query, text in self._texts.items() if query in self._qrels}

    def qrels(self, split):
        return self._qrels

    def corpus(self):
        return iter(())


FAST = {"deadline": None, "phases": (Phase.explicit, Phase.reuse, Phase.generate)}  # to shrink such draws takes minutes


@settings(max_examples=40, **FAST)
@given(
    st.dictionaries(IDS, TEXTS),
    st.dictionaries(st.sampled_from("abcd"), st.sampled_from(["x", "y", "Y"])),
    st.dictionaries(st.sampled_from("abcde"), st.dictionaries(IDS, st.integers(-1, 2), min_size=1), min_size=1),
)
def test_judgments_against_plain_loops(corpus, texts, qrels):
    findings = Findings()
    table = passages.read((Passage(id, text) for id, text in corpus.items()), findings, TextTemplate(), None)
    assert [table.name(row) for row in range(len(table))] == list(corpus)
    queries, _ = judged.read_split(findings, InMemory(texts, qrels), "train", table, TextTemplate(), None, True, set())
    counts = {found.what: found.count for found in findings.all()}
    plain = [text.strip().lower() for text in corpus.values()]
    lost = {p for judged_ in qrels.values() for p, grade in judged_.items() if grade > 0 and p not in corpus}
    assert counts.get("relevant passage of train that the corpus lacks", 0) == len(lost)
    assert counts.get("query judged in train that has no text", 0) == sum(q not in texts for q in qrels)
    assert counts.get("query in train without a relevant passage", 0) == sum(max(j.values()) <= 0 for j in qrels.values())
    assert counts.get("passage without text", 0) == plain.count("")
    filled = [text for text in plain if text]
    assert counts.get("passage with the text of an earlier one", 0) == len(filled) - len(set(filled))
    assert queries.usable == sum(q in texts and any(g > 0 and p in corpus for p, g in j.items()) for q, j in qrels.items())


@settings(max_examples=30, **FAST)
@given(st.dictionaries(IDS, TEXTS, min_size=1), st.data())
def test_negatives_against_plain_loops(tmp_path_factory, corpus, data):
    pools = [data.draw(st.lists(IDS, unique=True, min_size=1)) for _ in range(data.draw(st.integers(1, 4)))]
    examples = [Example(f"q{i}", "text", (ids[0],), {"bm25": tuple(ids[1:])}) for i, ids in enumerate(pools)]
    qrels = {f"q{i}": {data.draw(IDS): 1} for i in range(2)}
    path = tmp_path_factory.mktemp("set") / "t.jsonl"
    write_examples(path, examples)
    findings = Findings()
    table = passages.read((Passage(id, text) for id, text in corpus.items()), Findings(), TextTemplate(), None)
    queries, facts = judged.read_training_set(findings, path, table, qrels, TextTemplate(), None, set())
    relevant = same = 0
    for example in examples:
        known = {*example.positives, *qrels.get(example.query_id, ())}
        texts = {corpus[id].strip().lower() for id in known if id in corpus} - {""}
        for id in example.negatives["bm25"]:
            if id in corpus:
                relevant += id in known
                same += id not in known and corpus[id].strip().lower() in texts
    counts = {found.what: found.count for found in findings.all()}
    assert counts.get("negative that the judgments call relevant", 0) == relevant
    assert counts.get("negative with the text of a positive", 0) == same
    assert counts.get("passage of the training set that the corpus lacks", 0) == len({id for ids in pools for id in ids} - set(corpus))
    assert queries.usable == sum(ids[0] in corpus for ids in pools)
    assert facts["negatives"] == {"bm25": sum(len(ids) - 1 for ids in pools)}

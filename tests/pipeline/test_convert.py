"""What is written for other tools is what our readers of their formats give back."""

import json
import shutil
from pathlib import Path

import pytest

from denseir_jax.core.artifacts import Run
from denseir_jax.core.command import execute
from denseir_jax.core.errors import ConfigError, InputError
from denseir_jax.data.examples import TRAINING_SET, Example, write_examples
from denseir_jax.data.lines import BadRows
from denseir_jax.data.results import read_results
from denseir_jax.data.sources import read_dataset
from denseir_jax.data.teacher_scores import TEACHER_SCORES, write_teacher_scores
from denseir_jax.data.trec import write_run
from denseir_jax.pipeline.stages.convert import ConvertConfig, stage

EXAMPLES = [
    Example("q1", "closest planet?", ("p1", "p4"), {"bm25": ("p2",), "mined": ("p3", "p2")}),
    Example("q2", 'the "red" one', ("p2",), {"bm25": ("p1",)}),
]


@pytest.fixture
def source(tmp_path) -> Path:
    """A BEIR folder with titles, quotes, a tab, a line end, several positives, a judged irrelevant passage."""
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    passages = [("p1", "", "Mercury\tis close."), ("p2", "Mars", 'The "red" planet.'), ("p3", "", "Wenn’s\nregnet"), ("p4", "", "Merkur")]
    rows = ({"_id": id, "title": title, "text": text} for id, title, text in passages)
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = ({"_id": e.query_id, "text": e.query} for e in EXAMPLES)
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    for split in ("train", "test"):
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tp1\t1\nq1\tp4\t2\nq1\tp3\t0\nq2\tp2\t1\n")
    (tmp_path / "taught").mkdir()
    write_examples(tmp_path / "taught" / TRAINING_SET, EXAMPLES)
    pairs = [
        (e.query_id, id) for e in EXAMPLES for id in dict.fromkeys([*e.positives, *(i for pool in e.negatives.values() for i in pool)])
    ]
    write_teacher_scores(tmp_path / "taught" / TEACHER_SCORES, ((query, id, 0.5 * place) for place, (query, id) in enumerate(pairs)))
    return folder


def convert(source: Path, to: str, training: bool = False, **settings) -> tuple[Path, dict]:
    taught = {"training_set": str(source.parent / "taught" / TRAINING_SET)} if training else {}
    workdir = source.parent / f"as_{to}"
    metrics = execute(stage, ConvertConfig(dataset=f"beir:{source}", to=to, **taught, **settings), workdir)
    return workdir / "data", metrics


@pytest.mark.parametrize("to", ["beir", "tsv"])
def test_a_folder_comes_back_as_it_was(source, to):
    folder, metrics = convert(source, to)
    before, after = (read_dataset(text, BadRows("error")) for text in (f"beir:{source}", f"{to}:{folder}"))
    assert after.splits == before.splits == ("train", "test")
    for split in after.splits:
        assert after.queries(split) == before.queries(split) and after.qrels(split) == before.qrels(split)
    spaced = [(p.id, p.title, " ".join(p.text.split()) if to == "tsv" else p.text) for p in before.corpus()]
    assert [(p.id, p.title, p.text) for p in after.corpus()] == spaced
    assert metrics["changed"] == ({"tabs and line ends written as spaces": 2} if to == "tsv" else {})


def test_triples_pair_every_positive_with_every_negative(source):
    folder, _ = convert(source, "tsv", training=True)
    lines = [line.split("\t") for line in (folder / "qidpidtriples.train.tsv").read_text().splitlines()]
    assert lines == [["q1", "p1", "p2"], ["q1", "p1", "p3"], ["q1", "p4", "p2"], ["q1", "p4", "p3"], ["q2", "p2", "p1"]]
    found = {e.query_id: e.negatives for e in read_dataset(f"tsv:{folder}", BadRows("error")).examples("train")}
    assert found == {"q1": {"triples": ("p2", "p3")}, "q2": {"triples": ("p1",)}}


@pytest.mark.parametrize("to", ["flag_embedding", "tevatron", "dpr"])
def test_rows_come_back_with_their_texts(source, to):
    folder, metrics = convert(source, to, training=True)
    assert metrics["examples"] == 2 and metrics["files"] == ["train.jsonl"] and not metrics["changed"]
    found = read_dataset(f"{to}:{folder}", BadRows("error"))
    texts = {p.id: " ".join(part for part in (p.title, p.text) if part) for p in found.corpus()}
    true = {p.id: " ".join(part for part in (p.title, p.text) if part) for p in read_dataset(f"beir:{source}", BadRows("error")).corpus()}
    for example, back in zip(EXAMPLES, found.examples("train"), strict=True):
        assert back.query == example.query and [texts[id] for id in back.positives] == [true[id] for id in example.positives]
        negatives = list(dict.fromkeys(id for pool in example.negatives.values() for id in pool))
        assert [texts[id] for pool in back.negatives.values() for id in pool] == [true[id] for id in negatives]
    if to == "flag_embedding":
        assert [score for _, _, score in found.scores("train")] == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    else:
        assert set(texts) <= set(true)


def test_without_a_training_set_positives_alone_are_rows(source):
    folder, _ = convert(source, "tevatron")
    rows = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()]
    assert [[one["docid"] for one in row["positive_passages"]] for row in rows] == [["p1", "p4"], ["p2"]]
    assert all(row["negative_passages"] == [] for row in rows) and (folder / "train.jsonl").exists()


def test_a_row_with_an_unknown_score_is_written_without_and_counted(source):
    write_teacher_scores(source.parent / "taught" / TEACHER_SCORES, [("q2", "p2", 1.0), ("q2", "p1", -1.0)])
    folder, metrics = convert(source, "flag_embedding", training=True)
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    assert "pos_scores" not in rows[0] and rows[1]["pos_scores"] == [1.0] and rows[1]["neg_scores"] == [-1.0]
    assert list(metrics["changed"].values()) == [1]


@pytest.mark.parametrize("score", ["NaN", '"abc"', "null"])
def test_a_score_that_is_no_number_is_named_by_its_line(source, score):
    file = source.parent / "taught" / TEACHER_SCORES
    file.write_text(file.read_text().replace('"score": 1.0}', f'"score": {score}}}'))
    with pytest.raises(InputError, match=r"teacher_scores\.jsonl:3: score is not a finite number"):
        convert(source, "flag_embedding", training=True)


def test_scores_changed_after_their_run_are_refused(source):
    folder = source.parent / "taught"
    run = Run(source.parent / "run", "teach", ConvertConfig()).open({})
    for name in (TRAINING_SET, TEACHER_SCORES):
        shutil.copy(folder / name, run.path)
    run.finish({}, outputs=[TRAINING_SET, TEACHER_SCORES])
    run.close()
    config = ConvertConfig(dataset=f"beir:{source}", to="flag_embedding", training_set=str(run.path))
    assert execute(stage, config, source.parent / "before")["examples"] == 2
    write_teacher_scores(run.path / TEACHER_SCORES, [("q2", "p2", 1.0)])
    with pytest.raises(InputError, match="was changed after its run had finished"):
        execute(stage, config, source.parent / "after")


@pytest.mark.parametrize("layout", ["dpr_results", "pyserini_results"])
def test_what_a_run_retrieved_comes_back_with_texts_and_answers(source, layout):
    rows = [{"question": "closest planet?", "answers": ["Mercury"], "positive_ctxs": [], "hard_negative_ctxs": []}]
    rows[0]["positive_ctxs"] = [{"title": "Planets", "text": "Mercury is close.", "passage_id": "a"}]
    rows[0]["hard_negative_ctxs"] = [{"title": "Mercury", "text": "A god, and a metal.", "passage_id": "b"}]
    file = source.parent / "nq.json"
    file.write_text(json.dumps(rows))
    query = next(iter(read_dataset(f"dpr:{file}", BadRows("error")).queries("train")))
    write_run(source.parent / "some.run", {query: [("b", 2.0), ("a", 1.5)]})
    config = ConvertConfig(dataset=f"dpr:{file}", to=layout, run=str(source.parent / "some.run"))
    metrics = execute(stage, config, source.parent / layout)
    assert metrics["questions"] == metrics["with_answers"] == 1
    (found,) = read_results(str(source.parent / layout / "data" / "train.json"))
    assert [(c.passage.id, c.score, c.has_answer) for c in found.contexts] == [("b", 2.0, False), ("a", 1.5, True)]
    assert found.contexts[0].passage.title == "Mercury" and found.answers == ("Mercury",)
    with pytest.raises(ConfigError, match="they need one"):
        execute(stage, ConvertConfig(dataset=f"dpr:{file}", to=layout), source.parent / "without")


def test_what_cannot_be_written_is_one_line_and_leaves_nothing(source):
    with pytest.raises(ConfigError, match=r"config\.dataset is empty"):
        execute(stage, ConvertConfig(), source.parent / "nothing")
    with pytest.raises(InputError, match="no place for negatives"):
        convert(source, "beir", training=True)
    write_examples(source.parent / "taught" / TRAINING_SET, [Example("q1", "closest planet?", ("p9",))])
    with pytest.raises(InputError, match="'p9', which the corpus lacks"):
        convert(source, "dpr", training=True)
    with (source / "qrels" / "test.tsv").open("a") as stream:
        stream.write("q2\tp8\t1\n")
    with pytest.raises(InputError, match=r"a judgment of beir:.* names the passage 'p8', which the corpus lacks"):
        convert(source, "tevatron")
    assert not (source.parent / "as_beir" / "data").exists() and not (source.parent / "as_dpr" / "data").exists()

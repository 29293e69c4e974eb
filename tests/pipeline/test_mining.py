"""Mining as a user runs it: answers, a cross-encoder's judgment, queries without judgments, calibration, the audit file.

A passage's probability is written in its text ("grade07" is 0.07), so what must be kept can be read off.
"""

import functools
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from denseir_jax.core.artifacts import Run
from denseir_jax.core.command import execute, run_command
from denseir_jax.core.console import Meter
from denseir_jax.core.errors import InputError
from denseir_jax.data.examples import Example, read_examples
from denseir_jax.data.lines import BadRows
from denseir_jax.data.records import Passage
from denseir_jax.data.template import TextTemplate
from denseir_jax.data.wordpiece import train_wordpiece
from denseir_jax.evals.answers import has_answer
from denseir_jax.models.cross_encoder import CrossEncoder
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.pipeline.mining import scoring
from denseir_jax.pipeline.stages import mine
from denseir_jax.search import denoise
from denseir_jax.search.denoise import DenoiseConfig
from denseir_jax.search.reranker import FOLDER, load_reranker, save_reranker

ROOT = Path(__file__).resolve().parents[2]
TOPICS, EACH = 8, 12


class Grades:
    """A cross-encoder that reads the probability in the text. It keeps what it was asked."""

    sha256 = "f" * 64
    facts: ClassVar = {"kind": "grades"}

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.left: int | None = None  # pairs until it breaks off

    def score(self, pairs: Sequence[tuple[str, Passage]], meter: Meter | None = None) -> np.ndarray:
        if self.left is not None:
            self.left -= len(pairs)
            if self.left < 0:
                raise KeyboardInterrupt
        self.asked += [(query, passage.id) for query, passage in pairs]
        return np.array([logit(passage.text) for _, passage in pairs], np.float32)

    def probability(self, scores: np.ndarray) -> np.ndarray:
        return (1 / (1 + np.exp(-scores.astype(np.float64)))).astype(np.float32)


def logit(text: str) -> float:
    found = re.search(r"grade(\d\d)", text)
    p = (int(found[1]) if found else 50) / 100
    return math.log(p / (1 - p))


def grade(passage: dict[str, str]) -> float:
    return int(passage["text"].split("grade")[1][:2]) / 100


def write_dataset(folder: Path) -> None:
    """8 topics of 12 passages; queries name a topic. Topics 0-3 are judged in train, 4 and 5 in dev; nobody judged 6 and 7.

    Passage t_i tells of "topic t"; t_0 is the judged one (grade 97, but 04 in topic 5). Grades of the others differ. Passages 2
    and 5 of each topic hold the answer "1,000 men", passage 3 has it in its title, 8 is 7 again with capitals.
    """
    grades = [97, 5, 60, 2, 95, 8, 3, 40, 40, 7, 91, 1]
    rows = []
    for topic in range(TOPICS):
        for i in range(EACH):
            g = 4 if (topic, i) == (5, 0) else 30 if topic == 7 else grades[i]
            men = "with 1 , 000 Men" if i in (2, 5) else ""
            words = f"topic{topic} grade{g:02d} filler{min(i, 7) if i < 9 else i} {'x ' * min(i, 7 if i < 9 else i)}{men}"
            rows.append(
                {"_id": f"{topic}_{i}", "title": "1,000 men" if i == 3 else "", "text": words.replace("x", "X") if i == 8 else words}
            )
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "queries.jsonl").write_text("".join(json.dumps({"_id": f"q{t}", "text": f"topic{t}"}) + "\n" for t in range(6)))
    (folder / "qrels").mkdir()
    for split, topics in (("train", range(4)), ("dev", (4, 5))):
        lines = "".join(f"q{t}\t{t}_0\t1\n" for t in topics)
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + lines)
    (folder / "unlabelled.tsv").write_text("u6\ttopic6\nu7\ttopic7\n")
    (folder / "questions.csv").write_text("".join(f"topic{t}\t['1,000 men']\n" for t in (0, 1, 2, 3, 6)) + "nothing\t['no']\n")
    (folder / "ce").mkdir()
    (folder / "ce" / "config.json").write_text("{}")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("beir")
    write_dataset(folder)
    return folder


@pytest.fixture
def grades(monkeypatch: pytest.MonkeyPatch) -> Grades:
    scorer = Grades()
    monkeypatch.setattr(scoring, "load_reranker", lambda origin, **more: scorer)
    return scorer


class Result:
    """What a run left."""

    def __init__(self, folder: Path, dataset: Path, **keys: Any):
        config = mine.MineConfig(dataset=f"beir:{dataset}", **{"depth": 12, "hi": 12, "n": 12, **keys})
        self.folder, self.metrics = folder, dict(execute(mine.stage, config, folder))
        self.examples: dict[str, Example] = {example.query_id: example for example in read_examples(folder / mine.TRAINING_SET, BadRows())}
        self.mined = {row["query_id"]: row for row in map(json.loads, (folder / mine.MINED).read_text().splitlines())}
        removed = map(json.loads, (folder / mine.REMOVED).read_text().splitlines())
        self.removed: dict[str, list[dict[str, Any]]] = {row["query_id"]: row["removed"] for row in removed}
        self.texts = {row["_id"]: row for row in map(json.loads, (dataset / "corpus.jsonl").read_text().splitlines())}

    def negatives(self, query: str) -> list[str]:
        """Numbers within their topic, in order."""
        return [name.split("_")[1] for name in next(iter(self.examples[query].negatives.values()))]

    def causes(self, query: str) -> dict[str, str]:
        return {item["id"].split("_")[1]: item["cause"] for item in self.removed[query]}


def ce(dataset: Path, **keys: Any) -> DenoiseConfig:
    return DenoiseConfig(reranker=f"hf:{dataset / 'ce'}", **keys)


def test_what_is_removed_is_listed_with_its_cause(dataset: Path, tmp_path: Path) -> None:
    found = Result(tmp_path / "run", dataset, questions=str(dataset / "questions.csv"), exclude_answers="string")
    assert (
        found.causes("q1")
        == {
            "0": "known positive by id",
            "2": "holds an answer",
            "5": "holds an answer",
            "8": "duplicate by text",
        }
        or found.causes("q1")["7"] == "duplicate by text"
    )
    assert (
        len(found.removed) == 4 and Counter(item["cause"] for line in found.removed.values() for item in line) == found.metrics["dropped"]
    )
    for query, example in found.examples.items():
        kept = [name for line in example.negatives.values() for name in line]
        assert len(kept) + len(found.removed[query]) == EACH and not set(kept) & {item["id"] for item in found.removed[query]}
        assert not any(has_answer(["1,000 men"], found.texts[name]["text"]) for name in kept)
        assert any(name.endswith("_3") for name in kept)  # its title is not looked at
        assert all(item["rank"] in range(EACH) and item["score"] > 0 and "probability" not in item for item in found.removed[query])


def test_titles_patterns_and_positives_by_answer(dataset: Path, tmp_path: Path) -> None:
    keys = {"questions": str(dataset / "questions.csv"), "answers_in_title": True, "positives_by_answer": True}
    found = Result(tmp_path / "run", dataset, exclude_answers="string", **keys)
    assert found.causes("q1")["3"] == "holds an answer"
    assert found.metrics["queries_asked"] == {"judged": 4, "by_answer": 2, "unlabelled": 0, "questions_not_used": 0}
    assert found.metrics["queries_dropped"] == {"no retrieved passage holds an answer": 1} and found.metrics["queries"] == 5
    (new,) = set(found.examples) - {f"q{t}" for t in range(4)}
    (positive,) = found.mined[new]["positives"]
    bearing = [item for item in found.removed[new] if item["cause"] == "holds an answer"]
    assert positive["why"] == "answer" and (positive["id"],) == found.examples[new].positives
    assert positive["rank"] < min(item["rank"] for item in bearing) and len(bearing) == 2
    pattern = Result(tmp_path / "pattern", dataset, exclude_answers="regex", questions=str(dataset / "questions.csv"))
    assert "holds an answer" not in pattern.metrics["dropped"]  # as a pattern "1,000 men" is in no text
    for keys in ({"exclude_answers": "string"}, {"exclude_answers": "regex", "split": "dev"}):
        with pytest.raises(InputError, match=r"gives no answers .* config\.questions"):
            Result(tmp_path / "none", dataset, **keys)


def test_a_data_set_brings_its_own_answers(tmp_path: Path) -> None:
    passages = [{"title": "T", "text": f"river {word}", "passage_id": f"p{i}"} for i, word in enumerate(("Nile", "Rhine", "the NILE"))]
    row = {
        "question": "longest river",
        "answers": ["Nile"],
        "positive_ctxs": passages[:1],
        "negative_ctxs": [],
        "hard_negative_ctxs": passages[1:],
    }
    (tmp_path / "train.json").write_text(json.dumps([row]))
    config = mine.MineConfig(dataset=f"dpr:{tmp_path / 'train.json'}", exclude_answers="string", depth=5, hi=5)
    metrics = execute(mine.stage, config, tmp_path / "run")
    assert metrics["dropped"] == {"known positive by id": 1, "holds an answer": 1} and metrics["negatives"] == {"bm25": 1}


def test_negatives_are_those_that_the_cross_encoder_denies(dataset: Path, tmp_path: Path, grades: Grades) -> None:
    found = Result(tmp_path / "run", dataset, denoise=ce(dataset))
    for t in range(4):
        expected = {str(i) for i in range(1, EACH) if grade(found.texts[f"{t}_{i}"]) < 0.1}
        assert set(found.negatives(f"q{t}")) == expected == {"1", "3", "5", "6", "9", "11"}
        for item in found.removed[f"q{t}"]:
            if item["cause"] == "not below keep_below of the cross-encoder":
                assert item["probability"] == pytest.approx(grade(found.texts[item["id"]])) and item["probability"] >= 0.1
        for item in found.mined[f"q{t}"]["negatives"]:
            assert item["probability"] == pytest.approx(grade(found.texts[item["id"]]), abs=1e-6)
    assert found.metrics["dropped"]["not below keep_below of the cross-encoder"] == 4 * 4  # 2, 4, 10, and one of the twins 7, 8
    assert found.metrics["pairs_scored"] == len(grades.asked) == len(set(grades.asked)) == 4 * 10
    assert ("topic1", "1_0") not in grades.asked  # what is known needs no judgment
    first = Result(tmp_path / "first", dataset, denoise=ce(dataset), n=3, take="first")
    ranks = {item["rank"] for item in first.mined["q2"]["negatives"]}
    every = sorted(item["rank"] for item in found.mined["q2"]["negatives"])
    assert ranks == set(every[:3]) and first.metrics["dropped"]["not drawn"] == 4 * 3


def test_positives_of_queries_that_nobody_judged(dataset: Path, tmp_path: Path, grades: Grades) -> None:
    found = Result(tmp_path / "run", dataset, denoise=ce(dataset), unlabelled=f"tsv:{dataset / 'unlabelled.tsv'}")
    assert found.examples["u6"].positives == ("6_0",) and found.mined["u6"]["positives"][0]["why"] == "cross-encoder"
    assert set(found.negatives("u6")) == {"1", "3", "5", "6", "9", "11"}
    assert "u7" not in found.examples and found.metrics["queries_dropped"] == {"no passage above positive_above": 1}
    assert found.metrics["positives_found"] == {"cross-encoder": 1} and found.metrics["queries"] == 5
    assert found.causes("u6")["4"] == "not below keep_below of the cross-encoder"  # 0.95 too, but the highest is taken
    strict = Result(tmp_path / "strict", dataset, denoise=ce(dataset, positive_above=0.98), unlabelled=f"tsv:{dataset / 'unlabelled.tsv'}")
    assert strict.metrics["queries_dropped"] == {"no passage above positive_above": 2}
    low = ce(dataset, keep_below=0.001)
    with_none = Result(tmp_path / "low", dataset, denoise=low, unlabelled=f"tsv:{dataset / 'unlabelled.tsv'}")
    assert with_none.metrics["queries_dropped"]["a positive was found, but no negative"] == 1
    assert with_none.metrics["queries_without_negatives"] == 4 and set(with_none.examples) == {"q0", "q1", "q2", "q3"}


def test_step_four_alone_beside_an_earlier_set(dataset: Path, tmp_path: Path, grades: Grades) -> None:
    first = Result(tmp_path / "first", dataset, denoise=ce(dataset), pool="denoised")
    keys = {"split": "", "unlabelled": f"tsv:{dataset / 'unlabelled.tsv'}", "training_set": str(tmp_path / "first"), "pool": "augmented"}
    second = Result(tmp_path / "second", dataset, denoise=ce(dataset), **keys)
    assert list(second.examples) == ["q0", "q1", "q2", "q3", "u6"] and second.metrics["negatives"] == {"augmented": 6, "denoised": 24}
    assert all(second.examples[name].negatives["denoised"] == first.examples[name].negatives["denoised"] for name in first.examples)
    (tmp_path / "clash.tsv").write_text("q1\tsomething else\n")
    for split in ("train", ""):
        with pytest.raises(InputError, match="the query id 'q1' is also one of"):
            Result(
                tmp_path / "clash", dataset, denoise=ce(dataset), **{**keys, "split": split, "unlabelled": f"tsv:{tmp_path / 'clash.tsv'}"}
            )


def test_a_query_with_the_text_of_a_judged_one_is_left_out(
    dataset: Path, tmp_path: Path, grades: Grades, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of this split, of another one, of the earlier set; but one that the earlier set has may come again."""
    (tmp_path / "first.tsv").write_text("u6\ttopic6\n")
    Result(tmp_path / "first", dataset, denoise=ce(dataset), unlabelled=f"tsv:{tmp_path / 'first.tsv'}")
    (tmp_path / "more.tsv").write_text("u1\t Topic1\nu4\tTOPIC4\nv6\ttopic6 \nu6\ttopic6\n")
    keys = {"unlabelled": f"tsv:{tmp_path / 'more.tsv'}", "training_set": str(tmp_path / "first"), "pool": "again"}
    found = Result(tmp_path / "again", dataset, denoise=ce(dataset), **keys)
    assert set(found.examples) == {"q0", "q1", "q2", "q3", "u6"}
    assert found.metrics["queries_dropped"] == {"the text is that of a judged query": 3}
    assert "3 queries without judgments are left out: the text is that of a judged query" in capsys.readouterr().err


def test_answers_that_exclude_nothing_are_said(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {"none": "something else\t['x']\n", "pattern": "topic1\t['(((']\ntopic2\t['grade']\n"}
    for name, row in rows.items():
        (tmp_path / name).write_text(row)
    found = Result(tmp_path / "a", dataset, exclude_answers="string", questions=str(tmp_path / "none"))
    assert found.metrics["queries_with_answers"] == 0 and "warning: 0 of 4 queries have answers" in capsys.readouterr().err
    found = Result(tmp_path / "b", dataset, exclude_answers="regex", questions=str(tmp_path / "pattern"))
    assert (found.metrics["queries_with_answers"], found.metrics["faulty_patterns"]) == (1, 1)
    said = capsys.readouterr().err
    assert (
        "mine: 1 of 4 queries have answers" in said and "warning: 1 answers are no pattern that compiles and are left out ('(((')" in said
    )


def test_what_nothing_can_be_mined_from_is_said(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    shutil.copytree(dataset, data)
    with (data / "qrels" / "train.tsv").open("a") as stream:
        stream.write("q0\tnone\t1\nnobody\t1_0\t1\n")
    with (data / "queries.jsonl").open("a") as stream:
        stream.write('{"_id": "q9", "text": " "}\n')
    found = Result(tmp_path / "dangling", data, on_bad_row="skip")
    assert found.metrics["judgments_dangling"] == 2 and found.metrics["skipped_rows"] == {"empty query": 1}
    assert json.loads((found.folder / "manifest.json").read_text())["skipped_rows"] == {"empty query": 1}
    said = capsys.readouterr().err
    assert "2 judgments are of a query without a text or a passage that the corpus lacks (nobody, none)" in said
    assert "mine: 1 x empty query" in said
    (data / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq0\tnone\t1\n")
    with pytest.raises(InputError, match="none of 1 queries is left to learn from \\(no positive in the corpus: 1\\)"):
        Result(tmp_path / "nothing", data, on_bad_row="skip")
    assert not [name for name in (mine.TRAINING_SET, mine.MINED, mine.REMOVED) if (tmp_path / "nothing" / name).exists()]


def test_more_positives_of_judged_queries_are_asked_for(dataset: Path, tmp_path: Path, grades: Grades) -> None:
    found = Result(tmp_path / "run", dataset, denoise=ce(dataset, more_positives=True))
    assert found.examples["q3"].positives[0] == "3_0" and set(found.examples["q3"].positives) == {"3_0", "3_4", "3_10"}
    assert found.metrics["positives_found"] == {"cross-encoder": 8}
    assert all(item["probability"] > 0.9 for item in found.mined["q3"]["positives"])


def test_a_fill_is_asked_for_counted_and_named(dataset: Path, tmp_path: Path, grades: Grades) -> None:
    short = Result(tmp_path / "short", dataset, denoise=ce(dataset), hi=6, n=5)
    assert short.metrics["queries_with_fewer"] == 4 and short.metrics["negatives_unchecked"] == 0
    filled = Result(tmp_path / "filled", dataset, denoise=ce(dataset, fill_to=12), hi=6, n=5)
    total = 0
    for query, row in filled.mined.items():
        checked = [item for item in row["negatives"] if "probability" in item]
        assert [item["id"] for item in checked] == [item["id"] for item in short.mined[query]["negatives"]]
        rest = [item for item in row["negatives"] if "probability" not in item]
        assert all(6 <= item["rank"] < 12 for item in rest) and [item["id"] for item in rest] == row["unchecked"]
        assert len(row["negatives"]) == 5
        total += len(rest)
    assert filled.metrics["negatives_unchecked"] == total > 0
    count = sum(filled.metrics["dropped"].values()) + sum(filled.metrics["negatives"].values())
    assert count == 4 * EACH and filled.metrics["pairs_scored"] == short.metrics["pairs_scored"]


def test_thresholds_from_a_split_with_a_report(dataset: Path, tmp_path: Path, grades: Grades, capsys: pytest.CaptureFixture[str]) -> None:
    targets = {"false_negative_rate": 0.0, "precision": 0.6}
    found = Result(tmp_path / "run", dataset, denoise=ce(dataset, calibrate_split="dev", **targets))
    report = json.loads((tmp_path / "run" / "calibration.json").read_text())
    assert report["counts"] == {"queries": 2, "positives": 2, "positives_retrieved": 2, "presumed_negatives": 20}
    assert report["keep_below"] == pytest.approx(0.04, abs=1e-6) and report["split"] == "dev" and "lower bound" in report["note"]
    assert report["positive_above"] == pytest.approx((0.97 + 0.95) / 2, abs=1e-6) and report["reached"]["precision"] == 1.0
    assert (tmp_path / "run" / "calibration.png").read_bytes().startswith(b"\x89PNG")
    assert set(found.negatives("q1")) == {"3", "6", "11"} and found.metrics["keep_below"] == report["keep_below"]
    assert "loses 0.0% of them" in capsys.readouterr().err
    lenient = Result(tmp_path / "half", dataset, denoise=ce(dataset, calibrate_split="dev", false_negative_rate=0.5, precision=0.1))
    assert lenient.metrics["keep_below"] <= lenient.metrics["positive_above"] < report["positive_above"]
    one = Result(tmp_path / "one", dataset, denoise=ce(dataset, calibrate_split="dev", calibrate_queries=1, precision=0.1))
    assert json.loads((one.folder / "calibration.json").read_text())["counts"]["queries"] == 1
    with pytest.raises(InputError, match="no split 'test'"):
        Result(tmp_path / "none", dataset, denoise=ce(dataset, calibrate_split="test"))


def test_a_precision_that_no_threshold_has_is_refused_where_it_matters(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Constant(Grades):
        def score(self, pairs: Sequence[tuple[str, Passage]], meter: Meter | None = None) -> np.ndarray:
            return np.zeros(len(pairs), np.float32)

    monkeypatch.setattr(scoring, "load_reranker", lambda origin, **more: Constant())
    config = ce(dataset, calibrate_split="dev")
    with pytest.raises(InputError, match=r"no threshold has a precision of 0\.9 .* the best has 0\.091"):
        Result(tmp_path / "run", dataset, denoise=config, unlabelled=f"tsv:{dataset / 'unlabelled.tsv'}")
    assert Result(tmp_path / "plain", dataset, denoise=config).metrics["queries_without_negatives"] == 4


def test_a_cross_encoder_that_gives_no_number_is_refused(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Grades):
        def score(self, pairs: Sequence[tuple[str, Passage]], meter: Meter | None = None) -> np.ndarray:
            return np.full(len(pairs), np.nan, np.float32)

    monkeypatch.setattr(scoring, "load_reranker", lambda origin, **more: Broken())
    with pytest.raises(InputError, match="the cross-encoder gives nan for query 'q0' and passage"):
        Result(tmp_path / "run", dataset, denoise=ce(dataset))
    assert not (tmp_path / "run" / mine.TRAINING_SET).exists()


def test_scores_that_were_given_before_a_kill_are_not_asked_for_again(
    dataset: Path, tmp_path: Path, grades: Grades, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(denoise, "score_pairs", functools.partial(denoise.score_pairs, shard=7))  # pairs a file
    keys = {"denoise": ce(dataset, calibrate_split="dev", precision=0.1), "unlabelled": f"tsv:{dataset / 'unlabelled.tsv'}"}
    Result(tmp_path / "whole", dataset, **keys)
    every, grades.asked, grades.left = grades.asked, [], 40
    with pytest.raises(KeyboardInterrupt):
        Result(tmp_path / "killed", dataset, **keys)
    assert len(grades.asked) == 36  # 7, 7, 7 and 1 of the calibration, then 7 and 7; with the next file it would be 43
    grades.left = None
    Result(tmp_path / "killed", dataset, **keys)
    assert grades.asked == every
    for name in (mine.TRAINING_SET, mine.MINED, mine.REMOVED, "metrics.json", "calibration.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes(), name


@pytest.fixture(scope="module")
def reranker(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a cross-encoder in it, of random weights."""
    folder = tmp_path_factory.mktemp("reranker")
    words = train_wordpiece([json.loads(line)["text"] for line in (dataset / "corpus.jsonl").read_text().splitlines()], 200, True)
    encoder = EncoderConfig(words.vocab_size, hidden=8, layers=1, heads=2, intermediate=12, max_length=64)
    model = CrossEncoder(encoder, words.sep_id, words.pad_id)
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    params = jax.tree.map(lambda leaf: rng.normal(scale=0.7, size=leaf.shape).astype(np.float32), shapes)
    run = Run(folder, "finetune", TextTemplate()).open({})
    save_reranker(folder, model, params, words, TextTemplate(query_length=8, passage_length=40), 40)
    run.finish({}, outputs=[FOLDER])
    return folder


def launched(folder: Path, words: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    words = [str(ROOT / "launch" / "mine.py"), f"--config={ROOT / 'configs' / 'mine.py'}:smoke", f"--workdir={folder}", *words]
    return subprocess.run([sys.executable, *words], env={**os.environ, **environment}, capture_output=True, text=True)


def test_a_true_cross_encoder_killed_and_started_again_under_another_hash_seed(dataset: Path, reranker: Path, tmp_path: Path) -> None:
    """On one device and on eight, too. The number of processes cannot matter: mining is the work of one of them."""
    assert not mine.stage.collective
    whole = Result(tmp_path / "whole", dataset, denoise=DenoiseConfig(reranker=f"run:{reranker}", keep_below=0.3), n=2, seed=5)
    words = [f"--config.dataset=beir:{dataset}", f"--config.denoise.reranker=run:{reranker}", "--config.denoise.keep_below=0.3"]
    words += ["--config.depth=12", "--config.hi=12", "--config.n=2", "--config.seed=5"]
    killed = launched(tmp_path / "killed", words, DENSEIR_FAILPOINT="pairs:1", PYTHONHASHSEED="1")
    assert killed.returncode == -9 and not (tmp_path / "killed" / mine.TRAINING_SET).exists()
    again = launched(tmp_path / "killed", words, PYTHONHASHSEED="4242")
    assert again.returncode == 0 and "40 pairs are scored already, 0 are left" in again.stderr, again.stderr
    # That process has one device and this one eight: probabilities agree to rounding, choices wholly.
    assert (tmp_path / "whole" / mine.TRAINING_SET).read_bytes() == (tmp_path / "killed" / mine.TRAINING_SET).read_bytes()
    for name in (mine.MINED, mine.REMOVED):
        one, two = (re.split(r"(0\.\d+)", (tmp_path / folder / name).read_text()) for folder in ("whole", "killed"))
        assert one[::2] == two[::2] and np.allclose(np.array(one[1::2], float), np.array(two[1::2], float), atol=1e-5)
    assert whole.metrics["dropped"]["not drawn"] > 0
    model = load_reranker(f"run:{reranker}")
    seen = [(query, item) for query, line in whole.removed.items() for item in line if "probability" in item]
    seen += [(query, item) for query, row in whole.mined.items() for item in row["negatives"]]
    passages = [Passage(item["id"], whole.texts[item["id"]]["text"], whole.texts[item["id"]]["title"]) for _, item in seen]
    expected = 1 / (1 + np.exp(-model.score([(f"topic{query[1]}", passage) for (query, _), passage in zip(seen, passages, strict=True)])))
    np.testing.assert_allclose([item["probability"] for _, item in seen], expected, atol=1e-5)
    assert all((item["probability"] < 0.3) == ("cause" not in item) for _, item in seen)


CALIBRATED = ["--config.denoise.calibrate_split=dev"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--config.denoise.reranker=run:/no/such"], "'run:/no/such': /no/such is not a folder"),
        (["--config.denoise.reranker=somewhere"], "expected run:DIR"),
        (["--config.denoise.keep_below=0.95"], "expected 0 < keep_below <= positive_above <= 1"),
        (["--config.denoise.fill_to=100"], "settings of denoise (fill_to) are about a cross-encoder; name it by reranker"),
        (["--config.denoise.keep_below=0.2"], "settings of denoise (keep_below) are about a cross-encoder; name it by reranker"),
        (["--config.denoise.reranker=hf:CE", "--config.denoise.precision=0.8"], "are found on calibrate_split; name a split"),
        (["--config.denoise.reranker=hf:CE", *CALIBRATED, "--config.denoise.keep_below=0.2"], "or are keep_below and positive_above"),
        (["--config.unlabelled=tsv:x"], "name it by denoise.reranker"),
        (["--config.denoise.reranker=hf:CE", "--config.unlabelled=csv:x"], "expected one of tsv:FILE, jsonl:FILE"),
        (["--config.denoise.reranker=hf:CE", "--config.unlabelled=tsv:/none"], "/none is no file"),
        (["--config.denoise.reranker=hf:CE", "--config.denoise.fill_to=5"], "must lie in (hi=20, depth=20], or be 0"),
        (["--config.positives_by_answer=True"], "need exclude_answers"),
        (["--config.exclude_answers=strings"], "did you mean 'string'"),
        (["--config.exclude_answers=string"], "gives no answers for exclude_answers=string"),
        (["--config.questions=EMPTY", "--config.exclude_answers=string"], "empty.csv gives no answers"),
        (["--config.batch_tokens=-5"], "batch_tokens=-5 must not be negative"),
        (["--config.denoise.reranker=hf:CE", "--config.unlabelled=tsv:BLANK"], "blank.tsv:2: empty query; expected text"),
        (["--config.questions=/none.csv", "--config.exclude_answers=string"], "/none.csv does not exist"),
    ],
)
def test_bad_requests_are_one_line(
    dataset: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    message: str,
) -> None:
    card = [f"--config={ROOT / 'configs' / 'mine.py'}:smoke", f"--config.dataset=beir:{dataset}", f"--workdir={tmp_path / 'run'}"]
    (tmp_path / "empty.csv").write_text("topic1\t['']\n")
    (tmp_path / "blank.tsv").write_text("u8\tsome\nu9\t \n")
    named = {"CE": dataset / "ce", "EMPTY": tmp_path / "empty.csv", "BLANK": tmp_path / "blank.tsv"}
    words = [functools.reduce(lambda word, name: word.replace(name, str(named[name])), named, word) for word in words]
    monkeypatch.setattr(scoring, "load_reranker", lambda origin, **more: Grades())
    assert run_command(mine.stage, ["launch/mine.py", *card, *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and message in lines[0]

"""Recipes: who starts from what and learns from what, as their papers say; every card runs from its first link to its table."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from conftest import WORDS
from jax.experimental.compilation_cache import compilation_cache
from launching import ROOT, once

from denseir_jax.core.artifacts import finished_run
from denseir_jax.core.command import execute
from denseir_jax.core.config import from_card
from denseir_jax.core.errors import ConfigError
from denseir_jax.data.examples import read_examples
from denseir_jax.data.lines import BadRows
from denseir_jax.data.template import TextTemplate
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.objectives.distill import DistillConfig
from denseir_jax.pipeline.chain import PipelineConfig, references, stage
from denseir_jax.pipeline.recipes.progressive import Turn, progressive
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.pipeline.stages.report import ReportConfig
from denseir_jax.pipeline.stages.training import TrainingConfig

CARDS = ROOT / "configs"
RECIPES = {
    "dpr": "smoke",
    "cocondenser_marco": "smoke",
    "cocondenser_nq": "smoke",
    "retromae": "smoke_distilled",
    "distill": "smoke",
    "progressive_distill": "smoke",
    "rocketqa": "smoke",
}
# Links that are the same as in one before it: else its tokens, BM25's negatives and its row.
SHARED = {"dpr": 0, "cocondenser_nq": 8, "rocketqa": 2}
TWO_STAGES = {
    "dpr": "@init_from",
    "cocondenser_marco": "run:@cocondenser",
    "cocondenser_nq": "run:@cocondenser",
    "retromae": "run:@pretrain",
}


def card(name: str, size: str) -> PipelineConfig:
    return from_card(PipelineConfig, CARDS / "pipeline" / f"{name}.py", size)


@pytest.mark.parametrize("size", ["smoke", "base"])
@pytest.mark.parametrize(("name", "start"), TWO_STAGES.items())
def test_stage_2_starts_where_stage_1_did_on_both_kinds_of_negatives(name: str, start: str, size: str) -> None:
    links = card(name, size).links
    assert links["stage1"].init_from == links["stage2"].init_from == start
    assert links["stage1"].training_set == links["mined_negatives"].training_set == "@bm25_negatives"
    assert links["mined_negatives"].retriever == "run:@stage1" and links["mined_negatives"].embeddings == "@encode1"
    assert links["stage2"].training_set == "@mined_negatives" and links["stage2"].objective.sources == ()  # the union of the pools
    assert links["evaluate_stage2"].retriever == "run:@stage2" and links["report"].baseline == "BM25"


def test_pre_training_reads_texts_cut_for_it_and_hands_on() -> None:
    links = card("cocondenser_nq", "base").links
    assert links["condenser"].init_from == "@init_from" and links["cocondenser"].init_from == "run:@condenser"
    for name, split in (("condenser", "blocks"), ("cocondenser", "spans")):
        assert links[name].tokens == f"@{name}_tokens" and links[f"{name}_tokens"].split == split
        assert links[f"{name}_tokens"].tokenizer == "@prepare", "one tokenizer for all"
    retromae = card("retromae", "base").links
    assert retromae["pretrain_tokens"].template.passage_length == 512 and retromae["prepare"].template.passage_length == 144


def test_a_teacher_scores_what_its_student_learns_from() -> None:
    links = card("distill", "smoke").links
    assert links["teach"].teacher == "run:@teacher" and links["teacher"].objective.name == "cross_encoder"
    assert links["teach"].training_set == links["untaught"].training_set == "@bm25_negatives"
    assert links["student"].training_set == "@teach" and links["student"].objective.name == "distill"
    assert links["student"].init_from == links["untaught"].init_from == "@init_from"
    assert links["rerank_teacher"].run == "@evaluate_bm25" and links["evaluate_teacher"].run == "@rerank_teacher"
    distilled = card("retromae", "base_distilled").links
    assert distilled["teach"].training_set == "@mined_negatives" and distilled["distilled"].init_from == "run:@pretrain"
    assert "teach" not in card("retromae", "base").links


def test_rocketqas_four_steps() -> None:
    """Each dual encoder begins anew; the judge is the cross-encoder of step 2 both times; who asks in step 4 nobody judged."""
    links = card("rocketqa", "base").links
    steps = [links[name] for name in ("step1", "cross_encoder", "step3", "step4")]
    assert {step.init_from for step in steps} == {"@init_from"}
    assert [step.training_set for step in steps] == ["@bm25_negatives", "@cross_encoder_negatives", "@denoised_negatives", "@united"]
    assert steps[0].objective.sources == ("random",) and steps[2].objective.sources == steps[3].objective.sources == ()
    for name, retriever, split in (("denoised_negatives", "run:@step1", "train"), ("pseudo", "run:@step3", "")):
        mined = links[name]
        assert (mined.retriever, mined.split, mined.denoise.reranker) == (retriever, split, "run:@cross_encoder")
        assert (mined.hi, mined.n, mined.denoise.keep_below, mined.denoise.positive_above) == (50, 4, 0.1, 0.9)
        assert mined.take == "first", "in the order of ranks"
    assert links["denoised_negatives"].denoise.fill_to == links["denoised_negatives"].depth == 1000
    assert links["pseudo"].denoise.fill_to == 0, "a query without a negative that the judge lets pass is left out"
    assert card("rocketqa", "base_nq").links["denoised_negatives"].denoise.fill_to == 0
    assert card("rocketqa", "base_nq").links["pseudo"].hi == 50
    assert links["united"].training_sets == "@denoised_negatives,@pseudo"
    assert "step4" not in card("rocketqa", "base_labelled").links


def test_unlabelled_queries_must_be_named(beir: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(card("rocketqa", "smoke"), dataset=f"beir:{beir}")
    with pytest.raises(ConfigError, match=r"link 'pseudo' has no queries: --config.links.pseudo.unlabelled=tsv:FILE"):
        execute(stage, config, tmp_path / "run")


def test_a_teacher_that_exists_must_be_named(beir: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(card("distill", "smoke_given"), dataset=f"beir:{beir}")
    assert "teacher" not in config.links
    with pytest.raises(ConfigError, match=r"link 'teach' has no teacher: --config.links.teach.teacher=run:DIR"):
        execute(stage, config, tmp_path / "run")
    assert not (tmp_path / "run" / "prepare").exists()


def schedule(*turns: Turn, **teachers: Any) -> PipelineConfig:
    base = FinetuneConfig(objective=ContrastiveConfig(), encoder=EncoderConfig(300))
    student = dataclasses.replace(base, objective=DistillConfig())
    known = {"small": base, "large": base, **teachers}
    return progressive("", PrepareConfig(template=TextTemplate()), known, student, turns, MineConfig(), MineConfig(), ReportConfig())


def test_a_schedule_becomes_students_in_sequence() -> None:
    links = schedule(
        Turn("small", 0.5, 4, "bm25", epochs=2.0),
        Turn("given", 2.0, 6, "bm25", steps=7),
        Turn("given", 1.0, 8, "mined", epochs=1.0),
        Turn("given", 1.0, 8, "mined", epochs=0.5),
        given="hf:somewhere",
    ).links
    students = [links[f"student{n}"] for n in range(1, 5)]
    assert [s.init_from for s in students] == ["@init_from", "run:@student1", "run:@student2", "run:@student3"]
    assert [(s.objective.teacher_temperature, s.objective.group_size) for s in students] == [(0.5, 4), (2.0, 6), (1.0, 8), (1.0, 8)]
    assert [s.epochs for s in students] == [2.0, 0.0, 1.0, 0.5] and students[1].steps == 7
    assert [s.training_set for s in students] == [f"@teach{n}" for n in range(1, 5)]
    assert [links[f"teach{n}"].teacher for n in range(1, 5)] == ["run:@teacher_small", "hf:somewhere", "hf:somewhere", "hf:somewhere"]
    assert [links[f"teach{n}"].training_set for n in range(1, 5)] == ["@bm25_negatives", "@bm25_negatives", "@mined3", "@mined4"]
    assert [(links[f"mined{n}"].retriever, links[f"mined{n}"].embeddings) for n in (3, 4)] == [
        ("run:@student2", "@encode2"),
        ("run:@student3", "@encode3"),
    ], "harder negatives are those of the student as it is by then"
    assert "teacher_large" not in links, "a teacher that no row names is not trained"


def test_scores_that_two_turns_share_are_made_once() -> None:
    links = schedule(Turn("small", 1.0, 4, "bm25", steps=1), Turn("small", 0.5, 4, "bm25", steps=1)).links
    assert "teach2" not in links and links["student2"].training_set == "@teach1"


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ((), "the schedule has no row"),
        ((Turn("tiny", 1.0, 4, "bm25", steps=1),), "the teacher 'tiny', which is not among small, large"),
        ((Turn("small", 1.0, 4, "mined", steps=1),), "the first row of the schedule has negatives='mined'"),
        ((Turn("small", 1.0, 1, "bm25", steps=1),), "group_size=1: a teacher compares"),
    ],
)
def test_schedules_that_cannot_be_are_refused(turns: tuple[Turn, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        schedule(*turns)


@pytest.mark.parametrize("time", [{}, {"epochs": 1.0, "steps": 1}, {"epochs": -1.0}])
def test_a_turn_is_told_in_epochs_or_in_steps(time: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="one of them must be above 0, the other 0"):
        Turn("small", 1.0, 4, "bm25", **time)


def test_every_recipe_is_compared_with_bm25_and_measured_on_test() -> None:
    for name, size in RECIPES.items():
        config = card(name, size)
        report = config.links["report"]
        assert (
            config.order[-1] == "report"
            and report.rows[0] == "BM25=@evaluate_bm25"
            and report.worst in dict(row.split("=@") for row in report.rows)
        )
        rows = [config.links[row.split("=@")[1]] for row in report.rows]
        assert {row.split for row in rows} == {"test"} and len(rows) >= 3
        unused = set(config.order) - {name for link in config.links.values() for name in references(link)}
        assert unused == {"report"}, "every link is read by another one"


def write_worded(folder: Path) -> None:
    """A BEIR folder of 40 passages of some sentences; a query is four words of its passage, so that BM25 brings up others too."""
    rng = np.random.default_rng(2)
    (folder / "qrels").mkdir(parents=True)
    passages = [[" ".join(rng.choice(WORDS[:40], 8)).capitalize() + "." for _ in range(4)] for _ in range(40)]
    queries = {f"q{n}": " ".join(rng.choice(passages[n % 40][n % 4].lower().strip(".").split(), 4)) for n in range(100)}
    corpus = [{"_id": f"p{n}", "title": "", "text": " ".join(passage)} for n, passage in enumerate(passages)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in corpus))
    (folder / "queries.jsonl").write_text("".join(json.dumps({"_id": id, "text": text}) + "\n" for id, text in queries.items()))
    (folder / "unlabelled.tsv").write_text("".join(f"u{n}\t{passages[n][0].lower()}\n" for n in range(30)))
    for split, numbers in (("train", range(60)), ("dev", range(60, 80)), ("test", range(80, 100))):
        rows = "".join(f"q{n}\tp{n % 40}\t1\n" for n in numbers)
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)


ANY = {"keep_below": 0.5, "positive_above": 0.5}  # a judge of three steps has no opinion


def short(config: PipelineConfig, data: Path) -> PipelineConfig:
    """On the tests' data, prepared in this process, with encoders that are quickly compiled."""

    def fewer(link: Any) -> Any:
        if isinstance(link, MineConfig) and not link.split:
            return dataclasses.replace(link, unlabelled=f"tsv:{data / 'unlabelled.tsv'}", denoise=dataclasses.replace(link.denoise, **ANY))
        if isinstance(link, PrepareConfig):
            return dataclasses.replace(link, workers=1, vocab_size=300)
        if not isinstance(link, TrainingConfig):
            return link
        layers = int(bool({"condenser", "pretrain"} & set(config.links)))
        return dataclasses.replace(link, encoder=EncoderConfig(300, hidden=16, layers=layers, heads=2, intermediate=16, max_length=64))

    return dataclasses.replace(config, dataset=f"beir:{data}", links={name: fewer(link) for name, link in config.links.items()})


@pytest.fixture
def compiled_once(made: Path) -> Iterator[None]:
    """Programs that are the same in several links are compiled once."""
    settings = {"jax_compilation_cache_dir": str(made / "compiled"), "jax_persistent_cache_min_compile_time_secs": 0.0}
    before = {name: getattr(jax.config, name) for name in settings}
    for values in (settings, before):
        for name, value in values.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        if values is settings:
            yield


@pytest.mark.usefixtures("module_on_one_device", "compiled_once")
def test_cards_run(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All in one folder, each over the one before: links that are the same are made once, the others anew."""
    run, data = tmp_path / "run", once(made, "worded", write_worded)
    for name, size in RECIPES.items():
        config = short(card(name, size), data)
        execute(stage, config, run, overwrite=True)
        said = capsys.readouterr().err
        manifests = {link: finished_run(run / link) for link in config.order}
        assert said.count("already finished") == SHARED.get(name, 3), name
        table = json.loads((run / "report" / "table.json").read_text())
        assert len(table["rows"]) == len(config.links["report"].rows), name
        trained = [link for link in config.order if isinstance(config.links[link], FinetuneConfig)]
        assert len({manifests[link]["sha256"] for link in trained}) == len(trained), name
        if name in TWO_STAGES:
            union = list(read_examples(run / "mined_negatives" / "training_set.jsonl", BadRows("error")))
            assert all(set(example.negatives) == {"bm25", "mined"} and len(example.negatives["mined"]) > 1 for example in union)
    execute(stage, config, run)
    assert capsys.readouterr().err.count("already finished") == len(config.order), "a finished recipe does nothing again"

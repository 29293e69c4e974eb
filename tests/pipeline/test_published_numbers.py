"""Cards at size base say what was published: FINETUNING's tables by heart; a slip in a card would cost somebody days."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WORDS
from launching import ROOT

from denseir_jax.core.command import execute
from denseir_jax.core.config import from_card
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.pipeline.ance.config import AnceConfig
from denseir_jax.pipeline.chain import PipelineConfig
from denseir_jax.pipeline.stages import training
from denseir_jax.pipeline.stages.finetune import FinetuneConfig, stage
from denseir_jax.pipeline.stages.training import TrainingConfig

CARDS = ROOT / "configs"


def card(name: str, size: str) -> PipelineConfig:
    return from_card(PipelineConfig, CARDS / "pipeline" / f"{name}.py", size)


def single(name: str, size: str = "base") -> FinetuneConfig:
    return from_card(FinetuneConfig, CARDS / "finetune" / f"{name}.py", size)


def rates(run: TrainingConfig) -> tuple[Any, ...]:
    """Name, peak, warm-up, weight decay, clip."""
    optimizer = run.optimizer
    return optimizer.name, optimizer.lr, optimizer.warmup, optimizer.weight_decay, optimizer.clip


def lengths(run: Any) -> tuple[int, int, int]:
    """Tokens of a query, of a passage, blocks."""
    return run.prepare.template.query_length, run.prepare.template.passage_length, run.prepare.template.blocks


def test_two_stage_recipes() -> None:

    def of(name: str, link: str) -> tuple[Any, ...]:
        run = card(name, "base").links[link]
        return (
            run.epochs,
            run.batch_size,
            run.objective.group_size,
            run.optimizer.lr,
            run.objective.tied,
            run.prepare.template.passage_length,
        )

    assert of("dpr", "stage1") == (40, 128, 2, 2e-5, False, 256)
    assert of("cocondenser_marco", "stage1") == (3, 64, 8, 5e-6, True, 128)
    assert of("cocondenser_marco", "stage2")[0] == 2 * 2, "2 epochs of two files that hold each query"
    assert of("cocondenser_nq", "stage1") == (40, 128, 2, 5e-6, False, 256)
    assert of("cocondenser_nq", "stage2")[0] == 2 * 20
    assert of("retromae", "stage2") == (4, 128, 16, 2e-5, True, 144)
    marco = card("cocondenser_marco", "base").links["mined_negatives"]
    assert (marco.depth, marco.hi, marco.n) == (200, 200, 30)
    for name in ("dpr", "cocondenser_nq"):
        links = card(name, "base").links
        assert {links[mined].exclude_answers for mined in ("bm25_negatives", "mined_negatives")} == {"string"}, (
            "a passage with an answer is no negative"
        )


@pytest.mark.parametrize(
    ("size", "batch_size", "epochs", "group", "pairs", "judged", "denoised"),
    [("base", 4096, (160, 40, 40), 5, 64, 1000, 50), ("base_nq", 1024, (30, 30, 30), 2, 64, 100, 100)],
)
def test_rocketqa(size: str, batch_size: int, epochs: tuple[int, ...], group: int, pairs: int, judged: int, denoised: int) -> None:
    """Passes of one negative each: epochs times lines a query."""
    links = card("rocketqa", size).links
    duals = [links[f"step{number}"] for number in (1, 3, 4)]
    assert tuple(dual.epochs for dual in duals) == epochs
    for dual in duals:
        assert (dual.batch_size, dual.objective.group_size, dual.objective.tied) == (batch_size, 2, False)
        assert rates(dual) == ("adamw", 3e-5, 0.1, 0.0, 1.0) and lengths(dual) == (32, 128, 1)
    cross = links["cross_encoder"]
    assert (cross.epochs, cross.objective.group_size, cross.objective.loss, cross.objective.outputs) == (2, group, "pointwise", 2)
    assert abs(cross.batch_size * group - pairs) <= 1 and cross.objective.pair_length == 160
    assert rates(cross) == ("adamw", 1e-5, 0.1, 0.01, 1.0)
    mined, last = links["cross_encoder_negatives"], links["denoised_negatives"]
    assert (mined.hi, mined.n, mined.take) == (judged, group - 1, "draw") and (last.hi, last.n, last.take) == (denoised, group - 1, "first")
    answers = ("", False, False) if size == "base" else ("string", True, True)
    assert all((run.exclude_answers, run.answers_in_title, run.positives_by_answer) == answers for run in (mined, last))


def test_ance() -> None:
    ance = from_card(AnceConfig, CARDS / "ance.py", "base")
    warm_up, documents = single("ance_warm_up"), single("documents")
    for run in (ance, warm_up, documents):
        objective = run.objective
        assert (objective.group_size, objective.loss, objective.in_batch, objective.similarity) == (2, "pairwise", False, "dot")
        assert run.embedder.pooling == "cls"
    assert (ance.steps, ance.batch_size, rates(ance), lengths(ance)) == (600_000, 64, ("lamb", 1e-6, 5000, 0, 1), (64, 512, 1))
    assert (ance.poll, ance.cadence.save, ance.rewarm) == (100, 10_000, 0)
    assert (ance.mine.depth, ance.mine.n, ance.refresh.query_parts) == (200, 20, 5)
    assert ance.embedder == warm_up.embedder and warm_up.embedder.projection == 768, "the head goes on"
    assert (warm_up.steps, warm_up.batch_size) == (60_000, 4 * 32)
    assert rates(warm_up) == ("lamb", 2e-4, 1000, 0, 1) and lengths(warm_up) == (64, 128, 1)
    assert (documents.steps, documents.batch_size, documents.mine.hi, documents.mine.n) == (139_000, 128, 200, 20)
    assert rates(documents) == ("adamw", 1e-5, 500, 0, 1) and lengths(documents) == (64, 512, 4)


def test_teachers_and_students() -> None:
    cross, student, alone = single("cross_encoder"), single("distill"), single("contrastive")
    assert (cross.batch_size, cross.objective.group_size, cross.objective.loss) == (4, 8, "lce")
    assert cross.steps == pytest.approx(2 * 367_013 / 4, rel=1e-3), "2 epochs"
    assert rates(cross) == ("adamw", 1e-5, 0.1, 0.01, 1) and sum(lengths(cross)[:2]) - 1 == 512
    assert (cross.mine.depth, cross.mine.hi, cross.mine.n) == (100, 100, 10)
    for run in (student, alone):
        assert (run.batch_size, run.objective.group_size, run.objective.temperature) == (64, 8, 1)
        assert rates(run) == ("adamw", 5e-6, 0.1, 0, 1) and lengths(run) == (32, 128, 1)
    assert (student.objective.teach, student.objective.nll_weight) == ("global_kl", 0)
    links = card("distill", "base").links
    runs = (links["untaught"], alone, 3), (links["student"], student, 3), (links["teacher"], cross, 2)
    for link, published, epochs in runs:
        assert link.epochs == epochs and link.batch_size == published.batch_size and link.objective == published.objective
        assert rates(link) == rates(published)
    teacher = card("retromae", "base_distilled").links["teacher"]
    assert (teacher.objective.group_size, teacher.objective.pair_length, teacher.epochs, *rates(teacher)[1:3]) == (65, 200, 4, 1e-5, 1000)


def test_a_group_of_the_teacher_is_filled_from_either_pool() -> None:
    links = card("retromae", "base_distilled").links
    for pool in ("bm25_negatives", "mined_negatives"):
        assert links[pool].hi == 200 and links[pool].n >= links["teacher"].objective.group_size - 1


@pytest.mark.usefixtures("module_on_one_device")
def test_ances_warm_up_learns_from_triples_of_texts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "DEEP", 2)
    rng = np.random.default_rng(3)
    triples = (["".join(f"{word} " for word in rng.choice(WORDS[:40], n)).strip() for n in (4, 9, 9)] for _ in range(24))
    (tmp_path / "triples.tsv").write_text("".join("\t".join(cells) + "\n" for cells in triples))
    smoke = single("ance_warm_up", "smoke")
    config = dataclasses.replace(
        smoke,
        dataset=f"triples:{tmp_path / 'triples.tsv'}",
        training_set="given",
        probe_split="",
        steps=2,
        encoder=EncoderConfig(300, hidden=8, layers=2, heads=2, intermediate=8, max_length=64),
        embedder=dataclasses.replace(smoke.embedder, projection=8),
        prepare=dataclasses.replace(smoke.prepare, workers=1, vocab_size=300),
    )
    metrics = execute(stage, config, tmp_path / "run")
    assert metrics["step"] == 2 and np.isfinite(metrics["loss"])
    assert "finetune: 2 layers start from random weights; --config.init_from=hf:DIR or run:DIR" in capsys.readouterr().err

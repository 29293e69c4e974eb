"""Recipes of several stages, as configs: which link reads what from which. The numbers come from the cards."""

import dataclasses
from typing import Any

from denseir_jax.pipeline.chain import PipelineConfig
from denseir_jax.pipeline.stages.encode import EncodeConfig
from denseir_jax.pipeline.stages.evaluate import EvaluateConfig
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.pipeline.stages.pretrain import PretrainConfig
from denseir_jax.pipeline.stages.report import ReportConfig


@dataclasses.dataclass(frozen=True)
class Control:
    """A second, cheaper model that is pre-trained and fine-tuned beside the first, to compare with."""

    label: str
    pretrain: PretrainConfig
    finetune: FinetuneConfig


def two_stage(
    dataset: str,
    prepare: PrepareConfig,
    finetune: FinetuneConfig,
    bm25_negatives: MineConfig,
    mined_negatives: MineConfig,
    report: ReportConfig,
    pretrain: PretrainConfig | None = None,
    no_pretrain: FinetuneConfig | None = None,
    control: Control | None = None,
) -> PipelineConfig:
    """Pre-train, fine-tune on BM25 negatives, mine, fine-tune again from the pre-trained weights on both kinds, evaluate.

    The second fine-tuning starts where the first did, not where it ended (coCondenser's protocol, Gao & Callan 2022).

    Args:
        dataset: format:path, or "" to be given on the command line. prepare, finetune, bm25_negatives, mined_negatives,
        report: configs of the links; what they read and where they start is filled in here. pretrain: None starts from
        ``init_from`` and its tokenizer. no_pretrain: a fine-tuning from random weights to compare with, or None.
        control: another model to compare with, or None.
    """
    start = "run:@pretrain" if pretrain else "@init_from"
    links: dict[str, Any] = {"prepare": dataclasses.replace(prepare, corpus="@dataset", tokenizer="@init_from")}
    links["bm25_negatives"] = dataclasses.replace(bm25_negatives, dataset="@dataset", retriever="bm25")

    def tuned(config: FinetuneConfig, init_from: str | None, training_set: str) -> FinetuneConfig:
        return dataclasses.replace(config, dataset="@dataset", tokens="@prepare", init_from=init_from, training_set=training_set)

    if control:
        links["control_pretrain"] = dataclasses.replace(control.pretrain, tokens="@prepare")
        links["control"] = tuned(control.finetune, "run:@control_pretrain", "@bm25_negatives")
    if no_pretrain:
        links["no_pretrain"] = tuned(no_pretrain, None, "@bm25_negatives")
    if pretrain:
        links["pretrain"] = dataclasses.replace(pretrain, tokens="@prepare", init_from="@init_from")
    links["stage1"] = tuned(finetune, start, "@bm25_negatives")
    links["encode1"] = EncodeConfig(retriever="run:@stage1", tokens="@prepare")
    links["mined_negatives"] = dataclasses.replace(
        mined_negatives, dataset="@dataset", retriever="run:@stage1", embeddings="@encode1", training_set="@bm25_negatives"
    )
    links["stage2"] = tuned(finetune, start, "@mined_negatives")
    links["encode2"] = EncodeConfig(retriever="run:@stage2", tokens="@prepare")
    rows = _evaluations(links, start, prepare, control.label if control else "", bool(pretrain), bool(no_pretrain))
    trained = [name for name in ("pretrain", "no_pretrain", "stage1", "stage2") if name in links]
    links["report"] = dataclasses.replace(
        report,
        dataset="@dataset",
        rows=tuple(f"{label}=@{name}" for label, name in rows.items()),
        baseline="BM25",
        curves=tuple(f"{name}=@{name}" for name in trained),
        lineage=tuple(f"{name}=@{name}" for name in links if not name.startswith("evaluate")),
        worst="stage 2: + mined negatives",
    )
    return PipelineConfig(dataset=dataset, order=tuple(links), links=links)


def _evaluations(
    links: dict[str, Any], start: str, prepare: PrepareConfig, control: str, pretrained: bool, no_pretrain: bool
) -> dict[str, str]:
    """Add an evaluate link for every system; returns label of the report -> link."""
    rows: dict[str, str] = {}

    def add(label: str, name: str, **settings: Any) -> None:
        links[name] = EvaluateConfig(dataset="@dataset", **settings)
        rows[label] = name

    add("BM25", "evaluate_bm25", retriever="bm25")
    if control:
        add(control, "evaluate_control", retriever="run:@control")
    if no_pretrain:
        add("dense without pre-training", "evaluate_no_pretrain", retriever="run:@no_pretrain")
    if pretrained:
        add("pre-training alone (no labels)", "evaluate_pretrain", retriever=start)
    else:
        add("start (no labels here)", "evaluate_start", retriever=start, template=prepare.template)
    add("stage 1: + BM25 negatives", "evaluate_stage1", retriever="run:@stage1", embeddings="@encode1")
    add("stage 2: + mined negatives", "evaluate_stage2", retriever="run:@stage2", embeddings="@encode2")
    add("BM25 + stage 2 (tuned on dev)", "evaluate_hybrid", retriever="run:@stage2", embeddings="@encode2", hybrid=True)
    return rows

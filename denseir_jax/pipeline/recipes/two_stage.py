"""Pre-training and two fine-tunings, with what there is to compare them with."""

import dataclasses

from denseir_jax.pipeline.chain import PipelineConfig
from denseir_jax.pipeline.recipes.recipe import BM25_NEGATIVES, STAGE_2, START, Recipe
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
    recipe = Recipe(dataset, prepare)
    recipe.bm25_negatives(bm25_negatives)
    if control:
        begun = recipe.pretrain("control_pretrain", control.pretrain, None, own_tokens=False)
        recipe.row(control.label, "control", recipe.finetune("control", control.finetune, begun, BM25_NEGATIVES))
    if no_pretrain:
        recipe.row("dense without pre-training", "no_pretrain", recipe.finetune("no_pretrain", no_pretrain, None, BM25_NEGATIVES))
    if pretrain:
        start = recipe.pretrain("pretrain", pretrain, START, own_tokens=False)
        recipe.row("pre-training alone (no labels)", "pretrain", start)
    else:
        start = START
        recipe.row("start (no labels here)", "start", start, template=prepare.template)
    recipe.two_stages(start, finetune, finetune, mined_negatives)
    recipe.stage_rows(hybrid=True)
    return recipe.finished(report, worst=STAGE_2)

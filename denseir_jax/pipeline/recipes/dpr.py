"""DPR in two stages (Karpukhin et al. 2020; the second: README of facebookresearch/DPR, March 2021)."""

from denseir_jax.pipeline.chain import PipelineConfig
from denseir_jax.pipeline.recipes.recipe import STAGE_2, START, Recipe
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.pipeline.stages.report import ReportConfig


def dpr(
    dataset: str,
    prepare: PrepareConfig,
    stage1: FinetuneConfig,
    stage2: FinetuneConfig,
    bm25_negatives: MineConfig,
    mined_negatives: MineConfig,
    report: ReportConfig,
) -> PipelineConfig:
    """Fine-tune on BM25 negatives, mine with that, fine-tune from the start again on the union of both.

    The start is ``init_from`` (BERT, as published), or random weights where none is given. What to leave out of the mined
    negatives besides the known positives, `mined_negatives` says.
    """
    recipe = Recipe(dataset, prepare)
    recipe.bm25_negatives(bm25_negatives)
    recipe.two_stages(START, stage1, stage2, mined_negatives)
    recipe.stage_rows(hybrid=True)
    return recipe.finished(report, worst=STAGE_2)

"""coCondenser from pre-training to the second fine-tuning (Gao & Callan 2022, arXiv 2108.05540, and the authors' toolkit)."""

from denseir_jax.pipeline.chain import PipelineConfig
from denseir_jax.pipeline.recipes.recipe import STAGE_2, START, Recipe
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.pipeline.stages.pretrain import PretrainConfig
from denseir_jax.pipeline.stages.report import ReportConfig


def cocondenser(
    dataset: str,
    prepare: PrepareConfig,
    condenser: PretrainConfig,
    corpus_aware: PretrainConfig,
    stage1: FinetuneConfig,
    stage2: FinetuneConfig,
    negatives: MineConfig,
    report: ReportConfig,
) -> PipelineConfig:
    """Condenser, coCondenser from its backbone and head, fine-tuning on BM25 negatives, mining with that, and fine-tuning
    from coCondenser's weights again on the union of both.

    Args:
        condenser: starts from ``init_from``. corpus_aware: coCondenser on the same corpus as its two spans a document.
        negatives: how BM25's are mined, and then those of stage 1.
    """
    recipe = Recipe(dataset, prepare)
    recipe.bm25_negatives(negatives)
    begun = recipe.pretrain("condenser", condenser, START)
    start = recipe.pretrain("cocondenser", corpus_aware, begun)
    recipe.row("pre-training alone (no labels)", "pretrain", start)
    recipe.two_stages(start, stage1, stage2, negatives)
    recipe.stage_rows()
    return recipe.finished(report, worst=STAGE_2)

"""RetroMAE from pre-training to fine-tuning, and distilled from a teacher if wanted (Xiao et al. 2022, arXiv 2205.12035)."""

from denseir_jax.pipeline.chain import PipelineConfig
from denseir_jax.pipeline.recipes.recipe import BM25_NEGATIVES, STAGE_2, START, Recipe
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.pipeline.stages.pretrain import PretrainConfig
from denseir_jax.pipeline.stages.report import ReportConfig


def retromae(
    dataset: str,
    prepare: PrepareConfig,
    pretrain: PretrainConfig,
    finetune: FinetuneConfig,
    bm25_negatives: MineConfig,
    mined_negatives: MineConfig,
    report: ReportConfig,
    teacher: FinetuneConfig | None = None,
    distilled: FinetuneConfig | None = None,
    rerank_depth: int = 100,
) -> PipelineConfig:
    """Pre-train, fine-tune on BM25 negatives, mine with that, fine-tune from the pre-trained weights again on both kinds.

    Args:
        teacher: with `distilled`: trained on the mined negatives from ``init_from``; its scores of them teach a third model,
        which starts from the pre-trained weights too.
    """
    recipe = Recipe(dataset, prepare, rerank_depth)
    recipe.bm25_negatives(bm25_negatives)
    start = recipe.pretrain("pretrain", pretrain, START)
    recipe.row("pre-training alone (no labels)", "pretrain", start)
    mined = recipe.two_stages(start, finetune, finetune, mined_negatives, BM25_NEGATIVES)
    recipe.stage_rows()
    if teacher and distilled:
        master = recipe.teacher("teacher", teacher, START, mined)
        student = recipe.finetune("distilled", distilled, start, recipe.teach("teach", master, mined))
        recipe.row("distilled", "distilled", student)
    return recipe.finished(report, worst=STAGE_2)

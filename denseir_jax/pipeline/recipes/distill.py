"""Distillation: a teacher's scores of the hard negatives teach a student, beside the same student without a teacher."""

from denseir_jax.pipeline.chain import PipelineConfig
from denseir_jax.pipeline.recipes.recipe import START, Recipe
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.pipeline.stages.report import ReportConfig


def distill(
    dataset: str,
    prepare: PrepareConfig,
    teacher: FinetuneConfig | None,
    untaught: FinetuneConfig,
    student: FinetuneConfig,
    bm25_negatives: MineConfig,
    report: ReportConfig,
    rerank_depth: int = 100,
) -> PipelineConfig:
    """A teacher learns from BM25 negatives and scores them; the student starts from ``init_from`` and learns from the scores.

    Args:
        teacher: a retriever or a cross-encoder; None: one that exists, which the link ``teach`` is told of. untaught: the student
        without scores, to compare with.
    """
    recipe = Recipe(dataset, prepare, rerank_depth)
    negatives = recipe.bm25_negatives(bm25_negatives)
    master = recipe.teacher("teacher", teacher, START, negatives) if teacher else ""
    taught = recipe.teach("teach", master, negatives)
    recipe.row("student without a teacher", "untaught", recipe.finetune("untaught", untaught, START, negatives))
    recipe.row("student", "student", recipe.finetune("student", student, START, taught))
    return recipe.finished(report, worst="student")

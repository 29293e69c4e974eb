"""RocketQA in four steps (Qu et al. 2021, arXiv 2010.08191, figure 4)."""

import dataclasses

from denseir_jax.pipeline.chain import PipelineConfig
from denseir_jax.pipeline.recipes.recipe import START, Recipe
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.pipeline.stages.report import ReportConfig


def rocketqa(
    dataset: str,
    prepare: PrepareConfig,
    step1: FinetuneConfig,
    step2: FinetuneConfig,
    step3: FinetuneConfig,
    step4: FinetuneConfig | None,
    bm25_negatives: MineConfig,
    cross_encoder_negatives: MineConfig,
    denoised_negatives: MineConfig,
    pseudo_labels: MineConfig,
    report: ReportConfig,
    rerank_depth: int = 100,
) -> PipelineConfig:
    """A dual encoder on cross-batch negatives; a cross-encoder on what that retrieves; a dual encoder on the negatives that the
    cross-encoder lets pass; one on these and on unlabelled queries, whose positives the cross-encoder finds.

    Args:
        step1: what its negatives are drawn from, its objective's `sources` say. step2: the cross-encoder. step4: None ends
        with the third; else the link ``pseudo`` must be told of queries by its `unlabelled`. bm25_negatives: the training set
        of step 1, for what of it is used. cross_encoder_negatives: step 2 learns from. denoised_negatives: step 3 learns from;
        its `denoise` holds thresholds, the cross-encoder is filled in. pseudo_labels: the same of the unlabelled queries, for step 4.
        Steps 3 and 4 start from ``init_from`` again.
    """
    recipe = Recipe(dataset, prepare, rerank_depth)
    first = recipe.finetune("step1", step1, START, recipe.bm25_negatives(bm25_negatives))
    recipe.encode("encode1", first)
    recipe.row("step 1: cross-batch negatives", "step1", first)
    judged = recipe.mine("cross_encoder_negatives", cross_encoder_negatives, first, None)
    judge = recipe.teacher("cross_encoder", step2, START, judged)
    denoised = recipe.mine("denoised_negatives", _judged_by(judge, denoised_negatives), first, None)
    last = "step 3: denoised negatives"
    third = recipe.finetune("step3", step3, START, denoised)
    recipe.encode("encode3", third)
    recipe.row(last, "step3", third)
    if step4:
        pseudo = recipe.mine("pseudo", _judged_by(judge, pseudo_labels), third, None)
        last = "step 4: + unlabelled queries"
        fourth = recipe.finetune("step4", step4, START, recipe.unite("united", denoised, pseudo))
        recipe.encode("encode4", fourth)
        recipe.row(last, "step4", fourth)
    return recipe.finished(report, worst=last)


def _judged_by(cross_encoder: str, config: MineConfig) -> MineConfig:
    return dataclasses.replace(config, denoise=dataclasses.replace(config.denoise, reranker=cross_encoder))

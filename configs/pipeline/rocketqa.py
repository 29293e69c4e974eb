"""RocketQA in four steps (Qu et al. 2021, arXiv 2010.08191): cross-batch negatives, a cross-encoder, denoising, unlabelled queries.

The argument is a size: smoke, tiny, small or base; behind it `_nq` for the recipe of Natural Questions instead of MS MARCO's; and
behind that `_labelled` (tiny_labelled, base_nq_labelled) leaves the fourth step out, else --config.links.pseudo.unlabelled=tsv:FILE
(id, tab, text) names the unlabelled queries. base is the authors' code (PaddlePaddle/RocketQA); it starts from
--config.init_from=hf:FOLDER, theirs from ERNIE, which is not read here. The smaller ones are ours and start from random weights.

Which dual encoder retrieves for the unlabelled queries is not known here: that of step 3. Named differences: every pair keeps its own
negatives through all epochs there, here epochs take turns with them; queries of 32 and passages of 128 tokens make pairs of 159, theirs
are cut at 160. Natural Questions, which wants data with answers (dpr:FOLDER): theirs takes the first retrieved passage with an answer
for the positive, here judged positives are kept and only a question without one takes that; its first step learns from DPR's negatives,
here BM25's first 100 without an answer (the depth is ours); lengths are told for MS MARCO alone; all its dual encoders take 30 epochs,
as we read it.

From random weights a cross-encoder learns little in minutes and teaches less: --config.init_from=hf:DIR, a published encoder, starts all.

    python launch/pipeline.py --config configs/pipeline/rocketqa.py:tiny_labelled --config.dataset=beir:FOLDER --workdir DIR
"""

import dataclasses
from typing import Any, NamedTuple

from denseir_jax.core.config import card, choose
from denseir_jax.data.template import TextTemplate
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.sizes import encoder
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.objectives.cross_encoder import CrossEncoderConfig
from denseir_jax.pipeline.finetuning import RERANKED, SIZES, finetuning, mining, prepared
from denseir_jax.pipeline.recipes.rocketqa import rocketqa
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.report import ReportConfig
from denseir_jax.search.denoise import DenoiseConfig
from denseir_jax.train.loop import Cadence
from denseir_jax.train.optimizer import OptimizerConfig


class Task(NamedTuple):
    """Queries a step, epochs of step 1, of steps 3 and 4; its sources of negatives; negatives of a positive; groups of the cross-
    encoder a step; ranks where its negatives lie, and those denoised; to which rank too few are filled; how answers are found."""

    batch_size: int
    first: float
    again: float
    sources: tuple[str, ...]
    negatives: int
    groups: int
    judged: int
    denoised: int
    fill_to: int
    answers: dict[str, Any]


TASKS = {
    # 512 queries on each of 8 GPUs; 40 and 10 epochs of four lines a query, each with one negative, random ones at first. 64 pairs
    # a GPU are 13 groups of 5; on how many GPUs is not told.
    "": Task(4096, 160.0, 40.0, ("random",), 4, 13, 1000, 50, 1000, {}),
    # 512 on each of 2 GPUs; one line a question; 64 pairs are 32 groups of 2. Answers are looked for in titles too.
    "_nq": Task(1024, 30.0, 30.0, (), 1, 32, 100, 100, 0, {"exclude_answers": "string", "answers_in_title": True}),
}
VARIANTS = {
    f"{size}{task}{ending}": (size, task, not ending) for size in SIZES for task in TASKS for ending in ("", "_labelled")
}  # size, task, whether with step 4


def get_config(variant: str = "tiny_labelled"):
    size, name, augmented = choose(VARIANTS, variant)
    task = TASKS[name]
    dual = FinetuneConfig(
        epochs=task.first,
        batch_size=task.batch_size,
        objective=ContrastiveConfig(group_size=2, temperature=1.0, similarity="dot", tied=False, sources=task.sources),
        encoder=encoder("base"),
        embedder=EmbedderConfig(pooling="cls"),
        optimizer=OptimizerConfig(lr=3e-5, warmup=0.1, weight_decay=0.0),
        cadence=Cadence(log=50, save=500, probe=500),
    )
    again = dataclasses.replace(dual, epochs=task.again, objective=dataclasses.replace(dual.objective, sources=()))
    cross = FinetuneConfig(
        epochs=2.0,
        batch_size=task.groups,
        # Two classes, each pair by itself.
        objective=CrossEncoderConfig(group_size=1 + task.negatives, loss="pointwise", outputs=2, pair_length=160),
        encoder=encoder("base"),  # theirs is ERNIE-large
        optimizer=OptimizerConfig(lr=1e-5, warmup=0.1, weight_decay=0.01),
        cadence=Cadence(log=100, save=2000, probe=2000),
    )
    bm25, judged, denoised, pseudo = (mining(size, config) for config in mined(task, small=size in ("smoke", "tiny")))
    return card(
        rocketqa(
            "",
            prepared(size, TextTemplate(query_length=32, passage_length=128)),
            step1=finetuning(size, dual),
            step2=finetuning(size, cross),
            step3=finetuning(size, again),
            step4=finetuning(size, again) if augmented else None,
            bm25_negatives=bm25,
            cross_encoder_negatives=judged,
            denoised_negatives=denoised,
            pseudo_labels=pseudo,
            report=ReportConfig(title="RocketQA in four steps" if augmented else "RocketQA, its first three steps"),
            rerank_depth=RERANKED.get(size, 100),
        )
    )


def mined(task: Task, small: bool) -> tuple[MineConfig, MineConfig, MineConfig, MineConfig]:
    """Of BM25, for the cross-encoder, denoised, and for unlabelled queries; a `small` size searches less deep and denoises 10 ranks."""
    bm25 = MineConfig(depth=100, hi=100, n=30, **task.answers) if task.answers else MineConfig(depth=10, hi=10, n=1)  # learnt from or not
    by_answer = {**task.answers, "positives_by_answer": True} if task.answers else {}
    judged = MineConfig(depth=task.judged, hi=task.judged, n=task.negatives, **by_answer)
    # Those below .1, in the order of ranks; too few are filled from below, to rank 1000, unseen.
    denoise = DenoiseConfig(reranker="filled in", keep_below=0.1, positive_above=0.9, fill_to=task.fill_to)
    hi = 10 if small else task.denoised
    denoised = MineConfig(depth=task.judged, hi=hi, n=task.negatives, take="first", denoise=denoise, **by_answer)
    # The first 50 for both recipes; nothing is filled, a query without a positive or a negative is left out.
    hi = 10 if small else 50
    unfilled = dataclasses.replace(denoise, fill_to=0)
    pseudo = MineConfig(split="", depth=hi, hi=hi, n=task.negatives, take="first", denoise=unfilled)
    return bm25, judged, denoised, pseudo

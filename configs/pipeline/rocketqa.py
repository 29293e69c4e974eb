"""RocketQA in four steps (Qu et al. 2021, arXiv 2010.08191): cross-batch negatives, a cross-encoder, denoising, unlabelled queries.

The argument is a size: smoke, tiny, small or base; with `_labelled` behind it (tiny_labelled) the fourth step is left out, else
--config.links.pseudo.unlabelled=tsv:FILE (id, tab, text) names the unlabelled queries. base is the authors' code for MS MARCO
(PaddlePaddle/RocketQA); it starts from --config.init_from=hf:FOLDER, theirs from ERNIE, which is not read here. The smaller ones are ours
and start from random weights. Which dual encoder retrieves for the unlabelled queries is not known here: that of step 3.

From random weights a cross-encoder learns little in minutes and teaches less: --config.init_from=hf:DIR, a published encoder, starts all.

    python launch/pipeline.py --config configs/pipeline/rocketqa.py:tiny_labelled --config.dataset=beir:FOLDER --workdir DIR
"""

import dataclasses

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

VARIANTS = {**{size: (size, True) for size in SIZES}, **{f"{size}_labelled": (size, False) for size in SIZES}}


def get_config(variant: str = "tiny_labelled"):
    size, augmented = choose(VARIANTS, variant)
    dual = FinetuneConfig(
        epochs=160.0,  # 40 epochs of four lines a query, each with one negative
        batch_size=4096,  # 512 on each of 8 GPUs
        objective=ContrastiveConfig(group_size=2, temperature=1.0, similarity="dot", tied=False, sources=("random",)),
        encoder=encoder("base"),
        embedder=EmbedderConfig(pooling="cls"),
        optimizer=OptimizerConfig(lr=3e-5, warmup=0.1, weight_decay=0.0),
        cadence=Cadence(log=50, save=500, probe=500),
    )
    again = dataclasses.replace(
        dual,
        epochs=40.0,  # 10 epochs of up to four lines a query
        objective=dataclasses.replace(dual.objective, sources=()),
    )
    cross = FinetuneConfig(
        epochs=2.0,
        batch_size=13,  # 64 pairs a GPU are 13 groups of 5; on how many GPUs is not told
        # Two classes, each pair by itself; each positive with four negatives, pairs of 160 tokens.
        objective=CrossEncoderConfig(group_size=5, loss="pointwise", outputs=2, pair_length=159),
        encoder=encoder("base"),  # theirs is ERNIE-large
        optimizer=OptimizerConfig(lr=1e-5, warmup=0.1, weight_decay=0.01),
        cadence=Cadence(log=100, save=2000, probe=2000),
    )
    # Of the first 50 those below .1, in the order of ranks, four; too few are filled from below, to rank 1000, unseen.
    denoise = DenoiseConfig(reranker="filled in", keep_below=0.1, positive_above=0.9, fill_to=1000)
    denoised = mining(size, MineConfig(depth=1000, hi=10 if size in ("smoke", "tiny") else 50, n=4, denoise=denoise))
    return card(
        rocketqa(
            "",
            prepared(size, TextTemplate(query_length=32, passage_length=128)),
            step1=finetuning(size, dual),
            step2=finetuning(size, cross),
            step3=finetuning(size, again),
            step4=finetuning(size, again) if augmented else None,
            bm25_negatives=mining(size, MineConfig(depth=10, hi=10, n=1)),
            cross_encoder_negatives=mining(size, MineConfig(depth=1000, hi=1000, n=4)),
            denoised_negatives=denoised,
            report=ReportConfig(title="RocketQA in four steps" if augmented else "RocketQA, its first three steps"),
            rerank_depth=RERANKED.get(size, 100),
        )
    )

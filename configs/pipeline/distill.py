"""Distillation of your own: a cross-encoder is trained and scores hard negatives, a student learns from the scores.

The argument is a size: smoke, tiny, small or base; with `_given` behind it (tiny_given) the teacher exists already:
--config.links.teach.teacher=run:DIR or hf:DIR. base: the loss is coCondenser's (Gao & Callan 2022, arXiv 2108.05540, section 5.1: the
student's softmax over the whole batch), its length and rates are not told there; they are that recipe's fine-tuning.

From random weights a cross-encoder learns little in minutes and teaches less: --config.init_from=hf:DIR, a published encoder, starts all.

    python launch/pipeline.py --config configs/pipeline/distill.py:tiny --config.dataset=beir:FOLDER --workdir DIR
"""

import dataclasses

from denseir_jax.core.config import card, choose
from denseir_jax.data.template import TextTemplate
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.sizes import encoder
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.objectives.cross_encoder import CrossEncoderConfig
from denseir_jax.objectives.distill import DistillConfig
from denseir_jax.pipeline.finetuning import RERANKED, SIZES, finetuning, mining, prepared
from denseir_jax.pipeline.recipes.distill import distill
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.report import ReportConfig
from denseir_jax.train.loop import Cadence
from denseir_jax.train.optimizer import OptimizerConfig

VARIANTS = {**{size: (size, False) for size in SIZES}, **{f"{size}_given": (size, True) for size in SIZES}}


def get_config(variant: str = "tiny"):
    size, given = choose(VARIANTS, variant)
    base = FinetuneConfig(
        epochs=3.0,
        batch_size=64,
        objective=ContrastiveConfig(group_size=8, temperature=1.0, similarity="dot"),
        encoder=encoder("base"),
        embedder=EmbedderConfig(pooling="cls"),
        optimizer=OptimizerConfig(lr=5e-6, warmup=0.1, weight_decay=0.0),
        cadence=Cadence(log=100, save=2000, probe=2000),
    )
    cross = FinetuneConfig(
        epochs=2.0,
        batch_size=4,
        objective=CrossEncoderConfig(group_size=8),  # LCE (Gao, Dai & Callan 2021, arXiv 2101.08751), as are batch, epochs and rate
        encoder=encoder("base"),
        optimizer=OptimizerConfig(lr=1e-5, warmup=0.1, weight_decay=0.01),
        cadence=Cadence(log=100, save=2000, probe=2000),
    )
    alone = finetuning(size, base)
    taught = dataclasses.replace(base, objective=DistillConfig(group_size=8, teach="global_kl"))
    return card(
        distill(
            "",
            prepared(size, TextTemplate(query_length=32, passage_length=128)),
            teacher=None if given else finetuning(size, cross),
            untaught=alone,
            student=finetuning(size, taught),
            bm25_negatives=mining(size, MineConfig(depth=200, hi=200, n=30)),
            report=ReportConfig(title="Distillation"),
            rerank_depth=RERANKED.get(size, 100),
        )
    )

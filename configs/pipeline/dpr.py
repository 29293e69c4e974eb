"""DPR in two stages (Karpukhin et al. 2020, arXiv 2004.04906): two encoders, BM25 negatives, then its own beside them.

The argument is a size: smoke, tiny, small or base. base is the configuration of facebookresearch/DPR for Natural Questions; it starts
from --config.init_from=hf:FOLDER of bert-base-uncased. The smaller ones are ours and start from random weights. Named
differences: title and passage are joined by a space, where DPR puts [SEP] between them; of several positives DPR always takes the first
(unless told to shuffle them), here one is drawn in every epoch; checkpoints are not chosen by the average rank on dev, the last one
counts. base drops negatives that hold an answer, as published, and wants data with answers (dpr:FOLDER); for the
others --config.links.bm25_negatives.exclude_answers=string and --config.links.mined_negatives.exclude_answers=string.

    python launch/pipeline.py --config configs/pipeline/dpr.py:tiny --config.dataset=beir:FOLDER --workdir DIR
"""

import dataclasses

from denseir_jax.core.config import card, choose
from denseir_jax.data.template import TextTemplate
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.sizes import encoder
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.pipeline.finetuning import SIZES, finetuning, mining, prepared
from denseir_jax.pipeline.recipes.dpr import dpr
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.report import ReportConfig
from denseir_jax.train.loop import Cadence
from denseir_jax.train.optimizer import OptimizerConfig


def get_config(size: str = "tiny"):
    choose(dict.fromkeys(SIZES), size)
    base = FinetuneConfig(
        epochs=40.0,  # the repository's configuration and the paper (100 for small data sets)
        batch_size=128,  # 16 on each of 8 GPUs
        objective=ContrastiveConfig(group_size=2, temperature=1.0, similarity="dot", tied=False),  # one BM25 negative a question
        encoder=encoder("base"),
        embedder=EmbedderConfig(pooling="cls"),
        # The repository's; the paper says 1e-5.
        optimizer=OptimizerConfig(lr=2e-5, warmup=1237.0, weight_decay=0.0, clip=2.0),
        cadence=Cadence(log=50, save=1000, probe=1000),
    )
    # The README trains on both sets together and tells no other number of epochs: 40 of two files that hold each question
    # are 80 passes over the questions, whose negatives lie in two pools here.
    stage1, stage2 = finetuning(size, base), finetuning(size, dataclasses.replace(base, epochs=80.0))
    # BM25's top 100 (the paper). How deep and how many the second mining takes is not told: the same, ours.
    # Passages that hold an answer are no negatives; data without answers says so at once.
    answers = "string" if size == "base" else ""
    negatives = mining(size, MineConfig(depth=100, hi=100, n=30, exclude_answers=answers))
    return card(
        dpr(
            "",
            prepared(size, TextTemplate(query_length=256, passage_length=256)),
            stage1,
            stage2,
            bm25_negatives=negatives,
            mined_negatives=negatives,
            report=ReportConfig(title="DPR in two stages"),
        )
    )

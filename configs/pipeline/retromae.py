"""RetroMAE on MS MARCO passages (Xiao et al. 2022, arXiv 2205.12035): pre-training, fine-tuning, and distillation if wanted.

The argument is a size: smoke, tiny, small or base; with `_distilled` behind it (tiny_distilled) a teacher is trained too and a
third model learns from its scores. base is the authors' (README and examples of staoxiao/RetroMAE); it starts from
--config.init_from=hf:FOLDER of bert-base-uncased. The smaller ones are ours and start from random weights. Named differences: the
teacher's pairs are made of the texts as the retriever has them, so that they come to 175 tokens, where theirs are cut at 200; it starts
from the same encoder, theirs from DeBERTa-v3; stage 1 learns from BM25's negatives.

    python launch/pipeline.py --config configs/pipeline/retromae.py:tiny --config.dataset=beir:FOLDER --workdir DIR
"""

import dataclasses
from pathlib import Path

from denseir_jax.core.config import card, choose
from denseir_jax.data.template import TextTemplate
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.sizes import encoder
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.objectives.cross_encoder import CrossEncoderConfig
from denseir_jax.objectives.distill import DistillConfig
from denseir_jax.pipeline.finetuning import RERANKED, SIZES, finetuning, mining, prepared, pretraining
from denseir_jax.pipeline.recipes.retromae import retromae
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.report import ReportConfig
from denseir_jax.train.loop import Cadence
from denseir_jax.train.optimizer import OptimizerConfig

CARDS = Path(__file__).parents[1] / "pretrain"
VARIANTS = {**{size: (size, False) for size in SIZES}, **{f"{size}_distilled": (size, True) for size in SIZES}}


def get_config(variant: str = "tiny"):
    size, distilled = choose(VARIANTS, variant)
    base = FinetuneConfig(
        epochs=4.0,
        batch_size=128,  # 16 on each of 8 GPUs
        objective=ContrastiveConfig(group_size=16, temperature=1.0, similarity="dot", tied=True),
        encoder=encoder("base"),
        embedder=EmbedderConfig(pooling="cls"),
        optimizer=OptimizerConfig(lr=2e-5, warmup=0.1, weight_decay=0.0),  # the rate is told; warm-up and decay are not: ours
        cadence=Cadence(log=100, save=2000, probe=2000),
    )
    cross = FinetuneConfig(
        epochs=4.0,
        batch_size=16,  # accumulated twice is told; one group on each of 8 GPUs is not: ours
        objective=CrossEncoderConfig(group_size=65, pair_length=200),  # texts of 32 and 144, less one [CLS], fill 175
        encoder=encoder("base"),  # no folder of DeBERTa-v3 can be read here
        optimizer=OptimizerConfig(lr=1e-5, warmup=1000.0, weight_decay=0.0),  # decay is not told
        cadence=Cadence(log=100, save=2000, probe=2000),
    )
    # KL averaged over cells, and 1e-4 of the contrastive loss beside it, as in the authors' code.
    taught = dataclasses.replace(base, objective=DistillConfig(group_size=16, teach="local_kl_element", nll_weight=1e-4))
    # Of the top 200; how many are kept is not told: 64 of BM25's and 64 mined, so that the teacher's groups of 65 are always full.
    negatives = mining(size, MineConfig(depth=200, hi=200, n=64))
    return card(
        retromae(
            "",
            prepared(size, TextTemplate(query_length=32, passage_length=144)),  # 140 to 150 tokens are told
            pretraining(size, CARDS / "retromae.py"),
            finetuning(size, base),
            bm25_negatives=negatives,
            mined_negatives=negatives,
            report=ReportConfig(title="RetroMAE, from pre-training to fine-tuning"),
            teacher=finetuning(size, cross) if distilled else None,
            distilled=finetuning(size, taught) if distilled else None,
            rerank_depth=RERANKED.get(size, 100),
        )
    )

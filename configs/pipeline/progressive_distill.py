"""Progressive distillation: one student, taught in turns by stronger teachers and then on harder negatives.

The argument is a size: smoke, tiny, small or base. The schedule is a table, one row a turn: teacher, its temperature, passages a query,
negatives, epochs. The idea of stronger teachers in sequence is PROD's (SimXNS), that of harder data CL-DRD's; their numbers are
not known here: those of base are ours, rates and batches of coCondenser's fine-tuning.

From random weights a cross-encoder learns little in minutes and teaches less: --config.init_from=hf:DIR, a published encoder, starts all.

    python launch/pipeline.py --config configs/pipeline/progressive_distill.py:tiny --config.dataset=beir:FOLDER --workdir DIR
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
from denseir_jax.pipeline.recipes.progressive import Turn, progressive
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.report import ReportConfig
from denseir_jax.train.loop import Cadence
from denseir_jax.train.optimizer import OptimizerConfig


def get_config(size: str = "tiny"):
    choose(dict.fromkeys(SIZES), size)
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
    taught = dataclasses.replace(base, objective=DistillConfig(group_size=8, teach="global_kl"))
    teacher, student = finetuning(size, base), finetuning(size, taught)
    undivided, group = 1.0, student.objective.group_size
    own = student.objective.temperature  # the retriever's scores are of the student's kind
    turn = {"epochs": student.epochs / 3} if student.epochs else {"steps": 1}  # all turns together are as long as one fine-tuning
    schedule = (
        Turn("retriever", own, group, "bm25", **turn),
        Turn("cross_encoder", undivided, group, "bm25", **turn),
        Turn("cross_encoder", undivided, group, "mined", **turn),
    )
    negatives = mining(size, MineConfig(depth=200, hi=200, n=30))
    return card(
        progressive(
            "",
            prepared(size, TextTemplate(query_length=32, passage_length=128)),
            {"retriever": teacher, "cross_encoder": finetuning(size, cross)},
            student,
            schedule,
            bm25_negatives=negatives,
            mined_negatives=negatives,
            report=ReportConfig(title="Progressive distillation"),
            rerank_depth=RERANKED.get(size, 100),
        )
    )

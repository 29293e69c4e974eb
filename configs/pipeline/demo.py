"""The whole pipeline on 10,033 Wikipedia extracts: description -> extract, from scratch, in minutes on two cores.

    python launch/pipeline.py --config configs/pipeline/demo.py --workdir runs/demo
    python launch/pipeline.py --config configs/pipeline/demo.py:warm --config.init_from=hf:DIR --workdir runs/warm

The second starts from a Hugging Face folder (MiniLM, say) instead of pre-training. `:smoke` takes 10 steps everywhere.
"""

import dataclasses

from denseir_jax.core.config import card, choose
from denseir_jax.data.demo import ATTRIBUTION
from denseir_jax.data.template import TextTemplate
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.objectives.bottleneck import BottleneckConfig
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.objectives.ict import IctConfig
from denseir_jax.objectives.mixture import MixtureConfig
from denseir_jax.pipeline.recipes.two_stage import Control, two_stage
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.pipeline.stages.pretrain import PretrainConfig
from denseir_jax.pipeline.stages.report import ReportConfig
from denseir_jax.train.loop import Cadence
from denseir_jax.train.optimizer import OptimizerConfig

DATASET = "demo:"
TEMPLATE = TextTemplate(query_length=20, passage_length=40, use_title=False)  # tokens; titles did not help BM25
EMBEDDER = EmbedderConfig(pooling="mean", normalize=True)
# The weight of Condenser's two losses beside ICT's: chosen on dev by benchmarks/condenser_weight.py (its result is kept).
CONDENSER_WEIGHT = 0.0
LAYERS = 2 if CONDENSER_WEIGHT else 1  # Condenser's head needs an early and a late layer


def encoder(layers: int) -> EncoderConfig:
    return EncoderConfig(8192, hidden=256, layers=layers, heads=4, intermediate=512, max_length=64, dropout=0.0, attention_dropout=0.0)


def pretrain(layers: int, steps: int, condenser_weight: float) -> PretrainConfig:
    """ICT: a chunk of 4-12 tokens must find its passage, from which it was removed in 7 of 10 pairs; Condenser beside it."""
    ict = IctConfig(unit="chunk", chunk_min=4, chunk_max=12, keep_rate=0.3, temperature=0.05, symmetric=True)
    return PretrainConfig(
        steps=steps,
        batch_size=128,
        objective=MixtureConfig(parts={"ict": ict, "condenser": BottleneckConfig()}, weights={"ict": 1.0, "condenser": condenser_weight}),
        encoder=encoder(layers),
        embedder=EMBEDDER,
        optimizer=OptimizerConfig(lr=1.5e-3, b2=0.98),
        cadence=Cadence(log=10, save=200, probe=200),
    )


def finetune(layers: int, steps: int) -> FinetuneConfig:
    """128 queries, each with its extract and one hard negative."""
    return FinetuneConfig(
        steps=steps,
        batch_size=128,
        objective=ContrastiveConfig(group_size=2, temperature=0.05, similarity="cosine", symmetric=True),
        encoder=encoder(layers),
        embedder=EMBEDDER,
        optimizer=OptimizerConfig(lr=1e-3, b2=0.98),
        cadence=Cadence(log=5, save=50, probe=50),
    )


def get_config(variant: str = "scratch"):
    return card(choose({"scratch": scratch, "smoke": smoke, "warm": warm}, variant, "variant")())


def smoke():
    """Ten steps of everything: to see that it runs."""
    return scratch(lambda steps: 10)


def scratch(steps=lambda steps: steps):
    """From nothing."""
    return two_stage(
        DATASET,
        PrepareConfig(vocab_size=8192, train_queries=True, template=TEMPLATE),
        finetune(LAYERS, steps(80)),
        MineConfig(depth=50, hi=50, n=10),
        MineConfig(depth=50, hi=20, n=10),
        ReportConfig(
            title="Dense retrieval from scratch on Wikipedia extracts",
            summary="A short description of an article must find its extract among 10,033. Everything was trained here, from nothing.",
            attribution=ATTRIBUTION,
        ),
        pretrain=pretrain(LAYERS, steps(800), CONDENSER_WEIGHT),
        no_pretrain=finetune(LAYERS, steps(100)),
        control=Control("embeddings only (control)", pretrain(0, steps(600), 0.0), finetune(0, steps(100))),
    )


def warm():
    """From a published encoder: no pre-training, its own tokenizer and shape, longer texts."""
    tuned = dataclasses.replace(
        finetune(6, 40), batch_size=64, optimizer=OptimizerConfig(lr=5e-5), cadence=Cadence(log=5, save=20, probe=0)
    )
    return two_stage(
        DATASET,
        PrepareConfig(template=dataclasses.replace(TEMPLATE, query_length=24, passage_length=48)),
        tuned,
        MineConfig(depth=50, hi=50, n=10),
        MineConfig(depth=50, hi=20, n=10),
        ReportConfig(title="Dense retrieval from a published encoder on Wikipedia extracts", attribution=ATTRIBUTION),
    )

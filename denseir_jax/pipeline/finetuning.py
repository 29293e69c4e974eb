"""What the cards of recipes share: the published fine-tuning in smaller sizes. The numbers of size base come from its card, or from
that of a single run."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

from denseir_jax.core.config import choose, from_card
from denseir_jax.data.template import TextTemplate
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.sizes import encoder
from denseir_jax.objectives.cross_encoder import CrossEncoderConfig
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.pipeline.stages.pretrain import PretrainConfig
from denseir_jax.train.loop import Cadence
from denseir_jax.train.optimizer import OptimizerConfig


class Scale(NamedTuple):
    """Passes over the queries, or steps where these are 0, queries a step, most passages a query, words of a vocabulary, tokens
    of a query and of a passage, peak learning rate, steps of pre-training (0: as its card says)."""

    epochs: float
    steps: int
    batch_size: int
    group_size: int
    vocabulary: int
    query: int
    passage: int
    lr: float
    pretraining: int


# Ours, the same for every recipe: to see that it runs, minutes on two cores (some thousand queries), one GPU.
SMALLER = {
    "smoke": Scale(0.0, 3, 8, 2, 1000, 16, 32, 1e-3, pretraining=3),
    "tiny": Scale(1.0, 0, 64, 3, 8000, 24, 64, 1e-3, pretraining=60),
    "small": Scale(10.0, 0, 64, 4, 16_000, 32, 128, 3e-4, pretraining=0),
}
SIZES = (*SMALLER, "base")
RERANKED = {"smoke": 10, "tiny": 20}  # passages a query that a cross-encoder puts in order; else 100
TEMPERATURE = 0.05  # of the smaller sizes


def prepared(size: str, base: TextTemplate) -> PrepareConfig:
    """The passages as they are retrieved."""
    if size == "base":
        return PrepareConfig(template=base)
    scale = choose(SMALLER, size)
    template = dataclasses.replace(base, query_length=scale.query, passage_length=scale.passage)
    return PrepareConfig(vocab_size=scale.vocabulary, train_queries=True, template=template)


def published(file: Path, epochs: float) -> FinetuneConfig:
    """The run that another card has at size base, told in passes over the queries, however many a data set has, not in steps."""
    return dataclasses.replace(from_card(FinetuneConfig, file, "base"), epochs=epochs)


def finetuning(size: str, base: FinetuneConfig) -> FinetuneConfig:
    """The published run, or ours of a smaller size, which starts from little: mean pooling, cosine and a temperature of .05
    learn in minutes from random weights what [CLS], dot products and the published rates do not.
    """
    if size == "base":
        return base
    scale = choose(SMALLER, size)
    group: dict[str, Any] = {"group_size": min(base.objective.group_size, scale.group_size)}
    pairs = isinstance(base.objective, CrossEncoderConfig)
    group |= {"pair_length": 0} if pairs else {"temperature": TEMPERATURE, "similarity": "cosine"}
    smoke = size == "smoke"
    return dataclasses.replace(
        base,
        epochs=scale.epochs,
        steps=scale.steps or base.steps,
        batch_size=scale.batch_size,
        objective=dataclasses.replace(base.objective, **group),
        encoder=encoder(size, scale.vocabulary),
        embedder=EmbedderConfig(pooling="mean", normalize=True),
        optimizer=OptimizerConfig(lr=scale.lr, b2=0.98, weight_decay=0.0),
        cadence=Cadence(log=1 if smoke else 10, save=0 if smoke else 50, probe=0 if smoke else 50),
    )


def mining(size: str, base: MineConfig) -> MineConfig:
    """The published mining, or less: the exact index, of which two runs give the same."""
    if size in ("smoke", "tiny"):
        depth, n = {"smoke": (20, 5), "tiny": (100, 8)}[size]
        denoise = dataclasses.replace(base.denoise, fill_to=min(base.denoise.fill_to, depth))
        return dataclasses.replace(base, index="exact", depth=depth, hi=min(base.hi, depth), n=min(base.n, n), denoise=denoise)
    return base


def pretraining(size: str, file: Path) -> PretrainConfig:
    """The run of a pre-training card of this size; smoke and tiny are one part of a recipe there, and shorter."""
    card = from_card(PretrainConfig, file, size)
    steps = 0 if size == "base" else choose(SMALLER, size).pretraining
    if not steps:
        return card
    batch_size = min(card.batch_size, 32)
    return dataclasses.replace(card, steps=steps, batch_size=batch_size, cadence=Cadence(log=1 if size == "smoke" else 10, save=0))

"""What the pre-training cards share: a run of one size. The numbers that a system is published with come from its card."""

import dataclasses
from typing import Any, Literal, NamedTuple

from denseir_jax.core.config import choose
from denseir_jax.data.template import TextTemplate
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.sizes import encoder
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.pipeline.stages.pretrain import PretrainConfig
from denseir_jax.train.loop import Cadence
from denseir_jax.train.optimizer import OptimizerConfig


class Scale(NamedTuple):
    """How much is trained: steps, rows a step, words of a trained vocabulary, tokens a text."""

    steps: int
    batch_size: int
    vocabulary: int
    length: int


# Ours, the same for every system: from random weights in seconds (to see that it runs), on two cores, on one GPU.
SMALLER = {"smoke": Scale(20, 16, 1000, 32), "tiny": Scale(2000, 64, 8000, 128), "small": Scale(20_000, 128, 16_000, 128)}
SPANS = {"smoke": 10, "tiny": 60, "small": 80}  # target tokens of a span


def pretraining(
    size: str,
    objective: Any,
    base: Scale,
    optimizer: OptimizerConfig,
    split: Literal["blocks", "spans", "none"] = "blocks",
    span: int = 80,
    short_share: float = 0.1,
    pooling: Literal["cls", "mean"] = "cls",
) -> PretrainConfig:
    """A pre-training run over masked text.

    Args:
        size: smoke, tiny, small (ours), or base (the published recipe). base, optimizer: of size base; the smaller ones
        take 5e-4, high enough to learn from random weights.
        split: rows are whole sentences packed into blocks, two spans of a document, or passages as they are. span: target
        tokens of a span. short_share: of blocks or spans with a shorter target. pooling: what the losses train to carry the text.
    """
    scale: Scale = choose(SMALLER | {"base": base}, size)
    if split == "spans":
        cut: dict[str, Any] = {"split": "spans", "span_tokens": SPANS.get(size, span), "span_minimum": min(10, SPANS.get(size, span) // 2)}
    else:
        cut = {"split": split, "block_length": scale.length}
    template = TextTemplate(query_length=min(scale.length, 32), passage_length=scale.length)
    smoke = size == "smoke"
    return PretrainConfig(
        steps=scale.steps,
        batch_size=scale.batch_size,
        objective=objective,
        encoder=encoder(size, scale.vocabulary),
        embedder=EmbedderConfig(pooling=pooling),
        prepare=PrepareConfig(vocab_size=scale.vocabulary, short_share=short_share, template=template, **cut),
        optimizer=optimizer if size == "base" else dataclasses.replace(optimizer, lr=5e-4, warmup=0.1),
        cadence=Cadence(log=5 if smoke else 50, save=10 if smoke else 1000, probe=0 if smoke else 1000),
    )

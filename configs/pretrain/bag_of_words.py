"""Bag-of-words prediction (Ma et al. 2024, arXiv 2401.11248): no decoder, the [CLS] vector predicts which words its text holds.

The argument is a size: smoke, tiny, small or base. base: the paper's batch, steps, mask rate and
weight are unknown to us; batch and steps are SimLM's, the others ours. Rows are passages as they are.

    python launch/pretrain.py --config configs/pretrain/bag_of_words.py:tiny --config.corpus=jsonl:FILE --workdir DIR
"""

from denseir_jax.core.config import card
from denseir_jax.objectives.bag_of_words import BagOfWordsConfig
from denseir_jax.objectives.masking import MaskConfig
from denseir_jax.pipeline.pretraining import Scale, pretraining
from denseir_jax.train.optimizer import OptimizerConfig

BASE = Scale(steps=80_000, batch_size=2048, vocabulary=30_522, length=144)  # as in simlm.py


def get_config(size: str = "base"):
    objective = BagOfWordsConfig(mask=MaskConfig(rate=0.3), bow_weight=1.0, bow="set", crop="head")
    optimizer = OptimizerConfig(lr=3e-4, warmup=4000.0, weight_decay=0.01, clip=1.0)  # ours
    return card(pretraining(size, objective, BASE, optimizer, split="none"))

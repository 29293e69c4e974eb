"""A mixture: Condenser's losses and the prediction of the bag of words from one encoder pass. A pattern for mixtures of one's own.

The argument is a size: smoke, tiny, small or base. Nobody has published this one; all numbers are ours. Parts that read
texts in the same way (same mask, crop and pairs) share rows and the encoder pass; others get rows and a pass of their own. Names
of parts are free; --config.objective.weights.bow=0.3 changes a weight, 0 leaves the part out.

    python launch/pretrain.py --config configs/pretrain/mixture.py:tiny --config.corpus=jsonl:FILE --workdir DIR
"""

from denseir_jax.core.config import card
from denseir_jax.objectives.bag_of_words import BagOfWordsConfig
from denseir_jax.objectives.bottleneck import BottleneckConfig
from denseir_jax.objectives.masking import MaskConfig
from denseir_jax.objectives.mixture import MixtureConfig
from denseir_jax.pipeline.pretraining import Scale, pretraining
from denseir_jax.train.optimizer import OptimizerConfig

BASE = Scale(steps=80_000, batch_size=2048, vocabulary=30_522, length=144)  # as in bag_of_words.py


def get_config(size: str = "base"):
    mask = MaskConfig(rate=0.3)
    objective = MixtureConfig(
        parts={"condenser": BottleneckConfig(mask=mask, late_mlm=False), "bow": BagOfWordsConfig(mask=mask)},  # bow has the MLM loss
        weights={"condenser": 1.0, "bow": 1.0},
    )
    optimizer = OptimizerConfig(lr=3e-4, warmup=4000.0, weight_decay=0.01, clip=1.0)
    return card(pretraining(size, objective, BASE, optimizer, split="none"))

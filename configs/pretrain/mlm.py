"""BERT's masked language modelling with whole-word masks (Devlin et al. 2019), the control that every other recipe must beat.

The argument is a size: smoke, tiny, small or base. Data, batch and schedule are those of the
Condenser card, so that the two differ in the objective alone.

    python launch/pretrain.py --config configs/pretrain/mlm.py:tiny --config.corpus=jsonl:FILE --workdir DIR
"""

from denseir_jax.core.config import card
from denseir_jax.objectives.masking import MaskConfig
from denseir_jax.objectives.mlm import MlmConfig
from denseir_jax.pipeline.pretraining import Scale, pretraining
from denseir_jax.train.optimizer import OptimizerConfig

BASE = Scale(steps=300_000, batch_size=1024, vocabulary=30_522, length=128)  # as in condenser.py


def get_config(size: str = "base"):
    objective = MlmConfig(mask=MaskConfig(rate=0.15), crop="random")
    optimizer = OptimizerConfig(lr=1e-4, warmup=0.1, weight_decay=0.01, clip=1.0)
    return card(pretraining(size, objective, BASE, optimizer))

"""The strong decoder that SEED-Encoder is compared with (Lu et al. 2021): 12 causal layers that see all tokens before.

The argument is a size: smoke, tiny, small or base. base: the batch, steps and rate are Optimus's own
(Li et al. 2020, arXiv 2004.04092). Departures: the vector is the raw [CLS] state
(theirs goes through a tanh pooler), the loss is a mean over tokens, its KL per token to match (theirs are sums over a text). The
variational latent is a setting: --config.objective.latent.size=768 and, for ten cycles of
the KL's weight, --config.objective.latent.cycle=N with N = steps x batch_size / 10.

    python launch/pretrain.py --config configs/pretrain/optimus.py:tiny --config.corpus=jsonl:FILE --workdir DIR
"""

from denseir_jax.core.config import card
from denseir_jax.models.decoders import DecoderConfig
from denseir_jax.objectives.masking import MaskConfig
from denseir_jax.objectives.seed import LatentConfig, SeedConfig
from denseir_jax.pipeline.pretraining import Scale, pretraining
from denseir_jax.train.optimizer import OptimizerConfig

# 256 sentences of at most 64 tokens a step, 508,000 steps (the released checkpoint).
BASE = Scale(steps=508_000, batch_size=256, vocabulary=30_522, length=64)


def get_config(size: str = "base"):
    objective = SeedConfig(
        mask=MaskConfig(rate=0.15),
        decoder=DecoderConfig(layers=12, window=None, injection="cross"),
        latent=LatentConfig(size=0, free_nats=1.0),  # SEED's baseline has no latent; 1 nat free a dimension as in Optimus
    )
    optimizer = OptimizerConfig(lr=5e-5, warmup=0.1, weight_decay=0.01, clip=1.0)  # 5e-5: Optimus; the rest ours
    return card(pretraining(size, objective, BASE, optimizer))

"""DupMAE (Liu et al. 2022, arXiv 2211.08769): RetroMAE, and the words of the text from the largest logits of its ordinary tokens.

The argument is a size: smoke, tiny, small or base. base has RetroMAE's published numbers and the
authors' code's weights. The vector and the words together are its representation: --config.embedder.lexical=64 keeps 64 of them.

    python launch/pretrain.py --config configs/pretrain/dupmae.py:tiny --config.corpus=jsonl:FILE --workdir DIR
"""

from denseir_jax.core.config import card
from denseir_jax.objectives.masking import MaskConfig
from denseir_jax.objectives.retromae import RetroMaeConfig
from denseir_jax.pipeline.pretraining import Scale, pretraining
from denseir_jax.train.optimizer import OptimizerConfig

BASE = Scale(steps=250_000, batch_size=256, vocabulary=30_522, length=512)  # as in retromae.py


def get_config(size: str = "base"):
    objective = RetroMaeConfig(
        crop="head",  # as published
        mask=MaskConfig(rate=0.3),
        decoder_mask=MaskConfig(rate=0.5),
        base_masks=256,
        query_norm=True,  # the authors' code
        bow_weight=0.1,  # the code; the paper adds the losses up
        bow="counts",  # the code; "set" in the paper
    )
    optimizer = OptimizerConfig(lr=1e-4, warmup=0.1, weight_decay=0.01, clip=1.0)
    return card(pretraining(size, objective, BASE, optimizer, short_share=0.0))  # no short blocks, as published

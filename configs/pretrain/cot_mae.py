"""CoT-MAE (Wu et al. 2023, arXiv 2208.07670): the [CLS] vector of one span must help to rebuild another span of the document.

The argument is a size: smoke, tiny, small or base. base is the published recipe. A row is a document,
of which two spans are read, each the other's context; batch_size counts documents.

    python launch/pretrain.py --config configs/pretrain/cot_mae.py:tiny --config.corpus=jsonl:FILE --workdir DIR
"""

from denseir_jax.core.config import card
from denseir_jax.objectives.bottleneck import BottleneckConfig
from denseir_jax.objectives.masking import MaskConfig
from denseir_jax.pipeline.pretraining import Scale, pretraining
from denseir_jax.train.optimizer import OptimizerConfig

# 512 documents (1024 sequences) of 128 tokens a step, 1.2 million steps (README of caskcsg/ir).
BASE = Scale(steps=1_200_000, batch_size=512, vocabulary=30_522, length=128)


def get_config(size: str = "base"):
    objective = BottleneckConfig(
        mask=MaskConfig(rate=0.3),  # as published
        tokens="other",
        decoder_mask=MaskConfig(rate=0.45),  # as published
        pairs="random",  # the authors mix near, overlapping and random spans
        n_head_layers=2,  # as published
        head_weight=1.0,  # as published
    )
    optimizer = OptimizerConfig(lr=1e-4, warmup=0.1, weight_decay=0.01, clip=1.0)  # lr as published; the rest is Condenser's
    # Spans of 128 tokens with [CLS] and [SEP], 15 % of them shorter, as published.
    return card(pretraining(size, objective, BASE, optimizer, split="spans", span=126, short_share=0.15))

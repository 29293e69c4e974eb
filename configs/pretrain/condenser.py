"""Condenser (Gao & Callan 2021, arXiv 2104.08253): a head that reads early token states and the last [CLS] predicts the masks.

The argument is a size: smoke, tiny, small or base. base is the published recipe, which starts from
--config.init_from=hf:FOLDER of bert-base-uncased; the smaller ones train from scratch on a laptop.

    python launch/pretrain.py --config configs/pretrain/condenser.py:tiny --config.corpus=jsonl:FILE --workdir DIR
"""

from denseir_jax.core.config import card
from denseir_jax.objectives.bottleneck import BottleneckConfig
from denseir_jax.objectives.masking import MaskConfig
from denseir_jax.pipeline.pretraining import Scale, pretraining
from denseir_jax.train.optimizer import OptimizerConfig

# 1024 x 128 tokens as published; its 8 epochs of Wikipedia + BookCorpus are about 300,000 steps by our count of 18 GB of text,
# a number that the authors do not give.
BASE = Scale(steps=300_000, batch_size=1024, vocabulary=30_522, length=128)


def get_config(size: str = "base"):
    objective = BottleneckConfig(
        mask=MaskConfig(rate=0.15),  # whole words, of the text without [CLS] and [SEP]
        tokens="layer",
        skip_from=None,  # the middle layer: 6 of 12 as in every published command
        n_head_layers=2,  # as published
        late_mlm=True,  # every published recipe passes it
        crop="random",
    )
    optimizer = OptimizerConfig(lr=1e-4, warmup=0.1, weight_decay=0.01, clip=1.0)  # as published
    return card(pretraining(size, objective, BASE, optimizer))

"""RetroMAE with basic decoding (Xiao et al. 2022, section 3.2): one layer rebuilds a heavily masked text from the [CLS] vector.

The argument is a size: smoke, tiny, small or base. Data, batch and schedule are those of the enhanced
kind; the authors published no code for this one.

    python launch/pretrain.py --config configs/pretrain/retromae_basic.py:tiny --config.corpus=jsonl:FILE --workdir DIR
"""

from denseir_jax.core.config import card
from denseir_jax.objectives.bottleneck import BottleneckConfig
from denseir_jax.objectives.masking import MaskConfig
from denseir_jax.pipeline.pretraining import Scale, pretraining
from denseir_jax.train.optimizer import OptimizerConfig

BASE = Scale(steps=250_000, batch_size=256, vocabulary=30_522, length=512)  # as in retromae.py


def get_config(size: str = "base"):
    objective = BottleneckConfig(
        mask=MaskConfig(rate=0.3),
        tokens="masked",
        decoder_mask=MaskConfig(rate=0.5),  # 50-70 % in the paper
        relation="apart",  # drawn without regard to the encoder's mask
        n_head_layers=1,
        late_mlm=True,
        crop="head",
    )
    optimizer = OptimizerConfig(lr=1e-4, warmup=0.1, weight_decay=0.01, clip=1.0)
    return card(pretraining(size, objective, BASE, optimizer, short_share=0.0))

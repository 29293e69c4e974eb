"""SimLM's bottleneck (Wang et al. 2023, arXiv 2207.02578): two layers, copied from the encoder's last ones, rebuild all of the text.

The argument is a size: smoke, tiny, small or base. base has the published numbers. Three things differ: masked
places hold [MASK], where SimLM fills them with words that a frozen ELECTRA generator draws; the decoder's mask fills up the
encoder's to its own budget, where theirs is the union of two draws; [UNK] is predicted like any word. Rows are passages as they are
(MS MARCO's, as published).

    python launch/pretrain.py --config configs/pretrain/simlm.py:tiny --config.corpus=jsonl:FILE --workdir DIR
"""

from denseir_jax.core.config import card
from denseir_jax.objectives.bottleneck import BottleneckConfig
from denseir_jax.objectives.masking import MaskConfig
from denseir_jax.pipeline.pretraining import Scale, pretraining
from denseir_jax.train.optimizer import OptimizerConfig

# 2048 x 144 tokens, 80,000 steps.
BASE = Scale(steps=80_000, batch_size=2048, vocabulary=30_522, length=144)


def get_config(size: str = "base"):
    objective = BottleneckConfig(
        mask=MaskConfig(rate=0.3, masked=1.0, random=0.0),  # rates as published; every chosen token becomes [MASK]
        tokens="masked",
        decoder_mask=MaskConfig(rate=0.5, masked=1.0, random=0.0),
        relation="around",  # the decoder's mask holds the encoder's
        predict="all",
        late_predict="all",  # the encoder too is asked for every token
        crop="head",
        n_head_layers=2,
        head_init="last",
    )
    optimizer = OptimizerConfig(lr=3e-4, warmup=4000.0, weight_decay=0.0, clip=1.0)  # lr, warm-up and decay as published
    return card(pretraining(size, objective, BASE, optimizer, split="none"))

"""SEED-Encoder (Lu et al. 2021, arXiv 2102.09206): a weak decoder must write the text from the [CLS] vector.

The argument is a size: smoke, tiny, small or base. base has the published shape of the decoder; the
batch, steps and rate of its pre-training were never published and are ours. Theirs has 32,769 words, LayerNorms of eps 1e-5 in the
encoder too (--config.encoder.eps=1e-5) and masks of single tokens; this encoder is BERT's, its masks are of whole words.

    python launch/pretrain.py --config configs/pretrain/seed.py:tiny --config.corpus=jsonl:FILE --workdir DIR
"""

from denseir_jax.core.config import card
from denseir_jax.models.decoders import DecoderConfig
from denseir_jax.objectives.masking import MaskConfig
from denseir_jax.objectives.seed import SeedConfig
from denseir_jax.pipeline.pretraining import Scale, pretraining
from denseir_jax.train.optimizer import OptimizerConfig

# 512 tokens as in the paper (Wikipedia and BookCorpus, from scratch). Steps and batch: unpublished, ours.
BASE = Scale(steps=125_000, batch_size=1024, vocabulary=30_522, length=512)


def get_config(size: str = "base"):
    objective = SeedConfig(
        mask=MaskConfig(rate=0.15),
        decoder=DecoderConfig(layers=3, window=2, injection="cross"),  # the released "3 layers, window 2"; there is a "1 layer, window 8"
        mlm_weight=1.0,  # 1 : 1 as in the paper
        decoder_weight=1.0,
    )
    optimizer = OptimizerConfig(lr=1e-4, warmup=0.1, weight_decay=0.01, clip=1.0)  # unpublished, ours
    return card(pretraining(size, objective, BASE, optimizer))

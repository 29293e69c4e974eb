"""Condenser (Gao & Callan 2021, arXiv 2104.08253): a head that reads early token states and the last [CLS] predicts the masks.

The argument is a size: smoke, tiny, small or base. base is the published recipe; the smaller ones train from scratch on
a laptop. python launch/pretrain.py --config configs/pretrain/condenser.py:tiny --config.corpus=jsonl:FILE --workdir DIR
"""

from denseir_jax.core.config import card, choose
from denseir_jax.data.template import TextTemplate
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.sizes import encoder
from denseir_jax.objectives.bottleneck import CondenserConfig
from denseir_jax.objectives.masking import MaskConfig
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.pipeline.stages.pretrain import PretrainConfig
from denseir_jax.train.loop import Cadence
from denseir_jax.train.optimizer import OptimizerConfig

# size: steps, sequences a step, vocabulary, tokens a sequence. base: 1024 x 128 as published; its 8 epochs of Wikipedia +
# BookCorpus are about 300,000 steps by our count of 18 GB of text, a number that the authors do not give.
SIZES = {
    "smoke": (20, 16, 1000, 32),
    "tiny": (2000, 64, 8000, 128),
    "small": (20_000, 128, 16_000, 128),
    "base": (300_000, 1024, 30_522, 128),
}


def get_config(size: str = "base"):
    steps, batch_size, vocabulary, length = choose(SIZES, size)
    return card(
        PretrainConfig(
            steps=steps,
            batch_size=batch_size,
            objective=CondenserConfig(
                mask=MaskConfig(rate=0.15),  # whole words, of the text without [CLS] and [SEP]
                skip_from=None,  # the middle layer: 6 of 12 as in every published command
                n_head_layers=2,  # as published
                late_mlm=True,  # every published recipe passes it
                crop="random",
            ),
            encoder=encoder(size, vocabulary),
            embedder=EmbedderConfig(pooling="cls"),
            prepare=PrepareConfig(
                vocab_size=vocabulary,
                split="blocks",  # whole sentences packed to the length
                block_length=length,
                short_share=0.1,  # as published
                template=TextTemplate(query_length=min(length, 32), passage_length=length),
            ),
            optimizer=OptimizerConfig(lr=1e-4 if size == "base" else 5e-4, warmup=0.1, weight_decay=0.01, clip=1.0),  # base as published
            cadence=Cadence(log=5 if size == "smoke" else 50, save=10 if size == "smoke" else 1000, probe=0 if size == "smoke" else 1000),
        )
    )

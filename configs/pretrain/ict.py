"""Inverse Cloze Task (Lee et al. 2019, arXiv 1906.00300): a sentence must find the passage that it was taken from.

The argument is a size: smoke, tiny, small or base. base follows ORQA where it can: 4096 pairs, 100,000 steps (both from
the paper as recalled, not checked again), removal in 9 of 10 pairs, lr 1e-4; vectors are compared by dot product.
"""

from denseir_jax.core.config import card, choose
from denseir_jax.data.template import TextTemplate
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.sizes import encoder
from denseir_jax.objectives.ict import IctConfig
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.pipeline.stages.pretrain import PretrainConfig
from denseir_jax.train.loop import Cadence
from denseir_jax.train.optimizer import OptimizerConfig

# size: steps, pairs a step, vocabulary, tokens of a query, of a passage. base: lengths as published.
SIZES = {
    "smoke": (20, 16, 1000, 16, 32),
    "tiny": (2000, 128, 8000, 32, 96),
    "small": (20_000, 256, 16_000, 64, 128),
    "base": (100_000, 4096, 30_522, 64, 288),
}


def get_config(size: str = "base"):
    steps, batch_size, vocabulary, query, passage = choose(SIZES, size)
    scratch = size != "base"  # small models from scratch: unit vectors, a temperature and mean pooling learn far faster
    return card(
        PretrainConfig(
            steps=steps,
            batch_size=batch_size,
            objective=IctConfig(unit="sentence", keep_rate=0.1, temperature=0.05 if scratch else 1.0, symmetric=scratch),
            encoder=encoder(size, vocabulary),
            embedder=EmbedderConfig(pooling="mean" if scratch else "cls", projection=0 if scratch else 128, normalize=scratch),
            prepare=PrepareConfig(vocab_size=vocabulary, template=TextTemplate(query_length=query, passage_length=passage)),
            optimizer=OptimizerConfig(lr=1e-4 if size == "base" else 5e-4, warmup=0.1, weight_decay=0.01, clip=1.0),
            cadence=Cadence(log=5 if size == "smoke" else 50, save=10 if size == "smoke" else 1000, probe=0 if size == "smoke" else 1000),
        )
    )

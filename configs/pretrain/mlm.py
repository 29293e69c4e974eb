"""BERT's masked language modelling with whole-word masks (Devlin et al. 2019), the control that every other recipe must beat.

The argument is a size: smoke, tiny, small or base. Data, batch and schedule are those of the Condenser card, so that the
two differ in the objective alone.
"""

from denseir_jax.core.config import card, choose
from denseir_jax.data.template import TextTemplate
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.sizes import encoder
from denseir_jax.objectives.masking import MaskConfig
from denseir_jax.objectives.mlm import MlmConfig
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.pipeline.stages.pretrain import PretrainConfig
from denseir_jax.train.loop import Cadence
from denseir_jax.train.optimizer import OptimizerConfig

# size: steps, sequences a step, vocabulary, tokens a sequence; the same as in condenser.py.
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
            objective=MlmConfig(mask=MaskConfig(rate=0.15), crop="random"),
            encoder=encoder(size, vocabulary),
            embedder=EmbedderConfig(pooling="cls"),
            prepare=PrepareConfig(
                vocab_size=vocabulary,
                split="blocks",
                block_length=length,
                short_share=0.1,
                template=TextTemplate(query_length=min(length, 32), passage_length=length),
            ),
            optimizer=OptimizerConfig(lr=1e-4 if size == "base" else 5e-4, warmup=0.1, weight_decay=0.01, clip=1.0),
            cadence=Cadence(log=5 if size == "smoke" else 50, save=10 if size == "smoke" else 1000, probe=0 if size == "smoke" else 1000),
        )
    )

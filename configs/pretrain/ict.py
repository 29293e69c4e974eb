"""Inverse Cloze Task (Lee et al. 2019, arXiv 1906.00300): a sentence must find the passage that it was taken from.

The argument is a size: smoke, tiny, small or base. base follows ORQA's code where it can: removal in
9 of 10 pairs, lr 1e-4, lengths; 4096 pairs and 100,000 steps are ours; raw [CLS] vectors compared by dot product.

Ours, unlike ORQA's code: equal passages of a batch are no negatives of one another, texts of one sentence are left out even
where their query would stay, and titles and segment ids (0 and 1) are not used.

From random weights in minutes, unit vectors, mean pooling and a temperature learn far faster; configs/pipeline/demo.py does so:
--config.embedder.pooling=mean --config.embedder.normalize=true --config.objective.temperature=0.05 --config.objective.symmetric=true
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

# size: steps, pairs a step, vocabulary, tokens of a query, of a passage, learning rate. base: lengths as published.
SIZES = {
    "smoke": (20, 16, 1000, 16, 32, 5e-4),
    "tiny": (2000, 128, 8000, 32, 96, 5e-4),
    "small": (20_000, 256, 16_000, 64, 128, 5e-4),
    "base": (100_000, 4096, 30_522, 64, 288, 1e-4),
}


def get_config(size: str = "base"):
    steps, batch_size, vocabulary, query, passage, lr = choose(SIZES, size)
    return card(
        PretrainConfig(
            steps=steps,
            batch_size=batch_size,
            objective=IctConfig(unit="sentence", keep_rate=0.1, temperature=1.0, symmetric=False),
            encoder=encoder(size, vocabulary),
            embedder=EmbedderConfig(pooling="cls"),  # ORQA projects a pooled output to 128; left out, to compare with the others
            prepare=PrepareConfig(vocab_size=vocabulary, template=TextTemplate(query_length=query, passage_length=passage)),
            optimizer=OptimizerConfig(lr=lr, warmup=0.1, weight_decay=0.01, clip=1.0),
            cadence=Cadence(log=5 if size == "smoke" else 50, save=10 if size == "smoke" else 1000, probe=0 if size == "smoke" else 1000),
        )
    )

"""Contrastive fine-tuning on judged queries with in-batch and hard negatives.

The argument is a size: smoke, tiny, small or base. base is coCondenser's stage 1 for MS MARCO (Gao & Callan 2022, arXiv
2108.05540, by the authors' toolkit): 64 queries x 8 passages, lr 5e-6, 3 epochs of about 500,000 queries.
Hard negatives are BM25's unless --config.training_set names a finished mine run.
"""

from denseir_jax.core.config import card, choose
from denseir_jax.data.template import TextTemplate
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.sizes import encoder
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.train.loop import Cadence
from denseir_jax.train.optimizer import OptimizerConfig

# size: steps, queries a step, passages a query, vocabulary, tokens of a query, of a passage.
SIZES = {
    "smoke": (20, 8, 2, 1000, 16, 32),
    "tiny": (500, 64, 2, 8000, 32, 96),
    "small": (2000, 64, 4, 16_000, 32, 128),
    "base": (23_500, 64, 8, 30_522, 32, 128),
}


def get_config(size: str = "base"):
    steps, batch_size, group_size, vocabulary, query, passage = choose(SIZES, size)
    scratch = size != "base"  # small models: unit vectors, a temperature and mean pooling learn far faster
    return card(
        FinetuneConfig(
            steps=steps,
            batch_size=batch_size,
            objective=ContrastiveConfig(
                group_size=group_size,  # one positive, the rest hard negatives
                temperature=0.05 if scratch else 1.0,
                similarity="cosine" if scratch else "dot",
            ),
            encoder=encoder(size, vocabulary),
            embedder=EmbedderConfig(pooling="mean" if scratch else "cls", normalize=scratch),
            prepare=PrepareConfig(
                vocab_size=vocabulary, train_queries=True, template=TextTemplate(query_length=query, passage_length=passage)
            ),
            mine=MineConfig(depth=200, lo=0, hi=200, n=30),  # top 200, keep 30
            optimizer=OptimizerConfig(lr=5e-6 if size == "base" else 5e-4, warmup=0.1, weight_decay=0.0 if size == "base" else 0.01),
            cadence=Cadence(log=5 if size == "smoke" else 20, save=10 if size == "smoke" else 500, probe=0 if size == "smoke" else 250),
        )
    )

"""Contrastive fine-tuning on judged queries with in-batch and hard negatives.

The argument is a size: smoke, tiny, small or base. base is coCondenser's stage 1 for MS MARCO (Gao & Callan 2022, arXiv
2108.05540, by the authors' toolkit): 64 queries x 8 passages, lr 5e-6, 3 epochs of about 500,000 queries, no weight decay.
Hard negatives are BM25's unless --config.training_set names a finished mine run.

Four random negatives a query, as RocketQA's first step (Qu et al. 2021): --config.objective.sources=random --config.objective.group_size=5
Several positives a query in one group: --config.objective.positives=all (or each) --config.objective.max_positives=4

Long documents are cut after passage_length tokens (FirstP), or read in several blocks, the best of which counts (MaxP;
configs/finetune/documents.py): --config.prepare.template.blocks=4 --config.prepare.template.passage_length=512

From random weights in minutes, unit vectors, mean pooling and a temperature learn far faster; configs/pipeline/demo.py does so:
--config.embedder.pooling=mean --config.objective.similarity=cosine --config.objective.temperature=0.05
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

# size: steps, queries a step, vocabulary, tokens of a query, of a passage, learning rate.
SIZES = {
    "smoke": (20, 8, 1000, 16, 32, 5e-4),
    "tiny": (500, 32, 8000, 32, 96, 5e-4),
    "small": (2000, 64, 16_000, 32, 128, 1e-4),
    "base": (23_500, 64, 30_522, 32, 128, 5e-6),
}


def get_config(size: str = "base"):
    steps, batch_size, vocabulary, query, passage, lr = choose(SIZES, size)
    return card(
        FinetuneConfig(
            steps=steps,
            batch_size=batch_size,
            objective=ContrastiveConfig(
                group_size=8,  # one positive, seven hard negatives
                temperature=1.0,
                similarity="dot",
                tied=True,  # one encoder for both sides, as for MS MARCO
            ),
            encoder=encoder(size, vocabulary),
            embedder=EmbedderConfig(pooling="cls"),
            prepare=PrepareConfig(
                vocab_size=vocabulary, train_queries=True, template=TextTemplate(query_length=query, passage_length=passage)
            ),
            mine=MineConfig(depth=200, lo=0, hi=200, n=30),  # top 200, keep 30
            optimizer=OptimizerConfig(lr=lr, warmup=0.1, weight_decay=0.0),
            cadence=Cadence(log=5 if size == "smoke" else 20, save=10 if size == "smoke" else 500, probe=0 if size == "smoke" else 250),
        )
    )

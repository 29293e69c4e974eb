"""Fine-tuning on long documents by their best block (MaxP), each with its hard negative: --config.dataset=msmarco_docs:FOLDER

The argument is a size: smoke, tiny, small or base. base has ANCE's numbers for documents (Xiong et al. 2021, arXiv 2007.00808, by
its code): 4 blocks of 512 tokens, queries of 64, pairs of a positive and a negative alone, 128 of them a step, 139,000 steps, 500
of warm-up, lr 1e-5 (with LAMB there, AdamW here), negatives out of the top 200, 20 kept. Unlike there, every block has a [CLS].

FirstP:          --config.prepare.template.blocks=1            (the first passage_length tokens of a document)
Sliding blocks:  --config.prepare.template.stride=256          (tokens of text from a block's start to the next one's)
Other losses:    the keys of configs/finetune/contrastive.py, as --config.objective.loss=nll --config.objective.in_batch=True

The template is kept with the retriever: encode, mine and evaluate then read documents in the same blocks by themselves.
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

# size: steps, queries a step, vocabulary, tokens of a query, of a block, blocks, warm-up, learning rate.
SIZES = {
    "smoke": (20, 8, 1000, 16, 16, 2, 0.1, 5e-4),
    "tiny": (500, 32, 8000, 32, 128, 4, 0.1, 5e-4),
    "small": (2000, 64, 16_000, 32, 256, 4, 0.1, 1e-4),
    "base": (139_000, 128, 30_522, 64, 512, 4, 500.0, 1e-5),
}


def get_config(size: str = "base"):
    steps, batch_size, vocabulary, query, block, blocks, warmup, lr = choose(SIZES, size)
    template = TextTemplate(query_length=query, passage_length=block, blocks=blocks)
    return card(
        FinetuneConfig(
            steps=steps,
            batch_size=batch_size,
            objective=ContrastiveConfig(group_size=2, loss="pairwise", in_batch=False, similarity="dot", tied=True),
            encoder=encoder(size, vocabulary),
            embedder=EmbedderConfig(pooling="cls"),
            prepare=PrepareConfig(vocab_size=vocabulary, train_queries=True, template=template),
            mine=MineConfig(depth=200, lo=0, hi=200, n=20),
            optimizer=OptimizerConfig(lr=lr, warmup=warmup, weight_decay=0.0),
            cadence=Cadence(log=5 if size == "smoke" else 20, save=10 if size == "smoke" else 500, probe=0 if size == "smoke" else 250),
        )
    )

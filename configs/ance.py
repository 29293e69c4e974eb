"""Fine-tuning on negatives mined from the model's own checkpoints while it trains: ANCE, --config.dataset=format:path.

The argument is a size: smoke, tiny, small or base. base is ANCE's for MS MARCO passages (Xiong et al. 2021, arXiv 2007.00808; numbers
from the authors' code and scripts, commit c8439df): 64 triples a step, LAMB at 1e-6 after 5,000 steps of warm-up, clipped at 1,
a checkpoint every 10,000 steps, a look for new data every 100, queries of 64 and passages of 512 tokens, CLS with a Linear and a
LayerNorm, top 200 searched, 20 negatives drawn, a fifth of the queries mined a round. Their best checkpoint is at step 600,000,
where ours stops; no weight decay is ours. Their encoder is RoBERTa-base, which --config.init_from=hf:DIR brings.

ANCE starts from a model that was warmed up on BM25 negatives: train one by configs/finetune/ance_warm_up.py, give it by
--config.init_from=run:DIR, and by --config.mine.retriever=run:DIR too if the first negatives are to be its own. From little, in
minutes, a larger learning rate, mean pooling, unit vectors and negatives of the batch learn faster: --config.embedder.pooling=mean
--config.embedder.projection=0 --config.objective.similarity=cosine --config.objective.temperature=0.05
--config.objective.loss=nll --config.objective.in_batch=True
"""

from denseir_jax.core.config import card, choose
from denseir_jax.data.template import TextTemplate
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.sizes import encoder
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.pipeline.ance.config import AnceConfig, RefreshConfig
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.train.loop import Cadence
from denseir_jax.train.optimizer import OptimizerConfig

# size: steps, queries a step, vocabulary, tokens of a query, of a passage, learning rate, steps of warm-up, between two
# checkpoints, between two looks for a newer set; passages searched, negatives kept, parts of the queries.
SIZES = {
    "smoke": (20, 8, 1000, 16, 32, 5e-4, 2, 5, 2, 20, 8, 2),
    "tiny": (2000, 32, 8000, 32, 96, 3e-4, 100, 200, 20, 200, 20, 2),
    "small": (20_000, 64, 16_000, 32, 128, 5e-5, 1000, 1000, 50, 200, 20, 5),
    "base": (600_000, 64, 30_522, 64, 512, 1e-6, 5000, 10_000, 100, 200, 20, 5),
}


def get_config(size: str = "base"):
    steps, batch_size, vocabulary, query, passage, lr, warmup, save, poll, depth, n, parts = choose(SIZES, size)
    shape = encoder(size, vocabulary)
    return card(
        AnceConfig(
            steps=steps,
            batch_size=batch_size,
            objective=ContrastiveConfig(
                group_size=2,  # a positive and one negative: a triple, as ANCE trains on
                loss="pairwise",  # log(1 + exp(s- - s+))
                in_batch=False,
                similarity="dot",
                tied=True,
            ),
            encoder=shape,
            embedder=EmbedderConfig(pooling="cls", projection=shape.hidden),
            prepare=PrepareConfig(
                vocab_size=vocabulary, train_queries=True, template=TextTemplate(query_length=query, passage_length=passage)
            ),
            mine=MineConfig(depth=depth, hi=depth, n=n, index="exact" if size == "smoke" else "scann"),
            refresh=RefreshConfig(
                query_parts=parts,
                dev_split="" if size == "smoke" else "dev",
            ),
            role="sliced" if size == "smoke" else "both",  # 20 steps are over before another process has mined anything
            poll=poll,
            rewarm=0,  # one warm-up and one decay (the scripts' single_warmup)
            optimizer=OptimizerConfig(name="lamb" if size == "base" else "adamw", lr=lr, warmup=float(warmup), weight_decay=0.0, clip=1.0),
            cadence=Cadence(log=min(poll, 20), save=save, keep=3),
        )
    )

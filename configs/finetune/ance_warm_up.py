"""The warm-up of ANCE: fine-tuning on BM25's negatives, whose model configs/ance.py goes on from.

The argument is a size: smoke, tiny, small or base. base is the "BM25 Neg" model for MS MARCO passages (Xiong et al. 2021, arXiv
2007.00808; numbers from the authors' code, commit c8439df): triples, each a query, a positive and a negative alone, 32 on a GPU, LAMB at
2e-4 after 1,000 steps of warm-up, texts of 128 tokens, CLS with a Linear and a LayerNorm, log(1 + exp(s- - s+)). Their README reports an
MRR@10 of 0.311 at step 60,000, where ours stops; others got 0.298 at 300,000 (microsoft/ANCE, issue 22).

Not known here, and ours: that there are 4 GPUs (128 triples a step), as in ANCE's training on passages; queries of 64 tokens, as there;
clipping at 1, as there; no weight decay; the rate's decay, to zero at the last step, where theirs is told by 2 epochs of
triples.train.small. Their encoder is RoBERTa-base, which --config.init_from=hf:DIR brings. Negatives are mined here, 30 of BM25's
first 200; their own triples are read by

    python launch/finetune.py --config configs/finetune/ance_warm_up.py:base --config.dataset=triples:triples.train.small.tsv \\
        --config.training_set=given --config.probe_split= --config.init_from=hf:DIR --workdir runs/warm_up

where an epoch is a pass over queries, one negative each, and not over triples. Afterwards
--config.init_from=run:runs/warm_up for configs/ance.py.
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

# size: steps, queries a step, vocabulary, tokens of a query, of a passage, optimizer, learning rate, warm-up.
SIZES = {
    "smoke": (20, 8, 1000, 16, 32, "adamw", 5e-4, 2.0),
    "tiny": (500, 32, 8000, 32, 96, "adamw", 5e-4, 50.0),
    "small": (2000, 64, 16_000, 32, 128, "adamw", 1e-4, 200.0),
    "base": (60_000, 128, 30_522, 64, 128, "lamb", 2e-4, 1000.0),
}


def get_config(size: str = "base"):
    steps, batch_size, vocabulary, query, passage, optimizer, lr, warmup = choose(SIZES, size)
    shape = encoder(size, vocabulary)
    return card(
        FinetuneConfig(
            steps=steps,
            batch_size=batch_size,
            objective=ContrastiveConfig(group_size=2, loss="pairwise", in_batch=False, similarity="dot", tied=True),
            encoder=shape,
            embedder=EmbedderConfig(pooling="cls", projection=shape.hidden),
            prepare=PrepareConfig(
                vocab_size=vocabulary, train_queries=True, template=TextTemplate(query_length=query, passage_length=passage)
            ),
            mine=MineConfig(depth=200, lo=0, hi=200, n=30),
            optimizer=OptimizerConfig(name=optimizer, lr=lr, warmup=warmup, weight_decay=0.0, clip=1.0),
            cadence=Cadence(log=5 if size == "smoke" else 20, save=10 if size == "smoke" else 500, probe=0 if size == "smoke" else 250),
        )
    )

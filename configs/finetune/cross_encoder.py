"""A cross-encoder: query and passage in one pass, which reranks what a retriever found, denoises its negatives and teaches it.

The argument is a size: smoke, tiny, small or base. base is Reranker's for MS MARCO's documents (Gao, Dai & Callan 2021, arXiv
2101.08751, by the authors' toolkit): softmax over 8 passages ("LCE"), 4 queries a step, lr 1e-5, weight decay 0.01, 2 epochs of
367,013 queries, pairs of 512 tokens, 10 negatives a query drawn from the first 100 of the retriever whose runs it will rerank. That
the query may have 64 of the tokens is ours. Negatives are BM25's unless --config.training_set names a finished mine run.

    python launch/rerank.py --config configs/finetune/cross_encoder.py:tiny --config.dataset=beir:FOLDER --config.tokens=runs/tokens \\
        --config.training_set=runs/negatives --config.init_from=run:runs/pretrained --workdir runs/cross_encoder
"""

from denseir_jax.core.config import card, choose
from denseir_jax.data.template import TextTemplate
from denseir_jax.models.sizes import encoder
from denseir_jax.objectives.cross_encoder import CrossEncoderConfig
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.train.loop import Cadence
from denseir_jax.train.optimizer import OptimizerConfig

# size: steps, queries a step, vocabulary, tokens of a query, of a passage, learning rate.
SIZES = {
    "smoke": (20, 8, 1000, 16, 32, 5e-4),
    "tiny": (1000, 16, 8000, 32, 96, 3e-4),
    "small": (4000, 32, 16_000, 32, 128, 1e-4),
    "base": (183_500, 4, 30_522, 64, 449, 1e-5),
}


def get_config(size: str = "base"):
    steps, batch_size, vocabulary, query, passage, lr = choose(SIZES, size)
    return card(
        FinetuneConfig(
            steps=steps,
            batch_size=batch_size,
            objective=CrossEncoderConfig(group_size=8, loss="lce", outputs=1),
            encoder=encoder(size, vocabulary),
            prepare=PrepareConfig(
                vocab_size=vocabulary, train_queries=True, template=TextTemplate(query_length=query, passage_length=passage)
            ),
            mine=MineConfig(depth=100, lo=0, hi=100, n=10),  # 10 of the first 100
            optimizer=OptimizerConfig(lr=lr, warmup=0.1, weight_decay=0.01),
            cadence=Cadence(log=5 if size == "smoke" else 20, save=10 if size == "smoke" else 500, probe=0 if size == "smoke" else 500),
        )
    )

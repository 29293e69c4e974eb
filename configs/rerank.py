"""Reranking: --config.dataset=format:path --config.run=FILE --config.reranker=run:DIR|hf:DIR.

The argument is a size; it changes the depth alone, since a cross-encoder has a shape of its own. base: 1,000 passages a query, as
for MS MARCO's passages (Nogueira & Cho 2019, arXiv 1901.04085); the others: 100, or 10 to see that it runs.

    python launch/rerank.py --config configs/rerank.py:small --config.dataset=beir:FOLDER --config.run=runs/evaluate-... \\
        --config.reranker=run:runs/cross_encoder --workdir runs/reranked
"""

from denseir_jax.core.config import card, choose
from denseir_jax.pipeline.stages.rerank import RerankConfig

SIZES = {"smoke": 10, "tiny": 100, "small": 100, "base": 1000}  # passages a query


def get_config(size: str = "small"):
    return card(RerankConfig(depth=choose(SIZES, size)))

"""Hard negatives: --config.dataset=format:path, and --config.retriever=run:DIR|hf:DIR (BM25 if not given).

The argument is a size. Depth and n are those of coCondenser's recipe for MS MARCO (top 200, keep 30); smoke takes fewer.
"""

from denseir_jax.core.config import card, choose
from denseir_jax.pipeline.stages.mine import MineConfig

# size: passages retrieved a query, negatives kept a query.
SIZES = {"smoke": (20, 8), "tiny": (200, 30), "small": (200, 30), "base": (200, 30)}


def get_config(size: str = "small"):
    depth, n = choose(SIZES, size)
    return card(MineConfig(depth=depth, lo=0, hi=depth, n=n, index="scann"))

"""Hard negatives: --config.dataset=format:path, and --config.retriever=run:DIR|hf:DIR (BM25 if not given).

The argument is a size. Depth and n are those of coCondenser's recipe for MS MARCO (top 200, keep 30); smoke takes fewer.

Passages with an answer are no negatives:  --config.exclude_answers=string (--config.questions=FILE where the data set has none)
Only what a cross-encoder denies is one:    --config.denoise.reranker=run:DIR (thresholds from dev: --config.denoise.calibrate_split=dev)
Queries that nobody judged (RocketQA, 4):   --config.unlabelled=tsv:FILE with a cross-encoder; --config.split= to mine for them alone
RocketQA's third step, MS MARCO:            --config.depth=1000 --config.hi=50 --config.n=4 --config.take=first
                                            --config.denoise.fill_to=1000
"""

from denseir_jax.core.config import card, choose
from denseir_jax.pipeline.stages.mine import MineConfig

# size: passages retrieved a query, negatives kept a query.
SIZES = {"smoke": (20, 8), "tiny": (200, 30), "small": (200, 30), "base": (200, 30)}


def get_config(size: str = "small"):
    depth, n = choose(SIZES, size)
    return card(MineConfig(depth=depth, lo=0, hi=depth, n=n, index="scann"))

"""A corpus as vectors: --config.retriever=run:DIR|hf:DIR and --config.corpus=format:path or --config.tokens=DIR.

The argument is a size. It decides how many passages make a shard, the unit of resuming, and nothing else.
"""

from denseir_jax.core.config import card, choose
from denseir_jax.pipeline.stages.encode import EncodeConfig

# size: passages a shard; 65,536 of 768 dimensions in float16 are 100 MB.
SIZES = {"smoke": 256, "tiny": 4096, "small": 16384, "base": 65536}


def get_config(size: str = "small"):
    return card(EncodeConfig(dtype="float16", shard_rows=choose(SIZES, size)))

"""A corpus as vectors: --config.retriever=run:DIR|hf:DIR and --config.corpus=format:path or --config.tokens=DIR.

The argument is a size. It changes the work done at once, not the vectors.
"""

from denseir_jax.core.config import card
from denseir_jax.pipeline.stages.encode import EncodeConfig

# size: passages a shard, tokens a batch. base: shards of 25 MB at 768 dimensions in float16.
SIZES = {"smoke": (256, 2048), "tiny": (4096, 8192), "small": (16384, 16384), "base": (16384, 65536)}


def get_config(size: str = "small"):
    if size not in SIZES:
        raise ValueError(f"unknown size {size!r}; expected one of {', '.join(SIZES)}")
    shard_rows, batch_tokens = SIZES[size]
    return card(EncodeConfig(dtype="float16", shard_rows=shard_rows, batch_tokens=batch_tokens))

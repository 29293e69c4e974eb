"""One training set out of several: --config.training_sets=DIR,DIR (mine, teach or unite runs, or .jsonl files).

The argument is a size; it changes nothing here.

    python launch/unite.py --config configs/unite.py --config.training_sets=runs/bm25,runs/mined --workdir runs/both
"""

from denseir_jax.core.config import card, choose
from denseir_jax.pipeline.stages.unite import UniteConfig

SIZES = dict.fromkeys(("smoke", "tiny", "small", "base"))


def get_config(size: str = "small"):
    choose(SIZES, size)
    return card(UniteConfig())

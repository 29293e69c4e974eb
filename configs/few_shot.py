"""A few-shot curve of finished runs: --config.tuned=mine=DIR,mine=DIR --config.evaluated=DIR,DIR --config.levels=BM25=DIR.

configs/pipeline/few_shot.py makes all of them.
"""

from denseir_jax.core.config import card, choose
from denseir_jax.pipeline.stages.few_shot import FewShotConfig


def get_config(size: str = "base"):
    choose(dict.fromkeys(("smoke", "tiny", "small", "base")), size)  # drawing is the same at every size
    return card(FewShotConfig(measures=("RR@10", "nDCG@10", "R@100"), averaging="run"))

"""Compare finished evaluate runs: --config.rows=BM25=DIR,mine=DIR --config.baseline=BM25."""

from denseir_jax.core.config import card, choose
from denseir_jax.pipeline.stages.report import ReportConfig


def get_config(size: str = "base"):
    choose(dict.fromkeys(("smoke", "tiny", "small", "base")), size)  # reporting is the same at every size
    return card(ReportConfig(measures=("RR@10", "nDCG@10", "R@100"), averaging="run"))

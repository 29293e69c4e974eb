"""Compare finished evaluate runs: --config.rows=BM25=DIR,mine=DIR --config.baseline=BM25."""

from denseir_jax.core.config import card
from denseir_jax.pipeline.stages.report import ReportConfig


def get_config():
    return card(ReportConfig(measures=("RR@10", "nDCG@10", "R@100"), averaging="run"))

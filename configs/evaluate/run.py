"""Measure a run file, or what ranks a dataset.

A file:       --config.run=FILE --config.qrels=FILE
A retriever:  --config.dataset=beir:FOLDER --config.retriever=run:DIR
BM25:         --config.dataset=beir:FOLDER --config.retriever=bm25
A hybrid:     --config.dataset=beir:FOLDER --config.retriever=run:DIR --config.hybrid=true   (its weight is tuned on the split dev)
Pickles:      --config.dataset=beir:FOLDER --config.vectors.passages=FILE,FILE --config.vectors.queries=FILE   (of DPR or Tevatron)
"""

from denseir_jax.core.config import card, choose
from denseir_jax.pipeline.stages.evaluate import EvaluateConfig


def get_config(size: str = "base"):
    choose(dict.fromkeys(("smoke", "tiny", "small", "base")), size)  # measuring is the same at every size
    return card(
        EvaluateConfig(
            measures=("RR@10", "nDCG@10", "R@100"),  # ir-measures grammar
            averaging="run",  # queries both in the run and judged, as trec_eval; others: judged, positives
            depth=1000,  # passages a query
        )
    )

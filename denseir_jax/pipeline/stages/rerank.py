"""The stage `rerank`: a cross-encoder puts the first passages of every query of a run in its own order.

Its scores are kept under ``scores/``: more depth, more queries or another run file in the same folder score new pairs alone.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from denseir_jax.core import artifacts
from denseir_jax.core.artifacts import Run
from denseir_jax.core.command import Stage
from denseir_jax.core.config import located, operational
from denseir_jax.core.errors import ConfigError, InputError
from denseir_jax.data import sources, trec
from denseir_jax.data.lines import BadRows
from denseir_jax.data.records import Dataset, Passage, Ranking
from denseir_jax.data.template import TextTemplate
from denseir_jax.pipeline.stages.encode import given
from denseir_jax.search.pair_scores import Pair, score_pairs
from denseir_jax.search.reranker import load_reranker
from denseir_jax.search.retriever import folder_of

SCORES = "scores"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RerankConfig:
    """What to rerank, and by what.

    Attributes:
        dataset: source as format:path, of the texts. split: its queries. run: a run file, or the folder of a finished evaluate or
        rerank run. reranker: a cross-encoder, run:DIR or hf:DIR. depth: passages a query that are scored; those below keep
        their order, behind them.
        template, pair_length: how texts are written and cut for a published model (a run brings its own; 0: both texts whole).
    """

    stage: str = "rerank"
    dataset: str = located("")
    split: str = operational("test")
    run: str = located("")
    reranker: str = located("")
    depth: int = operational(100)
    template: TextTemplate = TextTemplate()
    pair_length: int = 0
    batch_tokens: int = operational(0)
    on_bad_row: Literal["error", "skip"] = "error"

    def __post_init__(self) -> None:
        if self.depth < 1 or self.pair_length < 0 or self.batch_tokens < 0:
            length, tokens = f"pair_length={self.pair_length}", f"batch_tokens={self.batch_tokens}"
            raise ValueError(f"depth={self.depth} must be at least 1, {length} and {tokens} at least 0")


def run_rerank(run: Run) -> Mapping[str, Any]:
    """Run file, texts, cross-encoder -> the run reranked, and its pairs' scores."""
    config: RerankConfig = run.config
    bad = BadRows(config.on_bad_row)
    reranker = load_reranker(config.reranker, given(config.template), config.pair_length, config.batch_tokens)
    ranking = trec.read_run(trec.run_file(config.run), bad).ranking
    dataset = sources.read_dataset(config.dataset, bad)
    pairs = [(query, item) for query, line in ranking.items() for item, _ in line[: config.depth]]
    texts = PairTexts(dataset, dataset.queries(config.split), pairs, f"the run and the split {config.split!r}")
    scored = score_pairs(run.path / SCORES, reranker, reranker.facts, pairs, texts, "rerank")
    trec.write_run(run.path / trec.RUN, reranked(ranking, scored.scores, config.depth))
    metrics = {"queries": len(ranking), "pairs": len(pairs), "scored": scored.new, "reranker_sha256": reranker.sha256}
    run.finish(metrics, outputs=[trec.RUN, SCORES], skipped_rows=dict(bad.counts), **_asked(config))
    return metrics


def reranked(ranking: Ranking, scores: Mapping[Pair, float], depth: int) -> Ranking:
    """The first `depth` passages of each query by their new score, ties by passage id descending; the others below, in their order.

    The k-th of the others has the lowest new score minus k, so that whoever sorts by score finds this order.
    """
    out: Ranking = {}
    for query, line in ranking.items():
        best = trec.best_first([(item, scores[query, item]) for item, _ in line[:depth]])
        last = np.float64(best[-1][1])
        out[query] = [*best, *((item, float(np.float32(last - k))) for k, (item, _) in enumerate(line[depth:], start=1))]
    return out


class PairTexts:
    """The texts of pairs, found by their ids; one pass over the corpus, of which only what is asked for is kept.

    Args:
        queries: id -> text. origin: where the pairs come from, for errors.
    Raises:
        InputError: a query or a passage of the pairs does not exist.
    """

    def __init__(self, dataset: Dataset, queries: Mapping[str, str], pairs: Sequence[Pair], origin: str):
        wanted = {item for _, item in pairs}
        self._queries = queries
        self._passages: dict[str, Passage] = {passage.id: passage for passage in dataset.corpus() if passage.id in wanted}
        for query, item in pairs:
            if query not in queries:
                raise InputError(f"{origin} do not belong together: the query {query!r} has no text")
            if item not in self._passages:
                raise InputError(f"{origin}: the passage {item!r} of the query {query!r} is not in the corpus")

    def __call__(self, pairs: Sequence[Pair]) -> list[tuple[str, Passage]]:
        return [(self._queries[query], self._passages[item]) for query, item in pairs]


def _asked(config: RerankConfig) -> dict[str, Any]:
    """What may change from one call to the next in one folder."""
    return {"run_sha256": artifacts.file_sha256(Path(trec.run_file(config.run))), "depth": config.depth, "split": config.split}


def is_complete(run: Run) -> bool:
    """Whether a finished folder is of this run file, depth and split."""
    made = artifacts.finished_run(run.path)
    return all(made.get(key) == value for key, value in _asked(run.config).items())


def inputs(config: RerankConfig) -> Mapping[str, str | Path]:
    """Texts and model; the run file may change, as scores are kept by ids."""
    for name, form in (("dataset", "format:path"), ("run", "a run file or a finished evaluate run"), ("reranker", "run:DIR or hf:DIR")):
        if not getattr(config, name):
            raise ConfigError(f"config.{name} is empty; expected {form}")
    if not Path(config.run).exists():
        raise InputError(f"config.run: {config.run} does not exist")
    return {"dataset": sources.identity(config.dataset), "reranker": folder_of(config.reranker)}


stage = Stage(
    name="rerank",
    config=RerankConfig,
    run=run_rerank,
    inputs=inputs,
    summary="Rerank a run with a cross-encoder; with a card of configs/finetune, train one.",
    complete=is_complete,
)

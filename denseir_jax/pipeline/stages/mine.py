"""The stage `mine`: a training set with hard negatives, out of the rankings of BM25 or of a trained retriever.

The same command in the same folder gives the same bytes, after a kill too. In another folder it does so with
``index="exact"`` and with BM25, but not with ScaNN: two builds of a ScaNN index over the same vectors differ a little, and so do
rankings near the cut. The index is kept in the run folder and used again, never rebuilt to reproduce something.

``training_set.jsonl`` is what is learnt from, ``mined.jsonl`` says where each passage of it came from, and ``removed.jsonl`` what
was in the rank window and is no negative, and why. What was merely not drawn is counted and not listed.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from denseir_jax.core import console
from denseir_jax.core.artifacts import Run
from denseir_jax.core.command import Stage
from denseir_jax.core.errors import ConfigError
from denseir_jax.data import sources
from denseir_jax.data.examples import TRAINING_SET
from denseir_jax.data.lines import BadRows
from denseir_jax.pipeline.mining import asking, scoring, searching
from denseir_jax.pipeline.mining.choosing import Chooser
from denseir_jax.pipeline.mining.config import MineConfig as MineConfig
from denseir_jax.pipeline.mining.reading import Evidence, read_texts
from denseir_jax.pipeline.mining.searching import encoded_passages as encoded_passages
from denseir_jax.pipeline.mining.writing import MINED as MINED
from denseir_jax.pipeline.mining.writing import REMOVED as REMOVED
from denseir_jax.pipeline.mining.writing import write
from denseir_jax.search.retriever import folder_of


def run_mine(run: Run) -> Mapping[str, Any]:
    """Queries -> rankings -> positives and negatives -> training set."""
    config: MineConfig = run.config
    bad = BadRows(config.on_bad_row)
    judge = scoring.judge_of(config, run.path / "pairs")
    dataset = sources.read_dataset(config.dataset, bad)
    asked = asking.gather(config, dataset, bad)
    answered = _answered(config, asked)
    searcher = searching.searcher(run, dataset)
    searched = searcher.search(asked.queries, asked.known)
    thresholds = scoring.thresholds(run, dataset, searcher, judge) if judge else None
    evidence = read_texts(dataset, asked, searched.rankings, config)
    skipped = bad.counts  # of whole passes: a cross-encoder reads the corpus as far as it must
    dangling = _dangling(asked, evidence)
    pairs = scoring.score(dataset, asked, searched, evidence, config, judge) if judge else 0
    chooser = Chooser(config, asked, searched, evidence, thresholds, config.seed)
    counts = write(run.path, asked, chooser, config.pool_name)
    _warn(chooser, config)
    for cause, count in skipped.items():
        console.say(f"mine: {count:,} x {cause}")
    metrics = {
        **counts,
        "dropped": dict(sorted(chooser.miner.dropped.items())),
        "queries_without_negatives": len(chooser.empty),
        "queries_with_fewer": len(chooser.short),
        "queries_without_positive_in_corpus": len(chooser.lost),
        "positive_in_ranking": chooser.with_positive / max(asked.counts["judged"], 1),
        **{f"index_{key}": searcher.facts[key] for key in ("kind", "recall") if key in searcher.facts},
        "judgments_dangling": dangling,
        "skipped_rows": skipped,
        **answered,
        **_unjudged(config, asked, chooser),
    }
    if thresholds:
        metrics |= {"pairs_scored": pairs, "keep_below": thresholds.keep_below, "positive_above": thresholds.positive_above}
        metrics |= {"negatives_unchecked": chooser.miner.filled}
    without = {"queries_without_negatives": chooser.empty[:20], "queries_without_positive_in_corpus": chooser.lost[:20]}
    outputs = [TRAINING_SET, MINED, REMOVED, *([scoring.CALIBRATION, scoring.PICTURE] if config.denoise.calibrate_split else [])]
    facts = {"skipped_rows": skipped, "index": dict(searcher.facts), "pool": config.pool_name, "first_of": without}
    run.finish(metrics, outputs=outputs, **facts, **({"reranker_sha256": judge.scorer.sha256} if judge else {}))
    return metrics


def _answered(config: MineConfig, asked: asking.Asked) -> dict[str, int]:
    """How many queries have answers, and patterns that are none; both are said."""
    if not config.exclude_answers:
        return {}
    n = sum(found.usable for found in asked.answers.values())
    faulty = sorted({pattern for found in asked.answers.values() for pattern in found.faulty})
    console.say(f"{'mine' if n else 'warning'}: {n:,} of {len(asked.queries):,} queries have answers to look for")
    if faulty:
        console.say(f"warning: {len(faulty):,} answers are no pattern that compiles and are left out ({_few(map(repr, faulty))})")
    return {"queries_with_answers": n, "faulty_patterns": len(faulty)}


def _dangling(asked: asking.Asked, evidence: Evidence) -> int:
    """Positive judgments of a query without a text, or of a passage that the corpus lacks: how many, which is said."""
    lost = asked.dangling
    passages = [item for query in asked.queries for item in asked.known.get(query, ()) if item not in evidence.keys]
    n = sum(len(asked.known[query]) for query in lost) + len(passages)
    if n:
        names = _few(dict.fromkeys([*lost, *passages]))
        console.say(f"mine: {n:,} judgments are of a query without a text or a passage that the corpus lacks ({names})")
    return n


def _unjudged(config: MineConfig, asked: asking.Asked, chooser: Chooser) -> dict[str, Any]:
    """Counts of what only some configs ask for."""
    if not (config.unlabelled or config.questions or config.positives_by_answer or config.denoise.more_positives):
        return {}
    found, dropped = (dict(sorted(counter.items())) for counter in (chooser.positives_found, chooser.queries_dropped))
    return {"queries_asked": asked.counts, "positives_found": found, "queries_dropped": dropped}


def _warn(chooser: Chooser, config: MineConfig) -> None:
    lost = (chooser.lost, "have no positive in the corpus and are left out")
    for names, what in ((chooser.empty, "have no negative"), lost):
        if names:
            console.say(f"mine: {len(names):,} queries {what} ({_few(names)})")
    if chooser.short:
        console.say(f"mine: {len(chooser.short):,} queries have fewer than n={config.n} negatives")
    for cause, count in sorted(chooser.queries_dropped.items()):
        console.say(f"mine: {count:,} queries without judgments are left out: {cause}")
    if chooser.miner.filled:
        console.say(f"mine: {chooser.miner.filled:,} negatives come from ranks {config.hi} to {config.denoise.fill_to}, unchecked")


def _few(names: Iterable[str], n: int = 3) -> str:
    listed = list(names)
    return ", ".join(listed[:n]) + (" ..." if len(listed) > n else "")


def inputs(config: MineConfig) -> Mapping[str, str | Path]:
    """The dataset, the retriever, and what else is named: encode run, training set, files of queries, cross-encoder."""
    if not config.dataset:
        raise ConfigError("config.dataset is empty; expected format:path, for example --config.dataset=beir:FOLDER")
    found = asking.identities(config)
    if config.retriever != "bm25":
        found["retriever"] = folder_of(config.retriever)
    if config.embeddings:
        found["embeddings"] = config.embeddings
    if config.denoise.reranker:
        found["reranker"] = folder_of(config.denoise.reranker)
    return found


stage = Stage(
    name="mine",
    config=MineConfig,
    run=run_mine,
    inputs=inputs,
    summary="Mine hard negatives with BM25 or a trained retriever, and write a training set. With index=scann, the same in this folder"
    " only: ScaNN builds differ from each other; index=exact gives the same bytes everywhere.",
)

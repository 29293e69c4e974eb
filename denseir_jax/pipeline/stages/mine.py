"""The stage `mine`: a training set with hard negatives, out of the rankings of BM25 or of a trained retriever.

The same command in the same folder gives the same bytes, after a kill too. In another folder it does so with
``index="exact"`` and with BM25, but not with ScaNN: two builds of a ScaNN index over the same vectors differ a little, and so do
rankings near the cut. The index is kept in the run folder and used again, never rebuilt to reproduce something.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from denseir_jax.core import artifacts, console, failpoints
from denseir_jax.core.artifacts import Run
from denseir_jax.core.command import Stage
from denseir_jax.core.config import located, operational
from denseir_jax.core.errors import ConfigError, InputError
from denseir_jax.data import sources
from denseir_jax.data.examples import Example, read_examples, write_examples
from denseir_jax.data.facts import output_of
from denseir_jax.data.lines import BadRows
from denseir_jax.data.records import Dataset, Ranking
from denseir_jax.data.template import TextTemplate
from denseir_jax.pipeline.stages.encode import VECTORS, given
from denseir_jax.search import negatives, scann_index, scann_shards, shards
from denseir_jax.search.bm25 import Bm25, Bm25Config
from denseir_jax.search.embeddings import Embeddings
from denseir_jax.search.encode import encode_queries
from denseir_jax.search.index import ExactIndex, Index, row_scorer, to_ranking
from denseir_jax.search.lexical import Vectors
from denseir_jax.search.negatives import Mined, NegativesConfig
from denseir_jax.search.retriever import Retriever, folder_of, load_retriever
from denseir_jax.search.scann_index import ScannConfig

TRAINING_SET, MINED = "training_set.jsonl", "mined.jsonl"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MineConfig(NegativesConfig):
    """What to mine, with what, and what is kept (see `NegativesConfig` for lo, hi, n and the margins).

    Attributes:
        dataset: source as format:path. split: whose judgments count. retriever: "bm25", run:DIR or hf:DIR.
        embeddings: a finished encode run of that retriever; without it the corpus is encoded here.
        index: how vectors are searched: "exact" gives the same bytes everywhere, "scann" is faster on a large corpus and
        gives the same bytes in this folder only. depth: passages retrieved a query. training_set: a finished mine run, or a
        .jsonl file, whose pools are kept beside the new one. pool: name of the new pool; "" is bm25 or mined.
    """

    stage: str = "mine"
    dataset: str = located("")
    split: str = "train"
    retriever: str = located("bm25")
    embeddings: str | None = located(None)
    index: Literal["scann", "exact"] = "scann"
    depth: int = 200
    training_set: str | None = located(None)
    pool: str = ""
    seed: int = 0
    template: TextTemplate = TextTemplate()
    bm25: Bm25Config = Bm25Config()
    scann: ScannConfig = ScannConfig()
    batch_tokens: int = operational(0)
    on_bad_row: Literal["error", "skip"] = "error"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hi > self.depth:
            raise ValueError(f"hi={self.hi} lies beyond depth={self.depth}, the number of passages retrieved")
        if self.retriever == "bm25" and self.embeddings:
            raise ValueError("embeddings are of no use to retriever=bm25")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed} must not be negative")

    @property
    def pool_name(self) -> str:
        """The pool that is written."""
        return self.pool or ("bm25" if self.retriever == "bm25" else "mined")


@dataclasses.dataclass(frozen=True)
class Searched:
    """Rankings, the score of each query's best positive where a margin needs it, and facts for the manifest."""

    ranking: Ranking
    best_score: dict[str, float] | None
    facts: Mapping[str, Any]


def run_mine(run: Run) -> Mapping[str, Any]:
    """Queries -> rankings -> negatives -> training set."""
    config: MineConfig = run.config
    bad = BadRows(config.on_bad_row)
    dataset = sources.read_dataset(config.dataset, bad)
    earlier = _earlier(config)
    known = _known(dataset, config.split, earlier)
    queries = {query: text for query, text in dataset.queries(config.split).items() if known.get(query)}
    if not queries:
        raise InputError(f"{config.dataset}: the split {config.split!r} has no query with a relevant passage")
    searched = (_by_bm25 if config.retriever == "bm25" else _by_vectors)(run, dataset, queries, known)
    wanted = {item for line in searched.ranking.values() for item, _ in line}.union(*(known[query] for query in known))
    keys = negatives.text_keys(console.progress(dataset.corpus(), "mine: reading texts", None, "passages"), wanted)
    present = {query: [item for item in line if item in keys] for query, line in known.items()}
    mined = negatives.mine(searched.ranking, known, keys, config, config.seed, searched.best_score)
    examples = list(_merge(earlier, queries, present, mined, config.pool_name))
    counts = write_examples(run.path / TRAINING_SET, examples)
    _write_mined(run.path / MINED, mined)
    lost = [query for query in queries if not present[query]]
    _warn(mined, lost, config)
    metrics = {
        **counts,
        "dropped": mined.dropped,
        "queries_without_negatives": len(mined.empty),
        "queries_with_fewer": len(mined.short),
        "queries_without_positive_in_corpus": len(lost),
        "positive_in_ranking": _share_found(searched.ranking, known),
        **{f"index_{key}": searched.facts[key] for key in ("kind", "recall") if key in searched.facts},
    }
    without = {"queries_without_negatives": mined.empty[:20], "queries_without_positive_in_corpus": lost[:20]}
    run.finish(metrics, outputs=[TRAINING_SET, MINED], index=dict(searched.facts), pool=config.pool_name, first_of=without)
    return metrics


def _earlier(config: MineConfig) -> dict[str, Example]:
    """The examples to be extended, by query id."""
    if not config.training_set:
        return {}
    path = Path(config.training_set)
    if path.is_dir():
        path = output_of(path, TRAINING_SET, ("mine", "teach"))
    found = {example.query_id: example for example in read_examples(path, BadRows(config.on_bad_row))}
    if any(config.pool_name in example.negatives for example in found.values()):
        raise InputError(f"{path} already has negatives in the pool {config.pool_name!r}; name the new one by config.pool")
    return found


def _known(dataset: Dataset, split: str, earlier: Mapping[str, Example]) -> dict[str, list[str]]:
    """All positives by query: what the judgments say and what the earlier training set says."""
    known = negatives.positives(dataset.qrels(split))
    for query, example in earlier.items():
        known[query] = list(dict.fromkeys([*example.positives, *known.get(query, ())]))
    return known


def _by_bm25(run: Run, dataset: Dataset, queries: Mapping[str, str], known: Mapping[str, Sequence[str]]) -> Searched:
    config: MineConfig = run.config
    folder = run.path / "bm25"
    if not folder.exists():
        Bm25.build(dataset.corpus(), config.bm25).save(folder)
    index = Bm25.load(folder)
    best = None
    if config.has_margin:
        best = {query: _largest(index.score_of(text, known[query])) for query, text in queries.items()}
    return Searched(index.search(queries, config.depth), best, {"kind": "bm25", "n": len(index.ids)})


def _by_vectors(run: Run, dataset: Dataset, queries: Mapping[str, str], known: Mapping[str, Sequence[str]]) -> Searched:
    config: MineConfig = run.config
    retriever = load_retriever(config.retriever, given(config.template))
    if config.index == "scann":
        scann_index.need_dense(retriever.lexical)  # before the corpus is encoded
    passages = encoded_passages(run, dataset, retriever)
    vectors = encode_queries(retriever, queries, config.batch_tokens)
    index: Index
    if config.index == "exact":
        index = ExactIndex(passages, retriever.similarity)
    else:
        folder = run.path / "index"
        index = scann_shards.open_or_build(folder, passages, retriever.similarity, vectors, config.depth, config.scann, config.seed)
        failpoints.reach("mine_index")
    ranking = to_ranking(list(queries), passages.ids, *index.search(vectors, config.depth))
    best = _positive_scores(retriever, passages, queries, vectors, known) if config.has_margin else None
    return Searched(ranking, best, {**index.facts, "params_sha256": retriever.params_sha256})


def encoded_passages(run: Run, dataset: Dataset, retriever: Retriever) -> Embeddings:
    """The vectors of the corpus: those of the encode run that the config names (``embeddings``), or encoded here."""
    if run.config.embeddings:
        return shards.open_encoded(run.config.embeddings, VECTORS, retriever)
    chunks = shards.chunks_of_passages(dataset.corpus(), retriever, 16384)
    shards.encode_corpus(run.path / VECTORS, retriever, chunks, None, "float16", run.config.batch_tokens)
    return shards.open_for(run.path / VECTORS, retriever)


def _positive_scores(
    retriever: Retriever, passages: Embeddings, queries: Mapping[str, str], vectors: Vectors, known: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Score of each query's best positive, retrieved or not; nan where none is in the corpus."""
    row_of = {item: row for row, item in enumerate(passages.ids)}
    scores, best = row_scorer(passages, vectors, retriever.similarity), {}
    for number, query in enumerate(queries):
        rows = np.array([row_of[item] for item in known[query] if item in row_of], np.int64)
        best[query] = _largest(scores(number, rows).tolist())
    return best


def _largest(scores: Sequence[float]) -> float:
    finite = [score for score in scores if np.isfinite(score)]
    return max(finite) if finite else float("nan")


def _share_found(ranking: Ranking, known: Mapping[str, Sequence[str]]) -> float:
    """Share of queries with a positive among what was retrieved: how good the ranking is that negatives come from."""
    hits = sum(any(item in known[query] for item, _ in line) for query, line in ranking.items())
    return hits / len(ranking)


def _merge(
    earlier: Mapping[str, Example], queries: Mapping[str, str], present: Mapping[str, Sequence[str]], mined: Mined, pool: str
) -> Iterator[Example]:
    """Earlier examples with the new pool, then new queries. A query without a positive in the corpus cannot be learnt from."""
    texts = {**{query: example.query for query, example in earlier.items()}, **queries}
    for query, text in texts.items():
        positives = tuple(present.get(query, ()))
        if not positives:
            continue
        old = earlier[query].negatives if query in earlier else {}
        pools = {name: tuple(item for item in line if item not in positives) for name, line in old.items()}
        pools[pool] = tuple(item.id for item in mined.negatives.get(query, ()))
        yield Example(query, text, positives, pools)


def _write_mined(path: Path, mined: Mined) -> None:
    """Where each negative came from: one line a query, with scores and ranks."""
    with artifacts.new_file(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as stream:
        for query, line in mined.negatives.items():
            row = {"query_id": query, "negatives": [dataclasses.asdict(item) for item in line]}
            stream.write(json.dumps(row, sort_keys=True, ensure_ascii=False) + "\n")


def _warn(mined: Mined, lost: Sequence[str], config: MineConfig) -> None:
    for what, names in (("have no negative", mined.empty), ("have no positive in the corpus and are left out", lost)):
        if names:
            console.say(f"mine: {len(names):,} queries {what} ({_few(names)})")
    if mined.short:
        console.say(f"mine: {len(mined.short):,} queries have fewer than n={config.n} negatives")


def _few(names: Iterable[str], n: int = 3) -> str:
    listed = list(names)
    return ", ".join(listed[:n]) + (" ..." if len(listed) > n else "")


def inputs(config: MineConfig) -> Mapping[str, str | Path]:
    """The dataset, the retriever, and an encode run and a training set where they are named."""
    if not config.dataset:
        raise ConfigError("config.dataset is empty; expected format:path, for example --config.dataset=beir:FOLDER")
    found: dict[str, str | Path] = {"dataset": sources.identity(config.dataset)}
    if config.retriever != "bm25":
        found["retriever"] = folder_of(config.retriever)
    for name in ("embeddings", "training_set"):
        if getattr(config, name):
            found[name] = getattr(config, name)
    return found


stage = Stage(
    name="mine",
    config=MineConfig,
    run=run_mine,
    inputs=inputs,
    summary="Mine hard negatives with BM25 or a trained retriever, and write a training set. With index=scann, the same in this folder"
    " only: ScaNN builds differ from each other; index=exact gives the same bytes everywhere.",
)

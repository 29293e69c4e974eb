"""The stage `evaluate`: a run and judgments become values by query, means with intervals, and a table.

The run is a file (TREC or MS MARCO), or is made here from a dataset: by a retriever, by BM25, or by both together, their
weight tuned on another split. Ranking, ties and means follow trec_eval (see `evals.ranking` and `evals.evaluation`).
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from denseir_jax.core import artifacts
from denseir_jax.core.artifacts import Run
from denseir_jax.core.command import Stage
from denseir_jax.core.config import identity, located
from denseir_jax.core.console import say
from denseir_jax.core.errors import ConfigError, InputError
from denseir_jax.data import sources, trec, tsv
from denseir_jax.data.facts import output_of
from denseir_jax.data.lines import BadRows
from denseir_jax.data.records import Qrels, Ranking
from denseir_jax.data.template import TextTemplate
from denseir_jax.evals import table as tables
from denseir_jax.evals.evaluation import (
    AVERAGING,
    PER_QUERY,
    Averaging,
    Evaluation,
    evaluate,
    need_relevant,
    read_per_query,
    write_per_query,
)
from denseir_jax.evals.hybrid import Normalisation
from denseir_jax.evals.measures import parse_measures
from denseir_jax.evals.significance import bootstrap_interval
from denseir_jax.search.bm25 import Bm25Config

TABLE = "table.txt"


@dataclasses.dataclass(frozen=True)
class VectorFiles:
    """Vectors of another tool: pickles of DPR or Tevatron, of passages and of queries, and how they are compared."""

    passages: tuple[str, ...] = located(())
    queries: tuple[str, ...] = located(())
    similarity: Literal["dot", "cosine", "l2"] = "dot"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """What to evaluate: `run` and `qrels`, `dataset` and `retriever`, or `run` by the judgments of `dataset`.

    Attributes:
        run: a run file, TREC or MS MARCO, or a finished rerank run. qrels: judgments for it. queries: its query texts (id, tab,
        text), if at hand. vectors: what another tool encoded, of a dataset's passages and queries; searched exactly.
        dataset: format:path. split: which queries. retriever: "bm25", run:DIR or hf:DIR. hybrid: it together with BM25.
        embeddings: a finished encode run of that retriever; without it the corpus is encoded here.
        index: exact, or ScaNN. depth: passages a query. template: how texts are written for hf: (a run brings its own).
        fusion: of a hybrid: BM25 + weight x dense, or reciprocal ranks. normalisation: of the scores before they are
        added. tune_split, tune_measure: what the weight is chosen by. bm25: its settings.
        measures: in the grammar of ir-measures. averaging: which queries a mean is over.
        baseline: folder of a finished evaluate run on the same judgments, for paired tests.
        on_bad_row: refuse a file at its first bad row, or skip and count. seed: of index sampling.
    """

    stage: str = "evaluate"
    run: str = located("")
    vectors: VectorFiles = VectorFiles()
    qrels: str = located("")
    queries: str = located("")
    dataset: str = located("")
    split: str = "test"
    retriever: str = located("")
    hybrid: bool = False
    embeddings: str | None = located(None)
    index: Literal["exact", "scann"] = "exact"
    depth: int = 1000
    template: TextTemplate = TextTemplate()
    fusion: Literal["weighted", "reciprocal_rank"] = "weighted"
    normalisation: Normalisation = "raw"
    tune_split: str = "dev"
    tune_measure: str = "nDCG@10"
    bm25: Bm25Config = Bm25Config()
    measures: tuple[str, ...] = ("RR@10", "nDCG@10", "R@100")
    averaging: Averaging = "run"
    baseline: str | None = located(None)
    on_bad_row: Literal["error", "skip"] = "error"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError(f"depth={self.depth} must be at least 1")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed} must not be negative")
        if self.qrels and self.dataset:
            raise ValueError("qrels and dataset are both given; a run is judged by one of them")
        if self.retriever == "bm25" and (self.hybrid or self.embeddings):
            raise ValueError("hybrid and embeddings go with a dense retriever; retriever=bm25 needs neither")
        weight = [name for name in ("normalisation", "tune_split", "tune_measure") if getattr(self, name) != getattr(EvaluateConfig, name)]
        if not self.hybrid and (weight or self.fusion != "weighted"):
            raise ValueError("fusion, normalisation, tune_split and tune_measure are about a hybrid; ask for one by hybrid=True")
        if weight and self.fusion != "weighted":
            raise ValueError(f"fusion={self.fusion!r} adds no scores and has no weight to tune: it needs no {', '.join(weight)}")
        if self.hybrid and self.fusion == "weighted" and self.tune_split == self.split:
            raise ValueError(f"tune_split and split are both {self.split!r}; a weight tuned on the queries it is judged by would flatter")

    def check(self) -> None:
        """Refuse what cannot run before anything is read.

        Raises:
            ConfigError: neither form is complete. InputError: a measure is unknown.
        """
        parse_measures([*self.measures, *([] if self.tune_measure in self.measures else [self.tune_measure])])
        if not self.run and not self.dataset:
            raise ConfigError("nothing to evaluate; expected --config.run=FILE --config.qrels=FILE, or --config.dataset=format:path")
        if self.run and not self.qrels and not self.dataset:
            raise ConfigError("config.qrels is empty; expected --config.qrels=FILE, the judgments for config.run, or --config.dataset")
        if bool(self.vectors.passages) != bool(self.vectors.queries):
            raise ConfigError("vectors.passages and vectors.queries go together: the pickles of both sides")
        if self.vectors.passages and (self.run or self.retriever or not self.dataset):
            raise ConfigError("vectors.passages and vectors.queries rank a dataset: they go with config.dataset alone")
        if self.run and self.retriever:
            raise ConfigError("config.run is a ranking already; config.retriever goes with config.dataset")
        if not self.retriever and (self.hybrid or self.embeddings):
            raise ConfigError("config.hybrid and config.embeddings are about a retriever; expected --config.retriever=run:DIR|hf:DIR")
        if self.dataset and not self.retriever and not self.run and not self.vectors.passages:
            raise ConfigError("config.dataset needs something that ranks: --config.retriever=bm25|run:DIR|hf:DIR")


def inputs(config: EvaluateConfig) -> dict[str, str | Path]:
    """What is read, for the run's record."""
    config.check()
    files = {name: getattr(config, name) for name in ("run", "qrels", "queries", "embeddings", "baseline")}
    found: dict[str, str | Path] = {name: Path(path) for name, path in files.items() if path}
    sides = {"passages": config.vectors.passages, "queries": config.vectors.queries}
    found |= {f"vectors.{side}.{number}": Path(path) for side, paths in sides.items() for number, path in enumerate(paths)}
    if config.dataset:
        found["dataset"] = sources.identity(config.dataset)
    if config.retriever not in ("", "bm25"):
        from denseir_jax.search.retriever import folder_of  # JAX comes with it, which a run file needs not wait for

        found["retriever"] = folder_of(config.retriever)
    return found


def run_evaluate(run: Run) -> Mapping[str, Any]:
    """Rank where no run is given, measure, and write the artifacts."""
    config: EvaluateConfig = run.config
    bad = BadRows(config.on_bad_row)
    facts: dict[str, Any] = {}
    if config.run and not config.dataset:
        ranking, qrels, texts = (
            trec.read_run(trec.run_file(config.run), bad).ranking,
            trec.read_qrels(config.qrels, bad),
            _texts(config, bad),
        )
    else:
        ranking, qrels, texts, facts = _rank(run, config, bad)
    evaluation = evaluate(ranking, qrels, config.measures, documents_known=bool(config.dataset))
    say(f"evaluate: {evaluation.counts.sentence()}")
    others = evaluation.differing_means(config.averaging)
    for name, means in others.items():
        shown = ", ".join(f"{measure} {value:.4f}" for measure, value in means.items())
        say(f"warning: the mean depends on who is counted; over {AVERAGING[name]}: {shown}")
    made = _table(run, config, evaluation)
    write_per_query(run.path / PER_QUERY, evaluation, texts)
    artifacts.write_text(run.path / TABLE, tables.as_text(made) + "\n")
    artifacts.write_json(run.path / "table.json", tables.as_json(made))
    metrics = {
        **evaluation.means(config.averaging),
        "queries": int(evaluation.counted(config.averaging).sum()),
        "averaging": config.averaging,
        "intervals": {m: bootstrap_interval(evaluation.of(m, config.averaging)) for m in evaluation.measures},
        "counts": dataclasses.asdict(evaluation.counts),
        "other_means": others,
        **facts,
    }
    outputs = [PER_QUERY, TABLE, "table.json", *([trec.RUN] if (run.path / trec.RUN).exists() else [])]
    run.finish(metrics, outputs, skipped_rows=dict(bad.counts), index=facts.get("index", {}))
    return metrics


def _texts(config: EvaluateConfig, bad: BadRows) -> dict[str, str]:
    return {query.id: query.text for query in tsv.queries(config.queries, bad)} if config.queries else {}


def _rank(run: Run, config: EvaluateConfig, bad: BadRows) -> tuple[Ranking, Qrels, dict[str, str], dict[str, Any]]:
    """The run of a dataset's split, kept as ``run.trec``; its judgments, query texts, and facts for the metrics."""
    dataset = sources.read_dataset(config.dataset, bad)
    qrels, texts = dataset.qrels(config.split), dataset.queries(config.split)
    if not texts:
        raise InputError(f"{config.dataset}: no query of the split {config.split!r} has a text; expected at least one")
    need_relevant(qrels, parse_measures(config.measures))  # before the corpus is encoded
    if config.run:
        ranking = trec.read_run(trec.run_file(config.run), bad).ranking
        trec.write_run(run.path / trec.RUN, ranking)
        return ranking, qrels, texts, {}
    from denseir_jax.pipeline.stages import systems  # JAX comes with it

    ranker = systems.build(config, dataset, run.path)
    for warning in sources.check(dataset, config.split, ranker.ids).warnings():
        say(f"warning: {warning}")
    ranking, facts = ranker.rank(texts)
    trec.write_run(run.path / trec.RUN, ranking)
    return ranking, qrels, texts, facts


def _table(run: Run, config: EvaluateConfig, evaluation: Evaluation) -> tables.Table:
    name = Path(config.run or config.retriever.partition(":")[2] or config.retriever).name
    name = f"BM25 + {name}" if config.hybrid else name
    rows = {name: evaluation}
    if config.baseline:
        baseline = f"baseline {Path(config.baseline).name}"
        rows = {baseline: read_per_query(output_of(config.baseline, PER_QUERY, ("evaluate",))), name: evaluation}
        return tables.make_table(rows, evaluation.measures, baseline, config.averaging)
    return tables.make_table(rows, evaluation.measures, averaging=config.averaging)


def default_workdir(config: EvaluateConfig) -> Path:
    """``runs/evaluate-<hash>``, one for each config and content of its inputs."""
    found = {n: str(v) if str(v).startswith("sha256:") else artifacts.content_sha256(Path(v)) for n, v in inputs(config).items()}
    return Path("runs") / f"evaluate-{artifacts.json_sha256([identity(config), found])[:12]}"


def show(workdir: Path) -> None:
    """The table on standard output."""
    print((workdir / TABLE).read_text(encoding="utf-8"), end="")


stage = Stage(
    name="evaluate",
    config=EvaluateConfig,
    run=run_evaluate,
    inputs=inputs,
    summary="Measure a run file, a retriever, BM25 or a hybrid against judgments, as trec_eval does.",
    workdir=default_workdir,
    show=show,
)

"""A run measured against judgments: a value a query, who was counted, and means over a stated set of queries."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Bool, Float

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError
from denseir_jax.evals.measures import Measure, judgments, parse_measures
from denseir_jax.evals.ranking import Order, Qrels, Run, ranked_ids

PER_QUERY = "per_query.jsonl"
Averaging = Literal["run", "judged", "positives"]
AVERAGING: Mapping[str, str] = {
    "run": "queries that are in the run and judged (trec_eval)",
    "judged": "all judged queries, 0 where the run lacks one (trec_eval -c, MS MARCO)",
    "positives": "judged queries with a relevant document, 0 where the run lacks one",
}


@dataclasses.dataclass(frozen=True)
class Counts:
    """Denominators: how many queries are judged, have a relevant document, are in the run, and how these overlap."""

    judged: int
    with_positives: int
    in_run: int
    judged_in_run: int
    run_without_judgments: int
    positives_missing_from_run: int

    def sentence(self) -> str:
        """All of them in words."""
        return (
            f"{self.judged:,} queries judged, {self.with_positives:,} with a relevant document, {self.in_run:,} in the run"
            f" ({self.run_without_judgments:,} of these without judgments, left out);"
            f" {self.positives_missing_from_run:,} with a relevant document are missing from the run"
        )


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Values by query.

    Attributes:
        measures: their texts [m]. queries: every judged query [q], in the order of the judgments.
        values: [m, q] float64; 0 where the run lacks the query. in_run, has_positive: [q].
        run_without_judgments: queries of the run that are not judged, and so not among `queries`.
    """

    measures: tuple[str, ...]
    queries: tuple[str, ...]
    values: Float[np.ndarray, "m q"]
    in_run: Bool[np.ndarray, " q"]
    has_positive: Bool[np.ndarray, " q"]
    run_without_judgments: int = 0

    @property
    def counts(self) -> Counts:
        """The denominators."""
        judged_in_run = int(self.in_run.sum())
        return Counts(
            judged=len(self.queries),
            with_positives=int(self.has_positive.sum()),
            in_run=judged_in_run + self.run_without_judgments,
            judged_in_run=judged_in_run,
            run_without_judgments=self.run_without_judgments,
            positives_missing_from_run=int((self.has_positive & ~self.in_run).sum()),
        )

    def counted(self, averaging: Averaging = "run") -> Bool[np.ndarray, " q"]:
        """Which queries a mean is over (see AVERAGING)."""
        return {"run": self.in_run, "judged": np.ones_like(self.in_run), "positives": self.has_positive}[averaging]

    def of(self, measure: str, averaging: Averaging = "run") -> Float[np.ndarray, " n"]:
        """One measure's values of the counted queries."""
        return self.values[self.measures.index(measure), self.counted(averaging)]

    def means(self, averaging: Averaging = "run") -> dict[str, float]:
        """The mean of each measure; nan if no query is counted."""
        counted = self.counted(averaging)
        return {m: float(self.values[i, counted].mean()) if counted.any() else float("nan") for i, m in enumerate(self.measures)}

    def differing_means(self, averaging: Averaging = "run") -> dict[str, dict[str, float]]:
        """The means over the other sets of queries; a set that equals the one in use, or one before, is left out."""
        seen, found = [self.counted(averaging)], {}
        for other in get_args(Averaging):
            if not any((self.counted(other) == known).all() for known in seen):
                seen.append(self.counted(other))
                found[other] = self.means(other)
        return found


def evaluate(run: Run, qrels: Qrels, measures: Sequence[str], order: Order = "score", documents_known: bool = False) -> Evaluation:
    """Measure a run.

    Args:
        run: query id -> (document id, score) pairs. qrels: query id -> document id -> judgment.
        measures: in the grammar of `measures`. order: how to rank (see `ranking`).
        documents_known: the ids are known to be of one corpus, so a run without any judged document is merely bad.
    Raises:
        InputError: no query id in common, no document id in common, no relevant judgment at all, an unknown measure, a NaN
            score, a repeated document.
    """
    parsed = parse_measures(measures)
    _check_match(run, qrels, documents_known)
    need_relevant(qrels, parsed)
    queries = tuple(qrels)
    values = np.zeros((len(parsed), len(queries)))
    for column, query in enumerate(queries):
        if query in run:
            found = judgments(ranked_ids(run[query], order, query), qrels[query])
            judged = np.array(list(qrels[query].values()), dtype=np.int64)
            values[:, column] = [measure.value(found, judged) for measure in parsed]
    return Evaluation(
        measures=tuple(map(str, parsed)),
        queries=queries,
        values=values,
        in_run=np.array([q in run for q in queries], dtype=bool),
        has_positive=np.array([any(j > 0 for j in qrels[q].values()) for q in queries], dtype=bool),
        run_without_judgments=sum(q not in qrels for q in run),
    )


def need_relevant(qrels: Qrels, measures: Sequence[Measure]) -> None:
    """See that something can be found: else every measure is zero, whatever the run. (`Judged` asks for judgments alone.)

    Raises:
        InputError: no judgment of any query is relevant to any of the measures.
    """
    levels = [measure.level for measure in measures if measure.name != "Judged"]
    if levels and not any(judgment >= min(levels) for judged in qrels.values() for judgment in judged.values()):
        raise InputError(f"the qrels hold no relevant judgment ({min(levels)} or above) for any of {len(qrels):,} queries")


def _check_match(run: Run, qrels: Qrels, documents_known: bool) -> None:
    """Ids that never match are nearly always two files of different data, and their zeros would look like a result."""
    if not run or not qrels:
        raise InputError(f"the {'run' if not run else 'qrels'} holds no query")
    common = [query for query in run if query in qrels]
    if not common:
        raise InputError(f"no query id of the run is in the qrels (run: {next(iter(run))!r} ..., qrels: {next(iter(qrels))!r} ...)")
    known = dict.fromkeys(document for judged in qrels.values() for document in judged)  # in order: the message is always the same
    if documents_known or any(document in known for query in run for document, _ in run[query]):
        return
    example = next((document for query in run for document, _ in run[query]), None)
    raise InputError(f"no document id of the run is in the qrels (run: {example!r} ..., qrels: {next(iter(known), None)!r} ...)")


def write_per_query(path: Path, evaluation: Evaluation, texts: dict[str, str] | None = None) -> None:
    """One JSON line a judged query: its values, and what was counted; ``text`` where known."""
    lines = []
    for column, query in enumerate(evaluation.queries):
        line: dict[str, Any] = {"query_id": query, "in_run": bool(evaluation.in_run[column])}
        line["has_positive"] = bool(evaluation.has_positive[column])
        line["values"] = dict(zip(evaluation.measures, evaluation.values[:, column].tolist(), strict=True))
        if texts is not None and query in texts:
            line["text"] = texts[query]
        lines.append(json.dumps(line, ensure_ascii=False))
    artifacts.write_text(path, "\n".join(lines) + "\n")


def read_per_query(path: Path, run_without_judgments: int = 0) -> Evaluation:
    """What `write_per_query` wrote.

    Raises:
        InputError: absent, or not such a file.
    """
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        measures = tuple(rows[0]["values"])
        values = np.array([[row["values"][m] for row in rows] for m in measures], dtype=np.float64)
        return Evaluation(
            measures=measures,
            queries=tuple(row["query_id"] for row in rows),
            values=values,
            in_run=np.array([row["in_run"] for row in rows], dtype=bool),
            has_positive=np.array([row["has_positive"] for row in rows], dtype=bool),
            run_without_judgments=run_without_judgments,
        )
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise InputError(f"{path} is not a file of values by query: {error!r}") from None

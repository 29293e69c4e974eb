"""One HTML file that says what a run found and where its numbers come from. It needs no network and no other file."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from denseir_jax.core import artifacts
from denseir_jax.evals import charts
from denseir_jax.evals import table as tables
from denseir_jax.evals.charts import Chart
from denseir_jax.evals.evaluation import Evaluation
from denseir_jax.evals.ranking import Qrels, Run, ranked_ids
from denseir_jax.evals.table import Table

_SHOWN = ("params_sha256", "recall", "loss", "steps", "documents", "queries", "kept", "weight")  # facts told of a stage


@dataclasses.dataclass(frozen=True)
class LineageStep:
    """One stage behind the numbers: what it was, the hash of what it made, what it read, and facts worth telling."""

    name: str
    stage: str
    sha256: str
    inputs: Mapping[str, str]
    facts: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Answer:
    """A passage with its rank (0: not found) and title or id."""

    rank: int
    name: str
    text: str


@dataclasses.dataclass(frozen=True)
class WorstQuery:
    """A query that went wrong: its value, the best ranked of its relevant passages, and what stood first instead."""

    query: str
    value: float
    relevant: Answer
    first: Answer


@dataclasses.dataclass(frozen=True)
class ReportData:
    """All that a report shows; what is empty is left out.

    Attributes:
        title: of the page. summary: paragraphs under it. attribution: origin and licence of the data.
        table: the results. charts: curves. lineage: stages in order. worst: queries, with `worst_caption` saying of what.
        settings: name -> value, the short config summary. versions: package -> version.
    """

    title: str
    summary: Sequence[str] = ()
    attribution: str = ""
    table: Table | None = None
    charts: Sequence[Chart] = ()
    lineage: Sequence[LineageStep] = ()
    worst: Sequence[WorstQuery] = ()
    worst_caption: str = ""
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)


def render(data: ReportData) -> str:
    """The page as text. All texts are escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("denseir_jax.evals"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters.update(fraction=tables.fraction, p_value=tables.p_value, signed=lambda value: tables.fraction(value, True))
    drawn = [(chart.title, Markup(charts.line_svg(chart))) for chart in data.charts]
    picture = Markup(charts.interval_svg(data.table, tables.main_measure(data.table))) if data.table else ""
    caption = tables.caption(data.table) if data.table else ""
    return environment.get_template("report.html.j2").render(data=data, drawn=drawn, picture=picture, caption=caption)


def write_report(path: Path, data: ReportData) -> None:
    """Write the page whole or not at all."""
    artifacts.write_text(path, render(data))


def lineage_step(name: str, folder: Path) -> LineageStep:
    """What a finished run folder's manifest and metrics say.

    Raises:
        InputError: the folder is not a finished run.
    """
    manifest = artifacts.finished_run(folder)
    known = {**_scalars(manifest), **_scalars(artifacts.read_json(folder / "metrics.json"))}
    facts = {key: _short(value) for key, value in known.items() if any(word in key for word in _SHOWN)}
    inputs = {key: _short(value) for key, value in manifest["inputs"].items()}
    return LineageStep(name, manifest["stage"], _short(manifest["sha256"]), inputs, facts)


def worst_queries(
    evaluation: Evaluation,
    run: Run,
    qrels: Qrels,
    queries: Mapping[str, str],
    passage: Callable[[str], tuple[str, str]],
    measure: str = "nDCG@10",
    n: int = 10,
) -> list[WorstQuery]:
    """The `n` queries of lowest value that have a relevant passage; of equal ones, those whose relevant passage stands lowest.

    Args:
        queries: id -> text. passage: id -> (name, text), asked only for the passages shown.
    """
    row = evaluation.values[evaluation.measures.index(measure)]
    found = []
    for column, query in enumerate(evaluation.queries):
        if query not in run or not evaluation.has_positive[column] or not run[query]:
            continue
        place = {document: rank for rank, document in enumerate(ranked_ids(run[query], query=query), start=1)}
        relevant = [document for document, judgment in qrels[query].items() if judgment > 0]
        best = min(relevant, key=lambda document: place.get(document, len(place) + 1))
        found.append((float(row[column]), -place.get(best, len(place) + 1), column, query, best, place))
    found.sort(key=lambda item: item[:3])
    out = []
    for value, _, _, query, best, place in found[:n]:
        relevant_answer = Answer(place.get(best, 0), *passage(best))
        out.append(WorstQuery(queries.get(query, query), value, relevant_answer, Answer(1, *passage(next(iter(place))))))
    return out


def _scalars(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flat name -> scalar of a JSON tree of few levels."""
    out: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping) and key not in ("identity", "inputs", "outputs", "versions"):
            out.update(_scalars(value, f"{prefix}{key}."))
        elif isinstance(value, (str, int, float)) and key not in ("sha256", "stage", "finished"):
            out[f"{prefix}{key}"] = value
    return out


def _short(value: Any) -> str:
    """Hashes to 12 digits, floats to 4 figures."""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value).removeprefix("sha256:")
    return text[:12] if len(text) == 64 else text

"""The stage `report`: several evaluate runs side by side, in a table and in one self-contained HTML page."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from denseir_jax.core import artifacts, config
from denseir_jax.core.artifacts import Run
from denseir_jax.core.command import Stage
from denseir_jax.core.config import located
from denseir_jax.core.errors import ConfigError
from denseir_jax.data import sources, trec
from denseir_jax.data.lines import BadRows
from denseir_jax.evals import charts, report
from denseir_jax.evals import table as tables
from denseir_jax.evals.evaluation import PER_QUERY, Averaging, Evaluation, read_per_query

PAGE, TABLE = "report.html", "table.txt"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """What to show. Lists of folders are written as label=DIR, in the order in which they are shown.

    Attributes:
        rows: evaluate runs, one row of the table each. baseline: the label that the paired tests compare with.
        curves: training runs whose loss is drawn. lineage: runs whose hashes and facts are listed. worst: the label whose
        worst queries are shown with their texts, from `dataset` and `split`; "" shows none.
        measures, averaging: columns of the table, and who is counted. title, summary (paragraphs
        apart by an empty line), attribution: texts.
    """

    stage: str = "report"
    rows: tuple[str, ...] = located(())
    baseline: str = ""
    curves: tuple[str, ...] = located(())
    lineage: tuple[str, ...] = located(())
    worst: str = ""
    dataset: str = located("")
    split: str = "test"
    measures: tuple[str, ...] = ("RR@10", "nDCG@10", "R@100")
    averaging: Averaging = "run"
    title: str = "Retrieval report"
    summary: str = ""
    attribution: str = ""
    on_bad_row: Literal["error", "skip"] = "error"

    def __post_init__(self) -> None:
        need_labels(self, ("rows", "curves", "lineage"))


def need_labels(settings: Any, names: tuple[str, ...]) -> None:
    """See that these lists of a config hold ``label=DIR`` strings.

    Raises:
        ValueError: one is something else.
    """
    for name in names:
        for item in getattr(settings, name):
            if not all(item.partition("=")[::2]):
                raise ValueError(f"{name} holds {item!r}; expected label=DIR")


def folders(items: tuple[str, ...]) -> dict[str, Path]:
    """``label=DIR`` strings as label -> path."""
    return {label: Path(path) for label, _, path in (item.partition("=") for item in items)}


def run_report(run: Run) -> Mapping[str, Any]:
    """Per-query values -> table; the table, curves, lineage and worst queries -> page."""
    settings: ReportConfig = run.config
    rows = folders(settings.rows)
    manifests = {label: artifacts.finished_run(folder, ("evaluate",)) for label, folder in rows.items()}
    evaluations = {label: read_per_query(folder / PER_QUERY) for label, folder in rows.items()}
    made = tables.make_table(evaluations, settings.measures, settings.baseline, settings.averaging)
    artifacts.write_text(run.path / TABLE, tables.as_text(made) + "\n")
    artifacts.write_text(run.path / "table.md", tables.as_markdown(made) + "\n")
    artifacts.write_json(run.path / "table.json", tables.as_json(made))
    data = report.ReportData(
        title=settings.title,
        summary=[part for part in settings.summary.split("\n\n") if part],
        attribution=settings.attribution,
        table=made,
        charts=charts.loss_charts(folders(settings.curves)),
        lineage=[report.lineage_step(label, folder) for label, folder in folders(settings.lineage).items()],
        worst=_worst(settings, rows, evaluations),
        worst_caption=settings.worst,
        settings={"dataset": settings.dataset, "split": settings.split, "runs": str(len(rows))},
        versions=next(iter(manifests.values()))["versions"],
    )
    report.write_report(run.path / PAGE, data)
    metrics = {label: evaluation.means(settings.averaging) for label, evaluation in evaluations.items()}
    run.finish(metrics, outputs=[PAGE, TABLE, "table.md", "table.json"])
    return metrics


def _worst(settings: ReportConfig, rows: Mapping[str, Path], evaluations: Mapping[str, Evaluation]) -> list[report.WorstQuery]:
    if not settings.worst:
        return []
    bad = BadRows(settings.on_bad_row)
    dataset = sources.read_dataset(settings.dataset, bad)
    texts = {passage.id: (passage.title or passage.id, passage.text) for passage in dataset.corpus()}
    ranking = trec.read_run(str(rows[settings.worst] / trec.RUN), bad).ranking
    queries, qrels = dataset.queries(settings.split), dataset.qrels(settings.split)
    return report.worst_queries(evaluations[settings.worst], ranking, qrels, queries, lambda item: texts.get(item, (item, "")))


def inputs(settings: ReportConfig) -> Mapping[str, str | Path]:
    """Every run that is shown."""
    labels = folders(settings.rows)
    if not labels:
        raise ConfigError("config.rows is empty; expected label=DIR of finished evaluate runs")
    for name in ("baseline", "worst"):
        if getattr(settings, name) and getattr(settings, name) not in labels:
            raise ConfigError(config.unknown_key(f"config.{name}={getattr(settings, name)}", getattr(settings, name), list(labels)))
    shown = {**labels, **folders(settings.curves), **folders(settings.lineage)}
    found: dict[str, str | Path] = dict(shown)
    if settings.worst:
        found["dataset"] = sources.identity(settings.dataset)
    return found


def show(workdir: Path) -> None:
    """The table on standard output, and where the page is."""
    print((workdir / TABLE).read_text(encoding="utf-8"), end="")
    print(f"report: {workdir / PAGE}")


stage = Stage(
    name="report",
    config=ReportConfig,
    run=run_report,
    inputs=inputs,
    summary="Compare several evaluate runs: a table with intervals and paired tests, and one HTML page.",
    show=show,
)

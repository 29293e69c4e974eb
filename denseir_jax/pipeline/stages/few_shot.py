"""The stage `few_shot`: what a retriever is worth by the share of the training queries that it saw, as a table and a curve.

It draws what finetune runs with different ``query_share`` became. Each is found among the evaluate runs by the hash of its
parameters, so no point can stand at another's place.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from denseir_jax.core import artifacts
from denseir_jax.core.artifacts import Run
from denseir_jax.core.command import Stage
from denseir_jax.core.config import located
from denseir_jax.core.errors import ConfigError, InputError
from denseir_jax.data.facts import read_facts
from denseir_jax.evals import few_shot
from denseir_jax.evals import table as tables
from denseir_jax.evals.evaluation import PER_QUERY, Averaging, Evaluation, read_per_query
from denseir_jax.evals.few_shot import Point, percent
from denseir_jax.pipeline.stages.report import folders, need_labels

CURVE, TABLE, POINTS = "few_shot.png", "table.txt", "few_shot.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FewShotConfig:
    """What to draw.

    Attributes:
        tuned: finetune runs as curve=DIR, several of one curve. evaluated: folders of the evaluate runs of what they made.
        levels: evaluate runs of what saw no training query, as label=DIR, drawn as level lines: BM25, the model before.
        baseline: a label of `levels` that the paired tests compare with; "" for none.
        measures, averaging: columns of the table, and who is counted. title: of the picture.
    """

    stage: str = "few_shot"
    tuned: tuple[str, ...] = located(())
    evaluated: tuple[str, ...] = located(())
    levels: tuple[str, ...] = located(())
    baseline: str = ""
    measures: tuple[str, ...] = ("RR@10", "nDCG@10", "R@100")
    averaging: Averaging = "run"
    title: str = "Few-shot fine-tuning"

    def __post_init__(self) -> None:
        need_labels(self, ("tuned", "levels"))


@dataclasses.dataclass(frozen=True)
class _Model:
    """A finetune run, as its folder tells it; epochs: those asked for, 0 where steps were."""

    curve: str
    share: float
    queries: int
    steps: int
    batch: int
    epochs: float
    evaluation: Evaluation

    @property
    def label(self) -> str:
        return f"{self.curve}, {percent(self.share)} ({self.queries:,} queries)"


def run_few_shot(run: Run) -> Mapping[str, Any]:
    """Folders -> points -> table, curve and the numbers behind both."""
    config: FewShotConfig = run.config
    by_hash = dict(_measured(Path(folder)) for folder in config.evaluated)
    models = sorted((_model(item, by_hash) for item in config.tuned), key=lambda model: (model.curve, model.share))
    levels = {label: _measured(folder)[1] for label, folder in folders(config.levels).items()}
    twice = next((a.label for a, b in itertools.pairwise(models) if (a.curve, a.share) == (b.curve, b.share)), None)
    if twice:
        raise InputError(f"two of config.tuned are {twice!r}; expected one run for each share of a curve")
    names = list(dict.fromkeys(item.partition("=")[0] for item in config.tuned))
    rows = levels | {model.label: model.evaluation for name in names for model in models if model.curve == name}
    made = tables.make_table(rows, config.measures, config.baseline, config.averaging)
    curves = {name: [_point(model, made) for model in models if model.curve == name] for name in names}
    note = budget([(model.steps, model.epochs) for model in models])
    drawn = tables.main_measure(made)
    few_shot.draw(run.path / CURVE, drawn, curves, {name: made.row(name).cells[drawn] for name in levels}, config.title, note)
    artifacts.write_text(run.path / TABLE, f"{tables.as_text(made)}\n{note}\n")
    artifacts.write_text(run.path / "table.md", f"{tables.as_markdown(made)}\n\n{note}\n")
    content = {
        "budget": note,
        "curves": {name: [dataclasses.asdict(point) for point in points] for name, points in curves.items()},
        "levels": {name: {m: dataclasses.asdict(cell) for m, cell in made.row(name).cells.items()} for name in levels},
    }
    artifacts.write_json(run.path / POINTS, content)
    metrics = {name: {percent(point.share): point.cells[drawn].value for point in points} for name, points in curves.items()}
    run.finish({drawn: metrics}, outputs=[CURVE, TABLE, "table.md", POINTS])
    return {drawn: metrics}


def _measured(folder: Path) -> tuple[str, Evaluation]:
    """(hash of the parameters that were evaluated, "" for BM25; values)."""
    artifacts.finished_run(folder, ("evaluate",))
    return read_facts(folder / "metrics.json").get("params_sha256", ""), read_per_query(folder / PER_QUERY)


def _model(item: str, by_hash: Mapping[str, Evaluation]) -> _Model:
    curve, _, folder = item.partition("=")
    path = Path(folder)
    manifest = artifacts.finished_run(path, ("finetune",))
    metrics = read_facts(path / "metrics.json", retriever_sha256=str, step=int)
    evaluation = by_hash.get(metrics["retriever_sha256"])
    if evaluation is None:
        raise InputError(f"none of config.evaluated measured what {path} made; expected an evaluate run with --config.retriever=run:{path}")
    identity, queries = manifest["identity"], manifest["counts"].get("queries")
    if queries is None:
        raise InputError(f"{path} was trained on several data sets or on pairs; expected one with judged queries")
    share, batch, epochs = identity["query_share"], identity["batch_size"], manifest["epochs"]
    return _Model(curve, share, queries, metrics["step"], batch, epochs, evaluation)


def _point(model: _Model, made: tables.Table) -> Point:
    epochs = model.steps * model.batch / model.queries
    return Point(model.share, model.queries, model.steps, epochs, made.row(model.label).cells)


def budget(models: Sequence[tuple[int, float]]) -> str:
    """What all models, given as (steps, epochs asked for), had alike, in a sentence: steps, or passes over their queries."""
    steps, epochs = ({model[i] for model in models} for i in range(2))
    if len(epochs) == 1 and (asked := epochs.pop()):
        return f"The same number of epochs at every share, {asked:g}: {min(steps):,} to {max(steps):,} steps."
    if len(steps) == 1:
        return f"The same number of steps at every share, {steps.pop():,}: the fewer queries, the more often each is seen."
    return f"Shares differ in steps ({min(steps):,} to {max(steps):,}) as well as in queries."


def inputs(config: FewShotConfig) -> Mapping[str, str | Path]:
    """Every run that is shown.

    Raises:
        ConfigError: no finetune or evaluate run, or a baseline that is none of the levels.
    """
    if not config.tuned or not config.evaluated:
        raise ConfigError("config.tuned or config.evaluated is empty; expected finetune runs as curve=DIR, and their evaluate runs")
    levels = folders(config.levels)
    if config.baseline and config.baseline not in levels:
        raise ConfigError(f"config.baseline={config.baseline!r} is none of config.levels: {', '.join(levels) or '(there are none)'}")
    found: dict[str, str | Path] = {f"level:{label}": folder for label, folder in levels.items()}
    for kind, runs in (("tuned", [item.partition("=")[2] for item in config.tuned]), ("evaluated", config.evaluated)):
        found |= {f"{kind}:{number}": folder for number, folder in enumerate(runs)}
    return found


def show(workdir: Path) -> None:
    """The table on standard output, and where the curve is."""
    print((workdir / TABLE).read_text(encoding="utf-8"), end="")
    print(f"curve: {workdir / CURVE}")


stage = Stage(
    name="few_shot",
    config=FewShotConfig,
    run=run_few_shot,
    inputs=inputs,
    summary="Draw what fine-tuned retrievers are worth by the share of the training queries that they saw.",
    show=show,
)

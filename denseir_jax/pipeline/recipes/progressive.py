"""Progressive distillation: one student, taught in turns by stronger teachers, on harder negatives, or both."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

from denseir_jax.pipeline.chain import PipelineConfig
from denseir_jax.pipeline.recipes.recipe import START, Recipe
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.pipeline.stages.report import ReportConfig


@dataclasses.dataclass(frozen=True)
class Turn:
    """One row of a schedule.

    Attributes:
        teacher: name of a teacher. temperature: of the teacher's scores. group_size: passages a query, the positive included.
        negatives: what the group is drawn from: BM25's, or beside them what the student as it is by now brings up. epochs:
        passes over the queries, or `steps`: one of the two.
    """

    teacher: str
    temperature: float
    group_size: int
    negatives: Literal["bm25", "mined"]
    epochs: float = 0.0
    steps: int = 0

    def __post_init__(self) -> None:
        if (self.epochs > 0) == (self.steps > 0):
            raise ValueError(f"epochs={self.epochs:g} and steps={self.steps}: one of them must be above 0, the other 0")


def progressive(
    dataset: str,
    prepare: PrepareConfig,
    teachers: Mapping[str, FinetuneConfig | str],
    student: FinetuneConfig,
    schedule: Sequence[Turn],
    bm25_negatives: MineConfig,
    mined_negatives: MineConfig,
    report: ReportConfig,
    rerank_depth: int = 100,
) -> PipelineConfig:
    """Every row of the schedule becomes a student that starts from the one before; the first from ``init_from``.

    Args:
        teachers: name -> how it is trained here, on BM25 negatives; or run:DIR or hf:DIR. student: what the rows do not say.
    Raises:
        ValueError: no row, a teacher that is not among `teachers`, or a first row with negatives that no student has mined.
    """
    _check(schedule, teachers)
    recipe = Recipe(dataset, prepare, rerank_depth)
    negatives = {"bm25": recipe.bm25_negatives(bm25_negatives)}
    used = dict.fromkeys(turn.teacher for turn in schedule)
    models = {name: _teacher(recipe, name, teachers[name], negatives["bm25"]) for name in used}
    taught: dict[tuple[str, str], str] = {}
    model = START
    for number, turn in enumerate(schedule, 1):
        if turn.negatives == "mined":
            negatives["mined"] = recipe.mine(f"mined{number}", mined_negatives, model, negatives["bm25"])
        lesson = turn.teacher, negatives[turn.negatives]
        if lesson not in taught:
            taught[lesson] = recipe.teach(f"teach{number}", models[turn.teacher], lesson[1])
        model = recipe.finetune(f"student{number}", _in_turn(student, turn), model, taught[lesson])
        if number < len(schedule) and schedule[number].negatives == "mined":
            recipe.encode(f"encode{number}", model)
        recipe.row(f"student {number}: {turn.teacher}, {turn.negatives} negatives", f"student{number}", model)
        last = f"student {number}: {turn.teacher}, {turn.negatives} negatives"
    return recipe.finished(report, worst=last)


def _check(schedule: Sequence[Turn], teachers: Mapping[str, FinetuneConfig | str]) -> None:
    if not schedule:
        raise ValueError("the schedule has no row; expected one for every turn of the student")
    unknown = next((turn.teacher for turn in schedule if turn.teacher not in teachers), None)
    if unknown is not None:
        raise ValueError(f"the schedule names the teacher {unknown!r}, which is not among {', '.join(teachers)}")
    if schedule[0].negatives == "mined":
        raise ValueError("the first row of the schedule has negatives='mined', but no student has mined yet; expected 'bm25'")


def _teacher(recipe: Recipe, name: str, teacher: FinetuneConfig | str, training_set: str) -> str:
    return teacher if isinstance(teacher, str) else recipe.teacher(f"teacher_{name}", teacher, START, training_set)


def _in_turn(student: FinetuneConfig, turn: Turn) -> FinetuneConfig:
    objective = dataclasses.replace(student.objective, group_size=turn.group_size, teacher_temperature=turn.temperature)
    return dataclasses.replace(student, objective=objective, epochs=turn.epochs, steps=turn.steps or student.steps)

"""The stage `convert`: a data set, with a training set if wanted, in the files of another tool."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from denseir_jax.core import artifacts, console
from denseir_jax.core.artifacts import Run
from denseir_jax.core.command import Stage
from denseir_jax.core.config import located
from denseir_jax.core.errors import ConfigError
from denseir_jax.data import conversion, sources, trec
from denseir_jax.data.examples import Example, file_of, of_judgments, read_examples
from denseir_jax.data.facts import need_as_left
from denseir_jax.data.lines import BadRows
from denseir_jax.data.records import Dataset
from denseir_jax.data.results import results_of, with_answers, write_results
from denseir_jax.data.supervised import Supervised
from denseir_jax.data.teacher_scores import TEACHER_SCORES, read_scores

DATA = "data"
RESULTS: dict[str, Literal["dpr", "pyserini"]] = {"dpr_results": "dpr", "pyserini_results": "pyserini"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertConfig:
    """What to write, and how.

    Attributes:
        dataset: source as format:path. split: whose queries. to: "beir" or "tsv" (as MS MARCO is published): a folder of corpus,
        queries and judgments; rows to train on, with their texts: "flag_embedding", "tevatron", "dpr"; or what a run retrieved, with
        texts and whether they hold an answer: "dpr_results", "pyserini_results". run: for those, a run file or a finished evaluate or
        rerank run. training_set: a finished mine or teach run, or a .jsonl file, whose negatives go along; without it those that the
        dataset brings, or positives alone.
    """

    stage: str = "convert"
    dataset: str = located("")
    to: Literal["beir", "tsv", "flag_embedding", "tevatron", "dpr", "dpr_results", "pyserini_results"] = "beir"
    run: str = located("")
    training_set: str | None = located(None)
    split: str = "train"
    on_bad_row: Literal["error", "skip"] = "error"


def run_convert(run: Run) -> Mapping[str, Any]:
    """Data set, training set -> ``data/``."""
    config: ConvertConfig = run.config
    bad = BadRows(config.on_bad_row)
    dataset = sources.read_dataset(config.dataset, bad)
    path = run.path / DATA
    if config.to in RESULTS:
        return _convert_run(run, dataset, bad)
    training, scores = _training(config, dataset, bad)
    if config.to in conversion.FOLDERS:
        changed = conversion.write_folder(config.to, path, dataset, training)
    else:
        changed = conversion.write_rows(config.to, path, dataset, training, scores, _origin(config, dataset))
    for cause, count in changed.items():
        console.say(f"convert: {count:,} x {cause}")
    console.say(f"convert: {config.dataset} as {config.to}:{path}")
    metrics = {
        "examples": sum(map(len, training.values())),
        "files": sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()),
        "changed": dict(changed),
    }
    run.finish(metrics, outputs=[DATA], skipped_rows=dict(bad.counts))
    return metrics


def _convert_run(run: Run, dataset: Dataset, bad: BadRows) -> Mapping[str, Any]:
    """What was retrieved, with its texts. The texts of all passages of the ranking are in memory at once."""
    config: ConvertConfig = run.config
    ranking = trec.read_run(trec.run_file(config.run), bad).ranking
    questions = dataset.queries(config.split)
    answers = dataset.answers(config.split) if isinstance(dataset, Supervised) else {}
    wanted = {passage for query in questions for passage, _ in ranking.get(query, ())}
    passages = {passage.id: passage for passage in dataset.corpus() if passage.id in wanted}
    found = with_answers(results_of(ranking, questions, passages, answers))
    with artifacts.new_folder(run.path / DATA) as folder:
        write_results(folder / f"{config.split}.json", found, RESULTS[config.to])
    console.say(f"convert: {config.run} as {config.to}:{run.path / DATA}")
    metrics = {"questions": len(questions), "with_answers": sum(query in answers for query in questions), "files": [f"{config.split}.json"]}
    run.finish(metrics, outputs=[DATA], skipped_rows=dict(bad.counts))
    return metrics


def _training(config: ConvertConfig, dataset: Dataset, bad: BadRows) -> tuple[dict[str, Sequence[Example]], dict[tuple[str, str], float]]:
    """The examples by split, and a teacher's scores where there are any."""
    if config.training_set:
        file = file_of(config.training_set)
        beside = file.with_name(TEACHER_SCORES)
        need_as_left(beside)
        known = read_scores(beside, bad) if beside.is_file() else ()
        scores = {(query, passage): score for _, query, passage, score in known}
        return {config.split: list(read_examples(file, bad))}, scores
    if config.to == "beir":
        return {}, {}
    if isinstance(dataset, Supervised):
        scores = {(query, passage): score for split in dataset.splits for query, passage, score in dataset.scores(split)}
        found = {split: list(dataset.examples(split)) for split in dataset.splits}
        if config.to == "tsv":  # whose triples need negatives
            found = {split: [example for example in examples if example.negatives] for split, examples in found.items()}
        return dict(found), scores
    return ({} if config.to == "tsv" else {split: list(of_judgments(dataset, split)) for split in dataset.splits}), {}


def _origin(config: ConvertConfig, dataset: Dataset) -> str:
    """Who names the passages of the examples, for errors."""
    if config.training_set:
        return f"the training set {config.training_set}"
    return f"{'an example' if isinstance(dataset, Supervised) else 'a judgment'} of {config.dataset}"


def inputs(config: ConvertConfig) -> Mapping[str, str | Path]:
    """The dataset, and a training set where one is named."""
    if not config.dataset:
        raise ConfigError("config.dataset is empty; expected format:path, for example --config.dataset=beir:FOLDER")
    if (config.to in RESULTS) != bool(config.run):
        raise ConfigError(
            f"config.run={config.run!r} with config.to={config.to}: a run goes with to={' or '.join(RESULTS)}, and they need one"
        )
    found: dict[str, str | Path] = {"dataset": sources.identity(config.dataset)}
    if config.run:
        found["run"] = config.run
    return {**found, "training_set": config.training_set} if config.training_set else found


stage = Stage(
    name="convert",
    config=ConvertConfig,
    run=run_convert,
    inputs=inputs,
    summary="Write a data set, or a training set with its texts, in the files of another tool.",
)

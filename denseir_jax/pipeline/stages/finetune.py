"""Fine-tuning a retriever on queries and judged passages, with in-batch and hard negatives."""

import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from denseir_jax.core import artifacts, console
from denseir_jax.core.artifacts import Run
from denseir_jax.core.command import Stage, execute
from denseir_jax.core.config import located, operational
from denseir_jax.core.errors import ConfigError, InputError
from denseir_jax.data.examples import TRAINING_SETS, write_examples
from denseir_jax.data.facts import output_of
from denseir_jax.data.lines import BadRows
from denseir_jax.data.sources import read_dataset
from denseir_jax.data.supervised import GIVEN, Supervised
from denseir_jax.data.teacher_scores import write_teacher_scores
from denseir_jax.objectives.base import Objective
from denseir_jax.objectives.contrastive import EXAMPLES
from denseir_jax.objectives.distill import SCORES
from denseir_jax.parallel import mesh
from denseir_jax.pipeline.stages import mine as mining
from denseir_jax.pipeline.stages import training
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.train import loop, probes


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig(training.TrainingConfig):
    """One fine-tuning run.

    Attributes:
        dataset: source as format:path (corpus, queries, qrels). split: whose judgments train. training_set: a finished
        mine or teach run, or "given": the dataset's own examples, else negatives are mined here as `mine` says (BM25 by default).
        probe_split: judged queries for the probe, "" = passages' own halves.
    """

    stage: str = "finetune"
    dataset: str = located("")
    split: str = "train"
    training_set: str | None = located(None)
    mine: MineConfig = MineConfig()
    probe_split: str = operational("dev")


def run_finetune(run: Run) -> Mapping[str, Any]:
    """Training set and tokens -> groups of one query and its passages -> objective -> parameters."""
    config: FinetuneConfig = run.config
    if not config.dataset:
        raise ConfigError("config.dataset is empty; expected format:path, for example --config.dataset=beir:FOLDER")
    parts = training.Parts.gather(run, config, config.dataset)
    groups = open_training_set(run, config)
    objective = config.objective.build(parts.context)
    source = objective.rows(parts.store, groups, parts.tokenizer)
    probe = make_probe(config, parts, objective) if config.cadence.probe else None
    if source.counts.get("short"):
        console.say(
            f"finetune: {source.counts['short']:,} queries have too few negatives; {source.counts['filled']:,} random ones fill them"
        )
    return training.train_and_export(run, parts, objective, source, probe, {"counts": source.counts})


def open_training_set(run: Run, config: FinetuneConfig) -> Path:
    """The file of a training set: what the dataset gives, of the mine run that is named, or of one made under ``negatives/``."""
    if config.training_set == GIVEN:
        return write_given(run, config)
    if config.training_set:
        return output_of(Path(config.training_set), EXAMPLES, TRAINING_SETS)
    settings = dataclasses.replace(config.mine, dataset=config.dataset, split=config.split, seed=config.seed, on_bad_row=config.on_bad_row)
    with mesh.first_process_first():
        execute(mining.stage, settings, run.path / "negatives", process=0 if run.primary else 1)
    return output_of(run.path / "negatives", EXAMPLES, ("mine",))


def write_given(run: Run, config: FinetuneConfig) -> Path:
    """The examples that the dataset brings, as ``given.jsonl``, with a teacher's scores beside them where it has any.

    Raises:
        InputError: it brings none, or a bad row.
    """
    bad = BadRows(config.on_bad_row)
    dataset = read_dataset(config.dataset, bad)
    if not isinstance(dataset, Supervised):
        raise InputError(
            f"training_set={GIVEN}: {config.dataset} has judgments alone; expected a source with examples, as flag_embedding:FILE"
        )
    path = run.path / "given.jsonl"
    with mesh.first_process_first():
        if run.primary:
            counts = write_examples(path, dataset.examples(config.split))
            scores = dataset.scores(config.split)
            if (first := next(scores, None)) is not None:
                write_teacher_scores(path.with_name(SCORES), itertools.chain([first], scores))
            skipped = "".join(f"; {count:,} x {reason}" for reason, count in bad.counts.items())
            console.say(
                f"finetune: {counts['queries']:,} queries of {config.dataset} with {counts['negatives'] or 'no'} negatives{skipped}"
            )
    return path


def make_probe(config: FinetuneConfig, parts: training.Parts, objective: Objective) -> loop.Probe:
    """Judged queries of the probe split, or passages' own halves where it is empty."""
    if config.probe_split:
        dataset = read_dataset(config.dataset, BadRows(config.on_bad_row))
        queries, qrels = dataset.queries(config.probe_split), dataset.qrels(config.probe_split)
        task = probes.judged(parts.store, parts.tokenizer, queries, qrels, config.probe_size, config.seed)
    else:
        task = probes.halves(parts.store, config.probe_size, config.seed)
    return probes.make_probe(task, objective, parts.context.encoder)


def inputs(config: FinetuneConfig) -> Mapping[str, str | Path]:
    """The dataset; prepare run, training set and warm start where they are named."""
    found = training.tokens_inputs(config, config.dataset)
    if config.training_set == GIVEN:  # the dataset is an input already; that its examples are used is one too
        return {**found, "training_set": "sha256:" + artifacts.text_sha256(GIVEN)}
    return {**found, "training_set": config.training_set} if config.training_set else found


stage = Stage(
    name="finetune",
    config=FinetuneConfig,
    run=run_finetune,
    inputs=inputs,
    summary="Fine-tune a retriever on judged queries, with in-batch and hard negatives.",
    start=mesh.initialize,
    collective=True,
    complete=training.has_all_steps,
)

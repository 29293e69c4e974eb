"""The stage `ance`: fine-tuning on negatives that an inferencer mines again and again by the model in training.

ANCE (Xiong et al. 2021, arXiv 2007.00808). Its code trains on the queries of one round at a time, a fifth of all; here a set
holds all queries, and those that a round did not mine keep the negatives of the set before.
"""

import dataclasses
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from denseir_jax.core import artifacts
from denseir_jax.core.artifacts import Run
from denseir_jax.core.command import Stage
from denseir_jax.core.errors import ConfigError
from denseir_jax.data.batches import RowSource
from denseir_jax.data.examples import TRAINING_SET, read_examples
from denseir_jax.data.lines import BadRows
from denseir_jax.data.records import need_split
from denseir_jax.data.sources import read_dataset
from denseir_jax.evals import charts
from denseir_jax.parallel import mesh
from denseir_jax.pipeline.ance import inferencer
from denseir_jax.pipeline.ance.config import HEARTBEATS, INFERENCER, SETS, AnceConfig
from denseir_jax.pipeline.ance.folder import need_whole
from denseir_jax.pipeline.ance.heartbeat import Heart, period
from denseir_jax.pipeline.ance.partner import Partner, shares
from denseir_jax.pipeline.ance.rows import RefreshedRows
from denseir_jax.pipeline.ance.sets import FACTS, SetFacts, Sets
from denseir_jax.pipeline.ance.sliced import Sliced
from denseir_jax.pipeline.mining import asking
from denseir_jax.pipeline.stages import finetune, training
from denseir_jax.search.retriever import folder_of
from denseir_jax.train import probes

STALENESS = "staleness.png"


def run_ance(run: Run) -> Mapping[str, Any]:
    """The part that the role names: train (and start the inferencer), follow as the inferencer, or both in turn."""
    config: AnceConfig = run.config
    own, others = shares(config.inferencer_devices) if config.role == "both" else ({}, {})
    os.environ.update(own)  # no device has been touched yet
    if config.role != "trainer" and jax.process_count() > 1:
        raise ConfigError(f"role={config.role} is one process; for a job of several: role=trainer in it, and role=inferencer elsewhere")
    if config.role == "inferencer":
        return inferencer.follow(run)
    need_whole(run.path)
    heart = Heart(run.path / HEARTBEATS / "trainer.json", period(config.patience), "preparing", run.primary)
    with heart:
        return _train(run, config, heart, others)


def _train(run: Run, config: AnceConfig, heart: Heart, environment: dict[str, str]) -> Mapping[str, Any]:
    _need_early(config)
    partner = Sliced(run, config) if config.role == "sliced" else Partner(run.path, config, heart, environment)
    parts = training.Parts.gather(run, config, config.dataset)
    objective = config.objective.build(parts.context)
    publish_warm_up(run, config)
    probe = None
    if config.cadence.probe:
        probe = probes.make_probe(finetune.probe_task(config, parts.store, parts), objective, parts.context.encoder)

    def rows(path: Path) -> RowSource:
        source: RowSource = objective.rows(parts.store, path, parts.tokenizer)
        finetune.tell(source, config, f" of set {int(path.parent.name)}")
        return source

    with partner:
        heart.state = "training"
        source = RefreshedRows(run.path, config, rows, partner.attend, heart, lambda: draw_staleness(run.path))
        metrics = training.train_and_export(run, parts, objective, source, probe, {"counts": source.counts})
    if run.primary:
        draw_staleness(run.path)
    return metrics


def _need_early(config: AnceConfig) -> None:
    """What a round needs is seen before anything is made, not in the first round."""
    if config.refresh.dev_split or config.mine.exclude_answers:
        dataset = read_dataset(config.dataset, BadRows(config.on_bad_row))
        if config.refresh.dev_split:
            need_split(config.refresh.dev_split, dataset.splits, config.dataset)
        asking.answers_of(config.mining, dataset, {}, BadRows(config.on_bad_row))


def inputs(config: AnceConfig) -> Mapping[str, str | Path]:
    """Those of fine-tuning, and what every round reads beside them: questions with answers, a cross-encoder."""
    found = dict(finetune.inputs(config))
    if config.mine.questions:
        found["questions"] = Path(config.mine.questions)
    if config.mine.denoise.reranker:
        found["reranker"] = folder_of(config.mine.denoise.reranker)
    return found


def publish_warm_up(run: Run, config: AnceConfig) -> None:
    """Set 0: what fine-tuning would train on."""
    sets = Sets(run.path / SETS)
    if not mesh.from_first([sets.newest() is None])[0]:
        return
    examples = finetune.shared(run, config, finetune.open_training_set(run, config))
    with mesh.first_process_first():
        if run.primary:
            sets.clean()
            with sets.publish(0) as folder:
                shutil.copyfile(examples, folder / TRAINING_SET)
                queries = sum(1 for _ in read_examples(folder / TRAINING_SET, BadRows(config.on_bad_row)))
                facts = SetFacts(0, 0, "", artifacts.file_sha256(folder / TRAINING_SET), queries, mined=0, dropped={}, dev={})
                artifacts.write_json(folder / FACTS, dataclasses.asdict(facts))
        else:
            sets.wait_for(0)


def draw_staleness(workdir: Path) -> None:
    """``staleness.png``, of what has been logged so far."""
    for chart in charts.loss_charts({"steps since the checkpoint that mined the negatives": workdir}, measures=("staleness",)):
        charts.line_png(chart, workdir / STALENESS)


def has_all_steps(run: Run) -> bool:
    """As of any training run; the inferencer's part is never complete by itself."""
    return run.config.role != "inferencer" and training.has_all_steps(run)


def place(config: AnceConfig, workdir: Path) -> Path:
    """The trainer's run folder is the workdir; the inferencer's lies in it, so that each holds its own."""
    if config.role != "inferencer":
        return workdir
    inferencer.wait_for_trainer(workdir, config.patience)
    return workdir / INFERENCER


stage = Stage(
    name="ance",
    config=AnceConfig,
    run=run_ance,
    inputs=inputs,
    summary="Fine-tune a retriever on negatives that are mined anew from its own checkpoints while it trains (ANCE). One command"
    " starts trainer and inferencer; --config.role=trainer and role=inferencer run them on two hosts that share the workdir,"
    " role=sliced runs both in one process, in turn.",
    start=mesh.initialize,
    collective=True,
    complete=has_all_steps,
    place=place,
)

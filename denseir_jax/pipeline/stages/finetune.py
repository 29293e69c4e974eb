"""Fine-tuning a retriever on queries and judged passages, with in-batch and hard negatives."""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from denseir_jax.core import artifacts, console
from denseir_jax.core.artifacts import Run
from denseir_jax.core.command import Stage, execute
from denseir_jax.core.config import located, operational
from denseir_jax.core.errors import ConfigError, InputError
from denseir_jax.data import sources
from denseir_jax.data.batches import RowSource
from denseir_jax.data.examples import TRAINING_SET, file_of, of_judgments, write_examples
from denseir_jax.data.facts import need_as_left
from denseir_jax.data.group_cells import RANDOM
from denseir_jax.data.lines import BadRows
from denseir_jax.data.pairs import write_pairs
from denseir_jax.data.query_share import write_rows_of, write_share
from denseir_jax.data.sources import read_dataset
from denseir_jax.data.supervised import GIVEN, Supervised
from denseir_jax.data.teacher_scores import TEACHER_SCORES, write_teacher_scores
from denseir_jax.data.tokens import TokenStore
from denseir_jax.objectives.distill import DistillConfig
from denseir_jax.parallel import mesh
from denseir_jax.pipeline.stages import data_sets, training
from denseir_jax.pipeline.stages import mine as mining
from denseir_jax.pipeline.stages.data_sets import SetConfig
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.search.teacher_vectors import VECTORS
from denseir_jax.train import probes

PAIRS = "pairs"
SHARE = "share"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig(training.TrainingConfig):
    """One fine-tuning run.

    Attributes:
        dataset: source as format:path (corpus, queries, qrels). split: whose judgments train. training_set: a finished
        mine or teach run, or "given": the dataset's own examples, or "pairs": its queries with their positives, kept as arrays
        (tens of millions; no negatives), else negatives are mined here as `mine` says (BM25 by default).
        datasets: several by name instead, every batch from one of them; the share of a set's steps goes with
        weight x queries^size_power. query_share: of the training queries, which the seed chooses; those of a smaller share
        are among those of a larger one. epochs: passes over the queries used, instead of `steps`; 0: as `steps` says.
        probe_split: judged queries for the probe, "" = passages' own halves; of several sets, each is probed.
    """

    stage: str = "finetune"
    dataset: str = located("")
    split: str = "train"
    training_set: str | None = located(None)
    datasets: dict[str, SetConfig] = dataclasses.field(default_factory=dict)
    size_power: float = 0.0
    query_share: float = 1.0
    epochs: float = operational(0.0)
    mine: MineConfig = MineConfig()
    probe_split: str = operational("dev")

    def __post_init__(self) -> None:
        super().__post_init__()
        data_sets.check(self)
        if not 0 < self.query_share <= 1:
            raise ValueError(f"query_share={self.query_share} must be above 0 and at most 1")
        if self.epochs < 0:
            raise ValueError(f"epochs={self.epochs} must not be negative")
        if PAIRS in (self.training_set, *(found.training_set for found in self.datasets.values())):
            if self.objective.name != "contrastive" or self.objective.group_size != 1:
                raise ValueError("training_set=pairs brings no negatives: it needs the contrastive objective with group_size=1")
            if self.query_share < 1:
                raise ValueError("query_share goes with judged queries, not with training_set=pairs")

    @property
    def mining(self) -> MineConfig:
        """`mine`, for the data of this run."""
        return dataclasses.replace(self.mine, dataset=self.dataset, split=self.split, seed=self.seed, on_bad_row=self.on_bad_row)


def run_finetune(run: Run) -> Mapping[str, Any]:
    """Training set and tokens -> groups of one query and its passages -> objective -> parameters."""
    config: FinetuneConfig = run.config
    if not config.dataset and not config.datasets:
        raise ConfigError("config.dataset is empty; expected format:path, for example --config.dataset=beir:FOLDER")
    (first, one), *others = data_sets.alone(run).items()
    for own in (one, *(found for _, found in others)):
        need_teacher(own.config)
    parts = training.Parts.gather(one, one.config, one.config.dataset)
    stores = {first: parts.store} | {name: training.open_tokens(own, own.config, own.config.dataset) for name, own in others}
    data_sets.need_one_text(stores)
    objective = config.objective.build(parts.context)
    rows, tasks = {}, {}
    for name, own in ((first, one), *others):
        rows[name] = open_rows(own, objective, stores[name], parts, name)
        if config.cadence.probe:
            tasks[name] = probe_task(own.config, stores[name], parts)
    source = data_sets.mixed(config, rows)
    if config.epochs:
        config = run.config = dataclasses.replace(config, steps=math.ceil(config.epochs * source.n_items / config.batch_size))
    probe = probes.of_sets({name: probes.make_probe(task, objective, parts.context.encoder) for name, task in tasks.items()})
    facts = {"counts": source.counts, "epochs": config.epochs, **data_sets.facts(config, source, config.steps)}
    return training.train_and_export(run, parts, objective, source, probe, facts)


def open_rows(run: Run, objective: Any, store: TokenStore, parts: training.Parts, name: str) -> RowSource:
    """The rows of one data set, and what is worth saying of them."""
    config: FinetuneConfig = run.config
    groups = open_pairs(run, config, store, parts) if config.training_set == PAIRS else shared(run, config, open_training_set(run, config))
    source: RowSource = objective.rows(store, groups, parts.tokenizer)
    tell(source, config, f" of {name}" if name else "")
    return source


def tell(source: RowSource, config: FinetuneConfig, of: str) -> None:
    """Say where rows hold less than was asked for; `of`: whose queries they are, " of ..." or nothing."""
    if source.counts.get("short"):
        short, filled = source.counts["short"], source.counts["filled"]
        console.say(f"{config.stage}: {short:,} queries{of} have too few negatives; {filled:,} random ones fill them")
    if source.n_items < config.batch_size:
        console.say(
            f"{config.stage}: {source.n_items:,} queries{of} are fewer than the {config.batch_size:,} rows of a batch, which then holds"
            " some of them repeatedly (never as each other's negatives)"
        )


def open_pairs(run: Run, config: FinetuneConfig, store: TokenStore, parts: training.Parts) -> Path:
    """The folder ``pairs/``, written by the first life of the run."""
    folder = run.path / PAIRS
    with mesh.first_process_first():
        if run.primary and not folder.exists():  # it appears whole, and the run's inputs are known to be the same
            bad = BadRows(config.on_bad_row)
            counts = write_pairs(folder, read_dataset(config.dataset, bad), config.split, store, parts.tokenizer, bad)
            told = {"skipped: " + reason: n for reason, n in bad.counts.items()} | counts
            console.say("finetune: " + ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in told.items() if n))
    return folder


def shared(run: Run, config: FinetuneConfig, groups: Path) -> Path:
    """The training set, or that of the share of its queries that is asked for, in ``share/`` with what its teacher said.

    Scores are those of the share; vectors are found by id, so that all of them serve, where they are.
    """
    if config.query_share == 1:
        return groups
    target, scores = run.path / SHARE / TRAINING_SET, groups.with_name(TEACHER_SCORES)
    need_as_left(scores)
    with mesh.first_process_first():
        if run.primary:
            among, kept, total = write_share(groups, target, config.query_share, config.seed)
            if scores.is_file():
                write_rows_of(scores, target.with_name(TEACHER_SCORES), among)
            if groups.with_name(VECTORS).is_dir():
                link = target.with_name(VECTORS)
                link.unlink(missing_ok=True)  # an earlier life may have had the training set elsewhere
                link.symlink_to(groups.with_name(VECTORS).resolve())
            console.say(f"finetune: {kept:,} of {total:,} training queries (query_share {config.query_share:g})")
    return target


def need_teacher(config: FinetuneConfig) -> None:
    """See, before anything is encoded or mined, that distillation has a teacher's word to go by.

    Raises:
        ConfigError: no training set is named. InputError: it has no scores or vectors beside it.
    """
    if not isinstance(config.objective, DistillConfig) or config.training_set == GIVEN:
        return
    if not config.training_set:
        raise ConfigError("distillation needs a teacher's word: --config.training_set=DIR, a run of launch/teach.py")
    config.objective.need_teacher(file_of(config.training_set).parent)


def open_training_set(run: Run, config: FinetuneConfig) -> Path:
    """The file of a training set: what the dataset gives, of the mine run that is named, or of one made under ``negatives/``."""
    if config.training_set == GIVEN:
        return write_given(run, config)
    if config.training_set:
        return file_of(config.training_set)
    if tuple(config.objective.sources) == (RANDOM,):  # nothing is mined that nobody would draw from
        path = run.path / "judged.jsonl"
        with mesh.first_process_first():
            if run.primary:
                write_examples(path, of_judgments(read_dataset(config.dataset, BadRows(config.on_bad_row)), config.split))
        return path
    with mesh.first_process_first():
        execute(mining.stage, config.mining, run.path / "negatives", process=0 if run.primary else 1)
    return file_of(run.path / "negatives")


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
                write_teacher_scores(path.with_name(TEACHER_SCORES), itertools.chain([first], scores))
            skipped = "".join(f"; {count:,} x {reason}" for reason, count in bad.counts.items())
            console.say(
                f"finetune: {counts['queries']:,} queries of {config.dataset} with {counts['negatives'] or 'no'} negatives{skipped}"
            )
    return path


def probe_task(config: FinetuneConfig, store: TokenStore, parts: training.Parts) -> probes.Task:
    """Judged queries of the probe split, or passages' own halves where it is empty."""
    if not config.probe_split:
        return probes.halves(store, config.probe_size, config.seed)
    dataset = read_dataset(config.dataset, BadRows(config.on_bad_row))
    queries, qrels = dataset.queries(config.probe_split), dataset.qrels(config.probe_split)
    return probes.judged(store, parts.tokenizer, queries, qrels, config.probe_size, config.seed)


def inputs(config: FinetuneConfig) -> Mapping[str, str | Path]:
    """The dataset; prepare run, training set and warm start where they are named. Of several sets, as input:set."""
    found = training.tokens_inputs(config, config.dataset) | _training_set(config.training_set)
    for name, own in sorted(config.datasets.items()):
        read = {"source": sources.identity(own.dataset)} if own.dataset else {}
        read |= {"tokens": own.tokens} if own.tokens else {}
        found |= {f"{key}:{name}": value for key, value in (read | _training_set(own.training_set)).items()}
    return found


def _training_set(named: str | None) -> dict[str, str | Path]:
    if named in (GIVEN, PAIRS):  # the dataset is an input already; that its examples are used is one too
        return {"training_set": "sha256:" + artifacts.text_sha256(named)}
    return {"training_set": named} if named else {}


def complete(run: Run) -> bool:
    """Whether a finished run has the steps, or the epochs, that the config asks for."""
    if run.config.epochs:
        return bool(artifacts.read_json(run.path / artifacts.MANIFEST).get("epochs", 0) >= run.config.epochs)
    return training.has_all_steps(run)


stage = Stage(
    name="finetune",
    config=FinetuneConfig,
    run=run_finetune,
    inputs=inputs,
    summary="Fine-tune a retriever on judged queries, with in-batch and hard negatives.",
    start=mesh.initialize,
    collective=True,
    complete=complete,
)

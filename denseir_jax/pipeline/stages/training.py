"""What pre-training and fine-tuning share: tokens, warm start, the loop, and what a training run leaves behind."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import jax

from denseir_jax.core import artifacts, console, failpoints
from denseir_jax.core.artifacts import Run
from denseir_jax.core.command import execute
from denseir_jax.core.config import chosen_by_name, located, operational, operational_group, plain
from denseir_jax.core.errors import InputError
from denseir_jax.data import sources
from denseir_jax.data.batches import RowSource
from denseir_jax.data.tokenizer import Tokenizer
from denseir_jax.data.tokens import TokenStore
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.objectives.base import Context, Objective
from denseir_jax.objectives.registry import registry
from denseir_jax.parallel import mesh
from denseir_jax.parallel.mesh import MeshConfig, first_process_first
from denseir_jax.pipeline.stages import prepare as preparing
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.search import retriever
from denseir_jax.train import loop, warm_start
from denseir_jax.train.optimizer import OptimizerConfig
from denseir_jax.train.state import named, nested, on_host

DEEP = 12  # layers, of BERT-base: what the published recipes start from, and what no small corpus trains from nothing


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """What every training stage is told.

    Attributes:
        tokens: a finished prepare run; without it the corpus is prepared under the run folder as `prepare` says.
        init_from: hf:DIR or run:DIR; its shape and tokenizer win over this config's. steps, batch_size (global), seed.
        micro_batches: the batch is encoded in so many parts, with the same loss and gradients. memory_budget: GiB of temporary
        memory a device; parts are added until the step fits (0: as micro_batches says). probe_size: queries (or
        passages, where there are no queries) in the retrieval probe. on_bad_row: refuse a source at its first bad row, or skip
        and count; of everything that is read here.
    """

    tokens: str | None = located(None)
    init_from: str | None = located(None)
    steps: int = operational(1000)
    batch_size: int = 128
    seed: int = 0
    micro_batches: int = operational(1)
    memory_budget: float = operational(0.0)
    objective: Any = chosen_by_name(registry)
    encoder: EncoderConfig
    embedder: EmbedderConfig = EmbedderConfig()
    prepare: PrepareConfig = PrepareConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    mesh: MeshConfig = operational_group(MeshConfig)
    cadence: loop.Cadence = operational_group(loop.Cadence)
    probe_size: int = operational(256)
    on_bad_row: Literal["error", "skip"] = "error"

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("batch_size", 1), ("micro_batches", 1), ("probe_size", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)} must be at least {least}")
        if self.memory_budget < 0:
            raise ValueError(f"memory_budget={self.memory_budget} is in GiB: expected 0 (none) or more")


def tokens_inputs(config: TrainingConfig, source: str) -> dict[str, str | Path]:
    """The artifacts that every training stage consumes: its corpus or dataset, a finished prepare run, a warm start."""
    found: dict[str, str | Path] = {}
    if source:
        found["source"] = sources.identity(source)
    if config.tokens:
        found["tokens"] = config.tokens
    if config.init_from:
        found["init_from"] = retriever.folder_of(config.init_from)
    return found


def open_tokens(run: Run, config: TrainingConfig, corpus: str) -> TokenStore:
    """The token store named by the config, or one prepared here from the corpus (under ``prepare/``)."""
    if config.tokens:
        artifacts.finished_run(config.tokens, ("prepare",))
        _say_how_prepared(run, config.tokens)
        return TokenStore.open(Path(config.tokens))
    if not corpus:
        raise InputError("no text to train on: give the corpus as format:path, or config.tokens, a finished prepare run")
    settings = dataclasses.replace(config.prepare, corpus=corpus, on_bad_row=config.on_bad_row)
    if config.init_from and not settings.tokenizer:  # a warm start speaks its own tokenizer
        settings = dataclasses.replace(settings, tokenizer=str(retriever.folder_of(config.init_from)))
    with first_process_first():
        execute(preparing.stage, settings, run.path / "prepare", process=0 if run.primary else 1)
    return TokenStore.open(run.path / "prepare")


def _say_how_prepared(run: Run, tokens: str) -> None:
    """Tokens may have been cut in another way than the card would cut them; its settings for that have no effect then."""

    def settings(config: Any) -> dict[str, Any]:
        of_split = {"blocks": ("block_length", "short_share"), "spans": ("span_tokens", "span_minimum")}.get(config["split"], ())
        lengths = {name: config["template"].get(name, 1) for name in ("query_length", "passage_length", "blocks")}
        return {"split": config["split"], **{name: config[name] for name in of_split}, **lengths}

    made, wanted = settings(artifacts.read_json(Path(tokens) / artifacts.CONFIG)["config"]), settings(plain(run.config.prepare))
    if made["blocks"] != wanted["blocks"]:
        raise InputError(
            f"{tokens} was prepared with template.blocks={made['blocks']}, this run asks for {wanted['blocks']}: prepare again with "
            f"--config.template.blocks={wanted['blocks']}, or give --config.prepare.template.blocks={made['blocks']} here"
        )
    if made != wanted:
        mine, theirs = (", ".join(f"{name}={value}" for name, value in found.items()) for found in (made, wanted))
        console.say(f"{run.stage}: texts are as prepared in {tokens} ({mine}); what the card says of that ({theirs}) has no effect")


def context(config: TrainingConfig, store: TokenStore, tokenizer: Tokenizer, start: warm_start.WarmStart | None) -> Context:
    """What objectives are built from; the warm start's shape wins over the card's, the tokenizer's vocabulary over both."""
    encoder, embedder = config.encoder, config.embedder
    if start is not None:
        if start.tokenizer_sha256 != store.tokenizer_sha256:
            raise InputError(
                f"{start.origin} was trained with another tokenizer than these tokens; prepare them with --config.tokenizer={start.origin}"
            )
        shape = {f.name for f in dataclasses.fields(EncoderConfig)} - _OURS
        other = [name for name in sorted(shape - {"vocab_size"}) if getattr(start.encoder, name) != getattr(encoder, name)]
        if other:
            found = ", ".join(f"{name}={getattr(start.encoder, name)} (config: {getattr(encoder, name)})" for name in other)
            console.say(f"the encoder's shape is that of {start.origin}: {found}")
        encoder = dataclasses.replace(encoder, **{name: getattr(start.encoder, name) for name in shape})
    encoder = dataclasses.replace(encoder, vocab_size=tokenizer.vocab_size)
    encoder.check_pad_id(tokenizer.pad_id)
    longest = max(store.template.query_length, store.template.passage_length)
    if longest > encoder.max_length:
        raise InputError(f"the template's longest text is {longest} tokens; the encoder has {encoder.max_length} positions")
    return Context(
        encoder=encoder,
        embedder=embedder,
        cls_id=tokenizer.cls_id,
        sep_id=tokenizer.sep_id,
        pad_id=tokenizer.pad_id,
        mask_id=tokenizer.mask_id,
        unk_id=tokenizer.unk_id,
        vocab_size=tokenizer.vocab_size,
        query_length=store.template.query_length,
        passage_length=store.template.passage_length,
        blocks=store.template.blocks,
        seed=config.seed,
    )


_OURS = {"dropout", "attention_dropout", "dtype", "scan", "remat", "init_std"}  # how we train, not what the model is


def plan(config: TrainingConfig, best: str = "") -> loop.Plan:
    """The loop's plan from a training stage's config."""
    return loop.Plan(
        config.steps,
        config.batch_size,
        config.seed,
        config.micro_batches,
        config.optimizer,
        config.mesh,
        config.cadence,
        best,
        config.memory_budget,
    )


def check_early(config: TrainingConfig) -> None:
    """See what can be seen before any text is read: mesh, batch, and the objective on the card's own encoder.

    Raises:
        ConfigError: they do not go together.
    """
    mesh.check_batch(mesh.make(config.mesh), config.batch_size, config.micro_batches)
    if not (config.init_from or config.tokens):
        template = config.prepare.template
        guess = Context(  # the true ids come with the tokenizer; no check depends on them
            encoder=config.encoder,
            embedder=config.embedder,
            cls_id=0,
            sep_id=1,
            pad_id=2,
            mask_id=3,
            vocab_size=config.encoder.vocab_size,
            query_length=template.query_length,
            passage_length=template.passage_length,
            blocks=template.blocks,
            seed=config.seed,
        )
        loop.check_rows(config.objective.build(guess), config.steps, config.batch_size)


@dataclasses.dataclass(frozen=True)
class Parts:
    """What a training stage has put together before the loop starts."""

    store: TokenStore
    tokenizer: Tokenizer
    start: warm_start.WarmStart | None
    context: Context

    @staticmethod
    def gather(run: Run, config: TrainingConfig, corpus: str) -> "Parts":
        """Tokens, tokenizer, warm start and what they make of the encoder."""
        check_early(config)
        store = open_tokens(run, config, corpus)
        tokenizer = store.tokenizer()
        start = warm_start.load(config.init_from)
        if start is None and config.encoder.layers >= DEEP:
            console.say(f"{run.stage}: {config.encoder.layers} layers start from random weights; --config.init_from=hf:DIR or run:DIR")
        return Parts(store, tokenizer, start, context(config, store, tokenizer, start))


def train_and_export(
    run: Run, parts: Parts, objective: Objective, source: RowSource, probe: loop.Probe | None, facts: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Run the loop, then write parameters, what the objective exports, and the manifest; `facts` join the manifest."""
    meta = {"template": parts.store.template.facts, "tokenizer_sha256": parts.store.tokenizer_sha256}
    training = loop.Loop(run, objective, source, plan(run.config, best="RR@10"), probe, meta)
    if run.primary:
        parts.tokenizer.save(run.path / "tokenizer")
    initial: dict[str, Any] = {}
    if parts.start is not None:
        shapes = jax.eval_shape(objective.init, jax.random.key(0))
        initial = parts.start.for_model({name: leaf.shape for name, leaf in named(shapes).items()})
        initial |= objective.derived(initial)
    params, step, last = training.train(initial)
    leaves = on_host(params)
    failpoints.reach("export")
    metrics: dict[str, Any] = {"step": step, "params_sha256": artifacts.arrays_sha256(leaves), **last}
    if run.primary:
        warm_start.save_params(run.path, leaves)  # all of them; what is exported are those that are used
        exported = objective.export(run.path, nested(dict(leaves)), parts.tokenizer, parts.store.template)
        metrics |= exported.metrics
        failpoints.reach("finish")
        outputs = (warm_start.PARAMS, *exported.folders)
        shape = {"encoder": plain(parts.context.encoder), "embedder": plain(parts.context.embedder)}
        run.finish(metrics, outputs, **shape, **meta, **facts)
        console.say(f"{run.stage}: step {step:,}: {_losses(last)}")
        console.say(f"{run.stage}: finished, parameters {metrics['params_sha256'][:12]} in {run.path}")
    return metrics


_RATES = {"lr", "tokens_per_second", "steps_per_second", "padding_share", "data_wait_share", "eta_seconds", "grad_norm"}


def _losses(last: Mapping[str, float]) -> str:
    """The last log line's loss, its parts and accuracies, for a person."""
    parts = {name: value for name, value in last.items() if name not in _RATES and name != "loss"}
    return ", ".join(f"{name} {value:.4g}" for name, value in ({"loss": last.get("loss", float("nan"))} | parts).items())


def has_all_steps(run: Run) -> bool:
    """Whether a finished training run already has the steps that the config asks for."""
    done = artifacts.read_json(run.path / "metrics.json")["step"]
    if done > run.config.steps:
        console.say(f"{run.stage}: {run.path} has {done} steps, more than the {run.config.steps} asked for; it stays as it is")
    return bool(done >= run.config.steps)

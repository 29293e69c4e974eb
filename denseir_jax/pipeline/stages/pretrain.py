"""Pre-training on a corpus alone, without labels."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from denseir_jax.core import console
from denseir_jax.core.artifacts import Run
from denseir_jax.core.command import Stage
from denseir_jax.core.config import located
from denseir_jax.parallel import mesh
from denseir_jax.pipeline.stages import training
from denseir_jax.train import probes


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig(training.TrainingConfig):
    """One pre-training run. corpus: source as format:path, prepared under the run folder unless `tokens` is given."""

    stage: str = "pretrain"
    corpus: str = located("")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.corpus and self.tokens:
            raise ValueError("corpus and tokens are both given; tokens are a corpus that is already prepared")


def run_pretrain(run: Run) -> Mapping[str, Any]:
    """Tokens -> batches -> objective -> parameters."""
    config: PretrainConfig = run.config
    parts = training.Parts.gather(run, config, config.corpus)
    objective = config.objective.build(parts.context)
    source = objective.rows(parts.store)
    console.say("pretrain: " + ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in source.counts.items()))
    probe = None
    if config.cadence.probe:
        task = probes.halves(parts.store, config.probe_size, config.seed)
        probe = probes.make_probe(task, objective, parts.context.encoder)
    return training.train_and_export(run, parts, objective, source, probe, {"counts": source.counts})


def inputs(config: PretrainConfig) -> Mapping[str, str | Path]:
    """A prepare run or the corpus, and a warm start where one is named."""
    return training.tokens_inputs(config, config.corpus)


stage = Stage(
    name="pretrain",
    config=PretrainConfig,
    run=run_pretrain,
    inputs=inputs,
    summary="Pre-train a text encoder on a corpus, without labels.",
    start=mesh.initialize,
    collective=True,
    complete=training.has_all_steps,
)

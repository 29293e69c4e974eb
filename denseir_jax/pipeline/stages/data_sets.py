"""Several data sets to fine-tune on: what each is told, where its own tokens and negatives lie, and their rows as one source."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from denseir_jax.core import console
from denseir_jax.core.artifacts import Run
from denseir_jax.core.config import located
from denseir_jax.core.errors import ConfigError, InputError
from denseir_jax.data.batches import RowSource
from denseir_jax.data.set_turns import SetRows, shares_of
from denseir_jax.data.tokens import TokenStore

FOLDER = "sets"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SetConfig:
    """One of several data sets.

    Attributes:
        dataset, split, training_set, tokens: as for a single one. weight: of its share of the steps.
    """

    dataset: str = located("")
    split: str = "train"
    training_set: str | None = located(None)
    tokens: str | None = located(None)
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.weight <= 0:
            raise ValueError(f"weight={self.weight} must be positive; leave a set out that is not to be learnt from")


def check(config: Any) -> None:
    """See that the sets of a fine-tuning go together, as far as the config tells.

    Raises:
        ValueError: a single set beside them, or a name that no folder should have.
    """
    if config.datasets and (config.dataset or config.tokens or config.training_set):
        raise ValueError("dataset, tokens and training_set are given for each of datasets; expected them there alone")
    bad = next((name for name in config.datasets if not name.isidentifier()), None)
    if bad is not None:
        raise ValueError(f"a data set may not be called {bad!r}; expected letters, digits and _")
    if config.datasets and getattr(config.objective, "memory", 0):
        raise ValueError("objective.memory keeps passages of earlier batches, whose numbers are those of another set's corpus; expected 0")
    if config.size_power < 0:
        raise ValueError(f"size_power={config.size_power} must not be negative")


def alone(run: Run) -> dict[str, Run]:
    """By name of the set, a run of it alone in a folder of its own, which is not opened; ``{"": run}`` where there is a single one.

    Raises:
        ConfigError: a set without dataset, or sets to be prepared and no tokenizer that all could use.
    """
    config = run.config
    if not config.datasets:
        return {"": run}
    names = sorted(config.datasets)
    empty = next((name for name in names if not config.datasets[name].dataset), None)
    if empty is not None:
        raise ConfigError(f"config.datasets.{empty}.dataset is empty; expected format:path")
    prepared = next((found.tokens for found in config.datasets.values() if found.tokens), None)
    prepare = dataclasses.replace(config.prepare, tokenizer=config.prepare.tokenizer or (None if config.init_from else prepared))
    if not (prepare.tokenizer or config.init_from):
        raise ConfigError(
            "several data sets need one tokenizer: expected config.init_from, config.prepare.tokenizer, or a finished prepare run as"
            f" config.datasets.{names[0]}.tokens"
        )
    told = {name: {f.name: getattr(config.datasets[name], f.name) for f in dataclasses.fields(SetConfig)} for name in names}
    settings = {
        name: dataclasses.replace(config, datasets={}, prepare=prepare, **{key: value for key, value in own.items() if key != "weight"})
        for name, own in told.items()
    }
    return {name: Run(run.path / FOLDER / name, run.stage, settings[name], run.primary) for name in names}


def need_one_text(stores: Mapping[str, TokenStore]) -> None:
    """See that the texts of all sets became tokens in the same way.

    Raises:
        InputError: they did not.
    """
    (first, one), *others = stores.items()
    for name, store in others:
        if store.tokenizer_sha256 != one.tokenizer_sha256:
            raise InputError(f"the data sets {first!r} and {name!r} were prepared with different tokenizers; prepare one with the other's")
        if store.template != one.template:
            raise InputError(
                f"the data sets {first!r} and {name!r} were prepared with different templates: {one.template}, {store.template}"
            )


def mixed(config: Any, sources: Mapping[str, RowSource]) -> RowSource:
    """The one source there is, or all of them by turns, and says how often each has its turn."""
    if not config.datasets:
        return sources[""]
    weights = {name: found.weight for name, found in config.datasets.items()}
    shares = shares_of(weights, {name: source.n_items for name, source in sources.items()}, config.size_power)
    return SetRows(sources, shares, config.batch_size, config.seed)


def facts(config: Any, source: RowSource, steps: int) -> dict[str, Any]:
    """For the manifest, and said: by set its steps, their share, and how often its rows are seen."""
    if not isinstance(source, SetRows):
        return {}
    found = {}
    for one, (name, turns) in zip(source.sources, source.turns.counts(steps).items(), strict=True):
        found[name] = {"steps": turns, "share": turns / steps, "epochs": turns * config.batch_size / one.n_items, "queries": one.n_items}
        console.say(
            f"finetune: {name}: {turns:,} of {steps:,} steps ({turns / steps:.1%}), {one.n_items:,} queries"
            f" {found[name]['epochs']:.3g} times"
        )
    return {"sets": found}

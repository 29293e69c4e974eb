"""A recipe as a chain of stages, resumable: each link writes its own run folder under the pipeline's and is skipped when
it already finished with the same config and the same inputs, by hash.

Links speak of each other by name: ``@pretrain`` in any string of a link's config stands for that sibling's folder, and
``@dataset``, ``@init_from`` for the pipeline's own top-level values. So a recipe is a config, not code.
"""

import contextlib
import dataclasses
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import jax

from denseir_jax.core import console, signals
from denseir_jax.core.artifacts import Run, read_json
from denseir_jax.core.command import Stage, execute
from denseir_jax.core.config import chosen_by_name, plain
from denseir_jax.core.errors import ConfigError, InputError
from denseir_jax.data.lines import BadRows
from denseir_jax.data.sources import read_dataset
from denseir_jax.parallel import mesh
from denseir_jax.pipeline import stages
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.teach import TeachConfig

_REFERENCE = re.compile(r"@([A-Za-z_]\w*)")  # not the 10 of nDCG@10
_OWN = ("dataset", "init_from")


@dataclasses.dataclass(frozen=True)
class PipelineConfig:
    """A recipe.

    Attributes:
        dataset: source as format:path (corpus, queries, qrels). seed, on_bad_row: given to every link. init_from: hf:DIR or run:DIR
        to start from, where the recipe uses ``@init_from``. order: names of the links as they run. links: name -> the
        config of a stage (its ``stage`` key names it).
    """

    dataset: str
    order: tuple[str, ...]
    links: dict[str, Any] = chosen_by_name(stages.config_registry, key="stage")
    seed: int = 0
    init_from: str | None = None
    on_bad_row: Literal["error", "skip"] = "error"

    def __post_init__(self) -> None:
        missing = [name for name in self.order if name not in self.links]
        if missing:
            raise ValueError(f"order names the link {missing[0]!r}, which is not among {', '.join(sorted(self.links))}")
        clash = [name for name in self.links if name in _OWN]
        if clash:
            raise ValueError(f"a link may not be called {clash[0]!r}")
        for place, name in enumerate(self.order):
            for used in sorted(references(self.links[name]) - set(_OWN)):
                if used not in self.order[:place]:
                    raise ValueError(f"link {name!r} uses @{used}, which is not an earlier link")


def references(config: Any) -> set[str]:
    """The names that a link's config refers to."""
    return {name for text in _texts(plain(config)) for name in _REFERENCE.findall(text)}


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in _texts(item)]
    return [text for item in value for text in _texts(item)] if isinstance(value, list) else []


def resolved(config: Any, names: Mapping[str, str | None], common: Mapping[str, Any]) -> Any:
    """The config with every reference replaced, and the fields in `common` (seed, on_bad_row) set wherever they are.

    A string that is only a reference may become None.
    """

    def fill(value: Any) -> Any:
        if isinstance(value, str):
            whole = _REFERENCE.fullmatch(value)
            if whole and whole[1] in names:
                return names[whole[1]]
            return _REFERENCE.sub(lambda m: names.get(m[1]) or m[0], value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return resolved(value, names, common)
        if isinstance(value, Mapping):
            return {key: fill(item) for key, item in value.items()}
        return tuple(fill(item) for item in value) if isinstance(value, tuple) else value

    now = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    new = {name: common[name] if name in common else fill(value) for name, value in now.items()}
    return dataclasses.replace(config, **{name: value for name, value in new.items() if value != now[name]})


def run_pipeline(run: Run) -> Mapping[str, Any]:
    """Run every link in order; returns the metrics of the last one and the seconds each took."""
    config: PipelineConfig = run.config
    names: dict[str, str | None] = {"dataset": config.dataset, "init_from": config.init_from}
    metrics: Mapping[str, Any] = {}
    seconds = {}
    for number, name in enumerate(config.order, 1):
        signals.check("finished links are kept")
        stage = stages.by_config(config.links[name])
        settings = resolved(config.links[name], names, {"seed": config.seed, "on_bad_row": config.on_bad_row})
        console.say(f"[{number}/{len(config.order)}] {name} ({stage.name})")
        before = time.monotonic()
        metrics = execute_link(stage, settings, run.path / name)
        seconds[name] = round(time.monotonic() - before, 1)
        names[name] = str(run.path / name)
    done = {"links": list(config.order), "seconds": seconds, **dict(metrics)}
    run.finish(done, outputs=config.order)
    return done


def execute_link(stage: Stage, settings: Any, folder: Path) -> Mapping[str, Any]:
    """Run one link; what other inputs or another config made is made again. Several processes leave it together."""
    with contextlib.nullcontext() if stage.collective else mesh.first_process_first():
        metrics = execute(stage, settings, folder, overwrite=True, process=jax.process_index())
    mesh.meet("the link is done")
    return metrics


def inputs(config: PipelineConfig) -> Mapping[str, str | Path]:
    """A pipeline consumes what its links record; nothing of its own. What a later link would miss is said now.

    Raises:
        ConfigError: no dataset, or no ``init_from`` for a recipe that starts from one. InputError: no such dataset, or it
            lacks a split that a link names.
    """
    if not config.dataset:
        raise ConfigError("config.dataset is empty; expected format:path, for example --config.dataset=beir:FOLDER")
    links = [config.links[name] for name in config.order]
    if not config.init_from and any(getattr(link, "retriever", "") == "@init_from" for link in links):
        raise ConfigError("this recipe starts from a trained encoder: --config.init_from=hf:DIR or run:DIR")
    untaught = next((name for name in config.order if isinstance(link := config.links[name], TeachConfig) and not link.teacher), None)
    if untaught:
        raise ConfigError(f"link {untaught!r} has no teacher: --config.links.{untaught}.teacher=run:DIR or hf:DIR")
    unasked = next((name for name, link in zip(config.order, links, strict=True) if _asks_nothing(link)), None)
    if unasked:
        raise ConfigError(f"link {unasked!r} has no queries: --config.links.{unasked}.unlabelled=tsv:FILE or jsonl:FILE")
    known = read_dataset(config.dataset, BadRows("skip")).splits
    for name, link in zip(config.order, links, strict=True):
        for key in ("split", "tune_split", "probe_split"):
            split = getattr(link, key, "")
            if split and getattr(link, "dataset", "") == "@dataset" and split not in known and _reads(link, key):
                raise InputError(f"{config.dataset} has no split {split!r} (it has {', '.join(known)}), which link {name!r} reads as {key}")
    return {}


def _asks_nothing(link: Any) -> bool:
    """Whether a link mines for unlabelled queries alone, and none are named."""
    return isinstance(link, MineConfig) and not link.split and not link.unlabelled


def _reads(link: Any, key: str) -> bool:
    """Whether a link's settings make it read the split that this key names."""
    if key == "tune_split":
        return bool(link.hybrid)
    return key != "probe_split" or bool(link.cadence.probe)


def never_complete(run: Run) -> bool:
    """A finished pipeline looks at each link again: it is they who know whether their inputs changed."""
    return False


def show(workdir: Path) -> None:
    """What the last link prints."""
    settings = read_json(workdir / "config.json")["config"]
    last = settings["order"][-1]
    stages.registry()[settings["links"][last]["stage"]].show(workdir / last)


stage = Stage(
    name="pipeline",
    config=PipelineConfig,
    run=run_pipeline,
    inputs=inputs,
    summary="Run a whole recipe as a resumable chain of stages.",
    start=mesh.initialize,
    complete=never_complete,
    holds_runs=True,
    show=show,
)

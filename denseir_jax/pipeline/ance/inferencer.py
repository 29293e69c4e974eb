"""The inferencer's side: follow the trainer's checkpoints, and publish a set by each that is new, until the trainer has finished."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from denseir_jax.core import artifacts, console, signals
from denseir_jax.core.artifacts import Run
from denseir_jax.core.config import identity
from denseir_jax.core.errors import InputError, Stopped
from denseir_jax.core.events import Events
from denseir_jax.pipeline.ance.config import HEARTBEATS, INFERENCER, LOG, SETS, AnceConfig
from denseir_jax.pipeline.ance.folder import need_places
from denseir_jax.pipeline.ance.heartbeat import FINISHED, Heart, Listener, period
from denseir_jax.pipeline.ance.refresh import Refresher
from denseir_jax.pipeline.ance.sets import SetFacts, Sets, read_log


def follow(run: Run) -> Mapping[str, Any]:
    """Refresh after every new checkpoint until the trainer has finished.

    Raises:
        InputError: the trainer was started with another config, or a set that it took is gone. Stopped: a signal came, or the
        trainer fell silent.
    """
    config: AnceConfig = run.config
    workdir = run.path.parent
    trainer, sets, made = Listener(workdir / HEARTBEATS / "trainer.json"), Sets(workdir / SETS), 0
    _need_same_config(workdir, config)
    need_places(workdir)
    if read_log(workdir / LOG):
        sets.need_newest(workdir / LOG)
    with Heart(workdir / HEARTBEATS / f"{INFERENCER}.json", period(config.patience), "waiting for the trainer") as heart:
        if not _wait(trainer, config.patience, lambda: sets.newest() is not None):
            return {"sets": 0}
        refresher, events = Refresher(workdir, config), open_events(run.path, sets)
        try:
            while _wait(trainer, config.patience, refresher.due):
                heart.state, before = "refreshing", time.monotonic()
                facts = refresher.refresh()
                heart.state = "waiting for a checkpoint"
                if facts is not None:
                    made, heart.step = made + 1, facts.checkpoint_step
                    report(events, facts, time.monotonic() - before)
        finally:
            events.close()
    return {"sets": made, "newest": sets.newest()}


def wait_for_trainer(workdir: Path, patience: float) -> None:
    """Until the trainer has begun its run folder: it takes none in which there is something already.

    Raises:
        Stopped: it did not for so long, or a signal came.
    """
    _wait(Listener(workdir / HEARTBEATS / "trainer.json"), patience, (workdir / artifacts.CONFIG).exists)


def open_events(folder: Path, sets: Sets) -> Events:
    """The inferencer's events, one a set, at the step of its checkpoint; those of sets that were never published are cut."""
    folder.mkdir(parents=True, exist_ok=True)
    newest = sets.newest()
    return Events(folder, from_step=sets.facts(newest).checkpoint_step if newest else 0)


def report(events: Events, facts: SetFacts, seconds: float) -> None:
    """One line for people, one for events.jsonl."""
    dev = {f"dev_{name}": value for name, value in facts.dev.items()}
    found = {"set": facts.number, "seconds": round(seconds, 3), "mined": facts.mined, "queries": facts.queries, **dev}
    events.write("set", facts.checkpoint_step, {**found, "dropped": facts.dropped})
    measured = "".join(f", {name} {value:.4f}" for name, value in dev.items())
    console.say(
        f"ance inferencer: set {facts.number}: {facts.mined:,} of {facts.queries:,} queries mined by checkpoint "
        f"{facts.checkpoint_step:,} in {console.duration(seconds)}{measured}"
    )


def _wait(trainer: Listener, patience: float, ready: Callable[[], bool]) -> bool:
    """Until there is something to do (True), or the trainer has finished (False).

    Raises:
        Stopped: a signal came, or nothing was heard of the trainer for so long.
    """
    while trainer.state != FINISHED:
        signals.check("published sets are kept")
        if ready():
            return True
        if trainer.quiet > patience:
            raise Stopped(f"ance inferencer: nothing was heard of the trainer for {console.duration(patience)}; the same command goes on")
        time.sleep(0.2)
    return False


def _need_same_config(workdir: Path, config: AnceConfig) -> None:
    theirs = artifacts.read_json(workdir / artifacts.CONFIG).get("identity", {})
    own = artifacts.finite(identity(config))
    differing = sorted(key for key in {**theirs, **own} if theirs.get(key) != own.get(key))
    if differing:
        key = differing[0]
        raise InputError(f"the trainer in {workdir} has another config ({key}: {theirs.get(key)!r} there, {own.get(key)!r} here)")

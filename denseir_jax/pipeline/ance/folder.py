"""Whether a run folder is still as trainer and inferencer left it: seen at the start, before either writes anything."""

from pathlib import Path

from denseir_jax.core.errors import InputError
from denseir_jax.pipeline.ance.config import CHECKPOINTS, HEARTBEATS, INFERENCER, LOG, SETS
from denseir_jax.pipeline.ance.sets import Sets, read_log
from denseir_jax.train import checkpoint


def need_whole(workdir: Path) -> None:
    """For the trainer, who alone removes sets and checkpoints: every set that a kept checkpoint can lead to is there.

    Raises:
        InputError: something else stands in its place, the log is gone, or a set that it names is gone or another.
    """
    need_places(workdir)
    sets, log, kept = Sets(workdir / SETS), read_log(workdir / LOG), checkpoint.committed(workdir / CHECKPOINTS)
    if kept and kept[-1] and not log:
        raise InputError(f"{workdir / LOG} says of no set, though there are checkpoints; remove the run folder and begin again")
    facts = {number: sets.facts(number) for number in sets.numbers()}
    start = max((taken.set for taken in log if kept and taken.step <= kept[0]), default=0)
    for taken in log:
        if taken.set in facts and facts[taken.set].sha256 != taken.sha256:
            raise InputError(f"{sets.path(taken.set)} is not the set that {workdir / LOG} names; expected the one that was published")
        if taken.set >= start and taken.set not in facts:
            raise InputError(sets.gone(taken.set))


def need_places(workdir: Path) -> None:
    """Raises InputError: a file stands where a folder belongs, or a folder where a file belongs."""
    for name in (HEARTBEATS, SETS, CHECKPOINTS, INFERENCER):
        if (workdir / name).exists() and not (workdir / name).is_dir():
            raise InputError(f"{workdir / name} is a file; expected the folder of that name, or nothing: remove it")
    for name in (LOG, f"{HEARTBEATS}/trainer.json", f"{HEARTBEATS}/{INFERENCER}.json"):
        if (workdir / name).is_dir():
            raise InputError(f"{workdir / name} is a folder; expected the file of that name, or nothing: remove it")

"""The numbered training sets, each visible only when whole, and the durable log of which one the trainer took at which step."""

import contextlib
import dataclasses
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError
from denseir_jax.data.examples import TRAINING_SET
from denseir_jax.data.facts import build, need_keys, read_facts

FACTS = "set.json"
_LATE = 120.0  # seconds


@dataclasses.dataclass(frozen=True)
class SetFacts:
    """What a set says of itself.

    Attributes:
        number: 0 is the warm-up set. checkpoint_step: of the parameters that mined it. params_sha256: of them, as a retriever.
        sha256: of its examples. queries, mined: in all, and with negatives of this round. dropped: cause -> passages not kept.
        dev: measure -> value of the checkpoint on the dev queries.
    """

    number: int
    checkpoint_step: int
    params_sha256: str
    sha256: str
    queries: int
    mined: int
    dropped: dict[str, int]
    dev: dict[str, float]


class Sets:
    """The folder ``sets/``: ``000000``, ``000001`` ... One process writes set 0, one other all that follow: no number is left out."""

    def __init__(self, folder: Path):
        self.folder = folder

    def path(self, number: int) -> Path:
        """The folder of a set, whether it exists or not."""
        return self.folder / f"{number:06d}"

    def numbers(self) -> list[int]:
        """Of all whole sets that are still kept, ascending."""
        return sorted(int(found.name) for found in self.folder.glob("[0-9]*"))

    def newest(self) -> int | None:
        """The number of the newest whole set, which is never removed; None before there is one."""
        return max(self.numbers(), default=None)

    def wait_for(self, number: int) -> None:
        """Until a set that another host has seen is seen here: file systems over a network are late by some seconds."""
        deadline = time.monotonic() + _LATE
        while not self.path(number).exists() and time.monotonic() < deadline:
            time.sleep(0.1)

    def facts(self, number: int) -> SetFacts:
        """Raises InputError: no such set, or a file that its maker did not write."""
        path = self.path(number) / FACTS
        return build(SetFacts, read_facts(path, number=int, checkpoint_step=int, sha256=str), path)

    def examples(self, number: int, sha256: str) -> Path:
        """The file of a set's examples.

        Raises:
            InputError: it is gone, or not what was logged when it was taken.
        """
        path = self.path(number) / TRAINING_SET
        if not path.is_file():
            raise InputError(f"{path} is gone, though a kept checkpoint needs the set; remove the run folder and begin again")
        if artifacts.file_sha256(path) != sha256:
            raise InputError(f"{path} was changed after the trainer had taken it; expected the file as it was published")
        return path

    @contextlib.contextmanager
    def publish(self, number: int) -> Iterator[Path]:
        """An empty folder to fill; it becomes set `number` when the block ends, all at once."""
        with artifacts.new_folder(self.path(number)) as folder:
            yield folder
            artifacts.sync_folder(folder)

    def clean(self) -> None:
        """Remove what a killed writer left half-made. Call only where no other process writes sets."""
        for left in self.folder.glob(".*"):
            shutil.rmtree(left, ignore_errors=True)

    def remove_before(self, number: int) -> None:
        """Remove the sets of lower numbers, each at once."""
        for old in self.numbers():
            if old < min(number, self.newest() or 0):
                gone = self.folder / f".{old:06d}.old"
                shutil.rmtree(gone, ignore_errors=True)
                os.replace(self.path(old), gone)
                shutil.rmtree(gone)


@dataclasses.dataclass(frozen=True)
class Taken:
    """The steps from `step` (0-based) on train on set `set`, whose examples have this hash."""

    set: int
    step: int
    sha256: str


class SetLog:
    """``sets.log``: one JSON line a `Taken`, on disk before the first step on that set. It is never cut or rewritten.

    A restart from an earlier checkpoint reads here what its later life took, and takes the same again.
    """

    def __init__(self, path: Path):
        self.path = path
        self.entries = _entries(path)

    def at(self, step: int) -> Taken | None:
        """What the step `step` trains on."""
        return max((taken for taken in self.entries if taken.step <= step), key=lambda taken: taken.step, default=None)

    def after(self, step: int) -> Taken | None:
        """What is taken next after the step `step`."""
        return min((taken for taken in self.entries if taken.step > step), key=lambda taken: taken.step, default=None)

    def append(self, taken: Taken) -> None:
        """Add a line; when this returns it survives a power cut."""
        with open(self.path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(dataclasses.asdict(taken)) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        artifacts.sync_folder(self.path.parent)
        self.entries.append(taken)


def _entries(path: Path) -> list[Taken]:
    """All whole lines. What a kill cut off stands before no step yet: it is removed."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        artifacts.write_text(path, whole)
    entries: list[Taken] = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            row = need_keys(json.loads(line), path, set=int, step=int, sha256=str)
        except ValueError:
            raise InputError(f"{path}:{number}: {line[:40]!r} is no JSON; expected a set and the step at which it was taken") from None
        entries.append(build(Taken, row, path))
        if entries[1:] and not (entries[-2].step < entries[-1].step and entries[-2].set < entries[-1].set):
            raise InputError(f"{path}:{number}: set {row['set']} at step {row['step']}; expected both above those of the line before")
    return entries

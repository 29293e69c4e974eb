"""The numbered training sets, each visible only when whole, and the durable log of which one the trainer took at which step."""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from denseir_jax.core import artifacts, console
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
        """Of all whole sets that are still kept, ascending; what has another name is none of ours.

        Raises:
            InputError: a file has the name of a set.
        """
        found = [path for path in self.folder.glob("[0-9]*") if re.fullmatch("[0-9]{6}", path.name)]
        for path in found:
            if path.is_file():
                raise InputError(f"{path} is a file; expected the folder of a set, or nothing: remove it")
        return sorted(int(path.name) for path in found)

    def newest(self) -> int | None:
        """The number of the newest whole set, which is never removed; None before there is one."""
        return max(self.numbers(), default=None)

    def need_newest(self, log: Path | None = None) -> int:
        """As `newest`, once there is one. Their numbers are given once: the next is above all that `log` names.

        Raises:
            InputError: there is none, or a set that the log names is gone.
        """
        last = max((taken.set for taken in read_log(log)), default=0) if log else 0  # read first: what is logged is published
        newest = self.newest()
        if newest is None or newest < last:
            raise InputError(self.gone(last))
        return newest

    def gone(self, number: int) -> str:
        """What is said of a set that is needed and that nobody will write again."""
        return f"{self.path(number)} is gone, though training needs the set; put it back, or remove the run folder and begin again"

    def wait_for(self, number: int) -> None:
        """Until a set that another host has just announced is seen here: file systems over a network are late by some seconds."""
        if not self.path(number).exists():
            console.say(f"ance: waits up to {console.duration(_LATE)} for {self.path(number)}, which another process sees already")
        deadline = time.monotonic() + _LATE
        while not self.path(number).exists() and time.monotonic() < deadline:
            time.sleep(0.1)

    def facts(self, number: int) -> SetFacts:
        """Raises InputError: no such set, one of another number, or a file that its maker did not write."""
        path = self.path(number) / FACTS
        kinds: dict[str, type] = {"number": int, "checkpoint_step": int, "sha256": str, "queries": int, "mined": int, "dropped": dict}
        facts = build(SetFacts, read_facts(path, **kinds, dev=dict), path)
        if facts.number != number:
            raise InputError(f"{path} is of set {facts.number}; expected {number}, as its folder is named: remove the copy")
        return facts

    def examples(self, number: int, sha256: str) -> Path:
        """The file of a set's examples.

        Raises:
            InputError: it is gone, or has another hash than the log, or the set itself, gives.
        """
        path = self.path(number) / TRAINING_SET
        if not path.is_file():
            raise InputError(self.gone(number))
        if artifacts.file_sha256(path) != sha256:
            raise InputError(f"{path} was changed after it had been published; expected it as it was")
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
        self.entries = read_log(path)
        if path.exists() and _whole(path) != path.read_bytes():
            artifacts.write_bytes(path, _whole(path))  # what a kill cut off stands before no step yet

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


def read_log(path: Path) -> list[Taken]:
    """All whole lines, also while its owner is writing; none where there is no file.

    Raises:
        InputError: a line is not as `SetLog` writes it.
    """
    entries: list[Taken] = []
    for number, line in enumerate(_whole(path).split(b"\n")[:-1], 1):
        place = Path(f"{path}:{number}")
        try:
            row = need_keys(json.loads(line.decode("utf-8")), place, set=int, step=int, sha256=str)
        except ValueError:
            shown = line.decode("utf-8", "replace")[:40]
            raise InputError(f"{place}: {shown!r} is no JSON in UTF-8; expected a set and the step at which it was taken") from None
        before, taken = entries[-1] if entries else Taken(-1, -1, ""), build(Taken, row, place)
        if taken.step <= before.step or taken.set <= before.set:
            raise InputError(
                f"{place}: set {taken.set} at step {taken.step}; expected both above those of the line before, and none below 0"
            )
        entries.append(taken)
    return entries


def _whole(path: Path) -> bytes:
    content = path.read_bytes() if path.exists() else b""
    return content[: content.rfind(b"\n") + 1]

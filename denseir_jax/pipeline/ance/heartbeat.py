"""Signs of life between processes that share nothing but a folder: a small file, written anew every few seconds."""

import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from denseir_jax.core import artifacts, console
from denseir_jax.core.errors import InputError

FINISHED, STOPPED = "finished", "stopped"


def period(patience: float) -> float:
    """Seconds between two beats, for a listener of this patience."""
    return min(5.0, patience / 5)


class Heart:
    """Writes a heartbeat file from a thread of its own while the block runs; the last one says how it ended.

    Attributes:
        state: what the process does, for people. step: the trainer's step, or that of the checkpoint in the inferencer's hands.
    """

    def __init__(self, path: Path, every: float, state: str, enabled: bool = True):
        self.path, self.every, self.state, self.step, self.enabled = path, every, state, 0, enabled
        self._end, self._thread, self._beats = threading.Event(), threading.Thread(target=self._run, daemon=True), 0

    def __enter__(self) -> "Heart":
        if self.enabled:
            self.beat()
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self.enabled:
            return
        self._end.set()
        self._thread.join()
        self.state = STOPPED if kind else FINISHED
        self.beat()

    def beat(self) -> None:
        """Write the file now."""
        self._beats += 1
        now = {"time": round(time.time(), 3), "pid": os.getpid(), "host": socket.gethostname(), "beat": self._beats}
        artifacts.write_json(self.path, {**now, "state": self.state, "step": self.step})

    def _run(self) -> None:
        failed = False
        while not self._end.wait(self.every):
            try:
                self.beat()
                failed = False
            except OSError as error:  # a full disk, say: the other side will call this silence
                if not failed:
                    console.say(f"warning: the heartbeat {self.path} cannot be written: {error}")
                failed = True


class Listener:
    """Listens to a heartbeat file. Only changes count, by this process's own clock: clocks of two hosts differ, and what was
    there before may be a dead process's."""

    def __init__(self, path: Path):
        self.path = path
        self.start_anew()

    def start_anew(self) -> None:
        """Count silence from now on; what the file says now is old."""
        self._seen, self._at, self._heard = self._read(), time.monotonic(), False

    @property
    def heard(self) -> bool:
        """Whether there was any sign of life."""
        self._look()
        return self._heard

    @property
    def state(self) -> str:
        """What the last sign of life said, "" before the first."""
        return str(self._seen.get("state", "")) if self.heard else ""

    @property
    def quiet(self) -> float:
        """Seconds since the last sign of life, or since listening began."""
        self._look()
        return time.monotonic() - self._at

    @property
    def silence(self) -> float:
        """As `quiet`; endless once its process is known to be gone from this host."""
        quiet = self.quiet
        return float("inf") if self._heard and self._dead() else quiet

    def _look(self) -> None:
        now = self._read()
        if now and now != self._seen:
            self._seen, self._at, self._heard = now, time.monotonic(), True

    def _read(self) -> dict[str, Any]:
        try:
            return dict(artifacts.read_json(self.path)) if self.path.exists() else {}
        except (InputError, TypeError, ValueError):  # gone between the two, or not ours: no sign of life
            return {}

    def _dead(self) -> bool:
        if self._seen.get("host") != socket.gethostname() or not isinstance(self._seen.get("pid"), int):
            return False
        try:
            os.kill(self._seen["pid"], 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False

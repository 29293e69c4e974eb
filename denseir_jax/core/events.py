"""What happened during a run, step by step: ``events.jsonl`` (the truth) and TensorBoard events (the picture)."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError


class Events:
    """Appends one JSON line an event, and mirrors its numbers to TensorBoard under ``tensorboard/``.

    Args:
        folder: the run folder. from_step: lines of a later step are cut: they come from a life that was not saved.
        enabled: False in processes that do not write.
    """

    def __init__(self, folder: Path, from_step: int = 0, enabled: bool = True):
        self._stream = None
        if not enabled:
            return
        path = folder / "events.jsonl"
        _cut(path, from_step)
        self._stream = open(path, "a", encoding="utf-8")  # noqa: SIM115
        from tensorboardX import SummaryWriter  # here, because it imports PyTorch where that is installed

        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=from_step + 1)

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """One event: `kind` is "train", "probe", "start" ...; numbers among `values` are plotted."""
        if self._stream is None:
            return
        line = {"kind": kind, "step": step, "time": round(time.time(), 3), **values}
        self._stream.write(json.dumps(artifacts.finite(line), ensure_ascii=False) + "\n")
        self._stream.flush()
        for name, value in values.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                self._board.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        """Flush and close both."""
        if self._stream is not None:
            self._stream.close()
            self._board.close()


def _cut(path: Path, last_step: int) -> None:
    if not path.exists():
        return
    kept = [line for line in read(path) if line["step"] <= last_step]
    artifacts.write_text(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept))


def read(path: Path) -> list[dict[str, Any]]:
    """All whole lines of an events file; a torn last line (a kill in mid-write) is left out."""
    lines = []
    for number, text in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], 1):  # not splitlines: a value may hold U+2028
        try:
            line = json.loads(text)
        except ValueError:
            break
        if not isinstance(line, dict) or "step" not in line:
            raise InputError(f"{path}:{number}: {text[:40]!r} is not an event; expected an object with a step")
        lines.append(line)
    return lines


def last_logged(folder: Path) -> dict[str, float]:
    """What the last log line of a run says, so that a restart with no step left to do still knows its metrics."""
    path = folder / "events.jsonl"
    lines = [line for line in read(path) if line["kind"] == "train"] if path.exists() else []
    last = lines[-1] if lines else {}  # a mean over nothing is written as null
    return {name: float("nan") if value is None else value for name, value in last.items() if name not in ("kind", "step", "time")}

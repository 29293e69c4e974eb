"""What a person sees while a stage works: short lines on standard error, progress with rate and ETA."""

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from denseir_jax.core import signals

T = TypeVar("T")
_EVERY = 10.0  # seconds between plain progress lines


def say(message: str) -> None:
    """One line on standard error, if there is one."""
    if sys.stderr is not None:
        with contextlib.suppress(BrokenPipeError):
            print(message, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """``75`` -> ``1m15s``."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds}s"
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes}m{seconds:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


class Meter:
    """Counts units of work and shows how many, how fast, how long still: a bar on a terminal, else a line every 10 s.

    Use as a context manager; call `advance` as work is done. `total` may be None when it is not known. `before` units of it
    were done by an earlier life of the run.
    """

    def __init__(self, label: str, total: int | None, unit: str, before: int = 0):
        self.label, self.total, self.unit, self.before = label, total, unit, before
        self.done = before
        self._start = self._last = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> "Meter":
        if sys.stderr is not None and sys.stderr.isatty():
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=Console(stderr=True), transient=False)
            self._bar.start()
            self._task = self._bar.add_task(self.label, total=self.total, completed=self.before, rate="")
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif exception[0] is None and time.monotonic() - self._start > 2:
            say(f"{self.label}: {self.done - self.before:,} {self.unit} in {duration(time.monotonic() - self._start)}")

    def advance(self, n: int = 1, note: str = "") -> None:
        """`n` more units are done; `note` is shown beside the rate."""
        self.done += n
        now = time.monotonic()
        rate = (self.done - self.before) / max(now - self._start, 1e-9)
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, rate=f"{rate:,.0f} {self.unit}/s {note}")
        elif now - self._last >= _EVERY:
            self._last = now
            ahead = f"/{self.total:,}" if self.total is not None else ""
            eta = f", ETA {duration((self.total - self.done) / max(rate, 1e-9))}" if self.total is not None else ""
            say(f"{self.label}: {self.done:,}{ahead} {self.unit}, {rate:,.0f}/s{eta} {note}".rstrip())


def progress(items: Iterable[T], label: str, total: int | None, unit: str) -> Iterator[T]:
    """Pass `items` through, one unit each, metered; a signal stops it between two."""
    with Meter(label, total, unit) as meter:
        for item in items:
            signals.check()
            yield item
            meter.advance()

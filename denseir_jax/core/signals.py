"""SIGTERM and SIGINT as a question that a stage asks between units of work, so that nothing is left half-written."""

import signal
from types import FrameType

from denseir_jax.core.errors import Stopped

_received: list[int] = []


def _remember(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    if len(_received) > 2:  # somebody insists: stop waiting for the unit in hand
        raise KeyboardInterrupt


def listen() -> None:
    """Start to remember SIGTERM and SIGINT instead of dying by them. Call from the main thread; again changes nothing."""
    if signal.getsignal(signal.SIGTERM) is _remember:
        return
    _received.clear()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _remember)


def received() -> bool:
    """Whether a stop was asked for."""
    return bool(_received)


def ask() -> None:
    """As if a signal had come: for a stage that has its own reason to save and stop."""
    _received.append(signal.SIGTERM)


def check(saved: str = "finished parts are kept") -> None:
    """Raise Stopped if a stop was asked for. Call it where stopping loses nothing; `saved` says what is kept."""
    if _received:
        raise Stopped(f"stopped by {signal.Signals(_received[0]).name}; {saved}; the same command goes on")

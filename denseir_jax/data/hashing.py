"""Random numbers that are a function of what they are for: hash (seed, purpose, counters) and there is the draw.

A `numpy` generator a row costs 10 microseconds or more; this costs nanoseconds over an array, and row g of the stream gets
the same draw whoever computes it, in whatever order. The hash is SplitMix64's finaliser, applied once a counter.
"""

import numpy as np
from jaxtyping import Float, Int, UInt

_STEP = np.uint64(0x9E3779B97F4A7C15)
_A, _B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1


def bits(seed: int, purpose: str, *counters: int | Int[np.ndarray, "..."]) -> UInt[np.ndarray, "..."]:
    """64 hashed bits of (seed, purpose, counters), in the shape that the counters broadcast to.

    `purpose` keeps draws for different things apart; its first 8 bytes count.
    """
    with np.errstate(over="ignore"):
        state = _mixed(np.asarray(seed & _MASK, np.uint64) ^ _mixed(np.frombuffer(purpose.encode()[:8].ljust(8, b"\0"), "<u8")[0]))
        for counter in counters:
            state = _mixed(state ^ _mixed(np.asarray(counter).astype(np.uint64)))
    return state


def uniform(seed: int, purpose: str, *counters: int | Int[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """float64, uniform on [0, 1), in the shape that the counters broadcast to."""
    return np.asarray((bits(seed, purpose, *counters) >> np.uint64(11)) * 2.0**-53)


def below(draw: Float[np.ndarray, "..."], n: int | Int[np.ndarray, "..."]) -> Int[np.ndarray, "..."]:
    """int64: uniform draws on [0, 1) as integers in [0, n)."""
    return np.asarray(np.minimum((draw * n).astype(np.int64), np.asarray(n) - 1), np.int64)


def generator(seed: int, purpose: str, counter: int) -> np.random.Generator:
    """A whole generator (Philox) keyed by (seed, purpose, counter), for draws that have no fixed number."""
    return np.random.Generator(np.random.Philox(key=bits(seed, purpose, counter, np.arange(2))))


def _mixed(x: np.ndarray | np.uint64) -> np.ndarray:
    x = x + _STEP
    x = (x ^ (x >> np.uint64(30))) * _A
    x = (x ^ (x >> np.uint64(27))) * _B
    return np.asarray(x ^ (x >> np.uint64(31)))

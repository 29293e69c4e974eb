"""Averages that stay right under accumulation, padding and many devices: a sum and a count, divided at the very end."""

from collections.abc import Mapping
from typing import Any

Pair = tuple[Any, Any]  # (sum, count), numbers or scalar arrays


def add(a: Mapping[str, Pair], b: Mapping[str, Pair]) -> dict[str, Pair]:
    """Merge two sets of (sum, count) pairs by name; a name that one side lacks counts as (0, 0)."""
    out = dict(a)
    for name, (total, count) in b.items():
        known = out.get(name, (0, 0))
        out[name] = (known[0] + total, known[1] + count)
    return out


def means(pairs: Mapping[str, Pair]) -> dict[str, float]:
    """Divide on the host. A count of zero gives nan: there was nothing to average, and 0 would be a lie."""
    return {name: float(total) / float(count) if float(count) else float("nan") for name, (total, count) in pairs.items()}

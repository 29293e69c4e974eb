"""How long texts are: quantiles, a histogram by powers of two, and the share that a limit cuts."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Int

_LEAST = 0.005  # of all texts, for a bin at an end to be shown by itself


def summary(lengths: Int[np.ndarray, " n"], limit: int | None = None) -> dict[str, Any]:
    """``n``, ``median``, ``p95`` (95% are no longer), ``longest``, ``histogram``; with a limit ``limit``, ``truncated``.

    ``histogram`` is a list of [bound, texts]: so many are shorter than the bound, a power of two, and not shorter than the one
    before. ``truncated`` is the share longer than the limit.
    """
    n = len(lengths)
    if not n:
        return {"n": 0}
    ordered = np.sort(lengths)
    bins = np.bincount(np.ceil(np.log2(ordered.astype(np.float64) + 1)).astype(np.int64))  # length l lies in [2^(k-1), 2^k)
    found: dict[str, Any] = {
        "n": n,
        "median": int(ordered[(n - 1) // 2]),
        "p95": int(ordered[int(np.ceil(0.95 * n)) - 1]),
        "longest": int(ordered[-1]),
        "histogram": [[1 << k, int(count)] for k, count in enumerate(bins) if count],
    }
    if limit is not None:
        found |= {"limit": limit, "truncated": float(np.mean(lengths > limit))}
    return found


def as_text(found: Mapping[str, Any]) -> str:
    """A summary in one line; bins of less than half a percent at either end are put together."""
    if not found["n"]:
        return "none"
    text = f"median {found['median']:,}, 95% {found['p95']:,}, longest {found['longest']:,}"
    if "limit" in found:
        text += f"; {found['truncated']:.1%} cut at {found['limit']:,}"
    bins = [(bound, count / found["n"]) for bound, count in found["histogram"]]
    while len(bins) > 1 and bins[0][1] < _LEAST:
        bins[:2] = [(bins[1][0], bins[0][1] + bins[1][1])]
    rest = 0.0
    while len(bins) > 1 and bins[-1][1] < _LEAST:
        rest += bins.pop()[1]
    shown = [f"<{bound:,} {share:.0%}" for bound, share in bins] + ([f"longer {rest:.1%}"] if rest else [])
    return f"{text}  |  {'  '.join(shown)}"

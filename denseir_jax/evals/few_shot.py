"""The picture of a few-shot curve: a measure over the share of the training queries, on a logarithmic axis, with its intervals.

Curves differ by marker and dashes, level lines by dashes and hatching; colours (Okabe & Ito 2008) come on top.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from denseir_jax.core import artifacts
from denseir_jax.evals.table import Cell

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
_MARKERS, _DASHES = ("o", "s", "^", "D", "v"), ("-", "--", (0, (12, 3)), (0, (6, 1, 1, 1, 1, 1)), (0, (8, 2)))
_LEVELS = ((":", "///"), ("-.", "\\\\\\"), ((0, (1, 4)), "..."))
_INK, _LEVEL = "#222222", "#555555"
_APART = 1.05  # the second curve's points stand so much to the right, so that intervals do not cover one another


@dataclass(frozen=True)
class Point:
    """One model: trained on this share of the queries, how many that were, for how long, and what came of it, by measure."""

    share: float
    queries: int
    steps: int
    epochs: float
    cells: Mapping[str, Cell]


def percent(share: float) -> str:
    """``0.1%``, ``100%``."""
    return f"{100 * share:g}%"


def draw(path: Path, measure: str, curves: Mapping[str, Sequence[Point]], levels: Mapping[str, Cell], title: str, note: str) -> None:
    """Write a PNG, whole or not at all.

    Args:
        curves: label -> points. levels: label -> what needs no training queries. title: above. note: below, small.
    """
    figure = Figure(figsize=(7.2, 4.6), layout="constrained", dpi=150)
    axes = figure.add_subplot()
    for i, (label, cell) in enumerate(levels.items()):
        dashes, hatch = _LEVELS[i % len(_LEVELS)]
        axes.axhline(cell.value, color=_LEVEL, linestyle=dashes, linewidth=1.6, label=label)
        axes.axhspan(cell.low, cell.high, facecolor="none", edgecolor=_LEVEL, hatch=hatch, alpha=0.18, linewidth=0)
    for i, (label, points) in enumerate(curves.items()):
        cells = [point.cells[measure] for point in points]
        axes.errorbar(
            [100 * point.share * _APART**i for point in points],
            [cell.value for cell in cells],
            yerr=[[max(c.value - c.low, 0) for c in cells], [max(c.high - c.value, 0) for c in cells]],
            label=label,
            color=_COLOURS[i % len(_COLOURS)],
            marker=_MARKERS[i % len(_MARKERS)],
            linestyle=_DASHES[i % len(_DASHES)],
            linewidth=1.8,
            markersize=6,
            capsize=3,
        )
    _ticks(axes, curves)
    axes.set_ylabel(f"{measure}, 95% interval", color=_INK)
    axes.set_title(title, color=_INK, fontsize=11)
    axes.legend(frameon=False, fontsize=9)
    figure.text(0.01, -0.01, note, fontsize=8, color=_INK, verticalalignment="top")
    with artifacts.new_file(path) as temporary:
        figure.savefig(temporary, format="png", bbox_inches="tight", metadata={"Software": None})


def _ticks(axes: Axes, curves: Mapping[str, Sequence[Point]]) -> None:
    """Every share is a tick, with the number of queries under it."""
    queries = {point.share: point.queries for points in curves.values() for point in points}
    axes.set_xscale("log")
    shares = sorted(queries)
    axes.set_xticks([100 * share for share in shares], [f"{percent(share)}\n{queries[share]:,}" for share in shares])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("share of the training queries (number)", color=_INK)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.tick_params(colors=_INK, labelsize=9)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))

"""Pictures: for the report, inline SVG by matplotlib, coloured by the page's own CSS so that light, dark and print all read.

Lines differ by dashes and by a legend, not by colour alone.
"""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from denseir_jax.core import artifacts, events
from denseir_jax.evals.table import Table

_INK, _FAINT = "#010203", "#010204"  # stand-ins, replaced by CSS colours in the text of the SVG
_LINES = ("#010205", "#010206", "#010207", "#010208", "#010209", "#01020a")
_CSS = {_INK: "currentColor", _FAINT: "var(--faint)", **{c: f"var(--line-{i})" for i, c in enumerate(_LINES)}}
_ON_WHITE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito's, for all eyes
_DASHES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 2)))
_POINTS = 300  # a curve is averaged down to so many


@dataclass(frozen=True)
class Curve:
    """One line: y over x."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Chart:
    """Curves in one frame."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]


def loss_charts(runs: Mapping[str, Path], kind: str = "train", measures: Sequence[str] = ("loss",)) -> list[Chart]:
    """One chart a training run, from its ``events.jsonl``.

    Args:
        runs: title -> run folder; a folder without such events gives no chart. kind: of the events.
        measures: names drawn where they exist; a name also stands for its parts ("loss" for "loss_mlm", "loss/mlm").
    """
    charts = []
    for title, folder in runs.items():
        path = folder / "events.jsonl"
        lines = [line for line in events.read(path) if line.get("kind") == kind] if path.exists() else []
        curves = [c for c in (_curve(name, lines) for name in _names(lines, measures)) if len(c.x) > 1]
        if curves:
            charts.append(Chart(title, "step", ", ".join(measures), curves))
    return charts


def _names(lines: Sequence[Mapping[str, Any]], measures: Sequence[str]) -> list[str]:
    known = dict.fromkeys(name for line in lines for name in line)
    return [n for m in measures for n in known if n == m or re.match(rf"{re.escape(m)}[/_.]", n)]


def _curve(name: str, lines: Sequence[Mapping[str, Any]]) -> Curve:
    points = [(line["step"], line[name]) for line in lines if isinstance(line.get(name), (int, float))]
    parts = np.array_split(np.array(points, dtype=np.float64).reshape(-1, 2), min(_POINTS, max(len(points), 1)))
    means = np.array([part.mean(axis=0) for part in parts if len(part)]).reshape(-1, 2)
    return Curve(name, means[:, 0].tolist(), means[:, 1].tolist())


def line_svg(chart: Chart) -> str:
    """A chart as an SVG element."""
    return _svg(_lines(chart, _INK, _FAINT, _LINES), f"{chart.title}: {chart.y_label} by {chart.x_label}")


def line_png(chart: Chart, path: Path) -> None:
    """A chart as a file of its own, on white; whole or not at all."""
    figure = _lines(chart, "#1a1a1a", "#d9d9d9", _ON_WHITE)
    figure.patch.set(alpha=1.0, facecolor="white")
    figure.axes[0].set_title(chart.title, fontsize=10)
    with artifacts.new_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150, metadata={"Software": None})


def _lines(chart: Chart, ink: str, faint: str, colours: Sequence[str]) -> Figure:
    figure, axes = _frame(5.6, 3.0, ink, faint)
    for i, curve in enumerate(chart.curves):
        colour, dashes = colours[i % len(colours)], _DASHES[i % len(_DASHES)]
        axes.plot(curve.x, curve.y, label=curve.label, color=colour, linestyle=dashes, linewidth=1.8)
    axes.set_xlabel(chart.x_label, color=ink)
    axes.set_ylabel(chart.y_label, color=ink)
    if len(chart.curves) > 1:
        axes.legend(frameon=False, labelcolor=ink, fontsize=9)
    return figure


def interval_svg(table: Table, measure: str) -> str:
    """Every system's mean with its 95% interval, one line each, as an SVG element."""
    figure, axes = _frame(7.2, 0.9 + 0.34 * len(table.rows))
    for place, row in enumerate(table.rows):
        cell, baseline = row.cells[measure], row.name == table.baseline
        colour, mark = (_INK, "D") if baseline else (_LINES[0], "o")
        axes.plot([cell.low, cell.high], [place, place], color=colour, linewidth=1.8, marker="|", markersize=9)
        axes.plot([cell.value], [place], color=colour, marker=mark, markersize=6)
    if table.baseline:
        axes.axvline(table.row(table.baseline).cells[measure].value, color=_INK, linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(table.rows)), [row.name for row in table.rows])
    axes.set_ylim(len(table.rows) - 0.5, -0.5)
    axes.set_xlabel(f"{measure}, 95% interval", color=_INK)
    return _svg(figure, f"{measure} of each system with its 95% interval")


def _frame(width: float, height: float, ink: str = _INK, faint: str = _FAINT) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_alpha(0.0)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0.0)
    axes.grid(color=faint, linewidth=0.6)
    axes.tick_params(colors=ink, labelsize=9)
    for name, spine in axes.spines.items():
        spine.set_color(ink)
        spine.set_visible(name in ("left", "bottom"))
    return figure, axes


def _svg(figure: Figure, description: str) -> str:
    """The figure as one SVG element that can stand in a page with others; equal figures give equal text."""
    stream = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": description}):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    for stand_in, colour in _CSS.items():
        text = text.replace(stand_in, colour)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font: \1px system-ui, sans-serif", text)
    label = description.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)

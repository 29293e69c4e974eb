"""The result table: systems by measures with 95% intervals and paired tests against one of them; as text, Markdown, JSON.

Every row is over the same queries, or its rows could not be compared: with averaging "run", the judged queries that any
system of the table returned, 0 where a system lacks one. p is the paired randomisation test's, corrected by Holm over
the rows of one measure.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from denseir_jax.core.errors import InputError
from denseir_jax.evals.evaluation import Averaging, Evaluation
from denseir_jax.evals.significance import DRAWS, Comparison, bootstrap_interval, compare, holm


@dataclasses.dataclass(frozen=True)
class Cell:
    """One system on one measure: the mean, its 95% interval, and the comparison with the baseline (p_holm corrected)."""

    value: float
    low: float
    high: float
    comparison: Comparison | None = None
    p_holm: float = float("nan")


@dataclasses.dataclass(frozen=True)
class Row:
    """One system: its name, a cell a measure, and a remark."""

    name: str
    cells: Mapping[str, Cell]
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Table:
    """All of it. `queries` is the number that each mean is over; `baseline` names the row that the tests compare with."""

    measures: tuple[str, ...]
    rows: tuple[Row, ...]
    baseline: str
    queries: int
    averaging: Averaging

    def row(self, name: str) -> Row:
        """The row of that name."""
        return next(row for row in self.rows if row.name == name)


def make_table(
    systems: Mapping[str, Evaluation],
    measures: Sequence[str],
    baseline: str = "",
    averaging: Averaging = "run",
    notes: Mapping[str, str] | None = None,
    draws: int = DRAWS,
) -> Table:
    """Compare systems evaluated on the same judgments.

    Args:
        systems: row name -> its evaluation, in the order of the rows. measures: which columns. baseline: a row name, or
            "" for no tests. averaging: see `evaluation.AVERAGING`. notes: row name -> remark. draws: of each bootstrap and test.
    Raises:
        InputError: judged queries differ between systems, a measure was not evaluated, or there is no such baseline.
    """
    first = next(iter(systems.values()), None)
    if first is None or (baseline and baseline not in systems):
        raise InputError(f"the table has no row {baseline!r}; it has {', '.join(systems) or 'none'}")
    for name, evaluation in systems.items():
        if evaluation.queries != first.queries:
            raise InputError(f"{name!r} was evaluated on other queries than {next(iter(systems))!r}; one table needs one set of judgments")
        missing = [m for m in measures if m not in evaluation.measures]
        if missing:
            raise InputError(f"{name!r} was not evaluated by {missing[0]}; it has {', '.join(evaluation.measures)}")
    counted = np.logical_or.reduce([evaluation.counted(averaging) for evaluation in systems.values()])
    values = {n: {m: e.values[e.measures.index(m), counted] for m in measures} for n, e in systems.items()}
    cells = {measure: _column({n: v[measure] for n, v in values.items()}, baseline, draws) for measure in measures}
    rows = tuple(Row(name, {m: cells[m][name] for m in measures}, (notes or {}).get(name, "")) for name in systems)
    return Table(tuple(measures), rows, baseline, int(counted.sum()), averaging)


def _column(values: Mapping[str, np.ndarray], baseline: str, draws: int) -> dict[str, Cell]:
    """One measure for all systems."""
    tested = {n: compare(v, values[baseline], draws) for n, v in values.items() if baseline and n != baseline and len(v)}
    corrected = dict(zip(tested, holm([c.p_randomisation for c in tested.values()]), strict=True))
    out = {}
    for name, v in values.items():
        low, high = bootstrap_interval(v, draws=draws)
        mean = float(v.mean()) if len(v) else float("nan")
        out[name] = Cell(mean, low, high, tested.get(name), corrected.get(name, float("nan")))
    return out


def fraction(value: float, signed: bool = False) -> str:
    """``.750``, ``1.000``, ``+.036``, ``-.002``: three decimals, no leading zero; ``-`` for nan."""
    if np.isnan(value):
        return "-"
    text = f"{abs(value):.3f}"
    sign = ("+" if value >= 0 else "-") if signed else ("-" if value < 0 else "")
    return sign + (text[1:] if text.startswith("0") else text)


def p_value(p: float) -> str:
    """``.032``, ``<.001``, ``-`` for nan."""
    return "<.001" if p < 0.001 else fraction(p)


def grid(table: Table, tested: str = "") -> list[list[str]]:
    """Header and rows as strings: name, a value with its interval for each measure, then the test on measure `tested`."""
    tested = tested or main_measure(table)
    header = ["", *(f"{m} [95%]" for m in table.measures)]
    compared = bool(table.baseline) and len(table.rows) > 1
    lines = [header + ([f"{tested} vs {table.baseline}", "p"] if compared else [])]
    for row in table.rows:
        line = [row.name]
        for measure in table.measures:
            cell = row.cells[measure]
            line.append(f"{fraction(cell.value)} [{fraction(cell.low)}, {fraction(cell.high)}]")
        if compared:
            cell = row.cells[tested]
            line += [fraction(cell.comparison.difference, True), p_value(cell.p_holm)] if cell.comparison else ["", ""]
        lines.append(line)
    return lines


def main_measure(table: Table) -> str:
    """The measure that tests and pictures show where there is room for one: the first nDCG, else the first."""
    return next((m for m in table.measures if m.startswith("nDCG")), table.measures[0])


def caption(table: Table) -> str:
    """What the numbers are, in one sentence or two."""
    text = f"Means over {table.queries:,} queries with 95% bootstrap intervals over queries."
    if table.baseline and len(table.rows) > 1:
        text += " p: paired randomisation test, two-sided, Holm-corrected over rows; the spread over training seeds is not in it."
    return text


def as_text(table: Table, tested: str = "") -> str:
    """Aligned plain text for a terminal, with its caption."""
    lines = grid(table, tested)
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    out = []
    for line in lines:
        padded = [line[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(line[1:], widths[1:], strict=True))]
        out.append("  ".join(padded).rstrip())
    out.insert(1, "-" * (sum(widths) + 2 * (len(widths) - 1)))
    return "\n".join([*out, caption(table)])


def as_markdown(table: Table, tested: str = "") -> str:
    """The same as a Markdown table."""
    lines = [[text.replace("|", "\\|") for text in line] for line in grid(table, tested)]
    rule = ["---", *("---:" for _ in lines[0][1:])]
    return "\n".join(["| " + " | ".join(line) + " |" for line in [lines[0], rule, *lines[1:]]] + ["", caption(table)])


def as_json(table: Table) -> dict[str, Any]:
    """Everything, all tests of all measures included, ready for JSON."""
    return dataclasses.asdict(table)

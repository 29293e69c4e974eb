"""Rows of comma- or tab-separated files in which quotes mean something, as Python's csv module writes them.

DPR's Wikipedia and its question files, and tables of columns, are such files. MS MARCO's are not: there a quote is data.
"""

import csv
from collections.abc import Iterator

from denseir_jax.core.errors import InputError
from denseir_jax.data.lines import BadRows, open_text, shown


def rows(path: str, bad: BadRows, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells), one row a line; a quote that does not end in its line makes a bad row.

    Raises:
        InputError: as `lines.open_text`, or a bad row under the policy "error".
    """
    for line, text in open_text(path, bad):
        if '"' not in text:
            yield line, text.split(delimiter)
            continue
        try:
            cells = next(csv.reader([text], delimiter=delimiter, strict=True))
        except csv.Error as error:
            bad.bad(
                path, line, "quotes that do not match", f" ({error}); expected a quoted cell to end in its line, and quotes in it doubled"
            )
        else:
            yield line, cells


def long_rows(path: str, bad: BadRows, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """As `rows`, but a quoted cell may hold ends of lines: where a quote does not end, no later row can be told, so the file is refused.

    Raises:
        InputError: as `lines.open_text`, or quotes that do not match.
    """
    begun = 0

    def lines() -> Iterator[str]:
        nonlocal begun
        for number, text in open_text(path, bad):
            begun = begun or number
            yield text + "\n"

    reader = csv.reader(lines(), delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            line, begun = begun, 0
            yield line, cells
    except csv.Error as error:
        raise InputError(
            f"{shown(path)}:{begun}: quotes that do not match ({error}); expected quoted cells to end, quotes in them doubled"
        ) from None

"""The reader of tables as sentence-transformers trains on: the order of columns counts, their names do not, but for the label's.

``anchor, positive`` and perhaps negatives; or ``query, passage, label`` with label 1 or 0; or ``query, [passages], [labels]``. A column
named label, labels, score or scores holds a teacher's scores where it lists one number for each passage. JSON lines, .csv and .tsv
are read; a cell of JSON lines may be a list of texts.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from denseir_jax.core.errors import InputError
from denseir_jax.data import jsonl, quoted
from denseir_jax.data.jsonl import BadField
from denseir_jax.data.lines import BadRows
from denseir_jax.data.records import Passage
from denseir_jax.data.supervised import GIVEN, Layout, Row, RowDataset, passage_of, query_of, row_of
from denseir_jax.data.tsv import PACKED

_LABELS = ("label", "labels", "score", "scores")
_IDS = ("query_id", "document_ids", "qid", "pid")


def rows(path: str, bad: BadRows) -> Iterator[tuple[int, Row]]:
    """Yield (line number, row).

    Raises:
        InputError: as `jsonl.objects` or `quoted.long_rows`; columns of ids; a row with other columns than the first; a cell
            that is no text; labels that are neither 0 and 1 nor a list of one score a passage.
    """
    columns: tuple[str, ...] = ()
    for line, row in _objects(path, bad):
        columns = columns or _columns(path, line, tuple(row))
        try:
            if set(row) != set(columns):
                raise BadField("other columns", f" than in the first row: {', '.join(row)}; expected {', '.join(columns)}")
            found = _row(row, [name for name in columns if name not in _LABELS], next((name for name in columns if name in _LABELS), ""))
        except BadField as fault:
            bad.bad(path, line, fault.reason, fault.detail)
        else:
            yield line, found


def _objects(path: str, bad: BadRows) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows by column name. Cells of a table are texts, but for labels, which are read as JSON."""
    delimiter = next((sign for ending, sign in ((".csv", ","), (".tsv", "\t")) if path.endswith(tuple(ending + end for end in PACKED))), "")
    if not delimiter:
        yield from jsonl.objects(path, bad)
        return
    header: list[str] = []
    for line, cells in quoted.long_rows(path, bad, delimiter):
        if not header:
            header = cells
        elif len(cells) != len(header):
            bad.bad(path, line, "wrong number of columns", f": {len(cells)} instead of {len(header)}; expected {', '.join(header)}")
        else:
            yield line, {name: _label(cell) if name in _LABELS else cell for name, cell in zip(header, cells, strict=True)}


def _label(cell: str) -> Any:
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return cell


def _columns(path: str, line: int, names: tuple[str, ...]) -> tuple[str, ...]:
    texts, labels = [name for name in names if name not in _LABELS], [name for name in names if name in _LABELS]
    ids = next((name for name in names if name in _IDS), None)
    if ids is not None:
        raise InputError(f"{path}:{line}: a column {ids!r}: ids without texts; expected columns of texts")
    if len(texts) < 2 or len(labels) > 1:
        raise InputError(
            f"{path}:{line}: columns {', '.join(names)}; expected a query and one or more passages, and at most one of {', '.join(_LABELS)}"
        )
    return names


def _row(row: Mapping[str, Any], texts: Sequence[str], label: str) -> Row:
    query = query_of(jsonl.text_of(row, (texts[0],)))
    positives, *others = (_passages(row, name) for name in texts[1:])
    negatives = [passage for other in others for passage in other]
    given = [*positives, *negatives]
    if not label:
        return row_of(query, positives, {GIVEN: negatives})
    values = [row[label]] if not isinstance(row[label], list) else row[label]
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        raise BadField("bad label", f" {str(row[label])[:40]!r}; expected numbers")
    if len(values) != len(given):
        hint = " (a margin of scores cannot be taken apart)" if len(values) == 1 else ""
        raise BadField("labels of another length", f": {len(values)} labels, {len(given)} passages; expected one for each{hint}")
    if negatives:
        return row_of(query, positives, {GIVEN: negatives}, [float(value) for value in values])
    if not all(value in (0, 1) for value in values):
        raise BadField("bad label", f" {str(row[label])[:40]!r}; expected 1 (answers the query) or 0, or columns of negatives beside it")
    by_label: dict[bool, list[Passage]] = {True: [], False: []}
    for passage, value in zip(given, values, strict=True):
        by_label[bool(value)].append(passage)
    return row_of(query, by_label[True], {GIVEN: by_label[False]}, partial=True)


def _passages(row: Mapping[str, Any], name: str) -> list[Passage]:
    texts = jsonl.list_of(row, name, str, "strings") if isinstance(row[name], list) else [jsonl.text_of(row, (name,))]
    return [passage_of(text) for text in texts]


def dataset(path: str, bad: BadRows) -> RowDataset:
    """A file, or a folder with SPLIT.jsonl, SPLIT.csv or SPLIT.tsv.

    Raises:
        InputError: as `supervised.RowDataset`; a parquet file.
    """
    if path.endswith(".parquet"):
        raise InputError(f"{path}: parquet is not read; expected JSON lines: datasets.load_dataset('parquet', ...)[SPLIT].to_json(FILE)")
    return RowDataset(path, bad, Layout(rows, (("", ".jsonl"), ("", ".csv"), ("", ".tsv"))))

"""The reader of Tevatron's training files, of both versions, and of its corpus.

Version 1 brings texts, ``{"query_id", "query", "positive_passages": [{"docid", "title", "text"}], "negative_passages": [..]}``; version 2
ids, ``{"query_id", "query_text", "positive_document_ids": [..], "negative_document_ids": [..]}``, with ``corpus.jsonl`` in the same folder.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from denseir_jax.data import jsonl
from denseir_jax.data.lines import BadRows
from denseir_jax.data.records import Passage, Query
from denseir_jax.data.supervised import GIVEN, Layout, Row, RowDataset, json_rows, row_of


def rows(path: str, bad: BadRows) -> Iterator[tuple[int, Row]]:
    """Yield (line number, row).

    Raises:
        InputError: as `jsonl.objects`; no id, an id that is a number, passages that are no list of objects.
    """
    return json_rows(path, bad, _row)


def _row(row: Mapping[str, Any]) -> Row:
    query = Query(jsonl.id_of(row, ("query_id",)), jsonl.text_of(row, ("query", "query_text")))
    read, keys = (_ids, "document_ids") if "positive_document_ids" in row else (_passages, "passages")
    positives, negatives = read(row, f"positive_{keys}"), read(row, f"negative_{keys}")
    return row_of(query, positives, {GIVEN: negatives}, answers=jsonl.list_of(row, "answers", str, "strings"))


def _ids(row: Mapping[str, Any], key: str) -> list[Passage | str]:
    values = row.get(key)
    if not isinstance(values, list):
        return jsonl.list_of(row, key, str, "ids")
    return [jsonl.id_of({key: value}, (key,)) for value in values]


def _passages(row: Mapping[str, Any], key: str) -> list[Passage | str]:
    given = jsonl.list_of(row, key, dict, "objects, one a passage")
    return [Passage(jsonl.id_of(one, ("docid",)), jsonl.text_of(one, ("text",)), jsonl.title_of(one)) for one in given]


def dataset(path: str, bad: BadRows) -> RowDataset:
    """A file, or a folder with SPLIT.jsonl and perhaps corpus.jsonl."""
    return RowDataset(path, bad, Layout(rows, (("", ".jsonl"),), ("corpus.jsonl",)))

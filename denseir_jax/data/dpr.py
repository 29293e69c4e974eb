"""The readers of DPR's files: the Wikipedia passages, and training rows as one JSON array or as JSON lines.

``{"question", "answers": [..], "positive_ctxs": [{"title", "text", "passage_id"}], "negative_ctxs": [..], "hard_negative_ctxs": [..]}``
"""

from collections.abc import Iterator, Mapping
from typing import Any

from denseir_jax.data import json_array, jsonl, quoted
from denseir_jax.data.lines import BadRows
from denseir_jax.data.records import Passage, SeenIds, fault_of_id
from denseir_jax.data.supervised import Layout, Row, RowDataset, passage_of, query_of, row_of

_HEADER = ("id", "text", "title")
_ID_KEYS = ("passage_id", "psg_id")
_POOLS = {"negative_ctxs": "negative", "hard_negative_ctxs": "hard_negative"}


def wiki_passages(path: str, bad: BadRows) -> Iterator[Passage]:
    """Yield passages from ``id <tab> text <tab> title``, quoted as by Python's csv; a header may name the columns in another order.

    Raises:
        InputError: as `quoted.rows`; wrong columns, a bad or a second id.
    """
    seen, order = SeenIds(), {name: i for i, name in enumerate(_HEADER)}
    for line, cells in quoted.rows(path, bad, "\t"):
        if line == 1 and sorted(cells) == sorted(_HEADER):
            order = {name: i for i, name in enumerate(cells)}
            continue
        if len(cells) != len(_HEADER):
            bad.bad(path, line, "wrong number of columns", f": {len(cells)} instead of 3; expected {' <tab> '.join(order)}")
            continue
        id, text, title = (cells[order[name]] for name in _HEADER)
        fault = fault_of_id(id)
        if fault:
            bad.bad(path, line, fault, f" {id!r}; expected an id of one or more characters, none of them whitespace")
        elif seen.again(id):
            bad.bad(path, line, "duplicate id", f" {id!r}; expected every id once")
        else:
            yield Passage(id, text, title)


def rows(path: str, bad: BadRows) -> Iterator[tuple[int, Row]]:
    """Yield (line number, row). Pools are ``negative`` and ``hard_negative``. The scores are those of BM25 or of a rule, no teacher's.

    A question without positives is left out and counted: DPR's own files hold some.

    Raises:
        InputError: as `json_array.objects`; no question, passages that are no list of objects, an id that is a number.
    """
    return jsonl.parsed(_with_positives(path, bad), path, bad, _row)


def _with_positives(path: str, bad: BadRows) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, value in json_array.objects(path, bad):
        if value.get("positive_ctxs") == []:
            bad.count(path, "question without positives")
        else:
            yield line, value


def _row(value: Mapping[str, Any]) -> Row:
    query = query_of(jsonl.text_of(value, ("question",)))
    pools = {name: _passages(value, key) for key, name in _POOLS.items()}
    return row_of(query, _passages(value, "positive_ctxs"), pools, answers=jsonl.list_of(value, "answers", str, "strings"))


def _passages(value: Mapping[str, Any], key: str) -> list[Passage]:
    """Passages; the title may be missing, and so may the id."""
    found = []
    for one in jsonl.list_of(value, key, dict, "objects, one a passage"):
        text, title = jsonl.text_of(one, ("text",)), jsonl.title_of(one)
        has_id = jsonl.first_key(one, _ID_KEYS) is not None
        found.append(Passage(jsonl.id_of(one, _ID_KEYS), text, title) if has_id else passage_of(text, title))
    return found


def dataset(path: str, bad: BadRows) -> RowDataset:
    """A file, or a folder with SPLIT.json or SPLIT.jsonl and perhaps psgs_w100.tsv."""
    return RowDataset(path, bad, Layout(rows, (("", ".json"), ("", ".jsonl")), ("psgs_w100.tsv",), wiki_passages))

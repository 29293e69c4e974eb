"""The reader of FlagEmbedding's training files: queries with texts that answer them and texts that do not.

``{"query": "..", "pos": ["..", ..], "neg": ["..", ..], "pos_scores": [9.1], "neg_scores": [-2.0, ..]}``

A text has no id: a hash of it serves. ``prompt`` and ``type`` are left to the template and the objective; prompts are counted.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from denseir_jax.data import jsonl
from denseir_jax.data.jsonl import BadField
from denseir_jax.data.lines import BadRows
from denseir_jax.data.supervised import GIVEN, Layout, Row, RowDataset, json_rows, passage_of, query_of, row_of


def rows(path: str, bad: BadRows) -> Iterator[tuple[int, Row]]:
    """Yield (line number, row).

    Raises:
        InputError: as `jsonl.objects`; no query, ``pos`` that is no list of texts, scores that are no numbers or not one a text.
    """

    def parse(row: Mapping[str, Any]) -> Row:
        if "pos" not in row:
            raise BadField("no pos", f"; expected a list of strings under pos (the row has {', '.join(row) or 'nothing'})")
        positives, negatives = jsonl.list_of(row, "pos", str, "strings"), jsonl.list_of(row, "neg", str, "strings")
        scores = [*scores_of(row, "pos", positives), *scores_of(row, "neg", negatives)]
        if scores and len(scores) < len(positives) + len(negatives):
            raise BadField("scores on one side only", "; expected pos_scores and neg_scores, or neither")
        if row.get("prompt"):
            bad.count(path, "prompt not applied (set template.query_prefix)")
        query = query_of(jsonl.text_of(row, ("query",)))
        return row_of(query, [passage_of(text) for text in positives], {GIVEN: [passage_of(text) for text in negatives]}, scores)

    return json_rows(path, bad, parse)


def scores_of(row: Mapping[str, Any], key: str, texts: list[str]) -> list[float]:
    """The scores of the texts under a key; empty where there are none.

    Raises:
        BadField: they are not finite numbers, or not one for each text.
    """
    values = jsonl.numbers_of(row, f"{key}_scores")
    if not values:
        return []
    if len(values) != len(texts):
        raise BadField(f"{key}_scores of another length", f": {len(values)} scores, {len(texts)} texts; expected one for each")
    return values


def dataset(path: str, bad: BadRows) -> RowDataset:
    """A file, or a folder with SPLIT.jsonl."""
    return RowDataset(path, bad, Layout(rows, (("", ".jsonl"),)))

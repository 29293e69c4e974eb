"""Readers of tab-separated training rows that bring texts: MS MARCO's triples and candidates, RocketQA's two layouts.

Quotes are data. The columns:
``query, positive, negative`` (triples.train.small); ``query id, passage id, query, passage`` (top1000);
``query, title, positive, title, negative, 0`` and ``query, title, passage, label`` (RocketQA; "-" is no title).
"""

from collections.abc import Callable, Iterator

from denseir_jax.data.jsonl import BadField
from denseir_jax.data.lines import BadRows, open_text
from denseir_jax.data.records import Passage, Query, fault_of_id
from denseir_jax.data.supervised import GIVEN, Layout, Row, RowDataset, passage_of, query_of, row_of


def _rows(path: str, bad: BadRows, parse: Callable[[list[str]], Row]) -> Iterator[tuple[int, Row]]:
    for line, text in open_text(path, bad):
        try:
            row = parse(text.split("\t"))
        except BadField as fault:
            bad.bad(path, line, fault.reason, fault.detail)
        else:
            yield line, row


def _need(cells: list[str], widths: tuple[int, ...], layout: str) -> None:
    if len(cells) not in widths:
        raise BadField("wrong number of columns", f": {len(cells)} instead of {' or '.join(map(str, widths))}; expected {layout}")


def _triple(cells: list[str]) -> Row:
    _need(cells, (3,), "query <tab> positive text <tab> negative text")
    return row_of(query_of(cells[0]), [passage_of(cells[1])], {GIVEN: [passage_of(cells[2])]})


def _candidate(cells: list[str]) -> Row:
    """What answers the query is not known here: judgments say it."""
    _need(cells, (4,), "query id <tab> passage id <tab> query <tab> passage")
    for id in cells[:2]:
        fault = fault_of_id(id)
        if fault:
            raise BadField(fault, f" {id!r}; expected an id of one or more characters, none of them whitespace")
    return row_of(Query(cells[0], cells[2]), [], {"top1000": [Passage(cells[1], cells[3])]}, partial=True)


def _rocketqa(cells: list[str]) -> Row:
    _need(cells, (4, 6), "query, title, passage, label, or query, title, positive, title, negative, 0")
    query, first = query_of(cells[0]), _titled(cells[1], cells[2])
    if len(cells) == 6:
        return row_of(query, [first], {GIVEN: [_titled(cells[3], cells[4])]})
    if cells[3] not in ("0", "1"):
        raise BadField("bad label", f" {cells[3][:40]!r}; expected 1 (answers the query) or 0")
    return row_of(query, [first], {}) if cells[3] == "1" else row_of(query, [], {GIVEN: [first]}, partial=True)


def _titled(title: str, text: str) -> Passage:
    return passage_of(text, "" if title == "-" else title)


def triples(path: str, bad: BadRows) -> RowDataset:
    """MS MARCO's triples of texts: a file, or a folder with triples.SPLIT.tsv.

    Raises:
        InputError: as `supervised.RowDataset`; while reading, wrong columns, an empty text, a positive that is its own negative.
    """
    return RowDataset(path, bad, Layout(lambda path, bad: _rows(path, bad, _triple), (("triples.", ".tsv"),)))


def candidates(path: str, bad: BadRows) -> RowDataset:
    """MS MARCO's candidates to rerank: a file, or a folder with top1000.SPLIT.tsv and qrels.SPLIT.tsv; without judgments it is a corpus.

    Raises:
        InputError: as `supervised.RowDataset`; while reading, wrong columns, a bad id, an id with two texts.
    """
    return RowDataset(path, bad, Layout(lambda path, bad: _rows(path, bad, _candidate), (("top1000.", ".tsv"),), judged=True))


def rocketqa(path: str, bad: BadRows) -> RowDataset:
    """RocketQA's training files, of the dual encoder or the cross-encoder: a file, or a folder with SPLIT.tsv.

    Raises:
        InputError: as `supervised.RowDataset`; while reading, wrong columns, an empty text, a label other than 0 and 1.
    """
    return RowDataset(path, bad, Layout(lambda path, bad: _rows(path, bad, _rocketqa), (("", ".tsv"),)))

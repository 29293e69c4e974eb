"""Data sets that bring training examples of their own: FlagEmbedding, Tevatron, DPR, triples, columns, ...

One idea serves them all. Such a file is rows, and a row is a query with passages that answer it and passages that do not, by id
or with their texts. So it is a `records.Dataset` like any other: its corpus is the distinct passages of its rows (or a corpus file
beside them), its queries and judgments are those of the rows, and a passage or query without an id has a hash of its text as
one. What goes beyond a data set is the optional part, `Supervised`: negatives by pool, teachers' scores, answers.

A format is a function path -> rows. Rows of one query are united, wherever in the file they stand.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from denseir_jax.core.errors import InputError
from denseir_jax.data import jsonl
from denseir_jax.data.examples import Example
from denseir_jax.data.jsonl import BadField
from denseir_jax.data.lines import BadRows
from denseir_jax.data.records import Dataset, Passage, Qrels, Query, need_split
from denseir_jax.data.trec import read_qrels
from denseir_jax.data.tsv import names, packed

GIVEN = "given"
"""The pool of negatives whose file does not say where they come from."""


@runtime_checkable
class Supervised(Dataset, Protocol):
    """A data set that has training examples too."""

    def examples(self, split: str) -> Iterator[Example]:
        """Queries with positives and the pools of negatives that the files give."""
        ...

    def scores(self, split: str) -> Iterator[tuple[str, str, float]]:
        """(query id, passage id, a teacher's score), where the files give any."""
        ...

    def answers(self, split: str) -> dict[str, tuple[str, ...]]:
        """Query id -> strings that answer it, where the files give any."""
        ...


@dataclass(frozen=True)
class Row:
    """One row as its format's reader gives it.

    Attributes:
        example: the query; positives may be empty. passages: those whose texts the row brings. scores: passage id -> a
        teacher's score. answers: strings that answer the query.
    """

    example: Example
    passages: tuple[Passage, ...] = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    answers: tuple[str, ...] = ()


Rows = Callable[[str, BadRows], Iterator[tuple[int, Row]]]


def passage_of(text: str, title: str = "") -> Passage:
    """A passage that has no id: its id is "p" and a hash of title and text (80 bits)."""
    return Passage("p" + _hash(title, text), text, title)


def query_of(text: str) -> Query:
    """A query that has no id: its id is "q" and a hash of the text."""
    return Query("q" + _hash(text), text)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8")).hexdigest()[:20]


def row_of(
    query: Query,
    positives: Sequence[Passage | str],
    pools: Mapping[str, Sequence[Passage | str]],
    scores: Sequence[float] = (),
    answers: Sequence[str] = (),
    partial: bool = False,
) -> Row:
    """A row of passages, each with its text or by id alone. The same negative again is dropped.

    Args:
        scores: one for every passage, positives first, then pool after pool; or none. partial: whether other rows may
            bring this query's positives.
    Raises:
        BadField: an empty query or passage, no positive, a positive among the negatives.
    """
    if not query.text.strip():
        raise BadField("empty query", "; expected text")
    if not positives and not partial:
        raise BadField("query without positives", f": {query.id!r}; expected at least one")
    given = [*positives, *(passage for pool in pools.values() for passage in pool)]
    ids = [_id(passage) for passage in positives]
    for name, pool in pools.items():
        both = next((_id(passage) for passage in pool if _id(passage) in ids), None)
        if both is not None:
            raise BadField("positive among the negatives", f": {both!r} in {name}; expected passages that are not positive")
    texts = {passage.id: passage for passage in given if isinstance(passage, Passage)}
    if not all((passage.title + passage.text).strip() for passage in texts.values()):
        raise BadField("empty passage", "; expected a text or a title")
    negatives = {name: tuple(dict.fromkeys(map(_id, pool))) for name, pool in pools.items() if pool}
    known: dict[str, float] = {}
    for passage, score in zip(given, scores, strict=bool(scores)):
        known.setdefault(_id(passage), score)
    return Row(Example(query.id, query.text, tuple(dict.fromkeys(ids)), negatives), tuple(texts.values()), known, tuple(answers))


def _id(passage: Passage | str) -> str:
    return passage if isinstance(passage, str) else passage.id


def json_rows(path: str, bad: BadRows, parse: Callable[[Mapping[str, Any]], Row]) -> Iterator[tuple[int, Row]]:
    """Yield (line number, row) of JSON lines; an object that `parse` raises BadField for is a bad row.

    Raises:
        InputError: as `jsonl.objects`.
    """
    return jsonl.parsed(jsonl.objects(path, bad), path, bad, parse)


@dataclass(frozen=True)
class Layout:
    """How a format lies on disk.

    Attributes:
        rows: path -> rows. names: what stands before and behind a split in the names of a folder's files; a file alone is
        the split ``train``. corpus: what a folder's corpus file may be called; without one the passages of the rows are the
        corpus. passages: how it is read. judged: whether a folder's ``qrels.SPLIT.tsv`` tells the positives.
    """

    rows: Rows
    names: tuple[tuple[str, str], ...]
    corpus: tuple[str, ...] = ()
    passages: Callable[[str, BadRows], Iterator[Passage]] = jsonl.passages
    judged: bool = False


class RowDataset:
    """A file of rows, or a folder of them, one file a split. A `Supervised` data set.

    It keeps the ids of a split's examples in memory, never their texts.

    Raises:
        InputError: the folder holds no file of rows.
    """

    attribution = ""

    def __init__(self, path: str, bad: BadRows, layout: Layout):
        self.path, self._bad, self._layout = path, bad, layout
        self._corpus: Path | None = None
        self._files = {"train": path}
        folder = Path(path)
        if folder.is_dir():
            self._corpus = next((found for name in layout.corpus if (found := packed(folder, name))), None)
            self._files = {
                split: str(packed(folder, before + split + behind))
                for before, behind in layout.names
                for split in names(folder, before, behind)
                if before + split + behind not in layout.corpus
            }
            if not self._files:
                wanted = " or ".join("SPLIT".join(name) for name in layout.names)
                raise InputError(f"{path} holds no {wanted}; expected one for each split, plain or compressed")
        self.splits = tuple(self._files)

    def corpus(self) -> Iterator[Passage]:
        """The passages of the folder's corpus file, or the distinct passages of all rows, in file order.

        Raises:
            InputError: a bad row, or rows that give ids alone and no corpus file.
        """
        if self._corpus is not None:
            yield from self._layout.passages(str(self._corpus), self._bad)
            return
        texts = _Texts()
        for split in self.splits:
            for line, row in self._rows(split, texts):
                if row.example.positives and not row.passages:
                    need = f"a folder with {self._layout.corpus[0]} beside it" if self._layout.corpus else "their texts"
                    raise InputError(f"{self._files[split]}:{line}: passages by id alone; expected {need}")
                yield from texts.new

    def queries(self, split: str) -> dict[str, str]:
        """Query id -> text of the queries with a positive, in file order.

        Raises:
            InputError: no such split, or a bad row.
        """
        return {example.query_id: example.query for example in self.examples(split)}

    def qrels(self, split: str) -> Qrels:
        """Every positive has relevance 1; negatives are not judged.

        Raises:
            InputError: as `queries`.
        """
        return {example.query_id: dict.fromkeys(example.positives, 1) for example in self.examples(split)}

    def examples(self, split: str) -> Iterator[Example]:
        """Queries in file order. What one row calls positive and another negative is positive, and counted.

        Raises:
            InputError: as `queries`.
        """
        positives: dict[str, dict[str, None]] = {}
        pools: dict[str, dict[str, dict[str, None]]] = {}
        texts: dict[str, str] = {}
        one = dict[str, str]()  # of equal ids, so that a passage in a thousand rows is one string
        judged = packed(Path(self.path), f"qrels.{split}.tsv") if self._layout.judged else None
        for query, values in (read_qrels(str(judged), self._bad) if judged else {}).items():
            positives[query] = {id: None for id, value in values.items() if value > 0}
        for _, row in self._rows(split, _Texts()):
            query = row.example.query_id
            texts.setdefault(query, row.example.query)
            positives.setdefault(query, {}).update((one.setdefault(id, id), None) for id in row.example.positives)
            for name, ids in row.example.negatives.items():
                pools.setdefault(query, {}).setdefault(name, {}).update((one.setdefault(id, id), None) for id in ids)
        for query, text in texts.items():
            known = positives[query]
            if not known:
                self._bad.count(self._files[split], "query without positives")
                continue
            for pool in pools.get(query, {}).values():
                for both in known.keys() & pool.keys():
                    del pool[both]
                    self._bad.count(self._files[split], "negative that another row calls positive")
            yield Example(query, text, tuple(known), {name: tuple(pool) for name, pool in pools.get(query, {}).items()})

    def scores(self, split: str) -> Iterator[tuple[str, str, float]]:
        """(query id, passage id, teacher's score) in file order.

        Raises:
            InputError: as `queries`.
        """
        for _, row in self._rows(split, _Texts()):
            yield from ((row.example.query_id, passage, score) for passage, score in row.scores.items())

    def answers(self, split: str) -> dict[str, tuple[str, ...]]:
        """Query id -> strings that answer it.

        Raises:
            InputError: as `queries`.
        """
        return {row.example.query_id: row.answers for _, row in self._rows(split, _Texts()) if row.answers}

    def pairs(self, split: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        """(query, ids of its positives) row by row, in constant memory; raises as `queries`."""
        yield from ((row.example.query, row.example.positives) for _, row in self._rows(split, None))

    def _rows(self, split: str, texts: "_Texts | None") -> Iterator[tuple[int, Row]]:
        """Rows; with `texts`, those in which every id has one text."""
        need_split(split, self.splits, self.path)
        path = self._files[split]
        for line, row in self._layout.rows(path, self._bad):
            fault = texts.fault(row) if texts else None
            if fault:
                self._bad.bad(path, line, *fault)
            else:
                yield line, row


class _Texts:
    """Tells ids that come with two different texts, by 64-bit hashes; spaces do not count.

    Attributes:
        new: the passages of the last row that were not there before.
    """

    def __init__(self) -> None:
        self._passages: dict[int, int] = {}
        self._queries: dict[int, int] = {}
        self.new: list[Passage] = []

    def fault(self, row: Row) -> tuple[str, str] | None:
        """What is counted and the rest of the sentence, or None."""
        query, words = hash(row.example.query_id), _words(row.example.query)
        if self._queries.get(query, words) != words:
            return "query id with two texts", f": {row.example.query_id!r} asks something else above; expected one text an id"
        for passage in row.passages:
            words_of = _words(passage.title, passage.text)
            if self._passages.get(hash(passage.id), words_of) != words_of:
                return "passage id with two texts", f": {passage.id!r} is another passage above; expected one text an id"
        self._queries[query] = words
        self.new = [passage for passage in row.passages if hash(passage.id) not in self._passages]
        self._passages.update((hash(passage.id), _words(passage.title, passage.text)) for passage in self.new)
        return None


def _words(*parts: str) -> int:
    return hash(tuple(word for part in parts for word in part.split()))

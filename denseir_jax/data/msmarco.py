"""Folders laid out as MS MARCO is published, for passages and for documents, and as RocketQA and RetroMAE add to it.

All are text files by id: a corpus, and for each split queries, judgments, and perhaps what to train on (triples, negatives, a
teacher's scores). They differ in names and columns alone, so one class reads them, told by a `Layout`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from denseir_jax.core.errors import InputError
from denseir_jax.data import by_id, trec
from denseir_jax.data.by_id import PoolFile
from denseir_jax.data.examples import Example
from denseir_jax.data.lines import BadRows
from denseir_jax.data.records import Passage, Qrels, need_split
from denseir_jax.data.tsv import names, packed, passages, queries, rows

_PARA = "para.txt"


def documents(path: str, bad: BadRows) -> Iterator[Passage]:
    """Yield documents from ``id <tab> url <tab> title <tab> body``; any but the id may be empty. The url is not kept.

    Raises:
        InputError: as `tsv.rows`.
    """
    for cells in rows(path, (4,), "id <tab> url <tab> title <tab> body (a field may be empty, its tab may not be missing)", bad):
        yield Passage(cells[0], cells[3], cells[2])


def para_passages(path: str, bad: BadRows) -> Iterator[Passage]:
    """Yield passages from RocketQA's ``id <tab> - <tab> text <tab> ...``, with titles from ``para.title.txt`` beside it if it is there.

    Where both files have one order, as published, memory stays constant; titles that come early are kept until their passage.

    Raises:
        InputError: as `tsv.rows`; a title whose passage does not exist.
    """
    place = packed(Path(path).parent, "para.title.txt") if Path(path).name.startswith(_PARA) else None
    titles = rows(str(place), (2,), "id <tab> title", bad) if place else iter(())
    early: dict[str, str] = {}
    for cells in rows(path, (3, 4), "id <tab> - <tab> text, perhaps with a fourth column", bad):
        while cells[0] not in early and (row := next(titles, None)) is not None:
            early[row[0]] = row[1]
        title = early.pop(cells[0], "")
        yield Passage(cells[0], cells[2], "" if title == "-" else title)
    lost = next(iter(early), None)
    if lost is not None:
        raise InputError(f"{place}: {len(early):,} titles have no passage in {path} (the first: {lost!r}); expected both of one corpus")


@dataclass(frozen=True)
class Layout:
    """Names of files; those of a split are (what stands before the split's name, what stands behind).

    Attributes:
        corpus: file name -> its reader; the first that is there is read. queries, qrels, triples, negatives, scores: names, in order
        of preference.
    """

    corpus: dict[str, Callable[[str, BadRows], Iterator[Passage]]]
    queries: tuple[tuple[str, str], ...]
    qrels: tuple[tuple[str, str], ...]
    triples: tuple[tuple[str, str], ...] = ()
    negatives: tuple[tuple[str, str], ...] = ()
    scores: tuple[tuple[str, str], ...] = ()


PASSAGES = Layout(
    corpus={"collection.tsv": passages, "corpus.tsv": passages, _PARA: para_passages},
    queries=(("queries.", ".tsv"), ("", ".query.txt")),
    qrels=(("qrels.", ".tsv"), ("", "_qrels.txt")),
    triples=(("qidpidtriples.", ".tsv"),),
    negatives=(("", ".negatives.tsv"), ("", "_negs.tsv")),
    scores=(("", "_scores.txt"),),
)
DOCUMENTS = Layout(
    corpus={"msmarco-docs.tsv": documents},
    queries=(("msmarco-doc", "-queries.tsv"), ("queries.", ".tsv")),
    qrels=(("msmarco-doc", "-qrels.tsv"), ("qrels.", ".tsv")),
)


class TextFolder:
    """A `supervised.Supervised` data set over such a folder.

    Raises:
        InputError: the folder holds no corpus.
    """

    attribution = ""

    def __init__(self, path: str, bad: BadRows, layout: Layout):
        self.folder, self._bad, self._layout = Path(path), bad, layout
        self.splits = tuple(dict.fromkeys(split for name in layout.qrels for split in names(self.folder, *name)))
        self._name = next((name for name in layout.corpus if packed(self.folder, name)), "")
        if not self._name:
            (corpus, *others), queries, qrels = layout.corpus, "SPLIT".join(layout.queries[0]), "SPLIT".join(layout.qrels[0])
            also = f" (or {', '.join(others)})" if others else ""
            raise InputError(f"{path} holds no {corpus}{also}; expected {corpus}, {queries}, {qrels}")

    def _file(self, kind: tuple[tuple[str, str], ...], split: str) -> str | None:
        found = (packed(self.folder, f"{before}{split}{behind}") for before, behind in kind)
        return next((str(path) for path in found if path), None)

    def corpus(self) -> Iterator[Passage]:
        """All passages, in file order."""
        return self._layout.corpus[self._name](str(packed(self.folder, self._name)), self._bad)

    def queries(self, split: str) -> dict[str, str]:
        """Query id -> text of the queries judged in a split, in file order.

        Raises:
            InputError: no such split, no file of its queries, or a bad row.
        """
        judged = self.qrels(split)
        path = self._file(self._layout.queries, split)
        if path is None:
            name = split.join(self._layout.queries[0])
            raise InputError(f"{self.folder} holds no {name}; expected it beside {Path(self._qrels(split)).name}")
        return {query.id: query.text for query in queries(path, self._bad) if query.id in judged}

    def _qrels(self, split: str) -> str:
        need_split(split, self.splits, str(self.folder))
        return str(self._file(self._layout.qrels, split))

    def qrels(self, split: str) -> Qrels:
        """The judgments of a split; lists of positives (``query <tab> passage,passage``) have relevance 1.

        Raises:
            InputError: no such split, or a bad row.
        """
        path = self._qrels(split)
        if by_id.is_lists(path):
            return {query: dict.fromkeys(ids, 1) for query, ids in by_id.lists(path, self._bad)}
        return trec.read_qrels(path, self._bad)

    def examples(self, split: str) -> Iterator[Example]:
        """Queries with positives; negatives are those of the folder's triples and lists, but for what is positive.

        Raises:
            InputError: no such split, a bad row, or triples of a query without a text.
        """
        texts, qrels = self.queries(split), self.qrels(split)
        pools: dict[str, PoolFile] = {}
        triples, negatives = (self._file(kind, split) for kind in (self._layout.triples, self._layout.negatives))
        if triples:
            pools["triples"] = by_id.triples(triples, self._bad)
        if negatives:
            pools["given"] = dict(by_id.lists(negatives, self._bad))
        for query, text in texts.items():
            positives = tuple(id for id, value in qrels[query].items() if value > 0)
            if not positives:
                self._bad.count(self._qrels(split), "query without positives")
                continue
            found = {name: tuple(id for id in pool[query] if id not in positives) for name, pool in pools.items() if query in pool}
            yield Example(query, text, positives, found)

    def scores(self, split: str) -> Iterator[tuple[str, str, float]]:
        """(query id, passage id, teacher's score).

        Raises:
            InputError: no such split, or a bad row.
        """
        need_split(split, self.splits, str(self.folder))
        path = self._file(self._layout.scores, split)
        yield from by_id.scores(path, self._bad) if path else ()

    def answers(self, split: str) -> dict[str, tuple[str, ...]]:
        """None: the layout has no place for them.

        Raises:
            InputError: no such split.
        """
        need_split(split, self.splits, str(self.folder))
        return {}


def passage_folder(path: str, bad: BadRows) -> TextFolder:
    """MS MARCO passages, with RocketQA's titles and RetroMAE's training files."""
    return TextFolder(path, bad, PASSAGES)


def document_folder(path: str, bad: BadRows) -> TextFolder:
    """MS MARCO documents."""
    return TextFolder(path, bad, DOCUMENTS)

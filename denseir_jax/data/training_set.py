"""A training set in memory, and the groups that fine-tuning reads from it."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Int

from denseir_jax.core.errors import InputError
from denseir_jax.data.batches import frame
from denseir_jax.data.examples import read_examples
from denseir_jax.data.group_cells import RANDOM, Cells, in_turn
from denseir_jax.data.lines import BadRows, shown
from denseir_jax.data.order import SeededOrder
from denseir_jax.data.ragged import Ragged
from denseir_jax.data.teacher_scores import Teacher
from denseir_jax.data.template import TextTemplate
from denseir_jax.data.tokenizer import Tokenizer
from denseir_jax.data.tokens import TokenStore

_CHUNK = 4096  # queries tokenised at a time


@dataclass(frozen=True)
class TrainingSet:
    """A training set with passages as rows of the token store.

    Attributes:
        query_ids, queries: [n]. positives: rows by query. negatives: pool -> rows by query.
    """

    query_ids: list[str]
    queries: list[str]
    positives: Ragged
    negatives: dict[str, Ragged]

    def __len__(self) -> int:
        return len(self.queries)

    def pool(self, sources: Sequence[str]) -> tuple[Int[np.ndarray, " total"], Int[np.ndarray, " total"]]:
        """(query number, row) of every negative in these pools, or in all if none is named; `RANDOM` is none.

        Raises:
            InputError: there is no such pool, or one that is called as what is drawn.
        """
        if RANDOM in sources and RANDOM in self.negatives:
            raise InputError(f"the training set has a pool called {RANDOM!r}, as the passages that are drawn; expected another name")
        names = [name for name in sources or self.negatives if name != RANDOM or not sources]
        unknown = [name for name in names if name not in self.negatives]
        if unknown:
            there = ", ".join(self.negatives) or "(it has none)"
            raise InputError(f"the training set has no negatives of the source {unknown[0]!r}; expected some of: {there}, {RANDOM}")
        pairs = [self.negatives[name].pairs() for name in names]
        nothing = np.zeros(0, np.int64)
        return np.concatenate([nothing, *(queries for queries, _ in pairs)]), np.concatenate([nothing, *(rows for _, rows in pairs)])


def read_training_set(path: Path, row_of: Mapping[str, int], bad: BadRows) -> TrainingSet:
    """Read a training set against the corpus that it was made from.

    Args:
        row_of: passage id -> row of the token store.
    Raises:
        InputError: as `read_examples`, or no example is left.
    """
    query_ids, queries, positives = [], [], []
    pools: dict[str, list[np.ndarray]] = {}
    nothing = np.zeros(0, np.int32)
    for n, example in enumerate(read_examples(path, bad, row_of)):
        query_ids.append(example.query_id)
        queries.append(example.query)
        positives.append(np.array([row_of[id] for id in example.positives], np.int32))
        for name in example.negatives:
            pools.setdefault(name, [nothing] * n)
        for name, lists in pools.items():
            lists.append(np.array([row_of[id] for id in example.negatives.get(name, ())], np.int32))
    if not queries:
        raise InputError(f"{shown(str(path))} holds no query to learn from{f' (skipped: {bad.counts})' if bad.counts else ''}")
    return TrainingSet(query_ids, queries, Ragged.of(positives), {name: Ragged.of(pools[name]) for name in sorted(pools)})


class GroupRows:
    """Groups for contrastive fine-tuning: a query, one or several of its positives, and negatives. A `batches.RowSource`.

    The pools are united. A negative with the text of a known positive is dropped, and so is the second of two with one text,
    so a group never holds a text twice. Each query's negatives have one shuffled order; epoch e takes as many of it as the group
    has places for, from where epoch e - 1 ended, and begins anew at its end, so all are used before any is used more often than
    the others by more than one. A query with too few is filled with random passages that are not known positives.

    Documents without tokens are not learnt from; a query without a token, or without a positive that has one, is left out.

    Args:
        training_set: rows of `store`. tokenizer: for the queries; the one that made the store.
        template: its passage side must be that of the store. group_size: passages of a group, positives included.
        seed: decides order, positives, negatives. sources: the pools to draw from; all if empty. One of them may be `RANDOM`,
            which is no pool: of m names it gets an m-th of the places for negatives, rounded down.
        fill: what to do for a query with fewer negatives than places for them. teacher: only passages that it knows are used
            then, and a query with too few of them is left out: it knows nothing random.
        max_positives: put all positives of a query into its group, up to so many, and negatives into the rest; of more, epochs
            take turns as with negatives. None: one, drawn anew in every epoch.
    Attributes:
        n_items: queries used. counts: ``queries``, ``skipped``, ``negatives`` (used), ``dropped`` (by the rules above),
        ``short`` (queries with too few), ``filled`` (random negatives in an epoch in their place), with several positives
        ``positives`` (in an epoch), with the source random ``random`` (in an epoch), with a teacher ``unscored`` (pairs).
    Raises:
        InputError: a pool that is not there, another tokenizer or template than the store's, no query left, a query with too
            few negatives under fill="error", or a corpus too small to draw from. ValueError: group_size < 1, or a teacher and
            the source random.
    """

    def __init__(
        self,
        training_set: TrainingSet,
        store: TokenStore,
        tokenizer: Tokenizer,
        template: TextTemplate,
        group_size: int,
        seed: int,
        sources: tuple[str, ...] = (),
        fill: Literal["random", "error"] = "random",
        teacher: Teacher | None = None,
        max_positives: int | None = None,
    ):
        if group_size < 1:
            raise ValueError(f"group_size is {group_size}; expected at least 1: the positive")
        if teacher and RANDOM in sources:
            raise ValueError(f"sources={sources}: a teacher knows nothing random")
        _need_same_text(store, tokenizer, template)
        self.store, self.template, self.teacher = store, template, teacher
        self._names, self._unscored = training_set.query_ids, 0
        self._lengths = np.diff(store.offsets)
        self._query_ids, self._query_length = _encode(training_set.queries, tokenizer, template)
        known = Ragged.of_pairs(*training_set.positives.pairs(store.content_ids), len(training_set))
        positives = self._usable(*training_set.positives.pairs())
        given = training_set.pool(sources)
        texts, n = store.content_ids, len(training_set)
        self.cells = Cells(
            positives=Ragged.of_pairs(*positives, n) if max_positives is None else in_turn(*positives, texts, seed, "several", n),
            negatives=in_turn(*_others(*self._usable(*given), known, texts), texts, seed, "negatives", n),
            known=known,
            texts=texts,
            filled=np.flatnonzero(self._lengths),
            n_items=0,
            seed=seed,
            size=group_size,
            several=max_positives,
            share=len(sources) if RANDOM in sources else 0,
        )
        self._items = self._able(group_size)
        self.n_items, self._order = len(self._items), SeededOrder(len(self._items), seed)
        self.cells = dataclasses.replace(self.cells, n_items=self.n_items)
        self.counts = self._count(n, len(given[0]))
        self._need_enough(fill)

    def _usable(self, queries: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The pairs whose passage has a token and, where there is a teacher, is known to it."""
        keep = self._lengths[rows] > 0
        queries, rows = queries[keep], rows[keep]
        if self.teacher is None:
            return queries, rows
        keep = self.teacher.knows(queries, self.store.content_ids[rows])
        self._unscored += int((~keep).sum())
        return queries[keep], rows[keep]

    def _able(self, group_size: int) -> np.ndarray:
        able = np.flatnonzero((self.cells.positives.lengths > 0) & (self._query_length > 2))
        items = able[self.cells.missing(able) == 0] if self.teacher else able
        if not len(items):
            with_score = f", and {group_size - 1} negatives, that the teacher scored" if self.teacher else ""
            raise InputError(
                f"none of {len(self._names)} queries has a token and a positive with a token{with_score}: nothing to learn from"
            )
        return items

    def _count(self, queries: int, negatives: int) -> dict[str, int]:
        missing, used = self.cells.missing(self._items), len(self.cells.negatives.values)
        return {
            "queries": self.n_items,
            "skipped": queries - self.n_items,
            "negatives": used,
            "dropped": negatives - used,
            "short": int((missing > 0).sum()),
            "filled": int(missing.sum()),
            **({"positives": int(self.cells.n_positives(self._items).sum())} if self.cells.several else {}),
            **({"random": int(self.cells.n_random(self._items).sum())} if self.cells.share else {}),
            **({"unscored": self._unscored} if self.teacher else {}),
        }

    def _need_enough(self, fill: str) -> None:
        if self.counts["short"] and fill == "error":
            first = self._items[self.cells.missing(self._items) > 0][:1]
            raise InputError(
                f"{self.counts['short']:,} queries have too few negatives (the first: {self._names[first[0]]!r} with"
                f" {self.cells.negatives.lengths[first[0]]}); expected {self.cells.n_pooled(first)[0]}, or fill='random'"
            )
        texts = len(np.unique(self.store.content_ids[self.cells.filled]))
        need = self.cells.need(self._items)
        if texts < need:
            raise InputError(f"{self.store.folder} has {texts} different passages; groups of {self.cells.size} need {need} of them")

    def rows(self, stream: Int[np.ndarray, " k"]) -> dict[str, np.ndarray]:
        """Fields, all int32: ``query_ids`` [k, Lq], ``query_length`` [k], ``passage_ids`` [k, n, Lp], ``passage_length``
        [k, n] (positives first; [k, n, blocks, Lp] and [k, n, blocks] where the template has several blocks, length 0 where a
        passage has no such one), ``passage_row`` [k, n], the row of the first document with the same text,
        ``known`` [k, P], the same of all known positives of the query, padded with -1, ``index`` [k], the stream index;
        with several positives ``positives`` [k], how many the group begins with; and with a teacher its own (`Teacher`)."""
        queries = self._items[self._order.items(stream)]
        rows = self.cells.rows(stream, queries)
        passage_ids, passage_length = self._tokens(rows.reshape(-1))
        texts = self.store.content_ids[rows]
        return {
            "query_ids": self._query_ids[queries],
            "query_length": self._query_length[queries],
            "passage_ids": passage_ids.reshape(*rows.shape, *passage_ids.shape[1:]),
            "passage_length": passage_length.reshape(*rows.shape, *passage_length.shape[1:]),
            "passage_row": texts,
            "known": self.cells.known.padded(queries),
            "index": stream.astype(np.int32),
            **({"positives": self.cells.n_positives(queries).astype(np.int32)} if self.cells.several else {}),
            **(self.teacher.fields(queries, texts) if self.teacher else {}),
        }

    def names(self, stream: Int[np.ndarray, " k"]) -> list[str]:
        """Ids of the queries that the rows at these stream indices ask."""
        return [self._names[item] for item in self._items[self._order.items(stream)].tolist()]

    def _tokens(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """ids [m, blocks, Lp] and lengths [m, blocks], without the axis of blocks where there is one."""
        starts, lengths = self.template.windows(self._lengths[rows])
        at, held = (self.store.offsets[rows][:, None] + starts).reshape(-1), np.maximum(lengths, 0).reshape(-1)
        special = self.store.special_ids
        ids, real = frame(self.store.window(at, held, self.template.room).ids, held, special.cls, special.sep, special.pad)
        if self.template.blocks == 1:
            return ids, real
        none = lengths.reshape(-1) < 0
        ids[none], real[none] = special.pad, 0
        return ids.reshape(*lengths.shape, -1), real.reshape(lengths.shape)


def _others(queries: np.ndarray, rows: np.ndarray, known: Ragged, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pairs whose passage has not the text of a known positive of the query."""
    known_queries, answers = known.pairs()
    keep = ~np.isin(queries * np.int64(len(texts)) + texts[rows], known_queries * np.int64(len(texts)) + answers)
    return queries[keep], rows[keep]


def _need_same_text(store: TokenStore, tokenizer: Tokenizer, template: TextTemplate) -> None:
    if tokenizer.sha256 != store.tokenizer_sha256:
        raise InputError(f"the tokenizer of the queries is not the one that made the tokens in {store.folder}; expected the same")
    for name in ("passage_prefix", "title_join", "use_title"):
        there, here = getattr(store.template, name), getattr(template, name)
        if there != here:
            raise InputError(f"{store.folder} was prepared with {name}={there!r}, the template says {here!r}; expected the same")


def _encode(queries: Sequence[str], tokenizer: Tokenizer, template: TextTemplate) -> tuple[np.ndarray, np.ndarray]:
    """All queries, framed: int32 [n, Lq], and real tokens int32 [n]."""
    room = template.query_length - 2
    ids, lengths = np.zeros((len(queries), room), np.int32), np.zeros(len(queries), np.int64)
    for start in range(0, len(queries), _CHUNK):
        texts = [template.query(text) for text in queries[start : start + _CHUNK]]
        for i, encoded in enumerate(tokenizer.encode_batch(texts), start):
            lengths[i] = min(len(encoded.ids), room)
            ids[i, : lengths[i]] = encoded.ids[:room]
    return frame(ids, lengths, tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id)

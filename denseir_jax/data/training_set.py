"""A training set in memory, and the groups that fine-tuning reads from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Int

from denseir_jax.core.errors import InputError
from denseir_jax.data import hashing
from denseir_jax.data.batches import frame
from denseir_jax.data.examples import read_examples
from denseir_jax.data.lines import BadRows, shown
from denseir_jax.data.order import SeededOrder
from denseir_jax.data.ragged import Ragged
from denseir_jax.data.teacher_scores import TeacherScores
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
        """(query number, row) of every negative in these pools, or in all if none is named.

        Raises:
            InputError: there is no such pool.
        """
        unknown = [name for name in sources if name not in self.negatives]
        if unknown:
            there = ", ".join(self.negatives) or "(it has none)"
            raise InputError(f"the training set has no negatives of the source {unknown[0]!r}; expected some of: {there}")
        pairs = [self.negatives[name].pairs() for name in sources or self.negatives]
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
    """Groups for contrastive fine-tuning: a query, one of its positives, and negatives from its pools. A `batches.RowSource`.

    The pools are united. A negative with the text of a known positive is dropped, and so is the second of two with one text,
    so a group never holds a text twice. Each query's negatives have one shuffled order; epoch e takes the next
    ``group_size - 1`` of it and begins anew at its end, so all are used before any is used more often than the others by more
    than one. A query with too few is filled with random passages that are not known positives.

    Documents without tokens are not learnt from; a query without a token, or without a positive that has one, is left out.

    Args:
        training_set: rows of `store`. tokenizer: for the queries; the one that made the store.
        template: its passage side must be that of the store. group_size: passages of a group, the positive included.
        seed: decides order, positives, negatives. sources: the pools to draw from; all if empty.
        fill: what to do for a query with fewer than ``group_size - 1`` negatives. teacher: only passages with a score are
            used then, and a query with too few of them is left out: nothing random has a score.
    Attributes:
        n_items: queries used. counts: ``queries``, ``skipped``, ``negatives`` (used), ``dropped`` (by the rules above),
        ``short`` (queries with too few), ``filled`` (random negatives in an epoch), with a teacher ``unscored`` (pairs).
    Raises:
        InputError: a pool that is not there, another tokenizer or template than the store's, no query left, a query with too
            few negatives under fill="error", or a corpus too small to fill. ValueError: group_size < 1.
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
        teacher: TeacherScores | None = None,
    ):
        if group_size < 1:
            raise ValueError(f"group_size is {group_size}; expected at least 1: the positive")
        _need_same_text(store, tokenizer, template)
        self.store, self.template, self.seed, self.n_negatives = store, template, seed, group_size - 1
        self._names = training_set.query_ids
        self._lengths = np.diff(store.offsets)
        self._filled = np.flatnonzero(self._lengths)
        self._known = Ragged.of_pairs(*training_set.positives.pairs(store.content_ids), len(training_set))
        self.teacher, self._unscored = teacher, 0
        self._positives = Ragged.of_pairs(*self._scored(*self._with_text(*training_set.positives.pairs())), len(training_set))
        self._query_ids, self._query_length = _encode(training_set.queries, tokenizer, template)
        given = training_set.pool(sources)
        self._negatives = self._usable(*given)
        able = (self._positives.lengths > 0) & (self._query_length > 2)
        self._items = np.flatnonzero(able & (self._negatives.lengths >= self.n_negatives) if teacher else able)
        if not len(self._items):
            with_score = f", and {self.n_negatives} negatives, that the teacher scored" if teacher else ""
            raise InputError(
                f"none of {len(training_set)} queries has a token and a positive with a token{with_score}: nothing to learn from"
            )
        self.n_items, self._order = len(self._items), SeededOrder(len(self._items), seed)
        self.counts = self._count(len(training_set), len(given[0]))
        self._need_enough(training_set, fill)

    def _with_text(self, queries: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        keep = self._lengths[rows] > 0
        return queries[keep], rows[keep]

    def _scored(self, queries: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.teacher is None:
            return queries, rows
        keep = np.isfinite(self.teacher.of(queries, self.store.content_ids[rows]))
        self._unscored += int((~keep).sum())
        return queries[keep], rows[keep]

    def _usable(self, queries: np.ndarray, rows: np.ndarray) -> Ragged:
        """The negatives that can be used, each query's in its shuffled order."""
        queries, rows = self._scored(*self._with_text(queries, rows))
        content = self.store.content_ids
        key = queries * self.store.n_documents + content[rows]
        known_queries, known = self._known.pairs()
        _, first = np.unique(key, return_index=True)
        keep = first[~np.isin(key[first], known_queries * self.store.n_documents + known)]
        queries, rows = queries[keep], rows[keep]
        order = np.lexsort((hashing.bits(self.seed, "negatives", queries, content[rows]), queries))
        return Ragged.of_pairs(queries[order], rows[order], len(self._known.starts) - 1)

    def _count(self, queries: int, negatives: int) -> dict[str, int]:
        missing = np.maximum(self.n_negatives - self._negatives.lengths[self._items], 0)
        used = len(self._negatives.values)
        return {
            "queries": self.n_items,
            "skipped": queries - self.n_items,
            "negatives": used,
            "dropped": negatives - used,
            "short": int((missing > 0).sum()),
            "filled": int(missing.sum()),
            **({"unscored": self._unscored} if self.teacher else {}),
        }

    def _need_enough(self, training_set: TrainingSet, fill: str) -> None:
        if not self.counts["short"]:
            return
        short = self._items[self._negatives.lengths[self._items] < self.n_negatives]
        if fill == "error":
            first = short[0]
            raise InputError(
                f"{self.counts['short']:,} queries have too few negatives (the first: {training_set.query_ids[first]!r} with"
                f" {self._negatives.lengths[first]}); expected {self.n_negatives}, or fill='random'"
            )
        texts = len(np.unique(self.store.content_ids[self._filled]))
        need = int(self._known.lengths[short].max()) + self.n_negatives
        if texts < need:
            raise InputError(f"{self.store.folder} has {texts} different passages; groups of {self.n_negatives + 1} need {need} of them")

    def rows(self, stream: Int[np.ndarray, " k"]) -> dict[str, np.ndarray]:
        """Fields, all int32: ``query_ids`` [k, Lq], ``query_length`` [k], ``passage_ids`` [k, n, Lp], ``passage_length``
        [k, n] (the positive in column 0), ``passage_row`` [k, n], the row of the first document with the same text,
        ``known`` [k, P], the same of all known positives of the query, padded with -1, ``index`` [k], the stream index, and
        with a teacher its scores, ``teacher`` float32 [k, n]."""
        queries = self._items[self._order.items(stream)]
        known = self._known.padded(queries)
        rows = self._group(stream, queries, known)
        passage_ids, passage_length = self._tokens(rows.reshape(-1))
        return {
            "query_ids": self._query_ids[queries],
            "query_length": self._query_length[queries],
            "passage_ids": passage_ids.reshape(*rows.shape, -1),
            "passage_length": passage_length.reshape(rows.shape),
            "passage_row": self.store.content_ids[rows],
            "known": known,
            "index": stream.astype(np.int32),
            **({"teacher": self.teacher.of(queries[:, None], self.store.content_ids[rows])} if self.teacher else {}),
        }

    def names(self, stream: Int[np.ndarray, " k"]) -> list[str]:
        """Ids of the queries that the rows at these stream indices ask."""
        return [self._names[item] for item in self._items[self._order.items(stream)].tolist()]

    def _group(self, stream: np.ndarray, queries: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Rows of the store [k, n]."""
        positives, negatives = self._positives, self._negatives
        rows = np.zeros((len(stream), 1 + self.n_negatives), np.int64)
        chosen = hashing.below(hashing.uniform(self.seed, "positive", stream), positives.lengths[queries])
        rows[:, 0] = positives.values[positives.starts[queries] + chosen]
        columns, have = np.arange(self.n_negatives), negatives.lengths[queries][:, None]
        turn = (stream // self.n_items * self.n_negatives)[:, None] + columns
        at = np.where(columns < have, negatives.starts[queries][:, None] + turn % np.maximum(have, 1), -1)
        if len(negatives.values):
            rows[:, 1:] = negatives.values[at]
        short = np.flatnonzero((at < 0).any(1))
        if len(short):
            open_ = np.concatenate([np.zeros((len(short), 1), bool), at[short] < 0], axis=1)
            rows[short] = self._fill(rows[short], open_, known[short], stream[short])
        return rows

    def _fill(self, rows: np.ndarray, open_: np.ndarray, known: np.ndarray, stream: np.ndarray) -> np.ndarray:
        """Random documents in the open cells, drawn again wherever the text is a known positive's or already in the group."""
        content, columns = self.store.content_ids, np.arange(rows.shape[1])
        left = columns[:, None] > columns  # [i, j]: j stands left of i
        attempt = 0
        while open_.any():
            draw = hashing.uniform(self.seed, "fill", stream[:, None], columns, attempt)
            rows = np.where(open_, self._filled[hashing.below(draw, len(self._filled))], rows)
            texts = content[rows]
            rivals = ~open_[:, None, :] | left
            twice = ((texts[:, :, None] == texts[:, None, :]) & rivals & ~np.eye(len(columns), dtype=bool)).any(2)
            open_ = open_ & (twice | (texts[:, :, None] == known[:, None, :]).any(2))
            attempt += 1
        return rows

    def _tokens(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        room = self.template.passage_length - 2
        lengths = np.minimum(self._lengths[rows], room)
        ids = self.store.window(self.store.offsets[rows], lengths, room).ids
        special = self.store.special_ids
        return frame(ids, lengths, special.cls, special.sep, special.pad)


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

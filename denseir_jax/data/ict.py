"""Rows of the Inverse Cloze Task: a stretch of a passage is the query, the rest of the passage is what it must find."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int

from denseir_jax.core.errors import InputError
from denseir_jax.data import hashing
from denseir_jax.data.batches import frame
from denseir_jax.data.order import SeededOrder
from denseir_jax.data.tokens import TokenStore, Window


@dataclass(frozen=True)
class _Stretch:
    """[start, end) of the query in each passage, in tokens of the crop."""

    start: Int[np.ndarray, " k"]
    end: Int[np.ndarray, " k"]


class IctRows:
    """Query and passage cut from the same piece of text (ORQA, Lee et al. 2019, section 4).

    The piece is cropped first, once, at its head, to the room of a passage; the query is picked inside the crop, so a
    removed query is removed from the text that is seen. With probability 1 - `keep_rate` it is removed.

    * unit "sentence": one sentence of the crop, uniformly. Pieces with fewer than two sentences in the crop are left out,
      whether removal would be drawn or not, so that every passage keeps text of its own.
    * unit "chunk": a stretch of `chunk_min` to `chunk_max` tokens (uniform) that begins and, unless it would grow past its
      room or the rest would fall below `chunk_min` tokens, ends at a word's border. Pieces with fewer than 2 x `chunk_min`
      tokens in the crop are left out.

    A query longer than `query_length` - 2 tokens is cut at its end (its whole sentence is removed all the same).

    Attributes:
        n_items: pieces used. counts: ``rows``, ``too_short_pieces`` (left out).
    Raises:
        InputError: no piece has enough text. ValueError: impossible lengths.
    """

    def __init__(
        self,
        store: TokenStore,
        query_length: int,
        passage_length: int,
        seed: int,
        unit: Literal["sentence", "chunk"] = "sentence",
        chunk_min: int = 4,
        chunk_max: int = 16,
        keep_rate: float = 0.1,
    ):
        if not 1 <= chunk_min <= chunk_max or chunk_min > query_length - 2:
            raise ValueError(f"chunk_min {chunk_min}, chunk_max {chunk_max}: expected 1 <= min <= max and min <= query_length - 2")
        if not 0.0 <= keep_rate <= 1.0:
            raise ValueError(f"keep_rate is {keep_rate}; expected 0 to 1")
        self.store, self.seed, self.unit, self.keep_rate = store, seed, unit, keep_rate
        self._query_room, self._room = query_length - 2, passage_length - 2
        self.chunk_min, self.chunk_max = chunk_min, chunk_max
        self._pieces = np.flatnonzero(self._enough())
        self.n_items = len(self._pieces)
        self.counts = {"rows": self.n_items, "too_short_pieces": store.n_pieces - self.n_items}
        if not self.n_items:
            need = "two sentences" if unit == "sentence" else f"{2 * chunk_min} tokens"
            raise InputError(f"{store.folder}: none of {store.n_pieces} pieces has {need} within {self._room} tokens; ICT needs that many")
        self._order = SeededOrder(self.n_items, seed)

    @property
    def distinct_documents(self) -> int:
        """Documents with different texts."""
        return len(np.unique(self.store.texts_of(self._pieces)))

    def _enough(self) -> Bool[np.ndarray, " m"]:
        starts, ends = self.store.pieces.T
        if self.unit == "sentence":
            return self.store.sentence_counts(starts, ends - starts, self._room) >= 2
        return np.asarray(np.minimum(ends - starts, self._room) >= 2 * self.chunk_min)

    def rows(self, stream: Int[np.ndarray, " k"]) -> dict[str, np.ndarray]:
        """Fields, all int32: ``query_ids`` [k, Lq], ``query_length`` [k], ``passage_ids`` [k, Lp], ``passage_length`` [k],
        ``removed`` [k] (1: the query's text is not in the passage), ``index`` [k], the stream index, and ``document`` [k],
        the row of the first document with the same text, so that duplicates can be told."""
        pieces = self._pieces[self._order.items(stream)]
        starts, ends = self.store.pieces[pieces].T
        lengths = np.minimum(ends - starts, self._room)
        window = self.store.window(starts, lengths, self._room)
        draws = hashing.uniform(self.seed, "ict", stream[:, None], np.arange(3))
        query = self._sentence(window, lengths, draws) if self.unit == "sentence" else self._chunk(window, lengths, draws)
        removed = draws[:, 2] >= self.keep_rate
        query_ids, query_length = self._take_query(window.ids, query)
        passage_ids, passage_length = self._take_passage(window.ids, lengths, query, removed)
        return {
            "query_ids": query_ids,
            "query_length": query_length,
            "passage_ids": passage_ids,
            "passage_length": passage_length,
            "removed": removed.astype(np.int32),
            "index": stream.astype(np.int32),
            "document": self.store.texts_of(pieces),
        }

    def names(self, stream: Int[np.ndarray, " k"]) -> list[str]:
        """Ids of the documents that the rows at these stream indices come from."""
        return self.store.names_of(self._pieces[self._order.items(stream)])

    def _sentence(self, window: Window, lengths: Int[np.ndarray, " k"], draws: np.ndarray) -> _Stretch:
        begins = window.sentence_start.copy()
        begins[:, 0] = True  # a piece begins a sentence even if it was cut within one
        number = np.cumsum(begins, axis=1)  # of the sentence that a token is in, from 1
        number[np.arange(self._room) >= lengths[:, None]] = self._room + 1
        count = begins.sum(1)
        chosen = 1 + hashing.below(draws[:, 0], count)
        start = (number < chosen[:, None]).sum(1)
        return _Stretch(start, (number <= chosen[:, None]).sum(1))

    def _chunk(self, window: Window, lengths: Int[np.ndarray, " k"], draws: np.ndarray) -> _Stretch:
        most = np.minimum(self._query_room, lengths - self.chunk_min)
        size = np.minimum(self.chunk_min + hashing.below(draws[:, 0], self.chunk_max - self.chunk_min + 1), most)
        raw = hashing.below(draws[:, 1], lengths - size + 1)
        columns, rows = np.arange(self._room), np.arange(len(lengths))
        border = window.word_start.copy()
        border[:, 0] = True
        start = np.maximum.accumulate(np.where(border, columns, 0), axis=1)[rows, raw]
        end = start + size
        ahead = np.where(border, columns, self._room)
        following = np.minimum.accumulate(ahead[:, ::-1], axis=1)[:, ::-1][rows, np.minimum(end, self._room - 1)]
        following = np.where(end < lengths, np.minimum(following, lengths), end)
        return _Stretch(start, np.where(following - start <= most, following, end))

    def _take_query(self, ids: Int[np.ndarray, "k w"], query: _Stretch) -> tuple[np.ndarray, np.ndarray]:
        at = np.minimum(query.start[:, None] + np.arange(self._query_room), self._room - 1)
        size = np.minimum(query.end - query.start, self._query_room)
        return self._frame(np.take_along_axis(ids, at, axis=1), size)

    def _take_passage(
        self, ids: Int[np.ndarray, "k w"], lengths: Int[np.ndarray, " k"], query: _Stretch, removed: Bool[np.ndarray, " k"]
    ) -> tuple[np.ndarray, np.ndarray]:
        gap = np.where(removed, query.end - query.start, 0)
        columns = np.arange(self._room)
        at = np.minimum(columns + np.where(columns >= query.start[:, None], gap[:, None], 0), self._room - 1)
        return self._frame(np.take_along_axis(ids, at, axis=1), lengths - gap)

    def _frame(self, ids: Int[np.ndarray, "k w"], lengths: Int[np.ndarray, " k"]) -> tuple[np.ndarray, np.ndarray]:
        special = self.store.special_ids
        return frame(ids, lengths, special.cls, special.sep, special.pad)

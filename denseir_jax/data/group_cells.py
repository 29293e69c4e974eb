"""Which passages stand in a group: positives first, then negatives of the pools, then random ones. No text twice."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from denseir_jax.data import hashing
from denseir_jax.data.ragged import Ragged

RANDOM = "random"
"""Among the sources of negatives: passages of the corpus drawn at random, fresh in every epoch, none known to be positive."""


def need_places(sources: Sequence[str], group_size: int) -> None:
    """See that groups of so many passages have places for negatives of these sources.

    Raises:
        ValueError: `RANDOM` would get none, or there are none at all.
    """
    if RANDOM in sources and group_size <= len(sources):
        raise ValueError(f"sources={tuple(sources)} leave {RANDOM!r} no place: expected group_size > {len(sources)}")
    if sources and group_size < 2:
        raise ValueError(
            f"sources={tuple(sources)} with group_size={group_size}: the positive leaves negatives no place; expected 2 or more"
        )


@dataclass(frozen=True)
class Cells:
    """The cells of groups, each a function of a stream index and its query.

    Attributes:
        positives, negatives: usable rows of the store by query, in the order in which epochs take them. known: numbers of the
        texts that answer, by query. texts: row -> number of its text. filled: rows that have a token. n_items: rows of the
        stream an epoch. seed: of all draws. size: passages of a group.
        several: most positives of a group; None: one, drawn anew in every epoch.
        share: one of so many sources is `RANDOM`, and has that part of a row's places for negatives, rounded down; 0: none.
    """

    positives: Ragged
    negatives: Ragged
    known: Ragged
    texts: Int[np.ndarray, " documents"]
    filled: Int[np.ndarray, " _"]
    n_items: int
    seed: int
    size: int
    several: int | None = None
    share: int = 0

    def n_positives(self, queries: Int[np.ndarray, " k"]) -> Int[np.ndarray, " k"]:
        """How many positives a group of each query has: all, or as many as fit."""
        return np.minimum(self.positives.lengths[queries], self.several or 1)

    def n_random(self, queries: Int[np.ndarray, " k"]) -> Int[np.ndarray, " k"]:
        """Places of the source `RANDOM`."""
        return (self.size - self.n_positives(queries)) // self.share if self.share else np.zeros(len(queries), np.int64)

    def n_pooled(self, queries: Int[np.ndarray, " k"]) -> Int[np.ndarray, " k"]:
        """Places for negatives of the pools."""
        return self.size - self.n_positives(queries) - self.n_random(queries)

    def missing(self, queries: Int[np.ndarray, " k"]) -> Int[np.ndarray, " k"]:
        """Places for negatives of the pools that stay empty because a query has too few."""
        return np.maximum(self.n_pooled(queries) - self.negatives.lengths[queries], 0)

    def need(self, queries: Int[np.ndarray, " k"]) -> int:
        """Different texts that the corpus must have so that random passages for all of these queries are found."""
        drawing = queries[self.missing(queries) + self.n_random(queries) > 0]
        return int((self.known.lengths[drawing] + self.size - self.n_positives(drawing)).max(initial=0))

    def rows(self, stream: Int[np.ndarray, " k"], queries: Int[np.ndarray, " k"]) -> Int[np.ndarray, "k n"]:
        """Rows of the store; every query must have a positive."""
        epoch, columns = (stream // self.n_items)[:, None], np.arange(self.size)
        positives, pooled = self.n_positives(queries)[:, None], self.n_pooled(queries)[:, None]
        rows = np.zeros((len(stream), self.size), np.int64)
        if self.several is None:
            chosen = hashing.below(hashing.uniform(self.seed, "positive", stream), self.positives.lengths[queries])
            rows[:, 0] = self.positives.values[self.positives.starts[queries] + chosen]
        else:
            self._take(rows, self.positives, queries, epoch * positives + columns, columns < positives)
        place = columns - positives
        from_pool = (place >= 0) & (place < np.minimum(pooled, self.negatives.lengths[queries][:, None]))
        self._take(rows, self.negatives, queries, epoch * pooled + place, from_pool)
        open_ = (place >= 0) & ~from_pool
        some = np.flatnonzero(open_.any(1))
        if len(some):
            rows[some] = self._draw(rows[some], open_[some], self.known.padded(queries[some]), stream[some])
        return rows

    @staticmethod
    def _take(rows: np.ndarray, lists: Ragged, queries: np.ndarray, turn: np.ndarray, where: np.ndarray) -> None:
        """Write item `turn` of each query's list into the cells `where`; a list begins anew at its end."""
        length = np.maximum(lists.lengths[queries], 1)[:, None]
        rows[where] = lists.values[(lists.starts[queries][:, None] + turn % length)[where]]

    def _draw(self, rows: np.ndarray, open_: np.ndarray, known: np.ndarray, stream: np.ndarray) -> np.ndarray:
        """Random documents in the open cells, drawn again wherever the text is a known positive's or already in the group."""
        columns = np.arange(rows.shape[1])
        left = columns[:, None] > columns  # [i, j]: j stands left of i
        attempt = 0
        while open_.any():
            draw = hashing.uniform(self.seed, "fill", stream[:, None], columns, attempt)
            rows = np.where(open_, self.filled[hashing.below(draw, len(self.filled))], rows)
            texts = self.texts[rows]
            rivals = ~open_[:, None, :] | left
            twice = ((texts[:, :, None] == texts[:, None, :]) & rivals & ~np.eye(len(columns), dtype=bool)).any(2)
            open_ = open_ & (twice | (texts[:, :, None] == known[:, None, :]).any(2))
            attempt += 1
        return rows


def in_turn(
    queries: Int[np.ndarray, " m"], rows: Int[np.ndarray, " m"], texts: Int[np.ndarray, " documents"], seed: int, purpose: str, n: int
) -> Ragged:
    """Rows by query, of each text the first, each query's in a seeded order of its texts.

    Args:
        texts: row -> number of its text. n: queries in all.
    """
    _, first = np.unique(queries * np.int64(len(texts)) + texts[rows], return_index=True)
    queries, rows = queries[first], rows[first]
    order = np.lexsort((hashing.bits(seed, purpose, queries, texts[rows]), queries))
    return Ragged.of_pairs(queries[order], rows[order], n)

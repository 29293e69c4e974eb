"""Lists of different lengths in two arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int


@dataclass(frozen=True)
class Ragged:
    """Lists of passage rows, one list a query, end to end.

    Attributes:
        values: int32 [total]. starts: int64 [n + 1]; list i is ``values[starts[i] : starts[i + 1]]``.
    """

    values: Int[np.ndarray, " total"]
    starts: Int[np.ndarray, " n_and_1"]

    @classmethod
    def of(cls, lists: Sequence[Sequence[int] | Int[np.ndarray, " _"]]) -> "Ragged":
        """From lists."""
        queries = np.repeat(np.arange(len(lists)), [len(items) for items in lists])
        return cls.of_pairs(queries, np.concatenate([np.zeros(0, np.int32), *(np.asarray(items, np.int32) for items in lists)]), len(lists))

    @classmethod
    def of_pairs(cls, queries: Int[np.ndarray, " total"], values: Int[np.ndarray, " total"], n: int) -> "Ragged":
        """From (list number, value) pairs, sorted by list number."""
        return cls(values.astype(np.int32), np.searchsorted(queries, np.arange(n + 1)).astype(np.int64))

    def pairs(self, names: Int[np.ndarray, " m"] | None = None) -> tuple[Int[np.ndarray, " total"], Int[np.ndarray, " total"]]:
        """(list number, value) pairs; with `names`, the distinct ``names[value]`` of each list instead."""
        queries = np.repeat(np.arange(len(self.starts) - 1), self.lengths)
        if names is None:
            return queries, self.values
        queries, named = np.unique(np.stack([queries, names[self.values]]), axis=1)
        return queries, named

    @property
    def lengths(self) -> Int[np.ndarray, " n"]:
        """int64 [n]."""
        return np.diff(self.starts)

    def row(self, i: int) -> Int[np.ndarray, " r"]:
        """List i."""
        return self.values[self.starts[i] : self.starts[i + 1]]

    def padded(self, lists: Int[np.ndarray, " k"]) -> Int[np.ndarray, "k longest"]:
        """int32: these lists side by side, padded with -1 to the longest of all."""
        columns = np.arange(self.lengths.max(initial=1))
        inside = columns < self.lengths[lists][:, None]
        values = np.append(self.values, np.int32(-1))  # the last one is what stands where a list has ended
        return values[np.where(inside, self.starts[lists][:, None] + columns, -1)]

"""Rankings of many queries in two arrays: 8 bytes a result, where a list of (id, score) takes about a hundred."""

import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int


class Rankings(Mapping[str, list[tuple[str, float]]]):
    """Query id -> [(passage id, score)], best first, as `records.Ranking`; a line is made when it is asked for.

    Args:
        query_ids: of the lines. passage_ids: of the rows. scores, rows: as an index gives them; row -1 ends a short line.
    Attributes:
        scores: float32 [q, k]. rows: int32 [q, k].
    """

    def __init__(
        self, query_ids: Sequence[str], passage_ids: Sequence[str], scores: Float[np.ndarray, "q k"], rows: Int[np.ndarray, "q k"]
    ):
        self.passage_ids, self.scores, self.rows = passage_ids, scores.astype(np.float32, copy=False), rows.astype(np.int32, copy=False)
        self.number_of = {query: number for number, query in enumerate(query_ids)}

    def __getitem__(self, query: str) -> list[tuple[str, float]]:
        number = self.number_of[query]
        line = zip(self.rows[number].tolist(), self.scores[number].tolist(), strict=True)
        return [(self.passage_ids[row], score) for row, score in line if row >= 0]

    def __iter__(self) -> Iterator[str]:
        return iter(self.number_of)

    def __len__(self) -> int:
        return len(self.number_of)

    @functools.cached_property
    def row_of(self) -> dict[str, int]:
        """Passage id -> row."""
        return {item: row for row, item in enumerate(self.passage_ids)}

    def passages(self) -> set[str]:
        """Ids of all passages that stand in any line."""
        return {self.passage_ids[row] for row in np.unique(self.rows).tolist() if row >= 0}


class Places:
    """Where each value of an array stands: for a pass over a corpus that must know who asked for a passage.

    Args:
        rows: any values from -1 on; -1 is left out.
    """

    def __init__(self, rows: Int[np.ndarray, " m"]):
        self._order = np.argsort(rows, kind="stable").astype(np.int32 if len(rows) < 2**31 else np.int64)
        self._rows = rows[self._order]

    def of(self, row: int) -> list[int]:
        """Ascending."""
        value = self._rows.dtype.type(row)  # of another type, each search would convert the whole array
        start, stop = np.searchsorted(self._rows, value, "left"), np.searchsorted(self._rows, value, "right")
        found: list[int] = self._order[start:stop].tolist()
        return found

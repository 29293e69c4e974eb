"""What a teacher thinks of passages: scores by query id and passage id, never by the place of a line. One JSON object a line.

``{"passage_id": "d7", "query_id": "q1", "score": 3.25}``
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError
from denseir_jax.data import jsonl
from denseir_jax.data.jsonl import BadField
from denseir_jax.data.lines import BadRows, shown

TEACHER_SCORES = "teacher_scores.jsonl"  # beside the training set that they are for


@runtime_checkable
class Teacher(Protocol):
    """What a teacher adds to the rows of `training_set.GroupRows`; queries by number, passages by the number of their text."""

    def knows(self, queries: Int[np.ndarray, " m"], texts: Int[np.ndarray, " m"]) -> Bool[np.ndarray, " m"]:
        """Of which pairs it can say something."""
        ...

    def fields(self, queries: Int[np.ndarray, " k"], texts: Int[np.ndarray, "k n"]) -> dict[str, np.ndarray]:
        """Batch fields of groups of pairs that it knows, float32 with leading dimension k."""
        ...


@dataclass(frozen=True)
class TeacherScores:
    """Scores of (query, text) pairs; two passages of one text share a score.

    Attributes:
        keys: int64 [m], ascending: query number * n_texts + number of the text. values: float32 [m]. n_texts: of the corpus.
    """

    keys: Int[np.ndarray, " m"]
    values: Float[np.ndarray, " m"]
    n_texts: int

    def of(self, queries: Int[np.ndarray, "..."], texts: Int[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """float32, NaN where the teacher was not asked; queries and texts broadcast against each other."""
        wanted = np.asarray(queries, np.int64) * self.n_texts + texts
        at = np.minimum(np.searchsorted(self.keys, wanted), max(len(self.keys) - 1, 0))
        if not len(self.keys):
            return np.full(wanted.shape, np.nan, np.float32)
        return np.where(self.keys[at] == wanted, self.values[at], np.float32(np.nan)).astype(np.float32)

    def knows(self, queries: Int[np.ndarray, " m"], texts: Int[np.ndarray, " m"]) -> Bool[np.ndarray, " m"]:
        """Pairs with a score."""
        return np.isfinite(self.of(queries, texts))

    def fields(self, queries: Int[np.ndarray, " k"], texts: Int[np.ndarray, "k n"]) -> dict[str, np.ndarray]:
        """``teacher`` [k, n]."""
        return {"teacher": self.of(queries[:, None], texts)}


def write_teacher_scores(path: Path, scores: Iterable[tuple[str, str, float]]) -> int:
    """Write (query id, passage id, score) whole or not at all; returns how many. Equal scores give equal bytes."""
    n = 0
    with artifacts.new_file(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as stream:
        for query_id, passage_id, score in scores:
            stream.write(json.dumps({"passage_id": passage_id, "query_id": query_id, "score": score}, ensure_ascii=False) + "\n")
            n += 1
    return n


def read_scores(path: Path, bad: BadRows) -> Iterator[tuple[int, str, str, float]]:
    """Yield (line number, query id, passage id, score).

    Raises:
        InputError: the file cannot be read, or under the policy "error" a bad row: an id missing, a score that is no finite number.
    """

    def parse(row: Mapping[str, object]) -> tuple[str, str, float]:
        return jsonl.id_of(row, ("query_id",)), jsonl.id_of(row, ("passage_id",)), _score(row)

    for line, found in jsonl.parsed(jsonl.objects(str(path), bad), str(path), bad, parse):
        yield line, *found


def read_teacher_scores(
    path: Path, query_of: Mapping[str, int], row_of: Mapping[str, int], text_of: Int[np.ndarray, " documents"], bad: BadRows
) -> TeacherScores:
    """Read scores against a training set and its corpus; those of other queries are passed over.

    Args:
        query_of: query id -> number in the training set. row_of: passage id -> row of the store. text_of: row -> number of
            its text (`TokenStore.content_ids`).
    Raises:
        InputError: the file cannot be read, none of its queries is in the training set, or under the policy "error" a bad
            row: a key missing, an unknown passage, a score that is no finite number, a pair that has two different scores.
    """
    keys: list[int] = []
    values: list[float] = []
    seen: dict[int, float] = {}
    for line, query, passage, score in read_scores(path, bad):
        if query not in query_of:
            continue
        try:
            if passage not in row_of:
                raise BadField("unknown passage", f" {passage!r}; expected an id of the corpus")
            key = query_of[query] * len(text_of) + int(text_of[row_of[passage]])
            if seen.setdefault(key, score) != score:
                raise BadField("two scores of one pair", f": {seen[key]} and {score} for {query!r} and the text of {passage!r}")
        except BadField as fault:
            bad.bad(str(path), line, fault.reason, fault.detail)
        else:
            keys.append(key)
            values.append(score)
    if not keys:
        raise InputError(f"{shown(str(path))} has no score for any query of the training set")
    found, first = np.unique(np.asarray(keys, np.int64), return_index=True)
    return TeacherScores(found, np.asarray(values, np.float32)[first], len(text_of))


def _score(row: Mapping[str, object]) -> float:
    value = row.get("score")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise BadField("score is not a finite number", f": {value!r}; expected a number under 'score'")
    return float(value)

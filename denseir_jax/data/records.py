"""What readers give: passages, queries, judgments, rankings. Ids are opaque strings, from reading to the run file."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from denseir_jax.core.errors import InputError

Qrels = dict[str, dict[str, int]]
"""Query id -> passage id -> judged relevance (0 and below: judged, not relevant)."""

Ranking = dict[str, list[tuple[str, float]]]
"""Query id -> (passage id, score), best first."""


@dataclass(frozen=True)
class Passage:
    """One unit of retrieval."""

    id: str
    text: str
    title: str = ""


@dataclass(frozen=True)
class Query:
    """One question."""

    id: str
    text: str


@runtime_checkable
class Dataset(Protocol):
    """A corpus with queries and judgments, whatever its format.

    Attributes:
        splits: the names that `queries` and `qrels` take. attribution: what a report must say about the origin, or "".
    """

    splits: tuple[str, ...]
    attribution: str

    def corpus(self) -> Iterator[Passage]:
        """All passages, in a stable order, in constant memory."""
        ...

    def queries(self, split: str) -> dict[str, str]:
        """Query id -> text of the queries judged in a split, in the order of the source."""
        ...

    def qrels(self, split: str) -> Qrels:
        """The judgments of a split."""
        ...


def positives_of(qrels: Qrels) -> dict[str, list[str]]:
    """Query id -> the passages judged relevant (grade above 0), in the order of the judgments."""
    return {query: [item for item, grade in judged.items() if grade > 0] for query, judged in qrels.items()}


def fault_of_id(id: str) -> str:
    """Why an id cannot be used, or "": run files separate columns by whitespace, so none may be in it."""
    if not id:
        return "empty id"
    return "" if id.split() == [id] else "id with whitespace"


def need_split(split: str, known: tuple[str, ...], origin: str) -> None:
    """Refuse a split that is not there.

    Raises:
        InputError: it names the splits that are.
    """
    if split not in known:
        raise InputError(f"{origin} has no split {split!r}; expected one of: {', '.join(known) or '(it has none)'}")


class SeenIds:
    """Tells ids that come twice.

    It keeps 64-bit hashes instead of the ids: less than 100 bytes an id however long, some 0.8 GB for 10 million. Two
    different ids share a hash with probability n^2 / 2^65, 3e-6 for 10 million, and then a good row is refused aloud.
    """

    def __init__(self) -> None:
        self._hashes: set[int] = set()

    def again(self, id: str) -> bool:
        """Whether `id` was here before; from now on it was."""
        before = len(self._hashes)
        self._hashes.add(hash(id))
        return len(self._hashes) == before

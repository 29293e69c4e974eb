"""Readers of what to train on by id, in text files: triples, lists of passages, a teacher's scores."""

import math
from collections.abc import Iterator, Mapping, Sequence

from denseir_jax.data.lines import BadRows, open_text
from denseir_jax.data.records import SeenIds

PoolFile = Mapping[str, Sequence[str]]
"""Query id -> passage ids."""


def triples(path: str, bad: BadRows) -> dict[str, list[str]]:
    """Negatives by query from ``query id, positive id, negative id`` (MS MARCO's qidpidtriples), in file order, each once.

    The positive is not kept: judgments say more.

    Raises:
        InputError: as `lines.open_text`; wrong columns, or a positive that is its own negative.
    """
    found: dict[str, dict[str, None]] = {}
    one = dict[str, str]()  # of equal ids: such a file has 400 million rows at its longest
    for line, text in open_text(path, bad):
        cells = text.split()
        if len(cells) != 3:
            bad.bad(path, line, "wrong number of columns", f": {len(cells)}; expected 3: query, positive and negative passage")
        elif cells[1] == cells[2]:
            bad.bad(path, line, "positive among the negatives", f": {cells[1]!r} twice; expected two passages")
        else:
            found.setdefault(cells[0], {})[one.setdefault(cells[2], cells[2])] = None
    return {query: list(ids) for query, ids in found.items()}


def is_lists(path: str) -> bool:
    """Whether the first row is ``query id <tab> id,id,...``, not a row of judgments."""
    return len(next((text.split() for _, text in open_text(path)), ())) == 2


def lists(path: str, bad: BadRows) -> Iterator[tuple[str, list[str]]]:
    """Yield (query id, passage ids) from ``query id <tab> id,id,...``; an id again in a list is dropped and counted.

    Raises:
        InputError: as `lines.open_text`; wrong columns, an empty id, a query twice.
    """
    seen = SeenIds()
    for line, text in open_text(path, bad):
        cells = text.split()
        ids = cells[-1].split(",")
        if len(cells) != 2:
            bad.bad(path, line, "wrong number of columns", f": {len(cells)}; expected 2: query <tab> passage,passage,...")
        elif not all(ids):
            bad.bad(path, line, "empty id", f" in {cells[-1][:40]!r}; expected passage,passage,...")
        elif seen.again(cells[0]):
            bad.bad(path, line, "duplicate query id", f" {cells[0]!r}; expected every query once")
        else:
            once = list(dict.fromkeys(ids))
            for _ in range(len(ids) - len(once)):
                bad.count(path, "passage again in its list")
            yield cells[0], once


def scores(path: str, bad: BadRows) -> Iterator[tuple[str, str, float]]:
    """Yield (query id, passage id, score) from three columns; a score may stand in brackets, as RetroMAE's do: ``[1.2]``.

    Raises:
        InputError: as `lines.open_text`; wrong columns, or a score that is no finite number.
    """
    for line, text in open_text(path, bad):
        cells = text.split(maxsplit=2)
        score = _score(cells[2]) if len(cells) == 3 else None
        if len(cells) != 3:
            bad.bad(path, line, "wrong number of columns", f": {len(cells)}; expected 3: query, passage, score")
        elif score is None:
            bad.bad(path, line, "bad score", f" {cells[2][:40]!r}; expected a finite number, perhaps in brackets")
        else:
            yield cells[0], cells[1], score


def _score(text: str) -> float | None:
    text = text.strip()
    try:
        score = float(text[1:-1] if text.startswith("[") and text.endswith("]") else text)
    except ValueError:
        return None
    return score if math.isfinite(score) and "_" not in text else None

"""What a mine run leaves: the training set, where its passages come from, and what was removed and why; all in one pass."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from denseir_jax.core import artifacts, console
from denseir_jax.core.errors import InputError
from denseir_jax.data.examples import TRAINING_SET, Example, write_examples
from denseir_jax.pipeline.mining.asking import Asked
from denseir_jax.pipeline.mining.choosing import Choice, Chooser, Chosen

MINED, REMOVED = "mined.jsonl", "removed.jsonl"
Note = Callable[[str, Chosen], None]


def write(folder: Path, asked: Asked, chooser: Chooser, pool: str) -> dict[str, Any]:
    """Choose for every query and write the three files, each whole or not at all; returns counts of the training set."""
    with audit(folder) as note:
        return write_examples(folder / TRAINING_SET, _examples(asked, chooser, pool, note))


@contextlib.contextmanager
def audit(folder: Path) -> Iterator[Note]:
    """Takes down what was chosen for a query: in ``mined.jsonl`` where it came from, in ``removed.jsonl`` what may be no negative."""
    with contextlib.ExitStack() as stack:
        mined, removed = (stack.enter_context(_lines(folder / name)) for name in (MINED, REMOVED))
        yield lambda query, chosen: _note(mined, removed, query, chosen)


@contextlib.contextmanager
def _lines(path: Path) -> Iterator[IO[str]]:
    with artifacts.new_file(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as stream:
        yield stream


def _examples(asked: Asked, chooser: Chooser, pool: str, note: Note) -> Iterator[Example]:
    """Earlier examples with the new pool, then new queries. A query without a positive in the corpus cannot be learnt from.

    Raises:
        InputError: at the end, if there is none.
    """
    texts = {**{query: example.query for query, example in asked.earlier.items()}, **asked.queries}
    empty = True
    for query, text in console.progress(texts.items(), "mine: choosing", len(texts), "queries"):
        old = asked.earlier.get(query)
        chosen = chooser.choose(query) if query in asked.queries else _as_it_was(old, chooser)
        if chosen is None:
            continue
        if query in asked.queries:
            note(query, chosen)
        if chosen.positives:
            empty = False
            pools = {name: _without(line, chosen.positives) for name, line in old.negatives.items()} if old else {}
            pools[pool] = tuple(item.id for item in chosen.choice.negatives)
            yield Example(query, text, chosen.positives, pools)
    if empty:
        causes = {"no positive in the corpus": len(chooser.lost), **chooser.queries_dropped}
        why = "; ".join(f"{cause}: {count:,}" for cause, count in causes.items() if count)
        if asked.counts["judged"]:
            raise InputError(f"none of {len(texts):,} queries is left to learn from ({why}); expected judgments of this corpus's passages")
        console.say(f"warning: mine: none of {len(texts):,} queries without judgments is kept ({why}): the training set is empty")


def _as_it_was(old: Example | None, chooser: Chooser) -> Chosen:
    """An example that nothing is mined for."""
    positives = old.positives if old else ()
    return Chosen(tuple(item for item in positives if item in chooser.miner.keys), [], Choice([], [], []))


def _without(line: tuple[str, ...], positives: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(item for item in line if item not in positives)


def _note(mined: IO[str], removed: IO[str], query: str, chosen: Chosen) -> None:
    row: dict[str, Any] = {"query_id": query, "negatives": [_plain(item) for item in chosen.choice.negatives]}
    if chosen.found:
        row["positives"] = [_plain(item) for item in chosen.found]
    if chosen.choice.unchecked:
        row["unchecked"] = [item.id for item in chosen.choice.unchecked]
    for stream, line in ((mined, row), (removed, {"query_id": query, "removed": [_plain(item) for item in chosen.choice.removed]})):
        stream.write(json.dumps(line, sort_keys=True, ensure_ascii=False) + "\n")


def _plain(item: Any) -> Mapping[str, Any]:
    """Its fields, but for a probability that nobody gave."""
    return {name: value for name, value in dataclasses.asdict(item).items() if value is not None}

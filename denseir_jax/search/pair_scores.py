"""Scores of a cross-encoder kept on disk, by query id and passage id: what was scored once is never scored again.

``000000.jsonl`` and so on hold scores as `data.teacher_scores` writes them, each file whole or not there; ``scorer.json`` says
which model they are of.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from denseir_jax.core import artifacts, console, failpoints, signals
from denseir_jax.core.console import Meter
from denseir_jax.core.errors import InputError
from denseir_jax.data.lines import BadRows
from denseir_jax.data.records import Passage
from denseir_jax.data.teacher_scores import read_scores, write_teacher_scores
from denseir_jax.search.reranker import PairScorer

FACTS = "scorer.json"
SHARD = 4096  # pairs; what a kill can lose
Pair = tuple[str, str]  # (query id, passage id)


@dataclasses.dataclass(frozen=True)
class Scored:
    """Attributes:
    scores: (query id, passage id) -> float32 logit, of every pair that was ever scored. new: scored now.
    """

    scores: dict[Pair, float]
    new: int


def score_pairs(
    folder: Path,
    scorer: PairScorer,
    facts: Mapping[str, Any],
    pairs: Sequence[Pair],
    texts: Callable[[Sequence[Pair]], list[tuple[str, Passage]]],
    label: str,
    shard: int = SHARD,
) -> Scored:
    """Score the pairs that `folder` lacks, file by file, and give what it holds then.

    A run that was killed goes on behind its last whole file; the same pairs in the same order give the same bits either way.

    Args:
        facts: what the scores depend on beside the texts; with the scorer's hash it is the identity of the folder. The texts
            are the caller's: within one folder an id means one text.
        texts: (query text, passage) of some pairs. label: of the progress line.
    Raises:
        InputError: the folder holds scores of another model, or made in another way, or a score that is no finite number; the
            scorer gives one. Stopped: a signal came; whole files stay.
    """
    _need_same(folder, {"scorer_sha256": scorer.sha256, **facts})
    files = sorted(folder.glob("[0-9]*.jsonl"))
    known = {pair: score for path in files for pair, score in _read(path)}
    left = [pair for pair in dict.fromkeys(pairs) if pair not in known]
    if known:
        console.say(f"{label}: {len(known):,} pairs are scored already, {len(left):,} are left")
    with Meter(label, len(left), "pairs") as meter:
        for number, start in enumerate(range(0, len(left), shard), start=len(files)):
            signals.check("scores that are written are kept")
            some = left[start : start + shard]
            found = [float(score) for score in scorer.score(texts(some), meter)]
            _need_finite(some, found)
            write_teacher_scores(folder / f"{number:06d}.jsonl", ((*pair, score) for pair, score in zip(some, found, strict=True)))
            known |= dict(zip(some, found, strict=True))
            failpoints.reach("pairs")
    return Scored(known, len(left))


def _need_same(folder: Path, identity: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path, wanted = folder / FACTS, dict(identity)
    if not path.exists():
        artifacts.write_json(path, wanted)
        return
    made = artifacts.read_json(path)
    if not isinstance(made, dict):
        raise InputError(f"{path} is not as it was written: it holds no object; remove {folder}, and its pairs are scored again")
    differing = [key for key in wanted if made.get(key) != wanted[key]]
    if differing:
        raise InputError(
            f"{folder} holds scores of another model ({differing[0]}: {made.get(differing[0])!r} there, {wanted[differing[0]]!r} here); "
            "scores of two models are never mixed: choose another --workdir"
        )


def _read(path: Path) -> list[tuple[Pair, float]]:
    try:
        return [((query, passage), score) for _, query, passage, score in read_scores(path, BadRows("error"))]
    except InputError as error:
        raise InputError(f"{error}; the file is not as it was written: remove it, and its pairs are scored again") from None


def _need_finite(pairs: Sequence[Pair], scores: Sequence[float]) -> None:
    wrong = np.flatnonzero(~np.isfinite(scores))
    if len(wrong):
        query, item = pairs[wrong[0]]
        raise InputError(
            f"the cross-encoder gives {scores[wrong[0]]} for query {query!r} and passage {item!r}, one of {len(wrong):,} such;"
            " expected finite scores"
        )

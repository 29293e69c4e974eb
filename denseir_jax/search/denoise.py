"""Denoising by a cross-encoder (Qu et al. 2021, RocketQA, sections 3.2 and 3.3).

A passage is kept as a negative iff its probability is below a threshold, and taken for a positive iff it is above another one.
Between the two nothing is said of it. Pairs are scored in the order of the corpus, so that its texts are read once and never kept.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from denseir_jax.core import signals
from denseir_jax.core.config import located
from denseir_jax.core.console import Meter
from denseir_jax.core.errors import InputError
from denseir_jax.data.records import Passage
from denseir_jax.search.negatives import Marks
from denseir_jax.search.rankings import Places
from denseir_jax.search.reranker import PairScorer

_CHUNK = 1 << 14  # pairs given to the cross-encoder at once, with their texts


@dataclass(frozen=True, kw_only=True)
class DenoiseConfig:
    """What the cross-encoder decides.

    Attributes:
        reranker: run:DIR or hf:DIR; "" for none. keep_below: a negative's probability is below it. positive_above: a pseudo-
        positive's is above it. more_positives: whether passages above it become positives of queries that have judged ones
        (queries without any always take their best one). fill_to: see `negatives.Miner`; 0 for never.
        calibrate_split: thresholds come from this split instead, and are reported; "" to take the two above.
        false_negative_rate: share of its judged positives that may fall below keep_below. precision: share of judged positives
        among retrieved passages above positive_above. calibrate_queries: how many of its queries are used, drawn by the seed.
    """

    reranker: str = located("")
    keep_below: float = 0.1
    positive_above: float = 0.9
    more_positives: bool = False
    fill_to: int = 0
    calibrate_split: str = ""
    false_negative_rate: float = 0.05
    precision: float = 0.9
    calibrate_queries: int = 1000

    def __post_init__(self) -> None:
        if not 0 < self.keep_below <= self.positive_above <= 1:
            raise ValueError(f"expected 0 < keep_below <= positive_above <= 1; got {self.keep_below} and {self.positive_above}")
        if not 0 <= self.false_negative_rate < 1 or not 0 < self.precision <= 1 or self.calibrate_queries < 1:
            raise ValueError("expected false_negative_rate in [0, 1), precision in (0, 1] and at least 1 of calibrate_queries")
        if not self.reranker and (self.more_positives or self.fill_to or self.calibrate_split):
            raise ValueError("more_positives, fill_to and calibrate_split are about a cross-encoder; name it by reranker")


@dataclass(frozen=True)
class Thresholds:
    """keep_below, positive_above: see `DenoiseConfig`."""

    keep_below: float
    positive_above: float


def probabilities(
    passages: Iterable[Passage],
    row_of: Mapping[str, int],
    texts: Sequence[str],
    queries: Int[np.ndarray, " m"],
    rows: Int[np.ndarray, " m"],
    scorer: PairScorer,
) -> Float[np.ndarray, " m"]:
    """What the cross-encoder says of pairs of a query and a passage: float32 [m].

    Args:
        passages: the corpus, read once. row_of: passage id -> row. texts: of the queries by number. queries, rows: the pairs.
    Raises:
        InputError: a passage is not in the corpus, or a probability is no number in [0, 1].
    """
    found, places = np.full(len(rows), np.nan, np.float32), Places(rows)
    waiting: list[tuple[int, Passage]] = []
    with Meter("mine: cross-encoder", len(rows), "pairs") as meter:

        def score() -> None:
            signals.check()
            pairs = [(texts[queries[at]], passage) for at, passage in waiting]
            found[[at for at, _ in waiting]] = scorer.probability(scorer.score(pairs))
            meter.advance(len(waiting))
            waiting.clear()

        for passage in passages if len(rows) else ():
            row = row_of.get(passage.id)
            for at in places.of(row) if row is not None else ():
                waiting.append((at, passage))
                if len(waiting) == _CHUNK:
                    score()
        if waiting:
            score()
    wrong = np.flatnonzero(~((found >= 0) & (found <= 1)))
    if len(wrong):
        name = next(item for item, row in row_of.items() if row == rows[wrong[0]])
        raise InputError(
            f"the cross-encoder gives {found[wrong[0]]} for passage {name!r}, one of {len(wrong):,} such; expected a probability of"
            " every passage, and every passage in the corpus"
        )
    return found


def pseudo_positive(marks: Marks, above: float, hi: int) -> int | None:
    """Rank of the most probable of the first hi passages if it is above the threshold; the first of equals."""
    line = list(marks.probability or ())[:hi]
    best = max(range(len(line)), key=lambda rank: -1.0 if math.isnan(line[rank]) else line[rank], default=None)
    return best if best is not None and line[best] > above else None


def first_answered(marks: Marks, hi: int) -> int | None:
    """Rank of the first of the first hi passages that holds an answer."""
    return next((rank for rank, yes in enumerate(list(marks.answered or ())[:hi]) if yes), None)

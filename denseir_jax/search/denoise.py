"""Denoising by a cross-encoder (Qu et al. 2021, RocketQA, sections 3.2 and 3.3).

A passage is kept as a negative iff its probability is below a threshold, and taken for a positive iff it is above another one.
Between the two nothing is said of it. Pairs are scored in the order of the corpus, so that its texts are read once and not kept.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from denseir_jax.core.config import located
from denseir_jax.core.errors import InputError
from denseir_jax.data.records import Passage
from denseir_jax.search.negatives import Marks
from denseir_jax.search.pair_scores import Pair, score_pairs
from denseir_jax.search.reranker import PairScorer


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
        given = [field.name for field in dataclasses.fields(self) if getattr(self, field.name) != field.default]
        if given and not self.reranker:
            raise ValueError(f"settings of denoise ({', '.join(given)}) are about a cross-encoder; name it by reranker")
        fixed, sought = {"keep_below", "positive_above"}, {"false_negative_rate", "precision", "calibrate_queries"}
        if self.calibrate_split and fixed & set(given):
            raise ValueError("thresholds are found on calibrate_split, or are keep_below and positive_above; give one of the two")
        if not self.calibrate_split and sought & set(given):
            raise ValueError(f"{', '.join(sorted(sought))} say which thresholds are found on calibrate_split; name a split")


@dataclass(frozen=True)
class Thresholds:
    """keep_below, positive_above: see `DenoiseConfig`."""

    keep_below: float
    positive_above: float


@dataclass(frozen=True)
class Judge:
    """A cross-encoder and the folder where its scores are kept, so that a run that was killed goes on.

    Attributes:
        facts: what scores depend on beside texts and parameters; see `pair_scores.score_pairs`.
    """

    scorer: PairScorer
    folder: Path
    facts: Mapping[str, Any]

    def probabilities(
        self, passages: Iterable[Passage], queries: Mapping[str, str], pairs: Sequence[Pair], label: str
    ) -> Float[np.ndarray, " n"]:
        """What it says of pairs of a query id and a passage id: float32 [n].

        Args:
            passages: the corpus. queries: id -> text. pairs: in the order of the corpus, which is read once and not kept.
        Raises:
            InputError: a passage that is not in the corpus, or comes out of turn; a probability that is no number in [0, 1].
        """
        if not pairs:
            return np.zeros(0, np.float32)
        texts = _Texts(iter(passages), queries)
        scores = score_pairs(self.folder, self.scorer, self.facts, pairs, texts, label).scores
        found = self.scorer.probability(np.array([scores[pair] for pair in pairs], np.float32)).astype(np.float32)
        wrong = np.flatnonzero(~((found >= 0) & (found <= 1)))
        if len(wrong):
            query, item = pairs[wrong[0]]
            raise InputError(
                f"the cross-encoder gives {found[wrong[0]]} for query {query!r} and passage {item!r}, one of {len(wrong):,} such;"
                " expected probabilities"
            )
        return found


class _Texts:
    """Texts of pairs whose passages come in the order of the corpus: one passage is held at a time."""

    def __init__(self, passages: Iterator[Passage], queries: Mapping[str, str]):
        self._passages, self._queries = passages, queries
        self._now: Passage | None = None

    def __call__(self, pairs: Sequence[Pair]) -> list[tuple[str, Passage]]:
        return [(self._queries[query], self._passage(item)) for query, item in pairs]

    def _passage(self, item: str) -> Passage:
        while self._now is None or self._now.id != item:
            self._now = next(self._passages, None)
            if self._now is None:
                raise InputError(f"passage {item!r} is not in the corpus; the ranking belongs to another corpus")
        return self._now


def pseudo_positive(marks: Marks, above: float, hi: int) -> int | None:
    """Rank of the most probable of the first hi passages if it is above the threshold; the first of equals."""
    line = list(marks.probability or ())[:hi]
    best = max(range(len(line)), key=lambda rank: -1.0 if math.isnan(line[rank]) else line[rank], default=None)
    return best if best is not None and line[best] > above else None


def first_answered(marks: Marks, hi: int) -> int | None:
    """Rank of the first of the first hi passages that holds an answer."""
    return next((rank for rank, yes in enumerate(list(marks.answered or ())[:hi]) if yes), None)

"""Positives and negatives of every query, out of its ranking and what is known of the passages in it."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int

from denseir_jax.pipeline.mining.asking import Asked
from denseir_jax.pipeline.mining.config import MineConfig
from denseir_jax.pipeline.mining.reading import Evidence
from denseir_jax.pipeline.mining.searching import Searched
from denseir_jax.search.denoise import Thresholds, first_answered, pseudo_positive
from denseir_jax.search.negatives import Choice, Marks, Miner, bar_of

Line = Sequence[tuple[str, float]]


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """A passage taken for a positive that nobody judged: its score and rank, what says so ("answer", "cross-encoder")."""

    id: str
    score: float
    rank: int
    why: str
    probability: float | None = None


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Of one query: its positives in the corpus, those of them that were found here, and its negatives."""

    positives: tuple[str, ...]
    found: list[Found]
    choice: Choice


class Chooser:
    """Goes through the queries, one at a time.

    Attributes:
        counts: positives found, by what says so; queries dropped, by cause. empty, short, lost: queries without negatives, with
        fewer than n, without a positive in the corpus.
    """

    def __init__(self, config: MineConfig, asked: Asked, searched: Searched, evidence: Evidence, thresholds: Thresholds | None, seed: int):
        self._config, self._asked, self._searched, self._evidence, self._thresholds = config, asked, searched, evidence, thresholds
        keep_below = thresholds.keep_below if thresholds else None
        self.miner = Miner(evidence.keys, config, seed, keep_below, config.denoise.fill_to)
        self.positives_found: Counter[str] = Counter()
        self.queries_dropped: Counter[str] = Counter(asked.left_out)
        self.empty: list[str] = []
        self.short: list[str] = []
        self.lost: list[str] = []
        self.with_positive = 0  # among what was retrieved

    def pairs(self) -> Iterator[tuple[int, Int[np.ndarray, " _"]]]:
        """(number of a query, ranks that the cross-encoder is asked about): what would be a negative without it; of a query
        without positives all of its first hi."""
        for query, line, marks in self._lines():
            known = self._known(query, line, marks)[0]
            ranks = range(min(self._config.hi, len(line)))
            if known:
                bar = bar_of(self._config, self._best(query, line, known))
                kept, _ = self.miner.sift(line, known, self._config.lo, self._config.hi, bar, marks, set(), None)
                yield self._number(query), np.array([item.rank for item in kept], np.int64)
            else:
                yield self._number(query), np.array(ranks, np.int64)

    def choose(self, query: str) -> Chosen | None:
        """None for a query that is dropped."""
        line = self._searched.rankings[query]
        marks = self._evidence.of(self._number(query))
        known, found = self._known(query, line, marks)
        self.with_positive += bool(self._asked.known.get(query)) and any(item in set(known) for item, _ in line)
        if not known and query in self._asked.answers and not self._thresholds:
            self.queries_dropped["no retrieved passage holds an answer"] += 1
            return None
        found += self._by_cross_encoder(line, marks, bool(known))
        known = [*known, *(item.id for item in found if item.id not in known)]
        if not known:
            self.queries_dropped["no passage above positive_above"] += 1
            return None
        choice = self.miner.choose(query, line, known, self._best(query, line, known), marks)
        if not choice.negatives and not self._asked.known.get(query):
            self.queries_dropped["a positive was found, but no negative"] += 1
            return None
        self.positives_found.update(item.why for item in found)
        self._note(query, known, choice)
        return Chosen(tuple(item for item in known if item in self._evidence.keys), found, choice)

    def _note(self, query: str, known: Sequence[str], choice: Choice) -> None:
        if not any(item in self._evidence.keys for item in known):
            self.lost.append(query)
        if not choice.negatives:
            self.empty.append(query)
        elif len(choice.negatives) < self._config.n:
            self.short.append(query)

    def _lines(self) -> Iterator[tuple[str, Line, Marks]]:
        for query in self._searched.rankings:
            yield query, self._searched.rankings[query], self._evidence.of(self._number(query))

    def _number(self, query: str) -> int:
        return self._searched.rankings.number_of[query]

    def _known(self, query: str, line: Line, marks: Marks) -> tuple[list[str], list[Found]]:
        """Known positives, else the first passage that holds an answer."""
        known = self._asked.known.get(query)
        if known or query not in self._asked.answers:
            return known or [], []
        rank = first_answered(marks, self._config.hi)
        if rank is None:
            return [], []
        return [line[rank][0]], [Found(*line[rank], rank, "answer")]

    def _by_cross_encoder(self, line: Line, marks: Marks, has_positive: bool) -> list[Found]:
        if not self._thresholds or (has_positive and not self._config.denoise.more_positives):
            return []
        above = self._thresholds.positive_above
        if has_positive:
            ranks = [rank for rank in range(min(self._config.hi, len(line))) if (marks.probability_at(rank) or 0.0) > above]
        else:
            best = pseudo_positive(marks, above, self._config.hi)
            ranks = [] if best is None else [best]
        return [Found(*line[rank], rank, "cross-encoder", marks.probability_at(rank)) for rank in ranks]

    def _best(self, query: str, line: Line, known: Sequence[str]) -> float | None:
        """Score of the best positive, judged or found."""
        if not self._config.has_margin:
            return None
        names, judged = set(known), self._searched.best_score.get(query, float("nan"))
        return max([score for item, score in line if item in names], default=judged) if np.isnan(judged) else judged

"""Hard negatives out of rankings: a rank window, minus everything that may be a positive, then a seeded draw.

The result depends on the ranking, the judgments, the texts and the seed, and on nothing else: each query draws from
its own generator, keyed by the seed and its id.
"""

import dataclasses
import hashlib
import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from denseir_jax.core.errors import InputError
from denseir_jax.data.records import Passage


@dataclasses.dataclass(frozen=True)
class NegativesConfig:
    """What is kept.

    Attributes:
        lo, hi: the window of ranks [lo, hi), counted from 0 in the ranking as it came. n: most negatives a query.
        absolute_margin: keep a passage only if its score <= s - margin, s the best score of the query's positives.
        relative_margin: the same with s - margin * |s|, so that a negative s is handled too (0.05: "95% of s").
        take: which n of those that remain: a seeded "draw", or the "first" by rank.
    """

    lo: int = 0
    hi: int = 200
    n: int = 30
    absolute_margin: float | None = None
    relative_margin: float | None = None
    take: Literal["draw", "first"] = "draw"

    def __post_init__(self) -> None:
        if not 0 <= self.lo < self.hi or self.n < 1:
            raise ValueError(f"ranks need 0 <= lo < hi and n at least 1; got lo={self.lo}, hi={self.hi}, n={self.n}")
        if any(margin is not None and not math.isfinite(margin) for margin in (self.absolute_margin, self.relative_margin)):
            raise ValueError(f"margins must be finite; got {self.absolute_margin}, {self.relative_margin}")
        if self.absolute_margin is not None and self.relative_margin is not None:
            raise ValueError("absolute_margin and relative_margin are two ways to say one thing; set one")

    @property
    def has_margin(self) -> bool:
        """Whether scores of positives are needed."""
        return self.absolute_margin is not None or self.relative_margin is not None


@dataclasses.dataclass(frozen=True, slots=True)
class Negative:
    """A mined passage, the score that brought it up, its rank from 0, and the cross-encoder's probability if it was asked."""

    id: str
    score: float
    rank: int
    probability: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Removed(Negative):
    """A passage of the rank window that is not taken for a negative, and why."""

    cause: str = ""


@dataclasses.dataclass(frozen=True)
class Marks:
    """What is known of one query's ranked passages, by rank.

    Attributes:
        answered: whether a passage holds an answer. probability: the cross-encoder's; NaN where it was not asked.
    """

    answered: Sequence[bool] | None = None
    probability: Sequence[float] | None = None

    def probability_at(self, rank: int) -> float | None:
        """None where the cross-encoder was not asked."""
        found = self.probability[rank] if self.probability is not None and rank < len(self.probability) else math.nan
        return None if math.isnan(found) else float(found)


@dataclasses.dataclass(frozen=True)
class Choice:
    """Of one query: negatives by rank, at most n; what was removed from the window, by rank; negatives that nothing checked."""

    negatives: list[Negative]
    removed: list[Removed]
    unchecked: list[Negative]


def normalized(text: str) -> str:
    """A text as compared for equality: NFKC, case folded, runs of white space as one space."""
    return " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).split())


def text_keys(passages: Iterable[Passage], wanted: Iterable[str]) -> dict[str, bytes]:
    """Id -> hash of the normalised text (of the title where there is no text), for the wanted ids: one pass, 16 bytes each."""
    names = set(wanted)
    return {
        passage.id: hashlib.blake2b(normalized(passage.text or passage.title).encode(), digest_size=16).digest()
        for passage in passages
        if passage.id in names
    }


class Miner:
    """Chooses negatives, query by query, and counts.

    Args:
        keys: `text_keys` of every passage that a ranking or a positive names.
        keep_below: the cross-encoder's probability that a negative must stay below; None: there is none.
        fill_to: a query with fewer than n takes the rest at random from ranks [hi, fill_to), which the cross-encoder has not
            seen (RocketQA's third step); 0: never.
    Attributes:
        dropped: cause -> passages (and queries without a margin). filled: negatives that nothing checked.
    """

    def __init__(self, keys: Mapping[str, bytes], config: NegativesConfig, seed: int, keep_below: float | None = None, fill_to: int = 0):
        self.keys, self.config, self.seed, self.keep_below, self.fill_to = keys, config, seed, keep_below, fill_to
        self.dropped: Counter[str] = Counter()
        self.filled = 0

    def choose(
        self, query: str, line: Sequence[tuple[str, float]], known: Sequence[str], best: float | None = None, marks: Marks = Marks()
    ) -> Choice:
        """Negatives of one query.

        Args:
            line: best first. known: positives. best: score of the best positive; needed for a margin. A query without one (its
                positives are not in the corpus) gets no margin, which is counted.
        Raises:
            InputError: a ranked passage has no text key.
        """
        config, bar = self.config, bar_of(self.config, best)
        if config.has_margin and bar == float("inf"):
            self.dropped["queries without a margin: no positive in the corpus"] += 1
        seen: set[bytes] = set()
        kept, removed = self.sift(line, known, config.lo, config.hi, bar, marks, seen, self.keep_below)
        chosen = self._take(kept, config.n, query, config.take)
        unchecked: list[Negative] = []
        if len(chosen) < config.n and self.fill_to > config.hi:
            spare, _ = self.sift(line, known, config.hi, self.fill_to, bar, marks, seen, None)
            unchecked = self._take(spare, config.n - len(chosen), f"{query}\0fill", "draw")
        self.filled += len(unchecked)
        self.dropped.update(item.cause for item in removed)
        self._count("not drawn", len(kept) - len(chosen))
        self._count("outside the rank window", len(line) - len(kept) - len(removed) - len(unchecked))
        return Choice([*chosen, *unchecked], removed, unchecked)

    def _count(self, cause: str, n: int) -> None:
        if n:
            self.dropped[cause] += n

    def sift(
        self,
        line: Sequence[tuple[str, float]],
        known: Sequence[str],
        lo: int,
        hi: int,
        bar: float,
        marks: Marks,
        seen: set[bytes],
        keep_below: float | None,
    ) -> tuple[list[Negative], list[Removed]]:
        """What may be a negative among ranks [lo, hi), and what may not; nothing is counted.

        Args:
            bar: the highest score that a negative may have. seen: texts that came before; it grows.
        """
        positive_ids = set(known)
        positive_texts = {self.keys[item] for item in known if item in self.keys}
        kept, removed = [], []
        for rank in range(lo, min(hi, len(line))):
            item, score = line[rank]
            probability = marks.probability_at(rank)
            if item in positive_ids:
                cause = "known positive by id"
            elif item not in self.keys:
                raise InputError(f"ranked passage {item!r} is not in the corpus; the ranking belongs to another corpus")
            elif self.keys[item] in positive_texts:
                cause = "known positive by text"
            elif marks.answered is not None and marks.answered[rank]:
                cause = "holds an answer"
            elif score > bar:
                cause = "within the margin of the positive"
            elif self.keys[item] in seen:
                cause = "duplicate by text"
            else:
                seen.add(self.keys[item])
                if keep_below is None or (probability is not None and probability < keep_below):
                    kept.append(Negative(item, score, rank, probability))
                    continue
                cause = "not below keep_below of the cross-encoder"
            removed.append(Removed(item, score, rank, probability, cause))
        return kept, removed

    def _take(self, candidates: list[Negative], n: int, name: str, how: str) -> list[Negative]:
        """n of them by rank, drawn by a generator that seed and name decide."""
        if len(candidates) <= n or how == "first":
            return candidates[:n]
        key = int.from_bytes(hashlib.blake2b(f"{self.seed}\0{name}".encode(), digest_size=16).digest(), "little")
        rows = np.random.Generator(np.random.Philox(key=key)).permutation(len(candidates))[:n]
        return [candidates[row] for row in sorted(rows)]


def bar_of(config: NegativesConfig, best: float | None) -> float:
    """The highest score that a negative may have, by the margin and the score of the query's best positive."""
    if best is None or not np.isfinite(best):
        return float("inf")
    if config.absolute_margin is not None:
        return best - config.absolute_margin
    return best - config.relative_margin * abs(best) if config.relative_margin is not None else float("inf")

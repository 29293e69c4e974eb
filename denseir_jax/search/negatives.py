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

import numpy as np

from denseir_jax.core.errors import InputError
from denseir_jax.data.records import Passage, Qrels


@dataclasses.dataclass(frozen=True)
class NegativesConfig:
    """What is kept.

    Attributes:
        lo, hi: the window of ranks [lo, hi), counted from 0 in the ranking as it came. n: most negatives a query.
        absolute_margin: keep a passage only if its score <= s - margin, s the best score of the query's positives.
        relative_margin: the same with s - margin * |s|, so that a negative s is handled too (0.05: "95% of s").
    """

    lo: int = 0
    hi: int = 200
    n: int = 30
    absolute_margin: float | None = None
    relative_margin: float | None = None

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


@dataclasses.dataclass(frozen=True)
class Negative:
    """A mined passage, the score that brought it up, and its rank from 0."""

    id: str
    score: float
    rank: int


@dataclasses.dataclass(frozen=True)
class Mined:
    """Attributes:
    negatives: query id -> negatives by rank, at most n. dropped: cause -> count, over all queries.
    empty: queries left with none. short: queries left with some, but fewer than n.
    """

    negatives: dict[str, list[Negative]]
    dropped: dict[str, int]
    empty: list[str]
    short: list[str]


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


def positives(qrels: Qrels) -> dict[str, list[str]]:
    """Query id -> the passages judged relevant (grade above 0), in the order of the judgments."""
    return {query: [item for item, grade in judged.items() if grade > 0] for query, judged in qrels.items()}


def mine(
    ranking: Mapping[str, Sequence[tuple[str, float]]],
    known: Mapping[str, Sequence[str]],
    keys: Mapping[str, bytes],
    config: NegativesConfig,
    seed: int,
    best_score: Mapping[str, float] | None = None,
) -> Mined:
    """Choose negatives for every query of `ranking`.

    Args:
        ranking: best first. known: positives by query. keys: `text_keys` of every passage named in either.
        best_score: score of each query's best positive; needed for a margin. A query without one (its positives are
            not in the corpus) gets no margin, which is counted.
    Raises:
        InputError: a margin is asked for without scores of positives, or a ranked passage has no text key.
    """
    if config.has_margin and best_score is None:
        raise InputError("a margin needs the scores of the positives; none were given")
    dropped: Counter[str] = Counter()
    chosen: dict[str, list[Negative]] = {}
    for query, line in ranking.items():
        bar = _bar(config, (best_score or {}).get(query))
        if config.has_margin and bar == float("inf"):
            dropped["queries without a margin: no positive in the corpus"] += 1
        candidates = _candidates(line, known.get(query, ()), keys, config, bar, dropped)
        chosen[query] = _draw(candidates, config.n, seed, query, dropped)
    sizes = {query: len(found) for query, found in chosen.items()}
    empty = [query for query, size in sizes.items() if not size]
    return Mined(chosen, dict(sorted(dropped.items())), empty, [query for query, size in sizes.items() if 0 < size < config.n])


def _bar(config: NegativesConfig, best: float | None) -> float:
    """The highest score that a negative may have."""
    if best is None or not np.isfinite(best):
        return float("inf")
    if config.absolute_margin is not None:
        return best - config.absolute_margin
    return best - config.relative_margin * abs(best) if config.relative_margin is not None else float("inf")


def _candidates(
    line: Sequence[tuple[str, float]],
    known: Sequence[str],
    keys: Mapping[str, bytes],
    config: NegativesConfig,
    bar: float,
    dropped: Counter[str],
) -> list[Negative]:
    positive_ids = set(known)
    positive_texts = {keys[item] for item in known if item in keys}
    seen: set[bytes] = set()
    kept = []
    for rank, (item, score) in enumerate(line):
        if not config.lo <= rank < config.hi:
            dropped["outside the rank window"] += 1
        elif item in positive_ids:
            dropped["known positive by id"] += 1
        elif item not in keys:
            raise InputError(f"ranked passage {item!r} is not in the corpus; the ranking belongs to another corpus")
        elif keys[item] in positive_texts:
            dropped["known positive by text"] += 1
        elif score > bar:
            dropped["within the margin of the positive"] += 1
        elif keys[item] in seen:
            dropped["duplicate by text"] += 1
        else:
            seen.add(keys[item])
            kept.append(Negative(item, score, rank))
    return kept


def _draw(candidates: list[Negative], n: int, seed: int, query: str, dropped: Counter[str]) -> list[Negative]:
    if len(candidates) <= n:
        return candidates
    dropped["not drawn"] += len(candidates) - n
    key = int.from_bytes(hashlib.blake2b(f"{seed}\0{query}".encode(), digest_size=16).digest(), "little")
    rows = np.random.Generator(np.random.Philox(key=key)).permutation(len(candidates))[:n]
    return [candidates[row] for row in sorted(rows)]

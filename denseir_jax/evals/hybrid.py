"""Two runs made one: a weighted sum of scores, its weight tuned on other queries, or reciprocal rank fusion.

**Weighted sum**: ``first + weight * second``. ``raw`` adds the scores as they are: a BM25 score grows with the words that
a query matches, which says how far BM25 is to be trusted, and normalising each query throws that away. ``minmax`` maps
each query's list to [0, 1] first, for scores that mean nothing across queries.

**A document that only one list holds** gets, from the other, that list's lowest score: it cannot have more, or it would
be in the list. Where the true score can be had (`Scorer`), it is asked for instead.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float

from denseir_jax.core.errors import InputError
from denseir_jax.evals.evaluation import evaluate
from denseir_jax.evals.measures import parse_measure
from denseir_jax.evals.ranking import Qrels, Run, ranked_ids, ranked_positions

Normalisation = Literal["raw", "minmax"]
Scorer = Callable[[str, Sequence[str]], Sequence[float]]  # (query id, document ids) -> their true scores
FACTORS = (0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0, 16.0)


@dataclasses.dataclass(frozen=True)
class Candidates:
    """The union of two lists for one query: document ids and both scores of each, normalised."""

    ids: Sequence[str]
    first: Float[np.ndarray, " n"]
    second: Float[np.ndarray, " n"]


@dataclasses.dataclass(frozen=True)
class Tuned:
    """The chosen weight, its value on the tuning queries, and all that was tried."""

    weight: float
    value: float
    tried: tuple[tuple[float, float], ...]


def align(
    first: Run,
    second: Run,
    normalisation: Normalisation = "raw",
    first_scorer: Scorer | None = None,
    second_scorer: Scorer | None = None,
) -> dict[str, Candidates]:
    """The candidates of every query that either run holds, with both scores.

    Args:
        first, second: runs. normalisation: see above. first_scorer, second_scorer: true scores of missing documents.
    """
    out = {}
    for query in dict.fromkeys([*first, *second]):
        a, b = dict(first.get(query, ())), dict(second.get(query, ()))
        ids = list(dict.fromkeys([*a, *b]))
        out[query] = Candidates(
            ids, _scores(query, ids, a, normalisation, first_scorer), _scores(query, ids, b, normalisation, second_scorer)
        )
    return out


def weighted_sum(candidates: Mapping[str, Candidates], weight: float, depth: int = 1000) -> dict[str, list[tuple[str, float]]]:
    """``first + weight * second``, the best `depth` documents of each query."""
    fused = {}
    for query, c in candidates.items():
        scores = c.first + weight * c.second
        if len(scores) > depth:  # all that tie with the last one stay until ranked
            compared = scores.astype(np.float32)
            kept = np.flatnonzero(compared >= np.partition(compared, -depth)[-depth])
        else:
            kept = np.arange(len(scores))
        ids = [c.ids[i] for i in kept.tolist()]
        fused[query] = [(ids[i], float(scores[kept[i]])) for i in ranked_positions(scores[kept], ids)[:depth]]
    return fused


def tune_weight(candidates: Mapping[str, Candidates], qrels: Qrels, measure: str = "nDCG@10", factors: Sequence[float] = FACTORS) -> Tuned:
    """The weight with the best mean measure on these queries, which must not be the ones reported on.

    The grid is `factors` times the ratio of the two runs' mean score ranges, so that 1.0 lets both count alike whatever
    their units. Of equal weights the one nearest to that wins.
    """
    first, second = (np.mean([np.ptp(s) for s in side if len(s)]) for side in _sides(candidates))
    if not (first > 0 and second > 0):
        raise InputError("the weight of a hybrid cannot be tuned: all scores of one run are equal")
    depth = parse_measure(measure).cutoff or 1000
    tried = []
    for factor in sorted(factors, key=lambda f: abs(np.log(f))):
        weight = float(factor * first / second)
        found = evaluate(weighted_sum(candidates, weight, depth), qrels, [measure], documents_known=True)
        tried.append((weight, next(iter(found.means("judged").values()))))
    weight, value = max(tried, key=lambda pair: pair[1])
    return Tuned(weight, value, tuple(sorted(tried)))


def reciprocal_rank_fusion(runs: Sequence[Run], k: float = 60.0, depth: int = 1000) -> dict[str, list[tuple[str, float]]]:
    """Sum over the runs of 1 / (k + rank), nothing from a run that lacks the document (Cormack et al. 2009, k = 60)."""
    fused = {}
    for query in dict.fromkeys(q for run in runs for q in run):
        scores: dict[str, float] = {}
        for run in runs:
            for rank, document in enumerate(ranked_ids(run.get(query, ()), query=query), start=1):
                scores[document] = scores.get(document, 0.0) + 1.0 / (k + rank)
        ids = list(scores)
        best = ranked_positions(np.array(list(scores.values())), ids)[:depth]
        fused[query] = [(ids[i], scores[ids[i]]) for i in best]
    return fused


def _scores(
    query: str, ids: Sequence[str], known: Mapping[str, float], normalisation: Normalisation, scorer: Scorer | None
) -> Float[np.ndarray, " n"]:
    lowest = min(known.values(), default=0.0)
    scores = np.array([known.get(i, lowest) for i in ids], dtype=np.float64)
    missing = [i for i, document in enumerate(ids) if document not in known]
    if scorer is not None and missing:
        scores[missing] = scorer(query, [ids[i] for i in missing])
    if normalisation == "minmax" and len(scores):
        span = np.ptp(scores)
        return (scores - scores.min()) / span if span > 0 else np.zeros_like(scores)
    return scores


def _sides(candidates: Mapping[str, Candidates]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    return [c.first for c in candidates.values()], [c.second for c in candidates.values()]

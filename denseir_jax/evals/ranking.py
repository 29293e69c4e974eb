"""The one ranking that every measure, fusion and listing shares, and its one rule for ties.

The rule is trec_eval's: scores are compared as float32, highest first; equal scores are ordered by document id,
descending; the rank column and the order of insertion do not count. A run without scores (MS MARCO's) is ranked by
``order="file"``: as it was written.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from denseir_jax.core.errors import InputError

Ranking = Sequence[tuple[str, float]]  # (document id, score), in the order of the file
Run = Mapping[str, Ranking]  # by query id
Qrels = Mapping[str, Mapping[str, int]]  # query id -> document id -> judgment
Order = Literal["score", "file"]


def ranked_ids(ranking: Ranking, order: Order = "score", query: str = "") -> list[str]:
    """The document ids of one query's list, best first.

    Args:
        ranking: (document id, score) pairs in any order. order: "score", or "file" to keep the given order.
        query: the query's id, for messages.
    Raises:
        InputError: a document twice, or a score that is not a number.
    """
    ids = [document for document, _ in ranking]
    if len(set(ids)) != len(ids):
        raise InputError(f"query {query!r}: document {_first_repeated(ids)!r} is in the run twice; expected each once")
    if order == "file":
        return ids
    scores = np.array([score for _, score in ranking], dtype=np.float64)
    if np.isnan(scores).any():
        bad = ids[int(np.flatnonzero(np.isnan(scores))[0])]
        raise InputError(f"query {query!r}, document {bad!r}: the score is not a number (NaN); expected a finite score")
    return [ids[i] for i in ranked_positions(scores, ids)]


def ranked_positions(scores: Float[np.ndarray, " n"], ids: Sequence[str]) -> Int[np.ndarray, " n"]:
    """The order of `scores` by the rule above: positions into `ids`, best first."""
    with np.errstate(over="ignore"):  # beyond float32 a score is infinite, as in trec_eval
        compared = scores.astype(np.float32)
    order = np.argsort(-compared, kind="stable")
    in_order = compared[order]
    ties = np.flatnonzero(in_order[1:] == in_order[:-1])
    if len(ties):  # only ties look at the ids; code point order of str is the byte order of UTF-8 that trec_eval compares
        starts = np.flatnonzero(np.append(True, in_order[1:] != in_order[:-1]))
        ends = np.append(starts[1:], len(order))
        for start, end in zip(starts, ends, strict=True):
            if end - start > 1:
                order[start:end] = sorted(order[start:end], key=lambda i: ids[i], reverse=True)
    return order


def _first_repeated(ids: Sequence[str]) -> str:
    seen: set[str] = set()
    return next(i for i in ids if i in seen or seen.add(i))  # type: ignore[func-returns-value]

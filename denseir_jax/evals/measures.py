"""Retrieval measures, written in the grammar of ir-measures: ``RR@10``, ``nDCG@10``, ``P(rel=2)@5``, ``AP``, ``R@100``.

All are computed on the one ranking of `ranking.ranked_ids`, with trec_eval's definitions: a document is relevant if its
judgment is at least ``rel`` (1); unjudged and negative are not relevant; a query without a relevant document has value 0.
"""

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from denseir_jax.core.errors import InputError

UNJUDGED = np.iinfo(np.int64).min
_ALIASES = {"MRR": "RR", "NDCG": "nDCG", "MAP": "AP", "Precision": "P", "Recall": "R", "S": "Success"}
_GRAMMAR = re.compile(r"(?P<name>[A-Za-z_]+)(?:\((?P<parameters>[^()]*)\))?(?:@(?P<cutoff>[0-9]{1,9}))?")


@dataclasses.dataclass(frozen=True)
class Measure:
    """One measure.

    Attributes:
        name: "RR", "nDCG", "R", "P", "AP", "Success", "R_cap", "Judged". cutoff: only the first so many documents count.
        rel: the lowest judgment that counts as relevant. For nDCG, None keeps graded gains and a number makes them
            binary. dcg: nDCG's gain, "log2" (the judgment itself) or "exp-log2" (2^judgment - 1).
    """

    name: str
    cutoff: int | None = None
    rel: int | None = None
    dcg: str = "log2"

    def __str__(self) -> str:
        given = [f"rel={self.rel}"] if self.rel is not None else []
        given += [f"dcg='{self.dcg}'"] if self.dcg != "log2" else []
        return self.name + (f"({','.join(given)})" if given else "") + (f"@{self.cutoff}" if self.cutoff else "")

    def value(self, found: Int[np.ndarray, " n"], judged: Int[np.ndarray, " j"]) -> float:
        """The measure of one query.

        Args:
            found: the judgment of each retrieved document, best first; UNJUDGED where there is none.
            judged: all judgments of the query.
        """
        return _FORMULAS[self.name](self, found[: self.cutoff], judged)

    @property
    def level(self) -> int:
        """The lowest judgment that is relevant."""
        return 1 if self.rel is None else self.rel


def parse_measure(text: str) -> Measure:
    """A measure from its text.

    Raises:
        InputError: unknown (the nearest known one is named), or its parameters or cutoff cannot be used.
    """
    match = _GRAMMAR.fullmatch(text.strip())
    name = match["name"] if match else re.split(r"[@(]", text.strip())[0]
    name = _ALIASES.get(name, name)
    if name not in _FORMULAS:
        raise InputError(f"unknown measure {text!r}: {_nearest(name)}")
    if match is None:
        raise InputError(f"measure {text!r} cannot be read; expected a form like RR@10, nDCG@10 or P(rel=2)@5")
    cutoff = int(match["cutoff"]) if match["cutoff"] else None
    if cutoff == 0 or (cutoff is None and name in _NEED_CUTOFF):
        raise InputError(f"measure {text!r} needs a cutoff of at least 1, for example {name}@10")
    measure = Measure(name, cutoff)
    for key, value in _parameters(name, match["parameters"] or "", text):
        measure = dataclasses.replace(measure, **{key: value})
    return measure


def parse_measures(texts: Sequence[str]) -> tuple[Measure, ...]:
    """Several measures; each once.

    Raises:
        InputError: as `parse_measure`, none at all, or one twice.
    """
    measures = tuple(parse_measure(text) for text in texts)
    if not measures or len(set(measures)) != len(measures):
        raise InputError(f"measures {', '.join(texts) or '(none)'}: expected at least one, each once")
    return measures


def judgments(ids: Sequence[str], judged: Mapping[str, int]) -> Int[np.ndarray, " n"]:
    """The judgment of each id, UNJUDGED where there is none."""
    return np.array([judged.get(i, UNJUDGED) for i in ids], dtype=np.int64)


def _nearest(name: str) -> str:
    lowered = {known.lower(): known for known in [*_ALIASES, *_FORMULAS]}
    near = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.4)
    return f"did you mean {lowered[near[0]]}?" if near else f"known: {', '.join(_FORMULAS)}"


def _parameters(name: str, text: str, whole: str) -> Iterator[tuple[str, Any]]:
    """``"rel=2,dcg='exp-log2'"`` -> ("rel", 2), ("dcg", "exp-log2")."""
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, _, value = (p.strip().strip("'\"") for p in part.partition("="))
        if key == "rel" and re.fullmatch(r"-?[0-9]{1,9}", value) and name != "Judged":
            yield "rel", int(value)
        elif key == "dcg" and name == "nDCG" and value in ("log2", "exp-log2"):
            yield "dcg", value
        else:
            expected = "rel=<whole number>" + (" or dcg='log2'|'exp-log2'" if name == "nDCG" else "")
            raise InputError(f"measure {whole!r}: parameter {part!r} is not known; expected {expected}")


def _relevant(measure: Measure, values: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    return ((values >= measure.level) & (values != UNJUDGED)).astype(np.float64)


def _reciprocal_rank(measure: Measure, found: np.ndarray, judged: np.ndarray) -> float:
    hits = np.flatnonzero(_relevant(measure, found))
    return 1.0 / (int(hits[0]) + 1) if len(hits) else 0.0


def _success(measure: Measure, found: np.ndarray, judged: np.ndarray) -> float:
    return float(_relevant(measure, found).any())


def _precision(measure: Measure, found: np.ndarray, judged: np.ndarray) -> float:
    return float(_relevant(measure, found).sum()) / int(measure.cutoff or 1)  # a short list is not a smaller divisor


def _recall(measure: Measure, found: np.ndarray, judged: np.ndarray) -> float:
    total = _relevant(measure, judged).sum()
    return float(_relevant(measure, found).sum() / total) if total else 0.0


def _capped_recall(measure: Measure, found: np.ndarray, judged: np.ndarray) -> float:
    total = min(int(measure.cutoff or 1), int(_relevant(measure, judged).sum()))
    return float(_relevant(measure, found).sum() / total) if total else 0.0


def _average_precision(measure: Measure, found: np.ndarray, judged: np.ndarray) -> float:
    relevant, total = _relevant(measure, found), _relevant(measure, judged).sum()
    at_rank = np.cumsum(relevant) / np.arange(1, len(relevant) + 1)
    return float((at_rank * relevant).sum() / total) if total else 0.0


def _judged(measure: Measure, found: np.ndarray, judged: np.ndarray) -> float:
    return float((found != UNJUDGED).mean()) if len(found) else 0.0


def _ndcg(measure: Measure, found: np.ndarray, judged: np.ndarray) -> float:
    """Järvelin and Kekäläinen 2002 in trec_eval's form: gain / log2(rank + 1), the ideal taken over all judged documents."""
    ideal = _dcg(np.sort(_gains(measure, judged))[::-1][: measure.cutoff])
    return _dcg(_gains(measure, found)) / ideal if ideal > 0 else 0.0


def _gains(measure: Measure, values: np.ndarray) -> np.ndarray:
    if measure.rel is not None:
        return _relevant(measure, values)
    linear = np.maximum(values, 0).astype(np.float64)
    if measure.dcg == "exp-log2" and linear.max(initial=0) > _MOST_EXPONENT:
        raise InputError(f"{measure} takes 2 to the power of a judgment, and one is {linear.max():.0f}; expected at most {_MOST_EXPONENT}")
    return np.exp2(linear) - 1.0 if measure.dcg == "exp-log2" else linear


def _dcg(gains: np.ndarray) -> float:
    return float((gains / np.log2(np.arange(2, len(gains) + 2))).sum())


_FORMULAS: dict[str, Callable[[Measure, np.ndarray, np.ndarray], float]] = {
    "RR": _reciprocal_rank,
    "nDCG": _ndcg,
    "R": _recall,
    "P": _precision,
    "AP": _average_precision,
    "Success": _success,
    "R_cap": _capped_recall,
    "Judged": _judged,
}
_MOST_EXPONENT = 900  # 2 to it, summed over any list, is still a finite float64
_NEED_CUTOFF = ("R", "P", "Success", "R_cap", "Judged")

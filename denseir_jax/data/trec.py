"""Run files and relevance judgments: TREC, MS MARCO and BEIR layouts, read and written.

Columns stand apart by any whitespace. The first row decides the layout of a file.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError
from denseir_jax.data.facts import output_of
from denseir_jax.data.lines import BadRows, open_text, shown
from denseir_jax.data.records import Qrels, Ranking, fault_of_id
from denseir_jax.evals.ranking import ranked_positions

RUN = "run.trec"  # in the folder of a finished evaluate or rerank run
_INTEGER = re.compile(r"[+-]?[0-9]+")
_MOST, _DIGITS = 2**31 - 1, 11  # of relevance; longer ones are not even turned into numbers
_RANK = re.compile(r"[+]?[0-9]{1,9}")
_LAST_RANK = 1 << 24  # beyond it float32, which rankings are sorted by, does not tell neighbours apart
_BEIR_HEADER = ["query-id", "corpus-id", "score"]
_LARGEST = float(np.finfo(np.float32).max)
_RUN_LAYOUTS = "6 (TREC: query Q0 passage rank score tag) or 3 (MS MARCO: query passage rank)"
_QRELS_LAYOUTS = "4 (TREC: query iteration passage relevance) or 3 (BEIR: query passage relevance)"


@dataclass(frozen=True)
class RunFile:
    """A run as read.

    Attributes:
        ranking: every query's passages, best first. scored: whether the file had scores; if not (MS MARCO), the score
        is minus the rank. tag: the run's name in its first row, or "".
    """

    ranking: Ranking
    scored: bool
    tag: str


def read_run(path: str, bad: BadRows | None = None) -> RunFile:
    """Read a TREC run (6 columns) or an MS MARCO run (3 columns), plain or compressed.

    A TREC run is put in the order of trec_eval, whatever its rank column and its order of rows say: by score as float32,
    ties by passage id descending. An MS MARCO run is put in the order of its ranks.

    Raises:
        InputError: the file is empty, or has a bad row under the policy "error": wrong columns, a score that is no
            finite float32, a rank below 1 or beyond float32, a passage or (MS MARCO) a rank twice for one query.
    """
    bad = bad or BadRows()
    found: dict[str, dict[str, float]] = {}
    ranks: dict[str, set[float]] = {}
    width, tag = 0, ""
    for line, cells, width in _rows(path, (6, 3), _RUN_LAYOUTS, bad):
        query, passage = cells[0], cells[2] if width == 6 else cells[1]
        score = _score(cells[4]) if width == 6 else _minus_rank(cells[2])
        if score is None:
            what, expected = ("score", "a finite number") if width == 6 else ("rank", f"a whole number from 1 to {_LAST_RANK}")
            bad.bad(path, line, f"bad {what}", f" {_brief(cells[4 if width == 6 else 2])}; expected {expected}")
        elif passage in found.get(query, ()):
            bad.bad(path, line, "passage twice for one query", f": {passage!r} for query {query!r}; expected every passage once a query")
        elif width == 3 and score in ranks.get(query, ()):
            bad.bad(path, line, "rank twice for one query", f": {cells[2]} for query {query!r}; expected every rank once a query")
        else:
            found.setdefault(query, {})[passage] = score
            tag = tag or (cells[5] if width == 6 else "")
            if width == 3:
                ranks.setdefault(query, set()).add(score)
    if not found:
        raise InputError(f"{shown(path)} holds no row of a run; expected columns {_RUN_LAYOUTS}")
    return RunFile({query: best_first(list(scores.items())) for query, scores in found.items()}, width == 6, tag)


def best_first(scored: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """Pairs (passage id, score as float32) in the one order of `ranking.ranked_positions`."""
    ids = [passage for passage, _ in scored]
    scores = np.array([score for _, score in scored], np.float64)
    return [(ids[i], float(np.float32(scores[i]))) for i in ranked_positions(scores, ids)]


def _score(text: str) -> float | None:
    try:
        score = float(text)
    except ValueError:
        return None
    return score if math.isfinite(score) and abs(score) <= _LARGEST and "_" not in text else None


def _minus_rank(text: str) -> float | None:
    return -float(int(text)) if _RANK.fullmatch(text) and 1 <= int(text) <= _LAST_RANK else None


def _brief(text: str) -> str:
    """As it stands, but for the middle of something endless."""
    return repr(text if len(text) <= 40 else f"{text[:20]}...{text[-10:]}")


def _relevance(text: str) -> int | None:
    return int(text) if _INTEGER.fullmatch(text) and len(text) <= _DIGITS and abs(int(text)) <= _MOST else None


def read_qrels(path: str, bad: BadRows | None = None) -> Qrels:
    """Read judgments: TREC (4 columns), or 3 columns with or without the header of BEIR; plain or compressed.

    Relevance is any integer of 32 bits. The same judgment again is counted and dropped.

    Raises:
        InputError: the file is empty, or has a bad row under the policy "error": wrong columns, a relevance that is no
            such integer, two different judgments of one passage for one query.
    """
    bad = bad or BadRows()
    qrels: Qrels = {}
    for line, cells, width in _rows(path, (4, 3), _QRELS_LAYOUTS, bad):
        query, passage, value = cells[0], cells[-2], _relevance(cells[-1])
        if width == 3 and not qrels and [cell.lower() for cell in cells] == _BEIR_HEADER:
            continue
        known = qrels.get(query, {}).get(passage)
        if value is None and _INTEGER.fullmatch(cells[-1]):
            bad.bad(path, line, "relevance out of range", f": {_brief(cells[-1])}; expected {-_MOST} to {_MOST}")
        elif value is None:
            expected = _expected_value(width, bool(qrels))
            bad.bad(path, line, "relevance is not an integer", f": {_brief(cells[-1])}; expected {expected}")
        elif known is None:
            qrels.setdefault(query, {})[passage] = value
        elif known == value:
            bad.count(path, "judgment repeated")
        else:
            detail = f": {passage!r} for query {query!r} is {known} above and {value} here; expected one value"
            bad.bad(path, line, "judgments in conflict", detail)
    if not qrels:
        raise InputError(f"{shown(path)} holds no judgment; expected columns {_QRELS_LAYOUTS}")
    return qrels


def _expected_value(width: int, begun: bool) -> str:
    return "an integer" if begun or width == 4 else f"an integer, or the header {' <tab> '.join(_BEIR_HEADER)} first"


def _rows(path: str, widths: tuple[int, ...], layouts: str, bad: BadRows) -> Iterator[tuple[int, list[str], int]]:
    """Yield (line number, cells, width); the first row whose width is allowed fixes it for all others."""
    for line, text in open_text(path, bad):
        cells = text.split()
        if len(cells) not in widths:
            wanted = layouts if len(widths) > 1 else f"{widths[0]} as in the rows above"
            bad.bad(path, line, "wrong number of columns", f": {len(cells)}; expected {wanted}")
            continue
        widths = (len(cells),)
        yield line, cells, widths[0]


def run_file(place: str) -> str:
    """A run file: itself, or that of a finished evaluate or rerank run.

    Raises:
        InputError: as `facts.output_of`.
    """
    return str(output_of(place, RUN, ("rerank", "evaluate"))) if Path(place).is_dir() else place


def write_run(
    path: Path,
    ranking: Mapping[str, Sequence[tuple[str, float]]],
    tag: str = "denseir_jax",
    layout: Literal["trec", "msmarco", "tevatron"] = "trec",
) -> None:
    """Write a run whole or not at all, in the order of trec_eval, so that whoever reads it finds the order written.

    Scores are printed with the digits that give the same float32 back.

    Args:
        layout: "trec" has 6 columns, "msmarco" 3 (query, passage, rank) and "tevatron" 3 (query, passage, score).
    Raises:
        InputError: an id or the tag holds whitespace. ValueError: a score is not a finite float32.
    """
    _need_word(tag, "tag")
    with artifacts.new_file(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as stream:
        for query, scored in ranking.items():
            _need_word(query, "query id")
            for rank, (passage, score) in enumerate(best_first(scored), start=1):
                _need_word(passage, "passage id")
                if not math.isfinite(score):
                    raise ValueError(f"score {score} of passage {passage!r} for query {query!r} is not a finite float32")
                if layout == "trec":
                    stream.write(f"{query} Q0 {passage} {rank} {np.float32(score)} {tag}\n")
                else:
                    stream.write(f"{query}\t{passage}\t{rank if layout == 'msmarco' else np.float32(score)}\n")


def write_qrels(path: Path, qrels: Mapping[str, Mapping[str, int]]) -> None:
    """Write TREC judgments whole or not at all.

    Raises:
        InputError: an id holds whitespace.
    """
    with artifacts.new_file(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as stream:
        for query, judged in qrels.items():
            _need_word(query, "query id")
            for passage, value in judged.items():
                _need_word(passage, "passage id")
                stream.write(f"{query} 0 {passage} {value}\n")


def _need_word(text: str, what: str) -> None:
    fault = fault_of_id(text)
    if fault:
        raise InputError(f"{what} {text!r}: {fault}; expected one or more characters, none of them whitespace: columns stand apart by it")

"""What a cross-encoder says of ranked passages, and thresholds from a split whose positives are known."""

import dataclasses
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from denseir_jax.core import artifacts, console
from denseir_jax.core.artifacts import Run
from denseir_jax.core.errors import InputError
from denseir_jax.data.lines import BadRows
from denseir_jax.data.records import Dataset
from denseir_jax.evals import calibration
from denseir_jax.pipeline.mining.asking import Asked, gather
from denseir_jax.pipeline.mining.choosing import Chooser
from denseir_jax.pipeline.mining.config import MineConfig
from denseir_jax.pipeline.mining.reading import Evidence, read_texts
from denseir_jax.pipeline.mining.searching import Searched, Searcher
from denseir_jax.search.denoise import DenoiseConfig, Judge, Thresholds
from denseir_jax.search.reranker import load_reranker

_FEW_KEPT = 0.1  # of the presumed negatives
CALIBRATION, PICTURE = "calibration.json", "calibration.png"


def judge_of(config: MineConfig, folder: Path) -> Judge | None:
    """The cross-encoder that the config names, which keeps its scores in the folder; None if it names none."""
    if not config.denoise.reranker:
        return None
    reranker = load_reranker(config.denoise.reranker, batch_tokens=config.batch_tokens)
    return Judge(reranker, folder, reranker.facts)


def score(dataset: Dataset, asked: Asked, searched: Searched, evidence: Evidence, config: MineConfig, judge: Judge) -> int:
    """Put the cross-encoder's probabilities into the evidence; returns how many pairs it was asked about.

    Raises:
        InputError: as `Judge.probabilities`.
    """
    rankings = searched.rankings
    found = np.full((len(rankings), min(config.hi, rankings.rows.shape[1])), np.nan, np.float32)
    numbers, ranks = _joined(list(Chooser(config, asked, searched, evidence, None, config.seed).pairs()))
    rows = rankings.rows[numbers, ranks]
    found[numbers, ranks] = _probabilities(dataset, asked, searched, evidence, numbers, rows, judge, "mine: cross-encoder")
    evidence.probability = found
    return len(ranks)


def _probabilities(
    dataset: Dataset,
    asked: Asked,
    searched: Searched,
    evidence: Evidence,
    numbers: Int[np.ndarray, " n"],
    rows: Int[np.ndarray, " n"],
    judge: Judge,
    label: str,
) -> Float[np.ndarray, " n"]:
    """Of pairs of a query's number and a passage's row, in any order."""
    rankings, queries = searched.rankings, list(searched.rankings)
    place = np.full(len(rankings.passage_ids), -1, np.int64)  # in the order of the corpus, which is that of the keys
    for at, item in enumerate(evidence.keys):
        if item in rankings.row_of:
            place[rankings.row_of[item]] = at
    order = np.lexsort((numbers, place[rows]))
    ordered = zip(numbers[order].tolist(), rows[order].tolist(), strict=True)
    pairs = [(queries[number], rankings.passage_ids[row]) for number, row in ordered]
    found = np.empty(len(rows), np.float32)
    found[order] = judge.probabilities(dataset.corpus(), asked.queries, pairs, label)
    return found


def _joined(pairs: list[tuple[int, Int[np.ndarray, " _"]]]) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    numbers = np.repeat(np.array([number for number, _ in pairs], np.int32), [len(ranks) for _, ranks in pairs])
    return numbers, np.concatenate([np.zeros(0, np.int64), *(ranks for _, ranks in pairs)])


def thresholds(run: Run, dataset: Dataset, searcher: Searcher, judge: Judge) -> Thresholds:
    """Those of the config, or calibrated on a split, with a report in the run folder.

    Raises:
        InputError: the split has no query with a positive in the corpus; or no threshold is precise enough where
            pseudo-positives are asked for.
    """
    config: MineConfig = run.config
    denoise = config.denoise
    if not denoise.calibrate_split:
        return Thresholds(denoise.keep_below, denoise.positive_above)
    asked = _sample(config, dataset)
    searched = searcher.search(asked.queries, asked.known)
    evidence = read_texts(dataset, asked, searched.rankings, config)
    own = dataclasses.replace(judge, folder=judge.folder.with_name("pairs_calibrate"))  # an id may mean another query there
    positives, retrieved, negatives = _judged_and_presumed(dataset, asked, searched, evidence, config, own)
    if not len(positives):
        raise InputError(f"the split {denoise.calibrate_split!r} has no positive in the corpus; thresholds cannot be calibrated on it")
    found = calibration.calibrate(positives, retrieved, negatives, denoise.false_negative_rate, denoise.precision)
    counts = {"queries": len(asked.queries), "positives": len(positives), "positives_retrieved": int(retrieved.sum())}
    _write(run, found, positives, negatives, {**counts, "presumed_negatives": len(negatives)})
    if found.negatives_kept < _FEW_KEPT:
        console.say("warning: this cross-encoder hardly tells positives from other passages: most candidates will be dropped")
    if found.positive_above is None and (denoise.more_positives or config.unlabelled):
        raise InputError(
            f"no threshold has a precision of {denoise.precision} on the split {denoise.calibrate_split!r}; the best has"
            f" {found.precision:.3f}: see {CALIBRATION}, and lower config.denoise.precision or give positive_above by hand"
        )
    return Thresholds(found.keep_below, found.positive_above if found.positive_above is not None else 1.0)


def _sample(config: MineConfig, dataset: Dataset) -> Asked:
    """Judged queries of the split, so many as the config says, drawn by its seed."""
    split = config.denoise.calibrate_split
    alone = dataclasses.replace(config, split=split, training_set=None, unlabelled=None, positives_by_answer=False)
    asked = gather(alone, dataset, BadRows(config.on_bad_row), need_answers=False)
    names, most = list(asked.queries), config.denoise.calibrate_queries
    drawn = sorted(np.random.default_rng(config.seed).permutation(len(names))[:most].tolist())
    return dataclasses.replace(asked, queries={names[i]: asked.queries[names[i]] for i in drawn})


def _judged_and_presumed(
    dataset: Dataset, asked: Asked, searched: Searched, evidence: Evidence, config: MineConfig, judge: Judge
) -> tuple[Float[np.ndarray, " p"], np.ndarray, Float[np.ndarray, " n"]]:
    """Probabilities of the positives, whether each was retrieved, and probabilities of presumed negatives."""
    rankings = searched.rankings
    numbers, ranks = _joined(list(Chooser(config, asked, searched, evidence, None, config.seed).pairs()))
    judged = [
        (number, rankings.row_of[item])
        for query, number in rankings.number_of.items()
        for item in asked.known[query]
        if item in rankings.row_of
    ]
    pairs = np.array(judged, np.int32).reshape(-1, 2)
    all_numbers = np.concatenate([pairs[:, 0], numbers])
    all_rows = np.concatenate([pairs[:, 1], rankings.rows[numbers, ranks]])
    found = _probabilities(dataset, asked, searched, evidence, all_numbers, all_rows, judge, "mine: calibrating")
    retrieved = np.array([row in rankings.rows[number, : config.hi] for number, row in judged], bool)
    return found[: len(pairs)], retrieved, found[len(pairs) :]


def _write(
    run: Run,
    found: calibration.Calibration,
    positives: Float[np.ndarray, " p"],
    negatives: Float[np.ndarray, " n"],
    counts: dict[str, int],
) -> None:
    denoise: DenoiseConfig = run.config.denoise
    targets = {"false_negative_rate": denoise.false_negative_rate, "precision": denoise.precision}
    report = {"split": denoise.calibrate_split, **calibration.report(found, counts, targets)}
    artifacts.write_json(run.path / CALIBRATION, report)
    artifacts.write_bytes(run.path / PICTURE, calibration.picture(positives, negatives, found))
    above = "no" if found.positive_above is None else f"{found.positive_above:.3g}"
    console.say(
        f"mine: thresholds on {denoise.calibrate_split} ({counts['positives']:,} positives): keep_below {found.keep_below:.3g} loses"
        f" {found.false_negative_rate:.1%} of them and keeps {found.negatives_kept:.1%} of the presumed negatives;"
        f" positive_above {above}, precision at least {found.precision:.1%}"
    )

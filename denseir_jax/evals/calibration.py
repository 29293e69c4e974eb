"""Thresholds for a cross-encoder's probabilities, from judged passages and presumed negatives (Qu et al. 2021 took 0.1 and 0.9).

A retrieved passage without a judgment is only presumed to be a negative: some are positives that nobody judged. So a precision
counted here is a lower bound of the true one. The false-negative rate counts judged positives alone and has no such fault.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from matplotlib.figure import Figure

_NOTE = "presumed negatives are retrieved passages that nobody judged; the precision is a lower bound"


@dataclass(frozen=True)
class Calibration:
    """Thresholds, and what they do on the data that they come from.

    Attributes:
        keep_below: a passage is a negative if its probability is below; never above positive_above. false_negative_rate: share
        of the judged positives that are below it. negatives_kept: share of the presumed negatives that are.
        positive_above: a passage is a positive if its probability is above; None if no threshold is precise enough.
        precision: share of judged positives among the retrieved passages above it, or of the most precise threshold.
        positives_found: share of the retrieved judged positives above it.
    """

    keep_below: float
    false_negative_rate: float
    negatives_kept: float
    positive_above: float | None
    precision: float
    positives_found: float


def calibrate(
    positives: Float[np.ndarray, " p"],
    retrieved: Bool[np.ndarray, " p"],
    negatives: Float[np.ndarray, " n"],
    false_negative_rate: float,
    precision: float,
) -> Calibration:
    """The thresholds that use most passages and keep to both targets.

    Args:
        positives: probabilities of judged positives, and whether each was retrieved; only those count for the precision, since
            only such can be taken for positives. negatives: of presumed negatives.
        false_negative_rate: at most this share of positives may be below keep_below. precision: at least this share of what
            is above positive_above must be judged positive.
    Raises:
        ValueError: no positive.
    """
    if not len(positives):
        raise ValueError("there is no positive to calibrate on")
    below = int(false_negative_rate * len(positives) + 1e-9)  # so many may be lost
    keep_below = 1.0 if below >= len(positives) else float(np.sort(positives)[below])
    above, best = _positive_above(positives[retrieved], negatives, precision)
    if above is not None:
        keep_below = min(keep_below, above)  # a positive is no negative too
    found = float((positives[retrieved] > above).mean()) if above is not None and retrieved.any() else 0.0
    kept = float((negatives < keep_below).mean()) if len(negatives) else 0.0
    return Calibration(keep_below, float((positives < keep_below).mean()), kept, above, best, found)


def _positive_above(positives: Float[np.ndarray, " p"], negatives: Float[np.ndarray, " n"], target: float) -> tuple[float | None, float]:
    """The lowest threshold with at least this precision above it (None: there is none), and its precision, or the best one."""
    positives, negatives = positives[positives > 0], negatives[negatives > 0]  # nothing lies above a threshold below 0
    values = np.concatenate([positives, negatives])
    order = np.argsort(-values, kind="stable")
    values, right = values[order], np.concatenate([np.ones(len(positives)), np.zeros(len(negatives))])[order]
    share = np.cumsum(right) / np.arange(1, len(values) + 1)
    last = np.append(values[1:] < values[:-1], True)[: len(values)]  # equal values cannot be parted
    able = np.flatnonzero(last & (share >= target) & (np.cumsum(right) > 0))
    if not len(able):
        return None, float(share[last].max()) if len(values) else 0.0
    at = int(able[-1])
    # Midway to the next value below, so that neither side stands on the threshold. Between neighbours there is no number: then
    # the lower one, since only what is above a threshold is taken.
    lower = values[at + 1] if at + 1 < len(values) else values.dtype.type(0)
    middle = (values[at] + lower) / 2
    return float(middle if middle < values[at] else lower), float(share[at])


def report(found: Calibration, counts: Mapping[str, int], targets: Mapping[str, float]) -> dict[str, Any]:
    """For ``calibration.json``."""
    return {
        "keep_below": found.keep_below,
        "positive_above": found.positive_above,
        "reached": {
            "false_negative_rate": found.false_negative_rate,
            "negatives_kept": found.negatives_kept,
            "precision": found.precision,
            "positives_found": found.positives_found,
        },
        "targets": dict(targets),
        "counts": dict(counts),
        "note": _NOTE,
    }


def picture(positives: Float[np.ndarray, " p"], negatives: Float[np.ndarray, " n"], found: Calibration) -> bytes:
    """Both distributions and the thresholds as a PNG. The two differ by hatching and dashes, and all is named in words."""
    figure = Figure(figsize=(7.2, 3.6), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    bins = np.linspace(0.0, 1.0, 41)
    judged = (f"judged positives ({len(positives):,})", positives, "#0b3c5d", "-", "////")
    presumed = (f"presumed negatives ({len(negatives):,})", negatives, "#b35900", "--", "....")
    for label, values, colour, dashes, hatch in (judged, presumed):
        shares = np.histogram(values, bins)[0] / max(len(values), 1)
        axes.stairs(shares, bins, fill=True, facecolor="none", edgecolor=colour, alpha=0.35, hatch=hatch, linewidth=0)
        axes.stairs(shares, bins, color=colour, linestyle=dashes, linewidth=1.8, label=label)
    lines = [("keep below", found.keep_below, ":")]
    if found.positive_above is not None:
        lines.append(("positive above", found.positive_above, "-."))
    for name, value, dashes in lines:
        axes.axvline(value, color="black", linestyle=dashes, linewidth=1.4, label=f"{name} {value:.3g}")
    axes.set_xlim(0, 1)
    axes.set_xlabel("probability that the passage answers the query, by the cross-encoder")
    axes.set_ylabel("share of each kind")
    axes.set_title(f"false negatives {found.false_negative_rate:.1%}, precision at least {found.precision:.1%}", fontsize=10)
    figure.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=2)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": None})
    return stream.getvalue()

"""The report as one screen of plain text."""

from collections.abc import Mapping, Sequence
from typing import Any

from denseir_jax.data import lengths
from denseir_jax.data.findings import Finding
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.pipeline.checks.plan import Line


def text(report: Mapping[str, Any], findings: Sequence[Finding], figures: Sequence[Line]) -> str:
    """What was read, what is wrong with it, what training would take, and a verdict."""
    out = [f"{report['source']} holds {report['corpus']['passages']:,} passages"]
    out += _sizes("passages", report["corpus"])
    for name, facts in report.get("splits", {}).items():
        out += _sizes(name, facts)
    if "training_set" in report:
        out += _sizes("training set", report["training_set"])
    for found in findings:
        out.append(f"{'FAULT' if found.fault else 'warning'} {found.count:,} x {found.what}; first: {found.first}")
        out.append(f"        {found.remedy}")
    shape = EncoderConfig(**report["encoder"])
    out.append(f"for {shape.layers} layers of {shape.hidden} (= counted, ~ estimated by the formula; nothing is measured)")
    width = max(len(figure.shown) for figure in figures)
    out += [f"  {figure.name:<15} {'=' if figure.exact else '~'} {figure.shown:>{width}}  {figure.formula}" for figure in figures]
    faults = sum(found.fault for found in findings)
    verdict = "do not train on this yet" if faults else "nothing here stops training"
    if not faults and "splits" in report and all(figure.name != "rows" for figure in figures):
        verdict = "nothing here stops evaluation"
    out.append(f"{faults} kinds of fault, {len(findings) - faults} kinds of warning: {verdict}")
    return "\n".join(out) + "\n"


def _sizes(name: str, facts: Mapping[str, Any]) -> list[str]:
    lines = []
    if "queries" in facts:
        judged = f", {facts['judgments']:,} judgments" if facts["judgments"] else ""
        pools = "".join(f", {count:,} negatives {pool}" for pool, count in facts.get("negatives", {}).items())
        lines.append(f"{name}: {facts['queries']:,} queries with a text, {facts['usable']:,} with a positive in the corpus{judged}{pools}")
    lines += [f"  {unit:<11} {lengths.as_text(facts[unit])}" for unit in ("characters", "tokens") if unit in facts]
    return lines

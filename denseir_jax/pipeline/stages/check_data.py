"""The stage `check_data`: what is wrong with a dataset, all of it at once and before any device is touched.

The other stages stop at the first fault. This one goes on: the corpus is streamed once, and every kind of fault is noted
with its count, its first place and what to do. It ends with exit code 2 if training would be wrong; warnings alone end with 0.
"""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from denseir_jax.core import artifacts
from denseir_jax.core.artifacts import Run
from denseir_jax.core.command import Stage
from denseir_jax.core.config import identity, located
from denseir_jax.core.errors import ConfigError, InputError
from denseir_jax.data import sources
from denseir_jax.data.examples import file_of
from denseir_jax.data.findings import Findings
from denseir_jax.data.records import Dataset, Passage, Qrels
from denseir_jax.data.template import TextTemplate
from denseir_jax.data.tokenizer import Tokenizer, load_tokenizer
from denseir_jax.data.tokens import TokenStore
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.models.sizes import encoder
from denseir_jax.pipeline.checks import judged, passages, plan, screen
from denseir_jax.pipeline.checks.judged import Queries
from denseir_jax.pipeline.checks.passages import Count, Table
from denseir_jax.pipeline.checks.plan import PlanConfig
from denseir_jax.pipeline.stages import standard_input

REPORT, SCREEN = "report.json", "report.txt"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckConfig:
    """What to look at, and the numbers that it is held against.

    Attributes:
        dataset: format:path. corpus: format:path of the passages, where they are not the dataset's own; alone, it is checked
        for pre-training. split: what would be learnt from. training_set: a finished mine or teach run, or a .jsonl file, which
        would be learnt from instead. tokens: a finished prepare run, whose tokenizer and template are taken. tokenizer: or
        a tokenizer (file or folder) to count tokens by; without either, lengths are in characters alone.
        template: lengths in tokens that texts are cut at. encoder, plan: sizes for the estimates.
        on_bad_row: what the other stages will be told: rows that they refuse are faults, rows that they skip are warnings.
    """

    stage: str = "check_data"
    dataset: str = located("")
    corpus: str = located("")
    split: str = "train"
    training_set: str | None = located(None)
    tokens: str | None = located(None)
    tokenizer: str | None = located(None)
    template: TextTemplate = TextTemplate()
    encoder: EncoderConfig = encoder("base")
    plan: PlanConfig = PlanConfig()
    on_bad_row: Literal["error", "skip"] = "error"

    def __post_init__(self) -> None:
        if self.tokens and self.tokenizer:
            raise ValueError("tokens and tokenizer are both given; tokens bring their own tokenizer")


def run_check(run: Run) -> Mapping[str, Any]:
    """Passages, then judgments, then the training set; the report is written before its verdict is given."""
    config: CheckConfig = run.config
    findings = Findings(config.on_bad_row)
    store = TokenStore.open(config.tokens) if config.tokens else None
    template = store.template if store else config.template
    count = _counter(store.tokenizer() if store else load_tokenizer(config.tokenizer) if config.tokenizer else None)
    dataset = _dataset(config, findings)
    table = _passages(config, findings, dataset, template, store, count)
    report: dict[str, Any] = {"source": config.dataset or config.corpus, "corpus": passages.facts(table, template)}
    learnt = None
    if dataset is not None:
        learnt, report["splits"] = _judged(config, findings, dataset, table, template, count, report)
    shape = dataclasses.replace(config.encoder, vocab_size=store.vocab_size) if store else config.encoder
    vectors = int(template.blocks_in(table.tokens - 2).sum()) if len(table.tokens) else len(table) * template.blocks
    figures = plan.lines(config.plan, shape, vectors, learnt.usable if learnt is not None else None, template.blocks)
    report |= {
        "findings": [dataclasses.asdict(found) for found in findings.all()],
        "estimates": [dataclasses.asdict(figure) for figure in figures],
        "encoder": dataclasses.asdict(shape),
    }
    artifacts.write_json(run.path / REPORT, report)
    artifacts.write_text(run.path / SCREEN, screen.text(report, findings.all(), figures))
    faults = [found for found in findings.all() if found.fault]
    if faults:
        _say_now(run.path)
        kinds = f"{len(faults)} kind{'s' if len(faults) > 1 else ''} of fault"
        raise InputError(f"{report['source']}: {kinds}, {sum(found.count for found in faults):,} in all, listed in {run.path / SCREEN}")
    metrics = {
        "faults": 0,
        "warnings": len(findings.all()),
        "passages": len(table),
        **({"rows": learnt.usable} if learnt is not None else {}),
    }
    run.finish(metrics, outputs=[REPORT, SCREEN])
    return metrics


def _dataset(config: CheckConfig, findings: Findings) -> Dataset | None:
    if not config.dataset:
        return None
    with findings.going_on():
        return sources.read_dataset(config.dataset, findings)
    return None


def _counter(tokenizer: Tokenizer | None) -> Count | None:
    if tokenizer is None:
        return None

    def count(texts: Sequence[str]) -> list[int]:
        return [len(encoded.ids) + 2 for encoded in tokenizer.encode_batch(texts)]  # [CLS] and [SEP]

    return count


def _passages(
    config: CheckConfig, findings: Findings, dataset: Dataset | None, template: TextTemplate, store: TokenStore | None, count: Count | None
) -> Table:
    if config.corpus:
        corpus = sources.read_corpus(config.corpus, findings)
    else:
        corpus = dataset.corpus() if dataset is not None else iter(tuple[Passage]())
    table = passages.read(corpus, findings, template, None if store else count)
    if not len(table):
        findings.note("corpus without passages", config.corpus or config.dataset, "see the faults above", fault=True)
    if store is not None:
        table.add_tokens((store.offsets[1:] - store.offsets[:-1] + 2).tolist())
        _note_other_tokens(config, findings, table, store)
    return table


def _note_other_tokens(config: CheckConfig, findings: Findings, table: Table, store: TokenStore) -> None:
    """Tokens must be of this corpus: training looks its ids up in them."""
    rows = table.rows(store.ids)
    there = len(set(rows[rows >= 0].tolist()))
    for number, what in ((len(table) - there, "passage that the tokens lack"), (int((rows < 0).sum()), "passage of the tokens only")):
        if number:
            remedy = "run prepare again, on this corpus"
            findings.note(what, f"{config.tokens}: {store.n_documents:,} documents", remedy, fault=True, count=number)


def _judged(
    config: CheckConfig,
    findings: Findings,
    dataset: Dataset,
    table: Table,
    template: TextTemplate,
    count: Count | None,
    report: dict[str, Any],
) -> tuple[Queries | None, dict[str, Any]]:
    """Every split, and the training set; what would be learnt from, if anything, and the splits' facts."""
    splits, qrels, facts, looked_at = dict[str, Queries](), Qrels(), dict[str, Any](), set[int]()
    for split in dataset.splits:
        trains = split == config.split and not config.training_set
        splits[split], judgments = judged.read_split(findings, dataset, split, table, template, count, trains, looked_at)
        facts[split] = splits[split].facts(template)
        qrels |= judgments if split == config.split else {}
    learnt = splits.get(config.split)
    if config.training_set:
        learnt = Queries("training set", True)
        with findings.going_on():
            path = file_of(config.training_set)
            learnt, report["training_set"] = judged.read_training_set(findings, path, table, qrels, template, count, looked_at)
            report["training_set"] |= learnt.facts(template)
    if learnt is None:
        first = f"there are {', '.join(dataset.splits) or 'none'}"
        findings.note(f"split {config.split!r} missing", first, "nothing can be learnt from this dataset; it can be evaluated", fault=False)
        return None, facts
    if not learnt.usable:
        first = f"of {len(learnt.characters):,} queries of {learnt.name}"
        findings.note("nothing to learn from", first, "a query needs a text, and a positive that the corpus has", fault=True)
    elif config.plan.group_size > 1:
        most = max((sum(grade > 0 for grade in judgments.values()) for judgments in qrels.values()), default=1)
        _note_few_texts(findings, table, most + config.plan.group_size - 1)
    judged.note_overlap(findings, learnt, [other for name, other in splits.items() if name != config.split])
    return learnt, facts


def _note_few_texts(findings: Findings, table: Table, need: int) -> None:
    """A group holds a text once, and no negative that answers its query."""
    texts = len(np.unique(table.keys[table.keys != passages.NO_TEXT]))
    if texts < need:
        first = f"{texts:,} different texts; a query with its positives and negatives needs {need:,}"
        findings.note("corpus too small for groups", first, "take a smaller group_size, or a larger corpus", fault=True)


def _say_now(workdir: Path) -> None:
    """Show what a finished run would show. A reader who has left does not make the data right."""
    try:
        show(workdir)
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError):
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # or the interpreter complains once more when it ends


def inputs(config: CheckConfig) -> dict[str, str | Path]:
    """All that is read, for the run's record."""
    if not config.dataset and not config.corpus:
        raise ConfigError("nothing to check; expected --config.dataset=format:path or --config.corpus=format:path")
    if config.training_set and not config.dataset:
        raise ConfigError("config.training_set is held against config.dataset, its corpus and judgments; expected both")
    found: dict[str, str | Path] = {
        name: sources.identity(getattr(config, name)) for name in ("dataset", "corpus") if getattr(config, name)
    }
    found |= {name: Path(getattr(config, name)) for name in ("training_set", "tokens") if getattr(config, name)}
    if config.tokenizer:
        found["tokenizer"] = "sha256:" + load_tokenizer(config.tokenizer).sha256
    return found


def default_workdir(config: CheckConfig) -> Path:
    """``runs/check_data-<hash>``, one for each config and content of its inputs."""
    found = {n: str(v) if str(v).startswith("sha256:") else artifacts.content_sha256(Path(v)) for n, v in inputs(config).items()}
    return Path("runs") / f"check_data-{artifacts.json_sha256([identity(config), found])[:12]}"


def show(workdir: Path) -> None:
    """The report on standard output."""
    print((workdir / SCREEN).read_text(encoding="utf-8"), end="")


stage = Stage(
    name="check_data",
    config=CheckConfig,
    run=run_check,
    inputs=inputs,
    summary="Check a dataset before training: every kind of fault with its count, its first place and what to do; sizes and estimates.",
    complete=lambda run: not standard_input.comes_from_it(run.config.corpus),  # nobody knows whether it is the same again
    workdir=default_workdir,
    show=show,
)

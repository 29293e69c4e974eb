"""Every pre-training system from the same start, for the same number of tokens, then fine-tuned and measured alike.

    python benchmarks/pretraining.py --workdir runs/pretraining [--second beir:FOLDER] [--stop_after base]

From random weights each of them would sit on the plateau of word frequencies for longer than it takes to compare them, and
Condenser, coCondenser and RetroMAE start from BERT anyway. So one small MLM is trained first (the base, on the demo corpus
and the documentation strings of awscli, by path), every system branches from it, with continued MLM as the control, and each
is fine-tuned with [CLS] and with mean pooling on every task. All of it goes on where it stopped; the table is written to
benchmarks/results/pretraining_SIZE.json. --size gpu is the same at a size for an accelerator.
"""

import argparse
import dataclasses
import hashlib
import html
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from links import RESULTS, Links, at_least, card_config, run

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError
from denseir_jax.data.demo import Demo
from denseir_jax.data.template import TextTemplate
from denseir_jax.data.tokens import TokenStore
from denseir_jax.evals.evaluation import PER_QUERY, read_per_query
from denseir_jax.evals.table import as_json, as_text, make_table
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.objectives.masking import MaskConfig
from denseir_jax.objectives.mlm import MlmConfig
from denseir_jax.pipeline import chain
from denseir_jax.pipeline.stages import training
from denseir_jax.pipeline.stages.evaluate import EvaluateConfig
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.pipeline.stages.pretrain import PretrainConfig
from denseir_jax.train.loop import Cadence
from denseir_jax.train.optimizer import OptimizerConfig

CONTROL = "mlm"
SYSTEMS = (
    CONTROL,
    "condenser",
    "cocondenser",
    "seed",
    "optimus",
    "retromae_basic",
    "retromae",
    "dupmae",
    "cot_mae",
    "simlm",
    "lexmae",
    "bag_of_words",
    "ict",
)
POOLINGS = ("cls", "mean")
MEASURES = ("RR@10", "nDCG@10", "R@100")
VOCABULARY, LENGTH, RIVALS = 8192, 64, 2


class Size(NamedTuple):
    """layers, hidden, intermediate: of the encoder. rows: texts a step. base, branch, tune: steps. queries: a fine-tuning step."""

    layers: int
    hidden: int
    intermediate: int
    rows: int
    base: int
    branch: int
    tune: int
    queries: int


SIZES = {
    "cpu": Size(3, 256, 1024, rows=64, base=3000, branch=150, tune=40, queries=32),
    "gpu": Size(4, 384, 1536, rows=256, base=2000, branch=100, tune=60, queries=64),
    "smoke": Size(2, 32, 64, rows=8, base=4, branch=2, tune=2, queries=4),
}


def documentation() -> Iterator[tuple[str, str]]:
    """(id, text) of the documentation strings of awscli's service descriptions, mark-up removed, each once.

    Raises:
        InputError: the package is missing.
    """
    spec = importlib.util.find_spec("awscli")  # found, not imported
    if spec is None or spec.origin is None:
        raise InputError("the benchmark's second corpus comes with the package awscli: pip install 'denseir_jax[bench]'")
    seen: set[str] = set()
    for path in sorted((Path(spec.origin).parent / "botocore" / "data").rglob("service-2.json")):
        for text in _strings(json.loads(path.read_text(encoding="utf-8"))):
            plain = re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", text))).strip()
            if len(plain) >= 60 and plain not in seen:
                seen.add(plain)
                yield "aws-" + hashlib.sha1(plain.encode("utf-8"), usedforsecurity=False).hexdigest()[:16], plain


def _strings(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "documentation" and isinstance(value, str):
                yield value
            else:
                yield from _strings(value)
    elif isinstance(node, list):
        for value in node:
            yield from _strings(value)


def write_corpus(path: Path) -> None:
    """The demo's passages and the documentation strings, as JSON lines."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with artifacts.new_file(path) as temporary, open(temporary, "w", encoding="utf-8") as stream:
        texts = [(passage.id, passage.text) for passage in Demo().corpus()]
        for id, text in [*texts, *documentation()]:
            stream.write(json.dumps({"_id": id, "text": text}) + "\n")


def encoder(size: Size) -> EncoderConfig:
    shape = EncoderConfig(VOCABULARY, size.hidden, size.layers, heads=4, intermediate=size.intermediate, max_length=128)
    return dataclasses.replace(shape, dropout=0.0, attention_dropout=0.0)


def prepared(links: Links, corpus: str, tasks: dict[str, str]) -> None:
    """The tokens of the corpus as blocks and as spans, and of every task, by one tokenizer; BM25 negatives of every task."""
    template = TextTemplate(query_length=32, passage_length=LENGTH)
    blocks = PrepareConfig(corpus=corpus, vocab_size=VOCABULARY, split="blocks", block_length=LENGTH, template=template)
    links.run("blocks", blocks)
    spoken = dataclasses.replace(blocks, tokenizer="@blocks")
    links.run("spans", dataclasses.replace(spoken, split="spans", span_tokens=32, span_minimum=8))
    links.run("documents", dataclasses.replace(spoken, split="none"))
    for task, dataset in tasks.items():
        short = TextTemplate(query_length=20, passage_length=40, use_title=False)
        links.run(f"tokens_{task}", dataclasses.replace(spoken, split="none", corpus=dataset, template=short))
        links.run(f"negatives_{task}", MineConfig(dataset=dataset, retriever="bm25", depth=50, hi=50, n=10))


def base(links: Links, size: Size, steps: int) -> None:
    """The MLM from which every system branches. Its rate is constant after the warm-up, so that it can be trained longer."""
    config = PretrainConfig(
        tokens="@blocks",
        steps=steps,
        batch_size=size.rows,
        objective=MlmConfig(mask=MaskConfig(rate=0.2)),
        encoder=encoder(size),
        optimizer=OptimizerConfig(lr=7e-4, schedule="constant", warmup=300.0, b2=0.98),
        cadence=Cadence(log=50, save=250, probe=1000),
    )
    links.run("base", config)


def settings(system: str, size: Size) -> PretrainConfig:
    """A system trained on from the base. Of pairs of texts half as many rows make a step; `branch` sees to equal tokens."""
    objective = card_config(f"pretrain/{system}", "tiny").objective
    pairs = getattr(objective, "pairs", None) is not None
    return PretrainConfig(
        tokens="@spans" if pairs else "@documents" if system == "ict" else "@blocks",
        init_from="run:@base",
        steps=size.branch,
        batch_size=max(size.rows // 2, 2) if pairs or system == "ict" else size.rows,
        objective=objective,
        encoder=encoder(size),
        optimizer=OptimizerConfig(lr=3e-4, b2=0.98),
        cadence=Cadence(log=20, save=100, probe=100),
    )


def tokens_a_step(links: Links, config: PretrainConfig) -> float:
    """Real tokens, [CLS] and [SEP] among them, that a step reads: the mean over the first 2,048 rows."""
    store = TokenStore.open(Path(chain.resolved(config, links.names, {}).tokens))
    objective = config.objective.build(training.context(config, store, store.tokenizer(), None))
    rows = objective.rows(store).rows(np.arange(2048))
    return sum(float(rows[name].sum()) for name in objective.fields() if name.endswith("length")) / 2048 * config.batch_size


def branch(links: Links, system: str, size: Size, seed: int) -> str:
    """Train a system on from the base, for as many tokens as the control's `size.branch` steps have."""
    config, name = settings(system, size), f"{system}_{seed}"
    share = tokens_a_step(links, settings(CONTROL, size)) / tokens_a_step(links, config)
    links.run(name, dataclasses.replace(config, steps=round(size.branch * share)), seed)
    return name


def measured(links: Links, start: str, label: str, task: str, dataset: str, pooling: Any, size: Size, seed: int) -> Path:
    """Fine-tune on a task and evaluate on its test split; the folder of the values."""
    embedder = EmbedderConfig(pooling=pooling, normalize=True)
    tune = FinetuneConfig(
        dataset=dataset,
        tokens=f"@tokens_{task}",
        training_set=f"@negatives_{task}",
        init_from=f"run:@{start}",
        steps=size.tune,
        batch_size=size.queries,
        objective=ContrastiveConfig(group_size=2, temperature=0.05, similarity="cosine", symmetric=True),
        encoder=encoder(size),
        embedder=embedder,
        optimizer=OptimizerConfig(lr=3e-4, b2=0.98),
        cadence=Cadence(log=10, save=0, probe=0),
    )
    name = f"{label}_{task}_{pooling}"
    links.run(name, tune, seed)
    return links.run(f"{name}_test", EvaluateConfig(dataset=dataset, retriever=f"run:@{name}"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--size", choices=SIZES, default="cpu")
    parser.add_argument("--second", default="", help="a second task, as format:path with the splits train and test")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="those to compare; the control is always among them")
    parser.add_argument("--base_steps", type=at_least(0), default=0, help="of the base; 0: as the size says")
    parser.add_argument("--rivals", type=at_least(0), default=RIVALS, help="so many of the best, and the control, get two more seeds")
    parser.add_argument("--stop_after", choices=("base", "branches"), default="")
    options = parser.parse_args()
    size, systems = SIZES[options.size], list(dict.fromkeys([CONTROL, *filter(None, options.systems.split(","))]))
    if unknown := sorted(set(systems) - set(SYSTEMS)):
        raise InputError(f"--systems: {unknown[0]!r} is none of {', '.join(SYSTEMS)}")
    tasks = {"demo": "demo:"} | ({"second": options.second} if options.second else {})
    links = Links(options.workdir, {"init_from": None})
    corpus = links.folder / "corpus.jsonl"
    write_corpus(corpus)
    prepared(links, f"jsonl:{corpus}", tasks)
    base(links, size, options.base_steps or size.base)
    if options.stop_after == "base":
        return
    compare(links, systems, tasks, size, options)


def compare(links: Links, systems: list[str], tasks: dict[str, str], size: Size, options: argparse.Namespace) -> None:
    """One seed for all, three for the control and the rivals closest by [CLS] pooling; tables by task and pooling."""
    branches = {system: branch(links, system, size, 0) for system in systems}
    if options.stop_after == "branches":
        return
    tables: dict[str, Any] = {}
    found: dict[str, dict[str, Path]] = {}
    for task, dataset in tasks.items():
        bm25 = links.run(f"bm25_{task}_test", EvaluateConfig(dataset=dataset, retriever="bm25"))
        for pooling in POOLINGS:
            folders = {"BM25": bm25, "base": measured(links, "base", "base", task, dataset, pooling, size, 0)}
            folders |= {s: measured(links, branches[s], s, task, dataset, pooling, size, 0) for s in systems}
            table = make_table({s: read_per_query(f / PER_QUERY) for s, f in folders.items()}, MEASURES, baseline=CONTROL)
            print(f"\n{task}, {pooling} pooling\n{as_text(table)}", flush=True)
            tables[f"{task}/{pooling}"] = as_json(table)
            found[f"{task}/{pooling}"] = folders
    score = {s: sum(_mean(found[f"{task}/cls"][s], "nDCG@10") for task in tasks) for s in systems}
    rivals = [CONTROL, *sorted(set(systems) - {CONTROL}, key=lambda s: -score[s])[: options.rivals]]
    result = {
        "what": "one MLM base, every system branched from it for equal tokens, then the same fine-tuning; baseline: continued MLM",
        "size": options.size,
        "sizes": size._asdict(),
        "tokens": round(tokens_a_step(links, settings(CONTROL, size)) * size.branch),
        "base": artifacts.read_json(links.folder / "base" / "metrics.json"),
        "branches": {s: artifacts.read_json(links.folder / name / "metrics.json") for s, name in branches.items()},
        "versions": artifacts.versions(),
        "tables": tables,
    }
    trial = options.size == "smoke" or not options.second or options.base_steps or options.rivals < RIVALS or set(systems) != set(SYSTEMS)
    path = (links.folder if trial else RESULTS) / f"pretraining_{options.size}.json"
    artifacts.write_json(path, result)
    spread = {f"{task}/cls": seeds(links, rivals, found[f"{task}/cls"], task, dataset, size) for task, dataset in tasks.items()}
    artifacts.write_json(path, result | {"seeds": spread})


def seeds(links: Links, rivals: list[str], folders: dict[str, Path], task: str, dataset: str, size: Size) -> dict[str, list[float]]:
    """nDCG@10 of the control and its closest rivals, [CLS] pooling, over three seeds of branch and fine-tuning."""
    found: dict[str, list[float]] = {}
    for system in rivals:
        values = [_mean(folders[system], "nDCG@10")]
        for seed in (1, 2):
            name = branch(links, system, size, seed)
            values.append(_mean(measured(links, name, f"{system}_s{seed}", task, dataset, "cls", size, seed), "nDCG@10"))
        found[system] = values
        print(f"{task}, [CLS] pooling, {system}: nDCG@10 by seed {', '.join(f'{value:.4f}' for value in values)}", flush=True)
    return found


def _mean(folder: Path, measure: str) -> float:
    return float(artifacts.read_json(folder / "metrics.json")[measure])


if __name__ == "__main__":
    run(main)

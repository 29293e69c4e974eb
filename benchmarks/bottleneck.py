"""Does a weak decoder rely on the vector? The signature experiment of SEED-Encoder and RetroMAE, at equal steps.

    python benchmarks/bottleneck.py --workdir runs/bottleneck [--steps 400] [--long_steps 80] [--seeds 3]

Small models are trained from scratch on the extracts of the demo corpus. Then, on extracts not trained on, every decoder's cross
entropy with the true [CLS] vector is compared with that of another text: the nats a token that the vector carries. As BERT's were,
the last steps are of 512 tokens (eight extracts joined), for the second measure: the mean cosine between the [CLS] vectors of
different texts, by length. Writes benchmarks/results/bottleneck.json and .png. Goes on where it stopped.
"""

import argparse
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import matplotlib
import numpy as np
from links import RESULTS, Links, at_least, card_config, run

from denseir_jax.analyses import bottleneck
from denseir_jax.core import artifacts
from denseir_jax.data.batches import frame
from denseir_jax.data.demo import Demo
from denseir_jax.data.template import TextTemplate
from denseir_jax.data.tokens import TokenStore
from denseir_jax.evals.significance import bootstrap_interval
from denseir_jax.models.decoders import DecoderConfig
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.objectives.base import Context
from denseir_jax.objectives.seed import SeedConfig
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.pipeline.stages.pretrain import PretrainConfig
from denseir_jax.train import warm_start
from denseir_jax.train.loop import Cadence
from denseir_jax.train.optimizer import OptimizerConfig
from denseir_jax.train.state import nested

matplotlib.use("Agg")
import matplotlib.pyplot as plt

LENGTHS = (16, 32, 64, 128, 256, 512)
VOCABULARY = 4096
SHORT, LONGEST, TOKENS = 128, 512, 1024  # TOKENS: of a step, whatever the length of its rows
STEPS, LONG_STEPS, SEEDS = 400, 80, 3
HELD_OUT = 10  # one text of so many


def systems() -> dict[str, Any]:
    """Label -> objective; SEED's masks and weights are those of its card."""
    found: dict[str, Any] = {}
    for layers in (3, 12):
        for window, shown in ((2, "k=2"), (None, "k=inf")):
            found[f"SEED {shown}, {layers} layers"] = SeedConfig(decoder=DecoderConfig(layers, window))
    for label, card in (("RetroMAE basic", "retromae_basic"), ("RetroMAE enhanced", "retromae"), ("Condenser", "condenser")):
        found[label] = card_config(f"pretrain/{card}", "tiny").objective
    return found


def write_corpora(folder: Path) -> None:
    """The extracts, and the same joined by eight; every tenth text is kept for measuring."""
    extracts = [passage.text for passage in Demo().corpus()]
    joined = [" ".join(extracts[i : i + 8]) for i in range(0, len(extracts), 8)]
    for name, texts in (("short", extracts), ("long", joined)):
        for path, rest in ((folder / f"{name}.jsonl", False), (folder / f"{name}_held_out.jsonl", True)):
            if not path.exists():
                kept = [(n, text) for n, text in enumerate(texts) if (n % HELD_OUT == 0) is rest]
                artifacts.write_text(path, "".join(json.dumps({"_id": f"t{n}", "text": text}) + "\n" for n, text in kept))


def prepared(links: Links) -> tuple[TokenStore, TokenStore]:
    """Tokens of both corpora by one tokenizer; returns those kept for measuring, short and long."""
    links.folder.mkdir(parents=True, exist_ok=True)
    write_corpora(links.folder)
    kept: list[TokenStore] = []
    for name, length, split in (("short", SHORT, "none"), ("long", LONGEST, "blocks")):
        config = PrepareConfig(
            corpus=f"jsonl:{links.folder / name}.jsonl",
            vocab_size=VOCABULARY,
            split=split,
            block_length=length,
            short_share=0.5 if split == "blocks" else 0.0,  # so that every length is trained on
            template=TextTemplate(query_length=32, passage_length=length),
        )
        links.run(name, config if name == "short" else dataclasses.replace(config, tokenizer="@short"))
        texts = f"jsonl:{links.folder / name}_held_out.jsonl"
        held_out = dataclasses.replace(config, corpus=texts, tokenizer="@short", short_share=0.0)
        kept.append(TokenStore.open(links.run(f"{name}_held_out", held_out)))
    return kept[0], kept[1]


def shape() -> EncoderConfig:
    sizes = EncoderConfig(VOCABULARY, hidden=128, layers=4, heads=4, intermediate=512, max_length=LONGEST)
    return dataclasses.replace(sizes, dropout=0.0, attention_dropout=0.0, scan=True)


def train(links: Links, label: str, objective: Any, steps: int, long_steps: int, seed: int) -> tuple[Path, Path]:
    """From scratch on short texts, then on long ones; the two runs."""
    name = "".join(c if c.isalnum() else "_" for c in label) + f"_{seed}"
    config = PretrainConfig(
        tokens="@short",
        steps=steps,
        batch_size=TOKENS // SHORT,
        objective=objective,
        encoder=shape(),
        optimizer=OptimizerConfig(lr=1e-3, b2=0.98),
        cadence=Cadence(log=20, save=200, probe=0),
    )
    short = links.run(name, config, seed)
    on = dataclasses.replace(config, tokens="@long", steps=long_steps, batch_size=TOKENS // LONGEST, init_from=f"run:@{name}")
    return short, links.run(f"{name}_long", dataclasses.replace(on, optimizer=OptimizerConfig(lr=3e-4, b2=0.98)), seed)


def batches(objective: Any, store: TokenStore, count: int, rows: int) -> Iterator[dict[str, np.ndarray]]:
    source = objective.rows(store)
    for start in range(0, count, rows):
        read = source.rows(np.arange(start, start + rows))
        yield {name: read[name] for name in objective.fields()}


def weights(run: Path) -> Any:
    start = warm_start.load(f"run:{run}")
    assert start is not None
    return jax.tree.map(jax.numpy.asarray, nested(dict(start.leaves)))


def by_length(encoder: EncoderConfig, params: Any, store: TokenStore) -> dict[int, float]:
    """Mean pairwise cosine of [CLS] for windows of the held-out texts, by tokens with [CLS] and [SEP]."""
    special, found = store.special_ids, {}
    longest = np.flatnonzero(np.diff(store.offsets) >= LONGEST)[:64]
    for length in LENGTHS:
        room = length - 2
        window = store.window(store.offsets[longest], np.full(len(longest), room), room)
        ids, real = frame(window.ids, np.full(len(longest), room), special.cls, special.sep, special.pad)
        found[length] = bottleneck.cls_cosine(encoder, params, ids, real)
    return found


def measure(runs: tuple[Path, Path], objective: Any, short: TokenStore, long: TokenStore, seed: int) -> dict[str, Any]:
    """What the vector carries, by the model of short texts; the cosines, by the one that knows every length."""
    tokenizer = short.tokenizer()
    context = Context(
        *(shape(), EmbedderConfig(), tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.mask_id, tokenizer.vocab_size),
        *(32, SHORT, seed),
        unk_id=tokenizer.unk_id,
    )
    built = objective.build(context)
    carried = bottleneck.nats_carried(built, weights(runs[0]), batches(built, short, 512, 16))
    low, high = bootstrap_interval(carried.nats)
    return {
        "true": float(carried.true.mean()),
        "shuffled": float(carried.shuffled.mean()),
        "zero": float(carried.zero.mean()),
        "nats": float(carried.nats.mean()),
        "interval": [low, high],
        "cosine": by_length(shape(), weights(runs[1])["encoder"], long),
    }


def draw(results: dict[str, list[dict[str, Any]]], path: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    labels = list(results)
    values = [[run["nats"] for run in results[label]] for label in labels]
    left.barh(labels, [np.mean(v) for v in values], color="0.75")
    for place, seeds in enumerate(values):
        left.plot(seeds, [place] * len(seeds), "k.", markersize=5)
    left.invert_yaxis()
    left.set_xlabel("nats a token carried by the vector (shuffled - true); dots: seeds")
    for number, label in enumerate(labels):
        curve = [np.mean([run["cosine"][length] for run in results[label]]) for length in LENGTHS]
        right.plot(LENGTHS, curve, marker="osv^D*P"[number], label=label)
    right.set_xscale("log", base=2)
    right.set_xticks(LENGTHS, [str(length) for length in LENGTHS])
    right.set_xlabel("tokens")
    right.set_ylabel("mean cosine between [CLS] vectors")
    right.legend(fontsize=7)
    figure.savefig(path, dpi=130)


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """A line a system: cross entropies and nats over the seeds, cosines of the shortest and the longest texts."""
    lines = [f"{'':<22}   true  another's    nats  by seed{'':<18} cosine at {LENGTHS[0]:>4}  at {LENGTHS[-1]:>4}"]
    for label, runs in results.items():
        true, other, nats = (np.mean([run[key] for run in runs]) for key in ("true", "shuffled", "nats"))
        seeds = " ".join(f"{run['nats']:+.4f}" for run in runs)
        ends = [np.mean([run["cosine"][length] for run in runs]) for length in (LENGTHS[0], LENGTHS[-1])]
        lines.append(f"{label:<22} {true:6.3f} {other:10.3f} {nats:+7.4f}  {seeds:<25} {ends[0]:13.3f} {ends[1]:8.3f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--steps", type=at_least(1), default=STEPS)
    parser.add_argument("--long_steps", type=at_least(1), default=LONG_STEPS)
    parser.add_argument("--seeds", type=at_least(1), default=SEEDS)
    options = parser.parse_args()
    links = Links(options.workdir, {"init_from": None})
    short, long = prepared(links)
    results: dict[str, list[dict[str, Any]]] = {label: [] for label in systems()}
    for seed in range(options.seeds):
        for label, objective in systems().items():
            runs = train(links, label, objective, options.steps, options.long_steps, seed)
            results[label].append(measure(runs, objective, short, long, seed))
            print(f"seed {seed}  {label:<22} {results[label][-1]['nats']:+.4f} nats a token", flush=True)
    print(table(results))
    chosen = (options.steps, options.long_steps, options.seeds)
    folder = RESULTS if chosen == (STEPS, LONG_STEPS, SEEDS) else links.folder  # a trial leaves the kept result alone
    kept = {"steps": options.steps, "long_steps": options.long_steps, "versions": artifacts.versions(), "systems": results}
    artifacts.write_json(folder / "bottleneck.json", kept)
    draw(results, folder / "bottleneck.png")


if __name__ == "__main__":
    run(main)

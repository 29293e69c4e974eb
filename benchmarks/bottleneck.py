"""Does a weak decoder rely on the vector? The signature experiment of SEED-Encoder and RetroMAE, at equal steps.

    python benchmarks/bottleneck.py --workdir runs/bottleneck [--steps 300] [--long_steps 60] [--seeds 2]

Every system starts from one small MLM of the demo's extracts (from scratch all of them sit on the plateau of word frequencies for
longer than this takes) and is trained for equal steps. Then, on extracts not trained on, every decoder's cross entropy with the
true [CLS] vector is compared with that of another text: the nats a token that the vector carries. As BERT's were, the last steps
are of 512 tokens (eight extracts joined), for the second measure: the mean cosine between the [CLS] vectors of different texts, by
length. Writes benchmarks/results/bottleneck.json and .png. Goes on where it stopped.
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
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.objectives.masking import MaskConfig
from denseir_jax.objectives.mlm import MlmConfig
from denseir_jax.objectives.seed import SeedConfig
from denseir_jax.pipeline.stages import training
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
BASE_STEPS, STEPS, LONG_STEPS, SEEDS = 1500, 300, 60, 2
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
    """The extracts, every tenth of them kept for measuring, and either kind joined by eight."""
    extracts = [passage.text for passage in Demo().corpus()]
    for end, rest in (("", False), ("_held_out", True)):
        short = [(n, text) for n, text in enumerate(extracts) if (n % HELD_OUT == 0) is rest]
        joined = [(short[i][0], " ".join(text for _, text in short[i : i + 8])) for i in range(0, len(short), 8)]
        for path, texts in ((folder / f"short{end}.jsonl", short), (folder / f"long{end}.jsonl", joined)):
            if not path.exists():
                artifacts.write_text(path, "".join(json.dumps({"_id": f"t{n}", "text": text}) + "\n" for n, text in texts))


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


def settings(objective: Any, steps: int, length: int, rate: float, init_from: str | None) -> PretrainConfig:
    return PretrainConfig(
        tokens="@short" if length == SHORT else "@long",
        init_from=init_from,
        steps=steps,
        batch_size=TOKENS // length,
        objective=objective,
        encoder=shape(),
        optimizer=OptimizerConfig(lr=rate, b2=0.98),
        cadence=Cadence(log=20, save=200, probe=0),
    )


def base(links: Links, steps: int) -> Path:
    """The MLM that all start from. Its rate is constant after the warm-up, so that it can be trained longer."""
    config = settings(MlmConfig(mask=MaskConfig(rate=0.2)), steps, SHORT, 1e-3, None)
    steady = OptimizerConfig(lr=1e-3, b2=0.98, schedule="constant", warmup=150.0)
    return links.run("base", dataclasses.replace(config, batch_size=2 * config.batch_size, optimizer=steady))


def train(links: Links, label: str, objective: Any, steps: int, long_steps: int, seed: int) -> tuple[Path, Path]:
    """On short texts, then on long ones; the two runs."""
    name = "".join(c if c.isalnum() else "_" for c in label) + f"_{seed}"
    short = links.run(name, settings(objective, steps, SHORT, 1e-3, "run:@base"), seed)
    return short, links.run(f"{name}_long", settings(objective, long_steps, LONGEST, 3e-4, f"run:@{name}"), seed)


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
    config = dataclasses.replace(settings(objective, STEPS, SHORT, 1e-3, None), seed=seed)
    built = objective.build(training.context(config, short, short.tokenizer(), None))
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
    for place, label in enumerate(labels):
        for shift, found in zip(np.linspace(-0.2, 0.2, len(values[place])), results[label], strict=True):
            left.plot(found["interval"], [place + shift] * 2, "k-", linewidth=1)
            left.plot(found["nats"], place + shift, "k.", markersize=5)
    left.invert_yaxis()
    left.set_xlabel(
        "nats a token carried by the vector (shuffled - true)\nbar: mean; dots: seeds, with 95% intervals over batches of texts"
    )
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
    """Cross entropies and nats a token of every system, with the interval of every seed; then the cosines by length."""
    width = max(map(len, results))
    lines = [f"{'decoder cross entropy':<{width}}   true  another's     nats  by seed, with 95% intervals over batches of texts"]
    for label, runs in results.items():
        true, other, nats = (np.mean([run[key] for run in runs]) for key in ("true", "shuffled", "nats"))
        seeds = "  ".join("{:+.4f} [{:+.4f}, {:+.4f}]".format(run["nats"], *run["interval"]) for run in runs)
        lines.append(f"{label:<{width}} {true:6.3f} {other:10.3f}  {nats:+7.4f}  {seeds}")
    lines += ["", f"{'cosine of [CLS] at':<{width}} " + "".join(f"{length:>7}" for length in LENGTHS)]
    for label, runs in results.items():
        means = [np.mean([run["cosine"][length] for run in runs]) for length in LENGTHS]
        lines.append(f"{label:<{width}} " + "".join(f"{mean:7.3f}" for mean in means))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--base_steps", type=at_least(1), default=BASE_STEPS)
    parser.add_argument("--steps", type=at_least(1), default=STEPS)
    parser.add_argument("--long_steps", type=at_least(1), default=LONG_STEPS)
    parser.add_argument("--seeds", type=at_least(1), default=SEEDS)
    options = parser.parse_args()
    links = Links(options.workdir, {"init_from": None})
    short, long = prepared(links)
    started = artifacts.read_json(base(links, options.base_steps) / "metrics.json")
    results: dict[str, list[dict[str, Any]]] = {label: [] for label in systems()}
    for seed in range(options.seeds):
        for label, objective in systems().items():
            runs = train(links, label, objective, options.steps, options.long_steps, seed)
            results[label].append(measure(runs, objective, short, long, seed))
            print(f"seed {seed}  {label:<22} {results[label][-1]['nats']:+.4f} nats a token", flush=True)
    print(table(results))
    chosen = {"base_steps": options.base_steps, "steps": options.steps, "long_steps": options.long_steps, "seeds": options.seeds}
    folder = RESULTS if tuple(chosen.values()) == (BASE_STEPS, STEPS, LONG_STEPS, SEEDS) else links.folder  # a trial is not kept
    artifacts.write_json(folder / "bottleneck.json", {**chosen, "base": started, "versions": artifacts.versions(), "systems": results})
    draw(results, folder / "bottleneck.png")


if __name__ == "__main__":
    run(main)

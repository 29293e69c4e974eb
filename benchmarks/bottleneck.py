"""Does a weak decoder rely on the vector? The signature experiment of SEED-Encoder and RetroMAE, at equal steps.

    python benchmarks/bottleneck.py --workdir runs/bottleneck [--steps 600] [--seeds 3]

Small models are trained from scratch on the demo corpus, its extracts joined to texts of up to 512 tokens. Then, on texts not
trained on, every decoder's cross entropy with the true [CLS] vector is compared with that of another text: the nats a token that
the vector carries. Beside it, the mean cosine between the [CLS] vectors of different texts, by length. Writes
benchmarks/results/bottleneck.json and .png. Goes on where it stopped.
"""

import argparse
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
VOCABULARY, LONGEST, ROWS = 4096, 512, 4
STEPS, SEEDS = 600, 3
HELD_OUT = 10  # one joined text of so many


def systems() -> dict[str, Any]:
    """Label -> objective; SEED's masks and weights are those of its card."""
    found: dict[str, Any] = {}
    for layers in (3, 12):
        for window, shown in ((2, "k=2"), (None, "k=inf")):
            found[f"SEED {shown}, {layers} layers"] = SeedConfig(decoder=DecoderConfig(layers, window))
    for label, card in (("RetroMAE basic", "retromae_basic"), ("RetroMAE enhanced", "retromae"), ("Condenser", "condenser")):
        found[label] = card_config(f"pretrain/{card}", "tiny").objective
    return found


def write_corpora(folder: Path) -> tuple[Path, Path]:
    """Extracts joined by eight to long texts; every tenth of these is kept for measuring."""
    train, held_out = folder / "train.jsonl", folder / "held_out.jsonl"
    if not held_out.exists():
        folder.mkdir(parents=True, exist_ok=True)
        extracts = [passage.text for passage in Demo().corpus()]
        joined = [" ".join(extracts[i : i + 8]) for i in range(0, len(extracts), 8)]
        for path, rest in ((train, False), (held_out, True)):
            kept = [(n, text) for n, text in enumerate(joined) if (n % HELD_OUT == 0) is rest]
            artifacts.write_text(path, "".join(json.dumps({"_id": f"t{n}", "text": text}) + "\n" for n, text in kept))
    return train, held_out


def shape() -> EncoderConfig:
    sizes = EncoderConfig(VOCABULARY, hidden=128, layers=4, heads=4, intermediate=512, max_length=LONGEST)
    return EncoderConfig(**{**vars(sizes), "dropout": 0.0, "attention_dropout": 0.0, "scan": True})


def train(links: Links, label: str, objective: Any, steps: int, seed: int) -> Path:
    config = PretrainConfig(
        tokens="@train",
        steps=steps,
        batch_size=ROWS,
        objective=objective,
        encoder=shape(),
        optimizer=OptimizerConfig(lr=1e-3, b2=0.98),
        cadence=Cadence(log=20, save=200, probe=0),
    )
    name = "".join(c if c.isalnum() else "_" for c in label)
    return links.run(f"{name}_{seed}", config, seed)


def batches(objective: Any, store: TokenStore, count: int) -> Iterator[dict[str, np.ndarray]]:
    source = objective.rows(store)
    for start in range(0, count * ROWS, ROWS):
        rows = source.rows(np.arange(start, start + ROWS))
        yield {name: rows[name] for name in objective.fields()}


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


def measure(run: Path, objective: Any, store: TokenStore, seed: int) -> dict[str, Any]:
    tokenizer = store.tokenizer()
    context = Context(
        *(shape(), EmbedderConfig(), tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.mask_id, tokenizer.vocab_size),
        *(32, LONGEST, seed),
        unk_id=tokenizer.unk_id,
    )
    built = objective.build(context)
    start = warm_start.load(f"run:{run}")
    assert start is not None
    params = jax.tree.map(jax.numpy.asarray, nested(dict(start.leaves)))
    carried = bottleneck.nats_carried(built, params, batches(built, store, 24))
    low, high = bootstrap_interval(carried.nats)
    return {
        "true": float(carried.true.mean()),
        "shuffled": float(carried.shuffled.mean()),
        "zero": float(carried.zero.mean()),
        "nats": float(carried.nats.mean()),
        "interval": [low, high],
        "cosine": by_length(shape(), params["encoder"], store),
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--steps", type=at_least(1), default=STEPS)
    parser.add_argument("--seeds", type=at_least(1), default=SEEDS)
    options = parser.parse_args()
    links = Links(options.workdir, {"init_from": None})
    train_texts, held_out = write_corpora(links.folder)
    prepare = PrepareConfig(
        corpus=f"jsonl:{train_texts}",
        vocab_size=VOCABULARY,
        split="blocks",
        block_length=LONGEST,
        short_share=0.5,  # half of the texts have a length of their own, so that every length is trained on
        template=TextTemplate(query_length=32, passage_length=LONGEST),
    )
    links.run("train", prepare)
    store = TokenStore.open(
        links.run("held_out", PrepareConfig(**{**vars(prepare), "corpus": f"jsonl:{held_out}", "tokenizer": "@train", "short_share": 0.0}))
    )
    results: dict[str, list[dict[str, Any]]] = {label: [] for label in systems()}
    for seed in range(options.seeds):
        for label, objective in systems().items():
            run = train(links, label, objective, options.steps, seed)
            results[label].append(measure(run, objective, store, seed))
            last = results[label][-1]
            print(
                f"seed {seed}  {label:<22} true {last['true']:.3f}  shuffled {last['shuffled']:.3f}  nats {last['nats']:+.4f}", flush=True
            )
    folder = RESULTS if (options.steps, options.seeds) == (STEPS, SEEDS) else links.folder  # a trial leaves the kept result alone
    artifacts.write_json(folder / "bottleneck.json", {"steps": options.steps, "versions": artifacts.versions(), "systems": results})
    draw(results, folder / "bottleneck.png")


if __name__ == "__main__":
    run(main)

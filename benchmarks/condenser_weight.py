"""Which weight for Condenser's losses beside ICT, in the demo? Chosen on dev, at equal steps; the result is kept.

    python benchmarks/condenser_weight.py --workdir runs/condenser_weight

Two layers (Condenser needs an early and a late one), the demo's data and settings otherwise. Equal steps favour
Condenser: a step with it takes longer. Writes benchmarks/results/condenser_weight.json. Goes on where it stopped.
"""

import argparse
import dataclasses
from pathlib import Path

from links import RESULTS, Links, card_module, run

from denseir_jax.core import artifacts
from denseir_jax.evals.evaluation import PER_QUERY, read_per_query
from denseir_jax.evals.table import as_json, as_text, make_table
from denseir_jax.pipeline.stages.evaluate import EvaluateConfig

WEIGHTS = (0.0, 0.1, 0.25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--pretrain_steps", type=int, default=150)
    parser.add_argument("--finetune_steps", type=int, default=60)
    options = parser.parse_args()
    demo = card_module("pipeline/demo")
    recipe = demo.scratch()
    links = Links(options.workdir, {"dataset": demo.DATASET, "init_from": None})
    for name in ("prepare", "bm25_negatives"):
        links.run(name, recipe.links[name])
    evaluations = {}
    for weight in WEIGHTS:
        tag = str(weight).replace(".", "_")
        links.run(f"pretrain_{tag}", dataclasses.replace(demo.pretrain(2, options.pretrain_steps, weight), tokens="@prepare"))
        tuned = dataclasses.replace(
            recipe.links["no_pretrain"], steps=options.finetune_steps, encoder=demo.encoder(2), init_from=f"run:@pretrain_{tag}"
        )
        links.run(f"finetune_{tag}", tuned)
        for kind in ("pretrain", "finetune"):
            dev = links.run(f"dev_{kind}_{tag}", EvaluateConfig(dataset="@dataset", split="dev", retriever=f"run:@{kind}_{tag}"))
            evaluations[f"weight {weight}{', no labels' if kind == 'pretrain' else ''}"] = read_per_query(dev / PER_QUERY)
    table = make_table(evaluations, ("RR@10", "nDCG@10", "R@100"), baseline="weight 0.0")
    print(as_text(table))
    result = {
        "what": "demo, dev split, 2 layers, ICT + weight x Condenser at equal steps, then the same fine-tuning",
        "pretrain_steps": options.pretrain_steps,
        "finetune_steps": options.finetune_steps,
        "versions": artifacts.versions(),
        "table": as_json(table),
    }
    artifacts.write_json(RESULTS / "condenser_weight.json", result)


if __name__ == "__main__":
    run(main)

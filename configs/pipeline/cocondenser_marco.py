"""coCondenser on MS MARCO passages (Gao & Callan 2022, arXiv 2108.05540): from pre-training to the second fine-tuning.

The argument is a size: smoke, tiny, small or base. base is the authors' recipe (README of luyug/Dense and texttron/tevatron); it
starts from --config.init_from=hf:FOLDER of bert-base-uncased. The smaller ones are ours and start from random weights. Named
differences: the authors' Condenser reads Wikipedia and BookCorpus (--config.links.condenser_tokens.corpus=jsonl:FILE), here it
reads the passages too unless told; their BM25 negatives are the official triples'. Their MRR@10 of 38.2 is on RocketQA's
edition of the corpus, which has titles (tsv:FOLDER with para.txt and para.title.txt).

    python launch/pipeline.py --config configs/pipeline/cocondenser_marco.py:tiny --config.dataset=beir:FOLDER --workdir DIR
"""

import dataclasses
from pathlib import Path

from denseir_jax.core.config import card, choose
from denseir_jax.data.template import TextTemplate
from denseir_jax.pipeline.finetuning import SIZES, finetuning, mining, prepared, pretraining, published
from denseir_jax.pipeline.recipes.cocondenser import cocondenser
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.report import ReportConfig

CARDS = Path(__file__).parents[1]


def get_config(size: str = "tiny"):
    choose(dict.fromkeys(SIZES), size)
    base = published(CARDS / "finetune" / "contrastive.py", epochs=3.0)
    # 2 epochs of two files that hold each query, BM25's negatives and the mined: 4 passes, whose negatives lie in two pools here.
    stage1, stage2 = finetuning(size, base), finetuning(size, dataclasses.replace(base, epochs=4.0))
    return card(
        cocondenser(
            "",
            prepared(size, TextTemplate(query_length=32, passage_length=128)),
            pretraining(size, CARDS / "pretrain" / "condenser.py"),
            pretraining(size, CARDS / "pretrain" / "cocondenser.py"),
            stage1,
            stage2,
            negatives=mining(size, MineConfig(depth=200, hi=200, n=30)),  # top 200, 30 kept
            report=ReportConfig(title="coCondenser, the recipe for MS MARCO"),
        )
    )

"""coCondenser on Natural Questions or TriviaQA (Gao & Callan 2022, arXiv 2108.05540): as for MS MARCO, but two encoders.

The argument is a size: smoke, tiny, small or base. base is the authors' recipe (README of texttron/tevatron); it starts from
--config.init_from=hf:FOLDER of bert-base-uncased. The smaller ones are ours and start from random weights. Named differences: the
authors' pre-training reads Wikipedia (--config.links.condenser_tokens.corpus=jsonl:FILE and --config.links.cocondenser_tokens.corpus), here
the passages; they keep questions with 8 hard negatives or more, here all with a positive stay; they always take the first positive, here
one is drawn; their BM25 negatives are those of DPR's data. base drops negatives that hold an answer, without which others got 64 where
75.8 is published (texttron/tevatron, issues 10, 43 and 107), and wants data with answers (dpr:FOLDER); for the other sizes
--config.links.bm25_negatives.exclude_answers=string and --config.links.mined_negatives.exclude_answers=string.

    python launch/pipeline.py --config configs/pipeline/cocondenser_nq.py:tiny --config.dataset=beir:FOLDER --workdir DIR
"""

import dataclasses
from pathlib import Path

from denseir_jax.core.config import card, choose
from denseir_jax.data.template import TextTemplate
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.pipeline.finetuning import SIZES, finetuning, mining, prepared, pretraining, published
from denseir_jax.pipeline.recipes.cocondenser import cocondenser
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.report import ReportConfig

CARDS = Path(__file__).parents[1]


def get_config(size: str = "tiny"):
    choose(dict.fromkeys(SIZES), size)
    # As for MS MARCO, the rate of 5e-6 too; that warm-up and weight decay are, is not told.
    marco = published(CARDS / "finetune" / "contrastive.py", epochs=40.0)
    objective = ContrastiveConfig(group_size=2, temperature=1.0, similarity="dot", tied=False)
    base = dataclasses.replace(marco, batch_size=128, objective=objective)  # 32 questions on each of 4 GPUs
    # 20 epochs of two files that hold each question, BM25's negatives and the mined: 40 passes, whose negatives lie in two pools here.
    stage1, stage2 = finetuning(size, base), finetuning(size, dataclasses.replace(base, epochs=40.0))
    answers = "string" if size == "base" else ""
    negatives = MineConfig(depth=200, hi=200, n=30, exclude_answers=answers)  # depth and number as for MS MARCO, not told for this one
    return card(
        cocondenser(
            "",
            prepared(size, TextTemplate(query_length=32, passage_length=256)),
            pretraining(size, CARDS / "pretrain" / "condenser.py"),
            pretraining(size, CARDS / "pretrain" / "cocondenser.py"),
            stage1,
            stage2,
            negatives=mining(size, negatives),
            report=ReportConfig(title="coCondenser, the recipe for Natural Questions"),
        )
    )

"""Distillation of your own: a cross-encoder is trained and scores hard negatives, a student learns from the scores.

The argument is a size: smoke, tiny, small or base; with `_given` behind it (tiny_given) the teacher exists already:
--config.links.teach.teacher=run:DIR or hf:DIR. base: the loss is coCondenser's (Gao & Callan 2022, arXiv 2108.05540, section 5.1: the
student's softmax over the whole batch), its length and rates are not told there; they are that recipe's fine-tuning. The numbers of
every run are those of its own card in configs/finetune, in epochs. The cross-encoder's pairs are cut as the retriever's texts are.

From random weights a cross-encoder learns little in minutes and teaches less: --config.init_from=hf:DIR, a published encoder, starts all.

    python launch/pipeline.py --config configs/pipeline/distill.py:tiny --config.dataset=beir:FOLDER --workdir DIR
"""

from pathlib import Path

from denseir_jax.core.config import card, choose
from denseir_jax.data.template import TextTemplate
from denseir_jax.pipeline.finetuning import RERANKED, SIZES, finetuning, mining, prepared, published
from denseir_jax.pipeline.recipes.distill import distill
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.report import ReportConfig

CARDS = Path(__file__).parents[1] / "finetune"
VARIANTS = {**{size: (size, False) for size in SIZES}, **{f"{size}_given": (size, True) for size in SIZES}}


def get_config(variant: str = "tiny"):
    size, given = choose(VARIANTS, variant)
    base = published(CARDS / "contrastive.py", epochs=3.0)
    taught = published(CARDS / "distill.py", epochs=3.0)
    cross = published(CARDS / "cross_encoder.py", epochs=2.0)
    return card(
        distill(
            "",
            prepared(size, TextTemplate(query_length=32, passage_length=128)),
            teacher=None if given else finetuning(size, cross),
            untaught=finetuning(size, base),
            student=finetuning(size, taught),
            bm25_negatives=mining(size, MineConfig(depth=200, hi=200, n=30)),
            report=ReportConfig(title="Distillation"),
            rerank_depth=RERANKED.get(size, 100),
        )
    )

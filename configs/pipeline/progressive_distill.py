"""Progressive distillation: one student, taught in turns by stronger teachers and then on harder negatives.

The argument is a size: smoke, tiny, small or base. The schedule is a table, one row a turn: teacher, its temperature, passages a query,
negatives, epochs. The idea of stronger teachers in sequence is PROD's (SimXNS), that of harder data CL-DRD's; their numbers are
not known here: those of base are ours, rates and batches of the single cards in configs/finetune: coCondenser's fine-tuning and a
reranker by LCE.

From random weights a cross-encoder learns little in minutes and teaches less: --config.init_from=hf:DIR, a published encoder, starts all.

    python launch/pipeline.py --config configs/pipeline/progressive_distill.py:tiny --config.dataset=beir:FOLDER --workdir DIR
"""

from pathlib import Path

from denseir_jax.core.config import card, choose
from denseir_jax.data.template import TextTemplate
from denseir_jax.pipeline.finetuning import RERANKED, SIZES, finetuning, mining, prepared, published
from denseir_jax.pipeline.recipes.progressive import Turn, progressive
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.report import ReportConfig

CARDS = Path(__file__).parents[1] / "finetune"


def get_config(size: str = "tiny"):
    choose(dict.fromkeys(SIZES), size)
    base = published(CARDS / "contrastive.py", epochs=3.0)
    taught = published(CARDS / "distill.py", epochs=3.0)
    cross = published(CARDS / "cross_encoder.py", epochs=2.0)
    teacher, student = finetuning(size, base), finetuning(size, taught)
    undivided, group = 1.0, student.objective.group_size
    own = student.objective.temperature  # the retriever's scores are of the student's kind
    turn = {"epochs": student.epochs / 3} if student.epochs else {"steps": 1}  # all turns together are as long as one fine-tuning
    schedule = (
        Turn("retriever", own, group, "bm25", **turn),
        Turn("cross_encoder", undivided, group, "bm25", **turn),
        Turn("cross_encoder", undivided, group, "mined", **turn),
    )
    negatives = mining(size, MineConfig(depth=200, hi=200, n=30))
    return card(
        progressive(
            "",
            prepared(size, TextTemplate(query_length=32, passage_length=128)),
            {"retriever": teacher, "cross_encoder": finetuning(size, cross)},
            student,
            schedule,
            bm25_negatives=negatives,
            mined_negatives=negatives,
            report=ReportConfig(title="Progressive distillation"),
            rerank_depth=RERANKED.get(size, 100),
        )
    )

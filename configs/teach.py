"""A teacher's scores for a training set: --config.dataset=format:path --config.training_set=DIR --config.teacher=run:DIR|hf:DIR.

The argument is a size; it changes nothing here: a teacher has its own.

    python launch/teach.py --config configs/teach.py --config.dataset=beir:FOLDER --config.training_set=runs/negatives \\
        --config.teacher=hf:DIR --workdir runs/taught

--config.write=vectors keeps the teacher's vectors of the queries and passages instead, for a student that learns from its scores of
all pairs of a batch (configs/finetune/distill.py, teach=in_batch_kl).
"""

from denseir_jax.core.config import card, choose
from denseir_jax.pipeline.stages.teach import TeachConfig

SIZES = dict.fromkeys(("smoke", "tiny", "small", "base"))


def get_config(size: str = "small"):
    choose(SIZES, size)
    return card(TeachConfig())

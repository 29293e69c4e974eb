"""coCondenser (Gao & Callan 2022, arXiv 2108.05540): Condenser on pairs of spans, which must also find each other in the batch.

The argument is a size: smoke, tiny, small or base. base is the published recipe: it starts from a
Condenser run (--config.init_from=run:DIR), backbone and head; from a random head it learns badly, the authors say. A row is a
document, of which two spans are read; batch_size counts documents. On little memory raise micro_batches: loss and gradients stay.

    python launch/pretrain.py --config configs/pretrain/cocondenser.py:tiny --config.corpus=jsonl:FILE --workdir DIR
"""

from denseir_jax.core.config import card
from denseir_jax.objectives.cocondenser import CoCondenserConfig
from denseir_jax.objectives.masking import MaskConfig
from denseir_jax.pipeline.pretraining import Scale, pretraining
from denseir_jax.train.optimizer import OptimizerConfig

# 120,000 steps: the rerun by caskcsg/ir; the authors give 8 epochs. 2048 documents a step (README of luyug/Condenser), 128 tokens.
BASE = Scale(steps=120_000, batch_size=2048, vocabulary=30_522, length=128)


def get_config(size: str = "base"):
    objective = CoCondenserConfig(
        mask=MaskConfig(rate=0.15),
        skip_from=None,  # the middle layer
        n_head_layers=2,
        late_mlm=True,
        pairs="random",
        mlm_weight=1.0,  # the paper; the authors' gradient-cached code doubles it
        temperature=1.0,  # raw dot products of raw [CLS] states
        mask_duplicates=True,  # ours: other spans of the same document, met twice in a batch, are no negatives
    )
    optimizer = OptimizerConfig(lr=1e-4, warmup=0.1, weight_decay=0.01, clip=1.0)  # as published
    return card(pretraining(size, objective, BASE, optimizer, split="spans", span=80))  # spans of about 80 tokens: the author, Condenser#11

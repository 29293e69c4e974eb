"""LexMAE (Shen et al. 2023, arXiv 2208.14754): what the encoder predicts, as a mixture of word embeddings, is the bottleneck.

The argument is a size: smoke, tiny, small or base. base has the published numbers, as far as they are
known. Masks are of whole words, where LexMAE's are of single tokens. No loss trains its [CLS] state, so the retriever takes the mean of
the states; what it was made for is --config.embedder.lexical=K. Rows are passages as they are (MS MARCO's, as published).

    python launch/pretrain.py --config configs/pretrain/lexmae.py:tiny --config.corpus=jsonl:FILE --workdir DIR
"""

from denseir_jax.core.config import card
from denseir_jax.objectives.bottleneck import BottleneckConfig
from denseir_jax.objectives.masking import MaskConfig
from denseir_jax.pipeline.pretraining import Scale, pretraining
from denseir_jax.train.optimizer import OptimizerConfig

# 2048 sequences a step and 20 epochs, about 86,000 steps over the 8.8 million passages of MS MARCO by our count; their length is
# unknown to us, 144 is SimLM's.
BASE = Scale(steps=86_000, batch_size=2048, vocabulary=30_522, length=144)


def get_config(size: str = "base"):
    objective = BottleneckConfig(
        mask=MaskConfig(rate=0.3),  # as published
        bottleneck="lexical",
        tokens="masked",
        decoder_mask=MaskConfig(rate=0.5),  # as published
        relation="apart",  # the authors also have masks that hold the encoder's ("around") or avoid it ("disjoint")
        n_head_layers=2,
        own_mlm_head=True,
        crop="head",
    )
    optimizer = OptimizerConfig(lr=3e-4, warmup=0.05, weight_decay=0.01, clip=1.0)  # lr and warm-up as published, decay ours
    return card(pretraining(size, objective, BASE, optimizer, split="none", pooling="mean"))

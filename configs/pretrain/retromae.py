"""RetroMAE with enhanced decoding (Xiao et al. 2022, arXiv 2205.12035): one layer rebuilds every token, each under a mask of its own.

The argument is a size: smoke, tiny, small or base. base is the published recipe, which starts from
--config.init_from=hf:FOLDER of bert-base-uncased. Two named differences: the mask's budget does not count [CLS] and [SEP] (in the
authors' code it does: --config.objective.mask.specials_in_budget=true, and of decoder_mask), and blocks end before the sentence that
would overflow them (theirs after it: --config.prepare.overshoot=true).

    python launch/pretrain.py --config configs/pretrain/retromae.py:tiny --config.corpus=jsonl:FILE --workdir DIR
"""

from denseir_jax.core.config import card
from denseir_jax.objectives.masking import MaskConfig
from denseir_jax.objectives.retromae import RetroMaeConfig
from denseir_jax.pipeline.pretraining import Scale, pretraining
from denseir_jax.train.optimizer import OptimizerConfig

# 256 x 512 tokens (32 on each of 8 GPUs); 8 epochs of Wikipedia + BookCorpus, about 250,000 steps by our count of 18 GB of text.
BASE = Scale(steps=250_000, batch_size=256, vocabulary=30_522, length=512)


def get_config(size: str = "base"):
    objective = RetroMaeConfig(
        crop="head",  # as published
        mask=MaskConfig(rate=0.3),  # encoder, as published
        decoder_mask=MaskConfig(rate=0.5),  # as published
        base_masks=256,  # the authors' code; BGE's fork has 128
        hide="column",
        query_norm=False,  # RetroMAE; DupMAE and BGE normalise the query stream
        n_decoder_layers=1,
    )
    optimizer = OptimizerConfig(lr=1e-4, warmup=0.1, weight_decay=0.01, clip=1.0)  # as published
    return card(pretraining(size, objective, BASE, optimizer, short_share=0.0))  # no short blocks, as published

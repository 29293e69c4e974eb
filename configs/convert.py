"""Data for another tool, or from one: --config.dataset=format:path --config.to=beir|tsv|flag_embedding|tevatron|dpr.

What a run retrieved, for DPR's or pyserini's scripts: --config.to=dpr_results|pyserini_results --config.run=FILE|DIR --config.split=test.
With --config.training_set=DIR mined negatives (and a teacher's scores, for flag_embedding) go along.
The argument is a size; it changes nothing here.

    python launch/convert.py --config configs/convert.py --config.dataset=dpr:FOLDER --config.to=beir --workdir runs/as_beir
"""

from denseir_jax.core.config import card, choose
from denseir_jax.pipeline.stages.convert import ConvertConfig

SIZES = dict.fromkeys(("smoke", "tiny", "small", "base"))


def get_config(size: str = "small"):
    choose(SIZES, size)
    return card(ConvertConfig())

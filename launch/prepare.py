"""python launch/prepare.py --config configs/prepare/corpus.py:small --config.corpus=jsonl:passages.jsonl --workdir runs/corpus"""

from denseir_jax.core.command import main
from denseir_jax.pipeline.stages.prepare import stage

if __name__ == "__main__":
    main(stage)

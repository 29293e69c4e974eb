"""python launch/evaluate.py --config configs/evaluate/run.py --config.run=FILE --config.qrels=FILE --config.measures=RR@10,nDCG@10"""

from denseir_jax.core.command import main
from denseir_jax.pipeline.stages.evaluate import stage

if __name__ == "__main__":
    main(stage)

"""See --help, and denseir_jax/pipeline/stages/pretrain.py."""

from denseir_jax.core.command import main
from denseir_jax.pipeline.stages.pretrain import stage

if __name__ == "__main__":
    main(stage)

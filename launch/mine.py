"""See --help, and denseir_jax/pipeline/stages/mine.py."""

from denseir_jax.core.command import main
from denseir_jax.pipeline.stages.mine import stage

if __name__ == "__main__":
    main(stage)

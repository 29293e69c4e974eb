"""See --help, and denseir_jax/pipeline/stages/encode.py."""

from denseir_jax.core.command import main
from denseir_jax.pipeline.stages.encode import stage

if __name__ == "__main__":
    main(stage)

"""See --help, and denseir_jax/pipeline/stages/finetune.py."""

from denseir_jax.core.command import main
from denseir_jax.pipeline.stages.finetune import stage

if __name__ == "__main__":
    main(stage)

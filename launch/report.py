"""See --help, and denseir_jax/pipeline/stages/report.py."""

from denseir_jax.core.command import main
from denseir_jax.pipeline.stages.report import stage

if __name__ == "__main__":
    main(stage)

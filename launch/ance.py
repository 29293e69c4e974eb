"""See --help, and denseir_jax/pipeline/stages/ance.py."""

from denseir_jax.core import signals

if __name__ == "__main__":
    signals.listen()  # before the imports that take a second or two

    from denseir_jax.core.command import main
    from denseir_jax.pipeline.stages.ance import stage

    main(stage)

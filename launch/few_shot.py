"""See --help, and denseir_jax/pipeline/stages/few_shot.py."""

from denseir_jax.core import signals

if __name__ == "__main__":
    signals.listen()  # before the imports that take a second or two

    from denseir_jax.core.command import main
    from denseir_jax.pipeline.stages.few_shot import stage

    main(stage)

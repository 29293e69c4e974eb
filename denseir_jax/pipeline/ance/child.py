"""``python -m denseir_jax.pipeline.ance.child WORKDIR``: the inferencer that role=both starts. It ends with its parent."""

import dataclasses
import os
import sys
import threading
from pathlib import Path

from denseir_jax.core import artifacts, command, signals
from denseir_jax.core.config import parse
from denseir_jax.core.errors import EXIT_STOPPED
from denseir_jax.pipeline.ance.config import AnceConfig
from denseir_jax.pipeline.stages import ance


def main(workdir: Path) -> None:
    """Follow the trainer of this run folder, by the config that it wrote there."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    config = parse(AnceConfig, artifacts.read_json(workdir / artifacts.CONFIG)["config"])
    settings = dataclasses.replace(config, role="inferencer")
    command.execute(ance.stage, settings, ance.stage.place(settings, workdir))


def _end_with_parent() -> None:
    while os.read(0, 1):  # ends when nobody holds the other side any more
        pass
    os._exit(EXIT_STOPPED)  # wherever the work is: what is on disk is whole


if __name__ == "__main__":
    signals.listen()
    sys.exit(command.exit_code(lambda: main(Path(sys.argv[1]))))

"""Trainer and inferencer in one process, in turn."""

import time
from concurrent.futures import ThreadPoolExecutor

from denseir_jax.core import signals
from denseir_jax.core.artifacts import Run
from denseir_jax.pipeline.ance import inferencer
from denseir_jax.pipeline.ance.config import CHECKPOINTS, INFERENCER, SETS, AnceConfig
from denseir_jax.pipeline.ance.refresh import Refresher
from denseir_jax.pipeline.ance.sets import Sets
from denseir_jax.train import checkpoint


class Sliced:
    """At every checkpoint training waits until the set that it mines is published. A context manager.

    With the exact index a run is the same every time, however often it was interrupted.
    """

    def __init__(self, run: Run, config: AnceConfig):
        self.workdir, self.config, self._inputs = run.path, config, run.inputs
        self._folder = Run(run.path / INFERENCER, run.stage, config)
        self._refresher: Refresher | None = None

    def __enter__(self) -> "Sliced":
        self._folder.open(self._inputs)  # no inferencer may work in it beside this
        self._events = inferencer.open_events(self.workdir / INFERENCER, Sets(self.workdir / SETS))
        return self

    def __exit__(self, *_: object) -> None:
        self._events.close()
        self._folder.close()

    def attend(self, step: int) -> None:
        """Mine by the checkpoint of this step, once it is committed; nothing before the first step."""
        while step and step not in checkpoint.committed(self.workdir / CHECKPOINTS) and not signals.received():
            time.sleep(0.02)  # it is being written by this process
        if step:
            with ThreadPoolExecutor(1) as pool:  # a thread of its own: the mesh in force here is not the encoder's
                pool.submit(self._refresh).result()

    def _refresh(self) -> None:
        if self._refresher is None:
            self._refresher = Refresher(self.workdir, self.config)
        before = time.monotonic()
        facts = self._refresher.refresh()
        if facts is not None:
            inferencer.report(self._events, facts, time.monotonic() - before)

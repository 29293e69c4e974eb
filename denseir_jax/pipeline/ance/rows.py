"""The trainer's side: rows that change when a newer set is taken, at a step boundary, after it was logged."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from denseir_jax.core import console, failpoints
from denseir_jax.core.errors import InputError
from denseir_jax.data.batches import RowSource
from denseir_jax.parallel import mesh
from denseir_jax.pipeline.ance.config import CHECKPOINTS, LOG, SETS, AnceConfig
from denseir_jax.pipeline.ance.heartbeat import Heart
from denseir_jax.pipeline.ance.sets import SetLog, Sets, Taken
from denseir_jax.train import checkpoint
from denseir_jax.train.step import PACE


@dataclasses.dataclass(frozen=True)
class InUse:
    """A set that is trained on: its rows, from which step on, and the checkpoint that mined it."""

    taken: Taken
    rows: RowSource
    checkpoint_step: int


class RefreshedRows:
    """Rows of the set in use. A `batches.ChangingRows`: a row is a function of the set and its stream index alone.

    All sets hold the same queries in the same order, so epochs go on across sets: each query is asked as often as any other.

    Args:
        workdir: the run folder. open_rows: a file of examples -> rows. attend: called at every boundary before the newest set
        is looked for, with the steps done; it may make one, wait for one, or ask to stop. heart: is told the step; where it does
        not beat, another process decides. refreshed: called after a set was taken.
    Attributes:
        n_items: of all sets. counts: of the set in use; the same dict always, so that who holds it sees the last.
    """

    def __init__(
        self,
        workdir: Path,
        config: AnceConfig,
        open_rows: Callable[[Path], RowSource],
        attend: Callable[[int], None],
        heart: Heart,
        refreshed: Callable[[], None] = lambda: None,
    ):
        self.sets, self.log = Sets(workdir / SETS), SetLog(workdir / LOG)
        self.config, self.every = config, config.cadence.save if config.role == "sliced" else config.poll
        self._checkpoints, self._open = workdir / CHECKPOINTS, open_rows
        self._attend, self._heart, self._refreshed = attend, heart, refreshed
        oldest = self.sets.numbers()[0]
        warm_up = Taken(oldest, 0, self.sets.facts(oldest).sha256)
        self._now = self._use([warm_up, *self.log.entries][-1])  # what an earlier life took last; it may have left no step to do
        self._shapes, self.n_items, self.counts = _shapes(self._now.rows), self._now.rows.n_items, dict(self._now.rows.counts)

    def settle(self, step: int) -> int:
        """Take the set of the steps from `step` on: what the log says, or else the newest, which is logged first."""
        self._heart.step = step
        primary, before = self._heart.enabled, self._now
        decided, again = self._decide(step) if primary else (before.taken, 0)
        number, start, again = mesh.from_first([decided.set, decided.step, again])
        if not primary:  # which has just seen it
            self.sets.wait_for(number)
        taken = Taken(number, start, decided.sha256 if primary else self.sets.facts(number).sha256)
        if (taken.set, taken.sha256) == (before.taken.set, before.taken.sha256):
            self._now = dataclasses.replace(before, taken=taken)
        else:
            self._now = self._use(taken)
            self._need_same_queries()
            self.counts.clear()
            self.counts.update(self._now.rows.counts)
            mined = f"mined by checkpoint {self._now.checkpoint_step:,}" if number else "the warm-up set"
            console.say(f"ance: from step {start:,} on set {number}, {mined}")
            if primary:
                self._refreshed()
        if primary:
            self._remove_old()
        return again

    def facts(self, step: int) -> dict[str, float]:
        """The set in use; staleness: steps since the checkpoint that mined it (since the start, for the warm-up set)."""
        self._heart.step = step
        pace = {PACE: float(self._pace(np.array([step - 1]))[0])} if self.config.rewarm else {}
        return {"set": float(self._now.taken.set), "staleness": float(step - self._now.checkpoint_step), **pace}

    def rows(self, stream: Int[np.ndarray, " k"]) -> dict[str, np.ndarray]:
        """The rows of the set in use, and with ``rewarm`` float32 ``pace`` [k]."""
        pace = {PACE: self._pace(stream // self.config.batch_size)} if self.config.rewarm else {}
        return {**self._now.rows.rows(stream), **pace}

    def names(self, stream: Int[np.ndarray, " k"]) -> list[str]:
        """Ids of the queries of these rows."""
        return self._now.rows.names(stream)

    def _pace(self, steps: Int[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
        """(i + 1) / (rewarm + 1) in step i of a refreshed set, at most 1; the warm-up set has the schedule's own warm-up."""
        taken = self._now.taken
        pace = (steps - taken.step + 1) / (self.config.rewarm + 1) if taken.set else np.ones(len(steps))
        return np.minimum(pace, 1).astype(np.float32)

    def _decide(self, step: int) -> tuple[Taken, int]:
        taken, later = self.log.at(step), self.log.after(step)
        if later is None and (taken is None or (taken.step < step and step % self.every == 0)):
            self._attend(step)
            newest = self.sets.newest()
            assert newest is not None  # set 0 is published before training starts
            if taken is None or newest > taken.set:
                taken = Taken(newest, step, self.sets.facts(newest).sha256)
                failpoints.reach("ance_before_log")
                self.log.append(taken)
                failpoints.reach("ance_logged")
        assert taken is not None  # the first line of a log stands at the step where it was begun
        boundary = (step // self.every + 1) * self.every
        return taken, boundary if later is None else min(boundary, later.step)

    def _use(self, taken: Taken) -> InUse:
        rows = self._open(self.sets.examples(taken.set, taken.sha256))
        return InUse(taken, rows, self.sets.facts(taken.set).checkpoint_step)

    def _need_same_queries(self) -> None:
        """The step was compiled for the widths of one set, and epochs go on across all."""
        if self.n_items != self._now.rows.n_items or self._shapes != _shapes(self._now.rows):
            raise InputError(f"{self.sets.path(self._now.taken.set)} lacks the queries and positives of the others; expected the same")

    def _remove_old(self) -> None:
        """Sets that no kept checkpoint could need again, should training go on from there."""
        kept = checkpoint.committed(self._checkpoints)
        needed = self.log.at(kept[0]) if kept else None
        if needed is not None:
            self.sets.remove_before(needed.set)


def _shapes(rows: RowSource) -> dict[str, tuple[int, ...]]:
    return {name: row.shape[1:] for name, row in rows.rows(np.zeros(1, np.int64)).items()}

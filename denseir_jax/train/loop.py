"""The one training loop: pre-training and fine-tuning alike.

It restores the newest checkpoint, or starts; dispatches a step, then looks at the metrics of the step before, so that the
device never waits for the log; saves, probes and logs at their cadence; stops for a signal after saving.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from denseir_jax.core import artifacts, console, failpoints, signals
from denseir_jax.core import metrics as pairs
from denseir_jax.core.artifacts import Run
from denseir_jax.core.config import operational
from denseir_jax.core.errors import ConfigError, InputError, Stopped
from denseir_jax.core.events import Events, last_logged
from denseir_jax.data.batches import ChangingRows, RowSource
from denseir_jax.data.set_turns import SetRows
from denseir_jax.objectives.base import Objective, first_memory
from denseir_jax.parallel import mesh as meshes
from denseir_jax.parallel import sharding
from denseir_jax.train import checkpoint, feed, fitting, optimizer, step
from denseir_jax.train.state import State, create, keys, named

Probe = Callable[[Any], Mapping[str, float]]  # params -> measures


@dataclasses.dataclass(frozen=True)
class Cadence:
    """How often, in steps; all may differ when a run goes on. 0 = never (a last save always happens).

    Attributes:
        log: loss and rates. save: checkpoints. keep: how many of the newest to keep. probe: retrieval and bottleneck
        probes; the checkpoint that is best by the probe is kept too.
    """

    log: int = operational(20)
    save: int = operational(500)
    keep: int = operational(2)
    probe: int = operational(0)

    def __post_init__(self) -> None:
        if self.log < 1 or self.save < 0 or self.keep < 1 or self.probe < 0:
            raise ValueError(
                f"cadence log={self.log} and keep={self.keep} must be at least 1, save={self.save} and probe={self.probe} at least 0"
            )


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the loop needs to know beside the objective: sizes, seed, optimizer, mesh and cadence."""

    steps: int
    batch_size: int
    seed: int
    micro_batches: int
    optimizer: optimizer.OptimizerConfig
    mesh: meshes.MeshConfig
    cadence: Cadence
    best: str = ""
    memory_budget: float = 0.0


_COLLAPSED = 0.99


@dataclasses.dataclass
class _Window:
    """What is gathered between two log lines."""

    sums: dict[str, Any] = dataclasses.field(default_factory=dict)
    steps: int = 0
    wait: float = 0.0
    start: float = dataclasses.field(default_factory=time.monotonic)


class Loop:
    """One run of training. Build, then call `train`."""

    def __init__(self, run: Run, objective: Objective, source: RowSource, plan: Plan, probe: Probe | None, meta: Mapping[str, Any]):
        self.run, self.objective, self.source, self.plan, self.probe = run, objective, source, plan, probe
        self.meta = {**meta, "batch_size": plan.batch_size, "seed": plan.seed}
        self.mesh = meshes.make(plan.mesh)
        meshes.check_batch(self.mesh, plan.batch_size, plan.micro_batches)
        check_rows(objective, plan.steps, plan.batch_size)
        self.rows_per_device = plan.batch_size // meshes.batch_shards(self.mesh)
        self.rate = optimizer.learning_rate(plan.optimizer, plan.steps)
        self.transformation = optimizer.make(plan.optimizer, plan.steps)

    def train(self, initial: Mapping[str, Any]) -> tuple[Any, int, dict[str, float]]:
        """Train to the planned number of steps.

        Args:
            initial: parameters by path name that replace the random ones (a warm start), numpy arrays.
        Returns:
            The parameters to export (their moving average where there is one), the steps they have seen (more than planned
            where a longer run had come further) and the last logged metrics.
        Raises:
            Stopped: a signal came; the state is saved. InputError: loss or gradients are not finite.
        """
        with jax.set_mesh(self.mesh):
            state, shardings = self._initial_state(initial)
            files = checkpoint.Checkpoints(self.run.path / "checkpoints", self.plan.cadence.keep, self.plan.best if self.probe else "")
            try:
                state = self._restored(files, state, shardings)
                return self._steps(state, shardings, files)
            finally:
                files.close()

    def _initial_state(self, initial: Mapping[str, Any]) -> tuple[State, State]:
        params = self.objective.init(keys(self.plan.seed)[0])
        params = replaced(params, initial)

        def begin(params: Any) -> State:
            return create(params, self.transformation, self.plan.seed, first_memory(self.objective))

        shapes = jax.eval_shape(begin, params)
        shardings = sharding.of_state(shapes, self.mesh)
        params = jax.device_put(params, shardings.params)
        return step.init_state(begin, shardings)(params), shardings

    def _restored(self, files: checkpoint.Checkpoints, state: State, shardings: State) -> State:
        if files.latest is None:
            return state
        restored, meta = files.restore(checkpoint.abstract(state, shardings))
        for key, value in self.meta.items():
            if meta.get(key) != value:
                raise InputError(
                    f"checkpoint {files.latest} in {self.run.path} was made with {key}={meta.get(key)!r}; this run has {value!r}"
                )
        console.say(f"{self.run.stage}: goes on from step {files.latest}")
        return restored

    def _steps(self, state: State, shardings: State, files: checkpoint.Checkpoints) -> tuple[Any, int, dict[str, float]]:
        start, stop = int(state.step), self.plan.steps
        events = Events(self.run.path, from_step=start, enabled=self.run.primary)
        try:
            last = last_logged(self.run.path)
            if start < stop:
                state, last = self._run_steps(state, shardings, files, events, start, stop)
            files.wait()
        finally:
            events.close()
        return optimizer.exported_params(state.params, state.opt_state), max(start, stop), last

    def _run_steps(
        self, state: State, shardings: State, files: checkpoint.Checkpoints, events: Events, start: int, stop: int
    ) -> tuple[State, dict[str, float]]:
        batches = feed.steps(self.source, self.mesh, self.plan.batch_size, start, stop, self.objective.fields())
        compute, batch = self._compiled(state, shardings, next(batches), events)
        window, pending, last = _Window(), None, {}
        with console.Meter(self.run.stage, stop, "steps", start) as meter:
            for number in range(start + 1, stop + 1):
                state, metrics = compute(state, batch)
                if pending is not None:
                    self._look(window, *pending)
                pending = (number, metrics)
                failpoints.reach("step")
                ending = self._told_to_stop(number)
                due = self._due(number, stop, ending)
                if due:
                    self._look(window, *pending)
                    pending = None
                if number % self.plan.cadence.log == 0 or number == stop:
                    last = self._log(events, window, number, stop)
                    window = _Window()
                measures = self._probe(events, state, number) if "probe" in due else None
                if "save" in due:
                    files.save(state, number, {**self.meta, "step": number}, measures)
                meter.advance(1, f"loss {last['loss']:.4f}" if last else "")
                if ending:
                    files.wait()
                    raise Stopped(f"{self.run.stage}: stopped at step {number}, saved; the same command goes on")
                if number < stop:
                    before = time.monotonic()
                    batch = next(batches)
                    window.wait += time.monotonic() - before
        return state, last

    def _compiled(self, state: State, shardings: State, batch: Any, events: Events) -> tuple[Callable[..., Any], Any]:
        before = time.monotonic()
        console.say(f"{self.run.stage}: compiling the step")

        def compiled(micro_batches: int) -> jax.stages.Compiled:
            make = step.make_train_step(self.objective, self.transformation, self.mesh, micro_batches)
            return step.compile_step(make, self.mesh, shardings).lower(state, batch).compile()

        found = fitting.fit(compiled, self.plan.micro_batches, self.rows_per_device, self.plan.memory_budget * 2**30)
        chosen = f" (chosen to fit {self.plan.memory_budget:g} GiB)" if self.plan.memory_budget else ""
        temporary = f", {found.temporary / 2**20:,.0f} MiB of temporary memory a device" if found.temporary else ""
        size = sum(leaf.size for leaf in jax.tree.leaves(state.params))
        shape = " x ".join(f"{name} {n}" for name, n in self.mesh.shape.items())
        console.say(
            f"{self.run.stage}: {size:,} parameters, mesh {shape}, batch {self.plan.batch_size:,} in "
            f"{found.micro_batches} part(s){chosen}, "
            f"steps {self.plan.steps:,}, compiled in {time.monotonic() - before:.1f} s{temporary}"
        )
        if found.micro_batches == self.rows_per_device > 1:
            console.say(f"{self.run.stage}: parts of one row a device are slow; a larger memory_budget makes fewer of them")
        events.write("compiled", int(state.step), {"micro_batches": found.micro_batches, "temporary_bytes": found.temporary})
        return found.step, batch

    def _look(self, window: _Window, number: int, metrics: Any) -> None:
        """Fetch one step's metrics, stop if they are not finite, add them to the window."""
        host = jax.device_get(metrics)
        values = pairs.means({"loss": host["loss"], "grad_norm": host["grad_norm"]})
        if not all(np.isfinite(value) for value in values.values()):
            raise InputError(f"step {number}: loss {values['loss']}, gradient norm {values['grad_norm']}; {self._blame(number)}")
        if isinstance(self.source, SetRows):
            host = host | self.source.by_set(number - 1, host["loss"])
        window.sums = pairs.add(window.sums, host)
        window.steps += 1

    def _blame(self, number: int) -> str:
        first = (number - 1) * self.plan.batch_size
        names = self.source.names(np.arange(first, first + self.plan.batch_size))
        if self.run.primary:
            artifacts.write_json(self.run.path / "bad_batch.json", {"step": number, "ids": names})
        kept = "; the last checkpoint is whole" if any((self.run.path / "checkpoints").glob("[0-9]*")) else ""
        more = f" and {len(names) - 8} more (all in {self.run.path / 'bad_batch.json'})" if len(names) > 8 else ""
        return f"the batch holds {', '.join(names[:8])}{more}; lower the learning rate or look at these texts{kept}"

    def _told_to_stop(self, number: int) -> bool:
        if jax.process_count() == 1:
            return signals.received()
        if number % self.plan.cadence.log:  # processes agree on the step at which they stop
            return False
        from jax.experimental import multihost_utils

        return bool(np.any(multihost_utils.process_allgather(np.asarray(signals.received()))))

    def _due(self, number: int, stop: int, ending: bool) -> set[str]:
        cadence, due = self.plan.cadence, set()
        if number % cadence.log == 0:
            due.add("log")
        if self.probe and cadence.probe and (number % cadence.probe == 0 or number == stop):
            due |= {"probe", "save"}
        if ending or number == stop or (cadence.save and number % cadence.save == 0):
            due.add("save")
        return due

    def _log(self, events: Events, window: _Window, number: int, stop: int) -> dict[str, float]:
        sums = dict(window.sums)
        tokens, cells = (float(sums.pop(name, (0.0, 0.0))[0]) for name in ("tokens", "cells"))
        seconds = max(time.monotonic() - window.start, 1e-9)
        values = pairs.means(sums) | (self.source.facts(number) if isinstance(self.source, ChangingRows) else {})
        values |= {
            "lr": float(self.rate(jnp.asarray(number - 1))) * values.get(step.PACE, 1.0),
            "tokens_per_second": tokens / seconds,
            "steps_per_second": window.steps / seconds,
            "padding_share": 1 - tokens / max(cells, 1),
            "data_wait_share": window.wait / seconds,
            "eta_seconds": (stop - number) * seconds / max(window.steps, 1),
        }
        events.write("train", number, values)
        return values

    def _probe(self, events: Events, state: State, number: int) -> dict[str, float]:
        assert self.probe is not None
        measures = dict(self.probe(state.params))
        events.write("probe", number, measures)
        console.say(f"{self.run.stage}: step {number} probe " + ", ".join(f"{k} {v:.4f}" for k, v in measures.items()))
        if measures.get("cosine_mean", 0.0) > _COLLAPSED:
            console.say(
                f"{self.run.stage}: the vectors of different texts are all but equal: not yet learnt, or collapsed (see README, The probe)"
            )
        return measures


def check_rows(objective: Objective, steps: int, batch_size: int) -> None:
    """See that rows can be numbered and compared.

    Raises:
        ConfigError: the batch is too small for the objective, or the stream too long for its numbers.
    """
    if steps * batch_size >= 2**31:
        raise ConfigError(f"steps={steps} x batch_size={batch_size} is beyond 2^31 rows, where the stream's numbers end")
    if batch_size < objective.least_rows:
        raise ConfigError(f"batch_size={batch_size} leaves nothing to compare a row with: expected {objective.least_rows} or more")


def replaced(params: Any, initial: Mapping[str, Any]) -> Any:
    """`params` with the leaves named in `initial` taken from there.

    Raises:
        InputError: a name that the model lacks, or a shape that differs, with both shapes.
    """
    known = named(params)
    for name, value in initial.items():
        if name not in known:
            raise InputError(f"the warm start holds {name!r}, which this model lacks")
        if known[name].shape != value.shape:
            raise InputError(f"the warm start's {name!r} has shape {list(value.shape)}; this model has {list(known[name].shape)}")
    leaves, tree = jax.tree.flatten(params)
    return jax.tree.unflatten(tree, [initial.get(name, leaf) for name, leaf in zip(known, leaves, strict=True)])

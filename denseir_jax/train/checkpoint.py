"""Checkpoints by orbax: the last few, and the best by a retrieval measure, each whole or absent.

A checkpoint holds the state and a small ``meta`` record (step, data position, what the batches are made of). The
position in the data is the step itself: row g of step s is item s * batch_size + g of a seeded order.
"""

import logging
from pathlib import Path
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from denseir_jax.core import failpoints
from denseir_jax.core.errors import InputError
from denseir_jax.train.state import State


class Checkpoints:
    """The checkpoint folder of one run.

    Args:
        folder: absolute path. keep_last: how many of the newest to keep. best: name of the measure (higher is better)
        whose best checkpoint is kept as well, or "".
    """

    def __init__(self, folder: Path, keep_last: int, best: str = ""):
        logging.getLogger("absl").setLevel(logging.CRITICAL)  # orbax tells its life there; what fails is raised by `wait` as well
        policies = ocp.training.preservation_policies
        kept: list[Any] = [policies.LatestN(keep_last)]
        if best:
            kept.append(policies.BestN(get_metric_fn=lambda m: m[best], n=1, keep_checkpoints_without_metrics=False))
        self._files = ocp.training.Checkpointer(
            folder, preservation_policy=policies.AnyPreservationPolicy(kept), cleanup_tmp_directories=True
        )

    @property
    def latest(self) -> int | None:
        """The newest committed step, or None."""
        return self._files.latest.step if self._files.latest is not None else None

    def steps(self) -> list[int]:
        """All committed steps, ascending."""
        return sorted(checkpoint.step for checkpoint in self._files.checkpoints)

    def save(self, state: State, step: int, meta: dict[str, Any], measures: dict[str, float] | None = None) -> None:
        """Start to write in the background what the state is now; the previous write is waited for first.

        Call only after this step's loss and gradient norm were seen finite.
        """
        self.wait()
        if step in self.steps():
            return
        failpoints.reach("before_save")
        self._files.save_checkpointables_async(step, {"state": _stored(state), "meta": meta}, force=True, metrics=measures or None)
        failpoints.reach("during_save")

    def wait(self) -> None:
        """Block until what was saved is committed."""
        self._files.wait()

    def restore(self, abstract: State, step: int | None = None) -> tuple[State, dict[str, Any]]:
        """The state (placed as `abstract` says: shapes, dtypes, shardings) and meta of a step, the newest by default.

        Raises:
            InputError: a file of the checkpoint is damaged, or its tensors do not fit the model that the config describes.
        """
        step = self.latest if step is None else step
        try:
            loaded = self._files.load_checkpointables(step, {"state": _stored(abstract), "meta": None})
        except (ValueError, KeyError, TypeError, OSError) as error:
            folder = Path(self._files.directory) / str(step)
            raise InputError(
                f"checkpoint {folder} cannot be restored: it is damaged, or its tensors do not fit this config; "
                f"remove that folder to go on from the checkpoint before it, if there is one"
            ) from error
        return State(**loaded["state"]), loaded["meta"]

    def close(self) -> None:
        """Wait for the last write and let go."""
        self._files.close()


def _stored(state: State) -> dict[str, Any]:
    """The fields by name, without a memory that there is not: a state of before there was such a field is stored so."""
    return {name: value for name, value in vars(state).items() if name != "memory" or value}


def committed(folder: Path) -> list[int]:
    """The committed steps in a checkpoint folder, ascending, whoever writes there; what is not committed yet has another name."""
    return sorted(int(found.name) for found in folder.glob("[0-9]*") if found.name.isdigit())


def read_params(folder: Path, shapes: Any) -> tuple[int, Any]:
    """The newest committed step of another process's run, and its parameters alone, on one device of this process.

    Their owner may remove a checkpoint while it is being read; then a newer one is there, and is read instead.

    Args:
        shapes: of the parameters (``jax.eval_shape``).
    Raises:
        InputError: there is none, or it cannot be read though it is still there.
    """
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    wanted = {"params": jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), shapes)}
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    some = ocp.Context()
    some.pytree.loading.partial_load = True
    tried: int | None = None
    while (steps := committed(folder)) and steps[-1] != tried:
        step = tried = steps[-1]
        try:
            with some:
                return step, ocp.load_checkpointables((folder / str(step)).absolute(), {"state": wanted})["state"]["params"]
        except Exception as error:  # whatever a folder that vanishes file by file makes of orbax
            if committed(folder)[-1:] == [step]:
                raise InputError(f"checkpoint {folder / str(step)} cannot be read: it is damaged, or of another model") from error
    raise InputError(f"{folder} holds no checkpoint")


def abstract(state: State, shardings: State) -> State:
    """Shapes, dtypes and shardings of a state, for `restore`."""
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, shardings)

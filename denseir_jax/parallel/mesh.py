"""The device mesh: data x fsdp x tensor, over one process or many.

Rows of a batch are split over ``data`` and ``fsdp``; parameters over ``fsdp`` and ``tensor`` (see sharding.py).
"""

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Shaped

from denseir_jax.core.config import operational
from denseir_jax.core.errors import ConfigError, InputError

AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each axis; ``data=-1`` takes what the other two leave. All may differ when a run goes on."""

    data: int = operational(-1)
    fsdp: int = operational(1)
    tensor: int = operational(1)

    def __post_init__(self) -> None:
        if self.fsdp < 1 or self.tensor < 1 or (self.data < 1 and self.data != -1):
            raise ValueError(f"mesh axes must be positive (data may be -1): data={self.data}, fsdp={self.fsdp}, tensor={self.tensor}")


def initialize() -> int:
    """Join the other processes, if the environment names any, and return this process's index.

    ``DENSEIR_COORDINATOR=host:port``, ``DENSEIR_PROCESSES=n``, ``DENSEIR_PROCESS_ID=i`` name them; on a TPU slice
    ``DENSEIR_DISTRIBUTED=auto`` lets JAX find them. Call before anything touches a device.

    Raises:
        InputError: some of the three variables are set and others are not, or a number is not a number.
    """
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM away from core/signals.py
    if os.environ.get("DENSEIR_DISTRIBUTED") == "auto":
        jax.distributed.initialize()
        return jax.process_index()
    names = ("DENSEIR_COORDINATOR", "DENSEIR_PROCESSES", "DENSEIR_PROCESS_ID")
    values = [os.environ.get(name) for name in names]
    if not any(values):
        return 0
    coordinator, count, index = values
    if not (coordinator and count and index and count.isdigit() and index.isdigit()):
        raise InputError(f"{', '.join(names)} must be set together (host:port, number, number); got {values}")
    jax.distributed.initialize(coordinator, int(count), int(index))
    return int(index)


def meet(where: str) -> None:
    """Wait until every process has come here; nothing to wait for where there is one."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(where)


def from_first(numbers: Sequence[int]) -> list[int]:
    """The numbers that process 0 gives, in every process; all must call this, with as many."""
    if jax.process_count() == 1:
        return list(numbers)
    from jax.experimental import multihost_utils

    return [int(number) for number in multihost_utils.broadcast_one_to_all(np.asarray(numbers, np.int32))]


@contextlib.contextmanager
def first_process_first() -> Iterator[None]:
    """Process 0 does the block while the others wait; then they do it too, and find it done."""
    if jax.process_index() > 0:
        meet("the first process is done")
    yield
    if jax.process_index() == 0:
        meet("the first process is done")


def make(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh over all devices of all processes, or over `devices`.

    Raises:
        ConfigError: the axes do not multiply to the number of devices.
    """
    count = len(devices) if devices is not None else jax.device_count()
    rest = config.fsdp * config.tensor
    data = count // rest if config.data == -1 else config.data
    if data * rest != count:
        raise ConfigError(f"mesh data={config.data} x fsdp={config.fsdp} x tensor={config.tensor} does not cover {count} devices exactly")
    return jax.make_mesh((data, config.fsdp, config.tensor), AXES, axis_types=(AxisType.Auto,) * 3, devices=devices)


def batch_shards(mesh: Mesh) -> int:
    """Into how many parts the rows of a batch are split."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows over the batch axes, everything else whole."""
    return NamedSharding(mesh, P(BATCH_AXES))


def row_shards(rows: int, axes: Sequence[str] = BATCH_AXES) -> int:
    """Into how many parts, over `axes` of the mesh in force (``jax.set_mesh``), `rows` are split; 1 where that is not to be.

    1: no mesh is in force, it lacks the axes, the code runs on one device's share already, or the rows do not divide.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or not set(axes) <= set(mesh.axis_names) or not mesh.are_all_axes_auto:
        return 1
    shards = math.prod(mesh.shape[axis] for axis in axes)
    return 1 if rows % shards else shards


def rows_over_devices(x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """The same array, its rows split over the batch axes of the mesh in force and all else whole, its gradient alike.

    Without it the compiler lays activations out as the parameters are, and every device computes a slice of all rows.
    Nothing is done where `row_shards` is 1.
    """
    return x if row_shards(x.shape[0]) == 1 else lax.with_sharding_constraint(x, P(BATCH_AXES))


def whole_on_devices(x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """The same array, all of it on every device of the mesh in force, its gradient alike."""
    return x if row_shards(0, AXES) == 1 else lax.with_sharding_constraint(x, P())


def on_own_rows(work: Callable[..., Any], rows: tuple[Any, ...], whole: tuple[Any, ...] = ()) -> Any:
    """``work(*rows, *whole)``, each device with its own rows of `rows` and all of `whole`; what it gives is split by rows too.

    The gradient of `whole` is summed over devices once, after `work`: left to the compiler, it is in every turn of a loop in
    it. Nothing is split where `row_shards` is 1.
    """
    if row_shards(rows[0].shape[0]) == 1:
        return work(*rows, *whole)

    def own(rows: tuple[Any, ...], whole: tuple[Any, ...]) -> Any:
        return work(*rows, *lax.pcast(whole, BATCH_AXES, to="varying"))

    split = P(BATCH_AXES)
    return jax.shard_map(own, in_specs=(split, P()), out_specs=split)(rows, whole)


def check_batch(mesh: Mesh, batch_size: int, micro_batches: int) -> None:
    """Raises ConfigError unless the global batch divides over the devices and the micro-batches, naming both numbers."""
    shards = batch_shards(mesh)
    if batch_size % (shards * micro_batches):
        raise ConfigError(f"batch_size={batch_size} does not divide into {shards} device shards x {micro_batches} micro-batches")

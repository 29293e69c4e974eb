"""Inference over this process's own devices: rows split, everything else whole. No collective is needed."""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def rows_over_devices() -> tuple[NamedSharding, NamedSharding, int]:
    """(sharding that splits the first axis, sharding that copies, number of devices), over local devices."""
    devices = jax.local_devices()
    mesh = Mesh(np.array(devices), ("rows",))
    return NamedSharding(mesh, P("rows")), NamedSharding(mesh, P()), len(devices)

"""From a row source to global arrays on the mesh, prefetched.

Row g of step s is stream index s * batch_size + g, whatever the number of processes; a process builds the rows that its
devices own. Grain only prefetches: the step is the whole truth about the position.
"""

from collections.abc import Iterator, Mapping

import grain
import jax
import numpy as np
from jax.sharding import Mesh

from denseir_jax.core.errors import ConfigError
from denseir_jax.data.batches import ChangingRows, RowSource
from denseir_jax.objectives.base import Field
from denseir_jax.parallel import mesh as meshes

Rows = dict[str, np.ndarray]


class _Steps:
    """A random-access sequence of steps: item i is the local rows of step start + i."""

    def __init__(self, source: RowSource, batch_size: int, owned: np.ndarray, start: int, stop: int):
        self.source, self.batch_size, self.owned, self.start, self.stop = source, batch_size, owned, start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, item: int) -> Rows:
        return self.source.rows((self.start + int(item)) * self.batch_size + self.owned)

    def __repr__(self) -> str:
        return f"Steps({self.start}, {self.stop}, {self.batch_size})"


def owned_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """The rows of a global batch that this process's devices own, ascending, int64."""
    slices = meshes.batch_sharding(mesh).addressable_devices_indices_map((batch_size,)).values()
    return np.unique(np.concatenate([np.arange(batch_size)[index] for index in slices if index is not None]))


def steps(
    source: RowSource, mesh: Mesh, batch_size: int, start: int, stop: int, fields: Mapping[str, Field], threads: int = 2
) -> Iterator[dict[str, jax.Array]]:
    """The global batches of steps start..stop-1, each field [batch_size, ...] sharded over the batch axes.

    Raises:
        ConfigError: the rows lack a field that the objective declares, or have it with another rank, size or type.
    """
    owned = owned_rows(mesh, batch_size)
    while start < stop:
        end = min(source.settle(start), stop) if isinstance(source, ChangingRows) else stop  # nothing is prefetched beyond
        check_fields(source.rows(start * batch_size + owned[:1]), fields)
        order = grain.MapDataset.source(_Steps(source, batch_size, owned, start, end))
        for rows in order.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)):
            yield to_global(rows, mesh, batch_size, owned)
        start = end


def to_global(rows: Rows, mesh: Mesh, batch_size: int, owned: np.ndarray) -> dict[str, jax.Array]:
    """Local rows (those at positions `owned` of the global batch) as global arrays."""
    sharding = meshes.batch_sharding(mesh)

    def place(local: np.ndarray) -> jax.Array:
        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            wanted = np.arange(batch_size)[index[0]] if index else owned
            return local[np.searchsorted(owned, wanted)]

        return jax.make_array_from_callback((batch_size, *local.shape[1:]), sharding, part)

    return {name: place(local) for name, local in rows.items()}


def check_fields(rows: Rows, fields: Mapping[str, Field]) -> None:
    """Raises ConfigError unless the rows hold every declared field with its rank, sizes and type; before anything compiles."""
    for name, field in fields.items():
        if name not in rows:
            raise ConfigError(f"the objective needs the batch field {name!r}; the data gives {', '.join(sorted(rows))}")
        have = rows[name]
        sizes = zip(have.shape[1:], field.tail, strict=False)
        differs = any(isinstance(declared, int) and found != declared for found, declared in sizes)
        if have.ndim != 1 + len(field.tail) or have.dtype != field.dtype or differs:
            raise ConfigError(f"batch field {name!r} is {have.dtype}{list(have.shape[1:])} a row; expected {field.dtype}{list(field.tail)}")

"""The feed: a row is decided by its place in the stream alone; devices and processes only share the work."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from denseir_jax.core.errors import ConfigError
from denseir_jax.data.order import SeededOrder
from denseir_jax.objectives.base import Field
from denseir_jax.parallel import mesh as meshes
from denseir_jax.parallel.mesh import MeshConfig
from denseir_jax.train import feed

N, BATCH = 10, 16  # more than an epoch a batch


class Ordered:
    """Row of stream position p: p itself and the item that it stands for."""

    n_items = N
    counts: dict[str, int] = {}  # noqa: RUF012

    def rows(self, stream: np.ndarray) -> dict[str, np.ndarray]:
        items = SeededOrder(N, seed=4).items(stream)
        return {"index": stream.astype(np.int32), "pair": np.stack([items, -items], 1).astype(np.int32)}

    def names(self, stream: np.ndarray) -> list[str]:
        return [str(index) for index in stream]


FIELDS = {"index": Field(), "pair": Field((2,))}


def owned_by(process: int, processes: int, mesh: jax.sharding.Mesh, monkeypatch) -> np.ndarray:
    """`feed.owned_rows` as a process would see it that has its share of the mesh's devices."""
    real = meshes.batch_sharding(mesh).devices_indices_map((BATCH,))
    mine = np.array_split(np.array(mesh.devices.flat), processes)[process]
    fake = SimpleNamespace(addressable_devices_indices_map=lambda shape: {device: real[device] for device in mine})
    with monkeypatch.context() as patch:
        patch.setattr(meshes, "batch_sharding", lambda mesh: fake)
        return feed.owned_rows(mesh, BATCH)


@pytest.mark.parametrize("processes", [1, 2, 4, 8])
def test_processes_share_the_rows_of_a_batch(processes, monkeypatch):
    for shape, copies in ((MeshConfig(), 1), (MeshConfig(data=4, fsdp=2), 1), (MeshConfig(data=2, fsdp=2, tensor=2), 2)):
        mesh = meshes.make(shape)
        owned = [owned_by(process, processes, mesh, monkeypatch) for process in range(processes)]
        together = np.concatenate(owned)
        assert sorted(set(together.tolist())) == list(range(BATCH))
        assert len(together) == BATCH * max(1, copies * processes // 8)  # only devices of one tensor group read the same rows
        assert all((np.diff(rows) > 0).all() for rows in owned)


@pytest.mark.parametrize("shape", [MeshConfig(), MeshConfig(data=2, fsdp=2, tensor=2)])
def test_batches_are_stretches_of_the_stream_wherever_one_begins(shape):
    mesh = meshes.make(shape)
    for start in (0, 3):
        for number, batch in enumerate(feed.steps(Ordered(), mesh, BATCH, start, 6, FIELDS), start):
            stream = np.arange(number * BATCH, (number + 1) * BATCH)
            want = Ordered().rows(stream)
            assert all(np.array_equal(np.asarray(batch[name]), want[name]) for name in want)
            for shard in batch["pair"].addressable_shards:
                assert np.array_equal(np.asarray(shard.data), want["pair"][shard.index])
        assert number == 5
    seen = np.concatenate([np.asarray(b["pair"])[:, 0] for b in feed.steps(Ordered(), mesh, BATCH, 0, 5, FIELDS)])
    assert all(sorted(seen[i : i + N]) == list(range(N)) for i in range(0, 5 * BATCH, N)), "every epoch holds every item once"


def test_rows_of_some_places_become_the_right_part_of_the_whole():
    """A process that owns rows 4..7 and 12..15 puts each where it belongs."""
    mesh, owned = meshes.make(MeshConfig()), np.arange(BATCH)
    rows = {"index": np.arange(100, 100 + BATCH, dtype=np.int32)}
    assert np.array_equal(np.asarray(feed.to_global(rows, mesh, BATCH, owned)["index"]), rows["index"])


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"text": Field((4,))}, "needs the batch field 'text'; the data gives index, pair"),
        ({"pair": Field()}, r"'pair' is int32\[2\] a row; expected int32\[\]"),
    ],
)
def test_fields_are_checked_before_anything_compiles(fields, message):
    with pytest.raises(ConfigError, match=message):
        next(feed.steps(Ordered(), meshes.make(MeshConfig()), BATCH, 0, 1, fields))


class Changing(Ordered):
    """Other rows after every third step: item + 100 x the number of the change. Remembers what it was asked."""

    def __init__(self):
        self.asked, self.now = [], 0

    def settle(self, step: int) -> int:
        self.asked.append(step)
        self.now = step // 3
        return (step // 3 + 1) * 3

    def facts(self, step: int) -> dict[str, float]:
        return {}

    def rows(self, stream: np.ndarray) -> dict[str, np.ndarray]:
        assert set((stream // BATCH // 3).tolist()) == {self.now}, "a row of another stretch than the one that was settled"
        return {**super().rows(stream), "pair": super().rows(stream)["pair"] + np.int32(100 * self.now)}


@pytest.mark.parametrize("start", [0, 2, 3])
def test_changing_rows_are_asked_at_each_boundary_and_never_read_ahead_of_it(start):
    source = Changing()
    for number, batch in enumerate(feed.steps(source, meshes.make(MeshConfig()), BATCH, start, 8, FIELDS), start):
        assert source.asked[-1] <= number, "nobody asks before the step before is done"
        assert np.asarray(batch["pair"]).max() // 100 == number // 3
    assert source.asked == [start, *(step for step in (3, 6) if step > start)]

"""What devices say to each other in the compiled train step, and that its values do not depend on it."""

import collections
import dataclasses
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from denseir_jax.models.dropout import keyed_dropout
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.objectives.base import Context, Objective, first_memory
from denseir_jax.objectives.bottleneck import BottleneckConfig
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.objectives.masked_text import Reading
from denseir_jax.objectives.masking import MaskConfig
from denseir_jax.objectives.mlm import Mlm
from denseir_jax.parallel import mesh as meshes
from denseir_jax.parallel import sharding
from denseir_jax.parallel.contrastive import in_batch_nll
from denseir_jax.parallel.mesh import MeshConfig
from denseir_jax.train import state, step

ROWS, PASSAGE, QUERY, HIDDEN, VOCAB = 32, 13, 9, 64, 90  # no other size is 13 or 9
COLLECTIVE = re.compile(r" = (.*?) (all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)(?:-start)?\(")
CONFIGS: dict[str, Any] = {"condenser": BottleneckConfig(n_head_layers=1), "contrastive": ContrastiveConfig(group_size=2, tied=False)}
MEMORY = 200  # no other size is this
Shape = tuple[int, int, int]


class Talk(NamedTuple):
    """One collective of a compiled program: its kind, the shapes that it carries, whether it stands outside of all loops."""

    kind: str
    shapes: list[tuple[int, ...]]
    once: bool


def build(name: str, **changes: Any) -> Objective:
    encoder = EncoderConfig(VOCAB, hidden=HIDDEN, layers=2, heads=4, intermediate=128, max_length=16, scan=True)
    context = Context(encoder, EmbedderConfig(), 2, 3, 0, 4, VOCAB, QUERY, PASSAGE, seed=3, unk_id=1)
    objective: Objective = dataclasses.replace(CONFIGS[name], **changes).build(context)
    return objective


def mesh_of(shape: Shape) -> jax.sharding.Mesh:
    return meshes.make(MeshConfig(*shape), jax.devices()[: int(np.prod(shape))])


def talk(text: str) -> list[Talk]:
    """All collectives of a compiled program."""
    found, entry = [], False
    for line in text.splitlines():
        if line and not line.startswith((" ", "}")):
            entry = line.startswith("ENTRY")
        if match := COLLECTIVE.search(line):
            shapes = [tuple(int(size) for size in sizes.split(",") if size) for sizes in re.findall(r"\[([\d,]*)\]", match[1])]
            found.append(Talk(match[2], shapes, entry))
    return found


def train_step(name: str, shape: Shape, micro_batches: int = 1, **changes: Any) -> list[Talk]:
    """The collectives of the real train step."""
    objective, mesh, optimizer = build(name, **changes), mesh_of(shape), optax.adamw(1e-3)
    with jax.set_mesh(mesh):
        memory = first_memory(objective)
        created = jax.eval_shape(lambda key: state.create(objective.init(key), optimizer, 7, memory), jax.random.key(0))
        make = step.make_train_step(objective, optimizer, mesh, micro_batches)
        batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), rows(objective, ROWS))
        return talk(step.compile_step(make, mesh, sharding.of_state(created, mesh)).lower(created, batch).compile().as_text() or "")


def rows(objective: Objective, n: int) -> dict[str, jax.Array]:
    rng, made = np.random.default_rng(0), dict[str, Any]()
    for name, field in objective.fields().items():
        tail = tuple(3 if isinstance(size, str) else size for size in field.tail)
        low, high = (5, QUERY + 1) if name.endswith("length") else (0, 2) if name == "word_start" else (5, VOCAB)
        made[name] = np.arange(n) if name == "index" else rng.integers(low, high, (n, *tail))
    return {name: jnp.asarray(value, jnp.int32) for name, value in made.items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_fsdp_gathers_parameters_and_leaves_activations_where_they_are(name: str) -> None:
    """Two layers are compiled, with 6 matrices each to gather forward and backward: 24; tables, biases, sums: fewer than 16."""
    found = train_step(name, (1, 8, 1))
    carried = [shape for one in found for shape in one.shapes]
    assert not [shape for shape in carried if len(shape) > 2 and {PASSAGE, QUERY} & set(shape)]
    kinds = collections.Counter(one.kind for one in found)
    assert "all-to-all" not in kinds and kinds["all-gather"] >= 24
    assert len(found) <= 40, kinds


def test_tensor_sums_activations_twice_a_block_pass() -> None:
    """Attention and feed-forward end in one sum each; a device holds its own quarter of the rows, never all."""
    found = train_step("condenser", (2, 2, 2))
    assert {one.kind for one in found} <= {"all-gather", "all-reduce", "collective-permute"}
    states = {shape for one in found for shape in one.shapes if len(shape) == 3 and shape[1] == PASSAGE}
    assert states == {(ROWS // 4, PASSAGE, HIDDEN)}
    assert len(found) <= 72, len(found)


def test_micro_batches_of_data_parallel_devices_sum_gradients_once() -> None:
    found = train_step("condenser", (8, 1, 1), micro_batches=4)
    assert len(found) == 2 and all(one.once and one.kind == "all-reduce" for one in found)
    moved = sum(int(np.prod(shape)) for one in found for shape in one.shapes)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(build("condenser").init, jax.random.key(0))))
    assert 0 < moved - parameters < 32, "every gradient once, and the metrics"


def test_a_memory_gathers_what_it_stores_and_nothing_else() -> None:
    """One float array more: the batch's vectors, however long the queue is; besides their text ids and three sums of metrics."""
    plain, found = (train_step("contrastive", (8, 1, 1), memory=memory) for memory in (0, MEMORY))
    gathers = [[one.shapes for one in talk if one.kind == "all-gather"] for talk in (plain, found)]
    more = collections.Counter(map(str, gathers[1])) - collections.Counter(map(str, gathers[0]))
    assert more == {str([(2 * ROWS, 1, HIDDEN)]): 1, str([(ROWS, 2)]): 1} and len(found) == len(plain) + 2
    assert not [shape for one in found for shape in one.shapes if MEMORY in shape]
    sums = [sum(len(one.shapes) for one in talk if one.kind == "all-reduce") for talk in (plain, found)]
    assert sums[1] - sums[0] <= 3


class Pairs(Mlm):
    """An objective of one matrix, whose loss has both a part in which rows meet and a sum over rows."""

    def per_row(self, params: Any, rows: Any, keys: Any, train: bool) -> tuple[Any, Any]:
        noisy = jnp.tanh(keyed_dropout(rows["x"], 0.5, keys, 0) @ params)
        return {"vector": noisy}, {"size": (jnp.square(noisy).sum(), jnp.float32(len(noisy)))}

    def over_batch(self, params: Any, vectors: Any, sums: Any, batch: Any) -> tuple[Any, Any]:
        x = vectors["vector"]
        return in_batch_nll(x, x[::-1], jnp.arange(len(x))).nll.mean() + sums["size"][0] / sums["size"][1], sums


@pytest.mark.parametrize("shape, micro_batches", [((8, 1, 1), 2), ((2, 1, 1), 8), ((4, 2, 1), 2), ((2, 2, 2), 4)])
def test_micro_batches_on_devices_give_what_the_whole_gives(shape: Shape, micro_batches: int) -> None:
    rng, pairs = np.random.default_rng(0), Pairs(build("condenser").context, Reading(MaskConfig(), "random"))  # type: ignore[attr-defined]
    params, x = (jnp.asarray(rng.normal(size=size), jnp.float32) for size in ((6, 4), (16, 6)))

    def run(shape: Shape, n: int) -> Any:
        mesh = mesh_of(shape)
        with jax.set_mesh(mesh):
            batch = jax.device_put({"x": x, "index": jnp.arange(16)}, meshes.batch_sharding(mesh))
            loss = jax.jit(jax.value_and_grad(step.make_loss(pairs, mesh, n), has_aux=True))
            return jax.tree.map(np.asarray, loss(params, batch, jax.random.key(1)))

    (whole, (metrics, _)), expected = run((1, 1, 1), 1)
    (value, (found, _)), gradient = run(shape, micro_batches)
    np.testing.assert_allclose(value, whole, rtol=1e-6)
    np.testing.assert_allclose(found["size"], metrics["size"], rtol=1e-6)
    np.testing.assert_allclose(gradient, expected, atol=1e-5 * np.abs(expected).max(), rtol=0)


def test_helpers_do_nothing_without_a_mesh_or_where_rows_do_not_divide() -> None:
    x = jnp.ones((6, 2))
    assert meshes.rows_over_devices(x) is x and meshes.whole_on_devices(x) is x
    with jax.set_mesh(mesh_of((1, 1, 1))):
        assert meshes.rows_over_devices(x) is x and meshes.whole_on_devices(x) is x
    with jax.set_mesh(mesh_of((2, 2, 2))):
        assert meshes.row_shards(8) == 4 and meshes.row_shards(6) == 1
        assert meshes.rows_over_devices(x) is x
        split = jax.jit(meshes.rows_over_devices)(jnp.ones((8, 2)))
        assert {shard.data.shape for shard in split.addressable_shards} == {(2, 2)}
        assert jax.jit(meshes.whole_on_devices)(split).sharding.is_fully_replicated

"""The step maker: neither micro-batches nor meshes change loss or gradients, with dropout on."""

import functools
import re
from typing import Any

import jax
import numpy as np
import optax
import pytest
from toy_rows import ToyRows, build

from denseir_jax.parallel import mesh as meshes
from denseir_jax.parallel import sharding
from denseir_jax.parallel.mesh import MeshConfig
from denseir_jax.train import feed, state, step

BATCH, STEPS = 16, 3
# What shifts all scores of a row alike has a gradient of 0 but for rounding.
NO_TRUE_GRADIENT = ("key/bias", "passage/encoder/layers/ffn/norm/bias")
ONE, EIGHT, FSDP, CUBE = (1, 1, 1), (8, 1, 1), (4, 2, 1), (2, 2, 2)


def mesh_of(shape: tuple[int, int, int]) -> jax.sharding.Mesh:
    return meshes.make(MeshConfig(*shape), jax.devices()[: int(np.prod(shape))])


@functools.cache
def trained(name: str, shape: tuple[int, int, int] = ONE, micro_batches: int = 1, **encoder: Any) -> tuple[list[Any], list[dict]]:
    """Metrics and gradients of each of three steps of plain descent."""
    objective, mesh = build(name, **encoder), mesh_of(shape)
    descent = optax.chain(optax.trace(0.0), optax.scale(-1e-3))  # its state is the gradient
    with jax.set_mesh(mesh):
        params = objective.init(jax.random.key(0))
        shardings = sharding.of_state(jax.eval_shape(lambda p: state.create(p, descent, 7), params), mesh)
        now = step.init_state(lambda p: state.create(p, descent, 7), shardings)(jax.device_put(params, shardings.params))
        batches = feed.steps(ToyRows(objective), mesh, BATCH, 0, STEPS, objective.fields())
        compute, metrics, gradients = None, [], []
        for batch in batches:
            if compute is None:
                compute = step.compile_step(step.make_train_step(objective, descent, mesh, micro_batches), mesh, shardings)
                compute = compute.lower(now, batch).compile()
            now, found = compute(now, batch)
            metrics.append({key: float(pair[0]) / float(pair[1]) for key, pair in found.items()})
            gradients.append(state.on_host(now.opt_state[0].trace))
    assert int(now.step) == STEPS
    return metrics, gradients


def assert_same(got: tuple[list[Any], list[dict]], want: tuple[list[Any], list[dict]]) -> None:
    """Every loss to 1e-6, every gradient to 1e-5 of its tensor's largest entry, step by step."""
    for got_metrics, want_metrics, got_gradients, want_gradients in zip(*got[:1], *want[:1], *got[1:], *want[1:], strict=True):
        np.testing.assert_allclose(got_metrics["loss"], want_metrics["loss"], rtol=1e-6)
        assert got_metrics.keys() == want_metrics.keys()
        biggest = max(np.abs(gradient).max() for gradient in want_gradients.values())
        for key in want_gradients:
            limit = 1e-6 * biggest if key.endswith(NO_TRUE_GRADIENT) else 1e-5 * np.abs(want_gradients[key]).max()
            np.testing.assert_allclose(got_gradients[key], want_gradients[key], atol=limit, rtol=0, err_msg=key)


CASES = [
    *(("mlm", *case) for case in [(ONE, 2), (EIGHT, 1)]),
    *(("contrastive", *case) for case in [(ONE, BATCH), (FSDP, 2), (CUBE, 4)]),
    ("mixture", CUBE, 2),  # of ICT and Condenser
]


@pytest.mark.parametrize("name, shape, micro_batches", CASES)
def test_loss_and_gradients_are_those_of_the_whole_batch_on_one_device(name, shape, micro_batches):
    assert_same(trained(name, shape, micro_batches), trained(name))


@pytest.mark.parametrize("layout", [{"scan": True}, {"scan": True, "remat": True}])
def test_layers_scanned_unrolled_or_computed_again_are_the_same(layout):
    assert_same(trained("mlm", layers=2, **layout), trained("mlm", layers=2))


def test_dropout_changes_with_the_row_and_the_run_and_with_nothing_else():
    objective, mesh = build("mlm"), mesh_of(ONE)
    params = objective.init(jax.random.key(0))
    rows = ToyRows(objective)

    @jax.jit
    def loss(index: jax.Array, seed: int) -> jax.Array:
        batch = {name: jax.numpy.asarray(value) for name, value in rows.rows(np.arange(BATCH)).items()} | {"index": index}
        return step.make_loss(objective, mesh)(params, batch, jax.random.key(seed))[1]["mlm"][0]

    with jax.set_mesh(mesh):
        first, again, other_rows, other_run = (
            float(loss(np.arange(start, start + BATCH, dtype=np.int32), seed)) for start, seed in ((0, 1), (0, 1), (1, 1), (0, 2))
        )
    assert first == again and len({first, other_rows, other_run}) == 3


def test_score_matrix_of_a_batch_over_devices_is_never_gathered():
    """Each device scores its own rows: what moves are vectors, [b, d] and [b * n, d], not scores, [b, b * n]."""
    objective, mesh = build("contrastive"), mesh_of(EIGHT)
    with jax.set_mesh(mesh):
        params = objective.init(jax.random.key(0))
        whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        batch = next(feed.steps(ToyRows(objective), mesh, BATCH, 0, 1, objective.fields()))
        gradient = jax.jit(jax.grad(lambda p, b: step.make_loss(objective, mesh, train=False)(p, b, jax.random.key(0))[0]))
        text = gradient.lower(jax.device_put(params, whole), batch).compile().as_text()
    gathered = re.findall(r"= \w+(\[[\d,]*\])\S* all-(?:gather|reduce)\(", text)
    assert f"[{2 * BATCH},16]" in gathered or f"[{BATCH},2,16]" in gathered, "the candidates are not gathered: this test sees nothing"
    assert f"[{BATCH},{2 * BATCH}]" not in gathered

"""The step maker: neither micro-batches nor meshes change loss or gradients, with dropout on."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from toy_rows import Line, ToyRows, build

from denseir_jax.core.metrics import means
from denseir_jax.objectives import masking
from denseir_jax.objectives.base import first_memory
from denseir_jax.parallel import mesh as meshes
from denseir_jax.parallel import sharding
from denseir_jax.parallel.mesh import MeshConfig
from denseir_jax.train import feed, state, step

BATCH, STEPS = 16, 3
# What shifts all scores of a row alike has a gradient of 0 but for rounding.
NO_TRUE_GRADIENT = ("key/bias", "passage/encoder/layers/ffn/norm/bias", "classifier/out/bias")
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
        shardings = sharding.of_state(jax.eval_shape(lambda p: state.create(p, descent, 7, first_memory(objective)), params), mesh)
        create = step.init_state(lambda p: state.create(p, descent, 7, first_memory(objective)), shardings)
        now = create(jax.device_put(params, shardings.params))
        batches = feed.steps(ToyRows(objective), mesh, BATCH, 0, STEPS, objective.fields())
        compute, metrics, gradients = None, [], []
        for batch in batches:
            if compute is None:
                compute = step.compile_step(step.make_train_step(objective, descent, mesh, micro_batches), mesh, shardings)
                compute = compute.lower(now, batch).compile()
            now, found = compute(now, batch)
            metrics.append(means(found))
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
    *(("mlm", 1, *case) for case in [(EIGHT, 1), (FSDP, 2)]),
    *(("contrastive", 1, *case) for case in [(ONE, BATCH), (CUBE, 4)]),
    ("mixture", 0, CUBE, 2),  # of ICT and Condenser
    ("cocondenser", 0, FSDP, 2),
    ("memory", 0, EIGHT, 2),
    ("cross_encoder", 1, CUBE, 2),
]


@pytest.mark.parametrize("name, layers, shape, micro_batches", CASES)
def test_loss_and_gradients_are_those_of_the_whole_batch_on_one_device(name, layers, shape, micro_batches):
    assert_same(trained(name, shape, micro_batches, layers=layers), trained(name, layers=layers))


def test_layers_scanned_and_computed_again_are_the_same():
    assert_same(trained("mlm", layers=2, scan=True, remat=True), trained("mlm", layers=2))


def test_dropout_is_drawn_apart_from_the_masks():
    """Else, with two texts a row, what is dropped would tell which words are masked."""
    index, (initial, stream) = jnp.arange(4), state.keys(seed=7)
    dropout = {tuple(key) for key in np.asarray(jax.random.key_data(step.row_keys(stream, index)))}
    assert len(dropout) == 4 and not np.array_equal(*map(jax.random.key_data, (initial, stream)))
    for purpose in range(8):
        base = jax.random.fold_in(jax.random.key(7), purpose)
        assert not np.array_equal(*map(jax.random.key_data, (stream, base))), "the first text of a row draws from its row's key"
        assert not dropout & {tuple(key) for key in np.asarray(jax.random.key_data(masking.row_keys(7, purpose, index)))}, purpose


def test_dropout_changes_with_the_place_in_the_stream_and_the_run_and_with_nothing_else():
    objective, mesh = Line(), mesh_of(ONE)
    params = objective.init(jax.random.key(0))
    rows = {name: jnp.asarray(value) for name, value in ToyRows(objective).rows(np.arange(BATCH)).items()}

    def out(start: int, seed: int) -> np.ndarray:
        index = jnp.arange(start, start + BATCH)
        return np.asarray(objective.per_row(params, rows, step.row_keys(jax.random.key(seed), index), True)[0]["out"])

    def loss(start: int, seed: int) -> float:
        batch = {**rows, "index": jnp.arange(start, start + BATCH)}
        return float(step.make_loss(objective, mesh)(params, batch, jax.random.key(seed))[0])

    assert loss(0, 1) == loss(0, 1) and len({loss(0, 1), loss(1, 1), loss(0, 2)}) == 3
    assert np.array_equal(out(0, 1), out(0, 1)) and not np.array_equal(out(0, 1), out(1, 1))

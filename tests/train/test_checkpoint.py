"""Checkpoints: what is saved is the state as it was, and what cannot be read is said in one line."""

import dataclasses
import json
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from orbax.checkpoint import v1 as ocp

from denseir_jax.core.errors import InputError
from denseir_jax.parallel import mesh as meshes
from denseir_jax.parallel import sharding
from denseir_jax.parallel.mesh import MeshConfig
from denseir_jax.train import checkpoint
from denseir_jax.train import state as states
from denseir_jax.train.checkpoint import Checkpoints, abstract, committed, read_params


def make(shape: MeshConfig, devices: int, rows: int = 512):
    """A state of 4 * rows * 1024 bytes on a mesh, and its shardings."""
    mesh = meshes.make(shape, jax.devices()[:devices])
    params = {"mlm_head": {"table": jnp.asarray(np.random.default_rng(0).normal(size=(rows, 1024)), jnp.float32)}}
    state = states.create(params, optax.identity(), 3)
    shardings = sharding.of_state(jax.eval_shape(lambda: state), mesh)
    return jax.device_put(state, shardings), shardings


@pytest.mark.parametrize("shape, devices", [(MeshConfig(), 1), (MeshConfig(data=2, fsdp=2, tensor=2), 8)])
def test_what_is_written_in_the_background_is_the_state_when_it_was_saved(tmp_path, shape, devices):
    """Training goes on in the same memory, which is given back, while the writer works."""
    state, shardings = make(shape, devices, rows=4096)
    further = jax.jit(lambda s: states.State(s.step + 1, jax.tree.map(lambda x: x + 1, s.params), s.opt_state, s.rng), donate_argnums=0)
    files, saved = Checkpoints(tmp_path / "c", keep_last=3), {}
    for number in (1, 2, 3):
        state = further(state)
        saved[number] = np.array(state.params["mlm_head"]["table"], copy=True)
        files.save(state, number, {"step": number})
        for _ in range(4):
            state = further(state)
    files.wait()
    for number, table in saved.items():
        found, meta = files.restore(abstract(state, shardings), number)
        assert np.array_equal(np.asarray(found.params["mlm_head"]["table"]), table)
        assert meta == {"step": number} and jnp.array_equal(jax.random.key_data(found.rng), jax.random.key_data(states.keys(3)[1]))
        assert found.params["mlm_head"]["table"].sharding == shardings.params["mlm_head"]["table"]
    files.close()


def damage_files(folder):
    for file in (folder / "state").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:20])


@pytest.mark.parametrize("damage", [damage_files, lambda folder: shutil.rmtree(folder / "state")])
def test_a_damaged_checkpoint_is_named_and_without_it_the_one_before_is_there(tmp_path, damage):
    state, shardings = make(MeshConfig(), 1)
    files = Checkpoints(tmp_path / "c", keep_last=2)
    for number in (1, 2):
        files.save(state, number, {"step": number})
    files.close()
    damage(tmp_path / "c" / "2")
    files = Checkpoints(tmp_path / "c", keep_last=2)
    with pytest.raises(InputError, match=r"checkpoint .*/2 cannot be restored: it is damaged.* remove that folder"):
        files.restore(abstract(state, shardings))
    files.close()
    shutil.rmtree(tmp_path / "c" / "2")
    files = Checkpoints(tmp_path / "c", keep_last=2)
    assert files.restore(abstract(state, shardings))[1] == {"step": 1}
    files.close()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Former:
    """A state of before there was a memory."""

    step: Any
    params: Any
    opt_state: Any
    rng: Any


def test_without_a_memory_a_checkpoint_is_as_it_was_before_there_was_one(tmp_path):
    state, shardings = make(MeshConfig(), 1)
    former = Former(state.step, state.params, state.opt_state, state.rng)
    with ocp.training.Checkpointer(tmp_path / "former") as files:
        files.save_checkpointables(1, {"state": former, "meta": {"step": 1}})
    files = Checkpoints(tmp_path / "former", keep_last=2)
    found, meta = files.restore(abstract(state, shardings))
    assert meta == {"step": 1} and found.memory is None
    assert np.array_equal(found.params["mlm_head"]["table"], state.params["mlm_head"]["table"])
    files.save(found, 2, {"step": 2})
    files.close()
    trees = [json.loads((tmp_path / "former" / step / "state" / "_METADATA").read_text())["tree_metadata"] for step in "12"]
    assert trees[0] == trees[1]


def test_tensors_of_another_model_are_refused(tmp_path):
    state, _ = make(MeshConfig(), 1)
    files = Checkpoints(tmp_path / "c", keep_last=1)
    files.save(state, 1, {"step": 1})
    files.wait()
    other, shardings = make(MeshConfig(), 1, rows=256)
    with pytest.raises(InputError, match="its tensors do not fit this config"):
        files.restore(abstract(other, shardings))
    files.close()


def test_another_process_reads_the_newest_parameters_though_they_are_removed_meanwhile(tmp_path, monkeypatch):
    state, _ = make(MeshConfig(data=2, fsdp=2, tensor=2), 8)
    files, folder = Checkpoints(tmp_path / "c", keep_last=3), tmp_path / "c"
    assert committed(folder) == []
    with pytest.raises(InputError, match="holds no checkpoint"):
        read_params(folder, state.params)
    for number in (9, 10):
        files.save(state, number, {"step": number})
    files.wait()
    assert committed(folder) == [9, 10]
    step, params = read_params(folder, jax.eval_shape(lambda: state.params))
    assert step == 10 and np.array_equal(params["mlm_head"]["table"], state.params["mlm_head"]["table"])
    assert len(params["mlm_head"]["table"].devices()) == 1
    real = checkpoint.ocp.load_checkpointables

    def slow(path, wanted):
        if path.name == "10":  # its owner is faster
            files.save(state, 11, {"step": 11})
            files.wait()
            shutil.rmtree(folder / "10")
        return real(path, wanted)

    monkeypatch.setattr(checkpoint.ocp, "load_checkpointables", slow)
    assert read_params(folder, state.params)[0] == 11
    shutil.rmtree(folder / "11" / "state")
    with pytest.raises(InputError, match=r"checkpoint .*11 cannot be read: it is damaged"):
        read_params(folder, state.params)
    files.close()

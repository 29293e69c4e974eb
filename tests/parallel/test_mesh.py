"""The mesh and the sharding table refuse what does not fit, with both numbers."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from denseir_jax.core.errors import ConfigError, InputError
from denseir_jax.parallel import mesh as meshes
from denseir_jax.parallel import sharding
from denseir_jax.parallel.mesh import MeshConfig


def test_mesh_takes_all_devices_and_says_when_it_cannot():
    assert dict(meshes.make(MeshConfig(fsdp=2)).shape) == {"data": 4, "fsdp": 2, "tensor": 1}
    assert meshes.batch_shards(meshes.make(MeshConfig(fsdp=2, tensor=2))) == 4
    with pytest.raises(ConfigError, match=r"fsdp=3 .* 8 devices"):
        meshes.make(MeshConfig(fsdp=3))
    with pytest.raises(ConfigError, match="batch_size=12 does not divide into 8 device shards x 1"):
        meshes.check_batch(meshes.make(MeshConfig()), 12, 1)
    with pytest.raises(ValueError, match="positive"):
        MeshConfig(fsdp=0)


def test_half_set_environment_is_refused(monkeypatch):
    monkeypatch.setenv("DENSEIR_COORDINATOR", "localhost:1")
    with pytest.raises(InputError, match="set together"):
        meshes.initialize()


def test_sharding_is_strict():
    mesh = meshes.make(MeshConfig(data=2, fsdp=2, tensor=2))
    shapes = {"encoder": {"layers": {"ffn": {"up": {"kernel": jnp.zeros((1, 4, 8))}}}}}
    found = sharding.of_state(shapes, mesh)["encoder"]["layers"]["ffn"]["up"]["kernel"]
    assert found.spec == P(None, "fsdp", "tensor")
    with pytest.raises(ConfigError, match="no sharding rule for the parameter 'decoder/odd'"):
        sharding.of_state({"decoder": {"odd": jnp.zeros(3)}}, mesh)
    with pytest.raises(ConfigError, match=r"a dimension of 5 does not divide over 2 devices on the mesh axis 'fsdp'"):
        sharding.of_state({"embeddings": {"position": jnp.zeros((4, 5))}}, mesh)


def test_optimizer_moments_follow_their_parameter():
    import optax

    mesh = meshes.make(MeshConfig(data=2, fsdp=2, tensor=2))
    params = {"encoder": {"embeddings": {"word": jnp.zeros((128, 8))}}}
    moments = sharding.of_state(jax.eval_shape(optax.adamw(1e-3).init, params), mesh)
    assert {leaf.spec for leaf in jax.tree.leaves(moments)} == {P("tensor", "fsdp"), P()}

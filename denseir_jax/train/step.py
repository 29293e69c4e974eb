"""The step maker: composes an objective's two functions, whole or micro-batched, and the optimizer.

Micro-batching encodes slices of the batch one after another under ``jax.checkpoint`` inside one differentiable
expression, and rows meet only afterwards, in ``over_batch``: loss and gradients are those of the whole batch for every
objective, contrastive ones included. There is no gradient cache and no other kind of accumulation. On a mesh of the data
axis alone gradients are summed over devices once a step; with fsdp or tensor, where parameters are gathered and gradients
scattered layer by layer, once a micro-batch.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from denseir_jax.objectives.base import Memory, Objective, Remembering
from denseir_jax.parallel import mesh as meshes
from denseir_jax.train.state import State

Batch = Mapping[str, jax.Array]
Pairs = dict[str, tuple[jax.Array, jax.Array]]
PACE = "pace"  # float32 [b], one number in every row of a step: what its learning rate is multiplied by. Data, so nothing compiles again.


def row_keys(rng: jax.Array, index: jax.Array) -> jax.Array:
    """One dropout key a row, from the run's key and the row's stream index alone."""
    return jax.vmap(jax.random.fold_in, (None, 0))(rng, index)


def make_loss(
    objective: Objective, mesh: Mesh, micro_batches: int = 1, train: bool = True
) -> Callable[..., tuple[jax.Array, tuple[Pairs, Memory | None]]]:
    """``loss(params, batch, rng, memory=None) -> (scalar over the global batch, (metrics as (sum, count), the next memory))``."""

    def loss(params: Any, batch: Batch, rng: jax.Array, memory: Memory | None = None) -> tuple[jax.Array, tuple[Pairs, Memory | None]]:
        keys = row_keys(rng, batch["index"]) if train else None
        if micro_batches == 1:
            vectors, sums = objective.per_row(params, batch, keys, train)
        else:
            vectors, sums = _by_micro_batch(objective, mesh, micro_batches, train, params, batch, keys)
        if memory and isinstance(objective, Remembering):  # it is not rows, so no micro-batch is cut from it
            batch = {**batch, **memory}
            memory = objective.remember(vectors, batch)
        value, metrics = objective.over_batch(params, vectors, sums, batch)
        return value, (metrics, memory)

    return loss


def _by_micro_batch(
    objective: Objective, mesh: Mesh, n: int, train: bool, params: Any, batch: Batch, keys: jax.Array | None
) -> tuple[Any, Any]:
    per_row = functools.partial(objective.per_row, train=train)
    if mesh.size == 1 or mesh.size != mesh.shape["data"]:
        return _in_turn(per_row, n, mesh, params, batch, keys)

    # Where every device holds all parameters, each takes its own rows in turn, and gradients are summed over devices once.
    def own_rows(params: Any, batch: Batch, keys: jax.Array | None) -> tuple[Any, Any]:
        vectors, sums = _in_turn(per_row, n, None, params, batch, keys)
        return vectors, jax.tree.map(lambda x: x[None], sums)

    rows = P(meshes.BATCH_AXES)
    on_devices = jax.shard_map(own_rows, mesh=mesh, in_specs=(P(), rows, rows), out_specs=(rows, rows), check_vma=False)
    vectors, sums = on_devices(params, dict(batch), keys)
    return vectors, jax.tree.map(lambda x: x.sum(0), sums)


def _in_turn(per_row: Callable[..., Any], n: int, mesh: Mesh | None, params: Any, batch: Batch, keys: jax.Array | None) -> tuple[Any, Any]:
    """The rows in `n` slices, one after another. `mesh`: over which they are split; None: they are one device's own."""
    shards = 1 if mesh is None else meshes.batch_shards(mesh)

    # Each micro-batch takes an equal share of every device's rows, so that all devices work on each.
    def split(x: jax.Array) -> jax.Array:
        share = x.reshape(shards, n, x.shape[0] // (shards * n), *x.shape[1:])
        parts = jnp.swapaxes(share, 0, 1).reshape(n, x.shape[0] // n, *x.shape[1:])
        return parts if mesh is None else jax.lax.with_sharding_constraint(parts, NamedSharding(mesh, P(None, meshes.BATCH_AXES)))

    def join(x: jax.Array) -> jax.Array:
        share = x.reshape(n, shards, x.shape[1] // shards, *x.shape[2:])
        return jnp.swapaxes(share, 0, 1).reshape(n * x.shape[1], *x.shape[2:])

    @jax.checkpoint
    def one(rows_and_keys: tuple[Batch, jax.Array | None]) -> tuple[Any, Any]:
        rows, chunk_keys = rows_and_keys
        return per_row(params, rows, chunk_keys)

    vectors, sums = jax.lax.map(one, jax.tree.map(split, (dict(batch), keys)))
    return jax.tree.map(join, vectors), jax.tree.map(lambda x: x.sum(0), sums)


def make_train_step(
    objective: Objective, optimizer: optax.GradientTransformation, mesh: Mesh, micro_batches: int = 1
) -> Callable[[State, Batch], tuple[State, Pairs]]:
    """``step(state, batch) -> (state, metrics)``, pure and not compiled. Metrics hold loss and grad_norm too."""
    loss = make_loss(objective, mesh, micro_batches)

    def step(state: State, batch: Batch) -> tuple[State, Pairs]:
        found, gradients = jax.value_and_grad(loss, has_aux=True)(state.params, batch, state.rng, state.memory)
        value, (metrics, memory) = found
        pace = {"pace": batch[PACE][0]} if PACE in batch else {}
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params, **pace)
        params = optax.apply_updates(state.params, updates)
        one = jnp.ones((), value.dtype)
        metrics = {**metrics, "loss": (value, one), "grad_norm": (optax.tree.norm(gradients), one)}
        return State(state.step + 1, params, opt_state, state.rng, memory), metrics

    return step


def compile_step(step: Callable[..., Any], mesh: Mesh, state_shardings: Any) -> jax.stages.Wrapped:
    """The only jax.jit of training: state sharded as told and donated, batch over the batch axes, metrics everywhere."""
    whole = NamedSharding(mesh, P())
    return jax.jit(
        step, in_shardings=(state_shardings, meshes.batch_sharding(mesh)), out_shardings=(state_shardings, whole), donate_argnums=0
    )


def init_state(create: Callable[[Any], State], shardings: State) -> Callable[[Any], State]:
    """Compiled creation of a state where it will live (optimizer moments are born sharded)."""
    return jax.jit(create, out_shardings=shardings)

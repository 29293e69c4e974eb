"""What training carries from step to step."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from denseir_jax.objectives.base import Memory
from denseir_jax.parallel.sharding import path_name

_DROPOUT = 1 << 16


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """step int32 [] (steps done), params, opt_state, rng (typed key, constant: streams are folded into it), memory (what an
    objective carries that is no parameter: see `objectives.base.Remembering`; None for most).

    Fields hold arrays, or what stands for them in the same tree: shapes, shardings.
    """

    step: Any
    params: Any
    opt_state: Any
    rng: Any
    memory: Any = None


def create(params: Any, optimizer: optax.GradientTransformation, seed: int, memory: Memory | None = None) -> State:
    """A state at step 0 with the given parameters, and with what the objective begins to remember."""
    return State(jnp.zeros((), jnp.int32), params, optimizer.init(params), keys(seed)[1], memory or None)


def keys(seed: int) -> tuple[jax.Array, jax.Array]:
    """The key of the initial parameters and the key of the stream's dropout: apart, and apart from those of the masks.

    ``split(key)[i]`` is ``fold_in(key, i)``, and small numbers folded into the seed's key are the purposes of masks
    (objectives/masking.py): dropout drawn from one of those would tell which words are masked.
    """
    base = jax.random.key(seed)
    return jax.random.split(base)[0], jax.random.fold_in(base, _DROPOUT)


def named(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by path name."""
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def nested(leaves: dict[str, Any]) -> dict[str, Any]:
    """Undo `named` for trees of dicts."""
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *parents, last = name.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return tree


def on_host(params: Any) -> dict[str, np.ndarray]:
    """The leaves as whole numpy arrays by name, gathered from every process (all of them must call this)."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        params = multihost_utils.process_allgather(params, tiled=True)
    return {name: np.asarray(leaf) for name, leaf in named(params).items()}

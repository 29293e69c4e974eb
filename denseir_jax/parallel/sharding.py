"""Where each parameter lives on the mesh: a strict table of path patterns.

A parameter without a rule is an error, never silently replicated; so is a dimension that does not divide. Optimizer
moments follow the parameter whose path theirs ends with.
"""

import re
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from denseir_jax.core.errors import ConfigError

# Matrices are cut over fsdp on one side and tensor on the other: a product's outputs over tensor first (query, key,
# value, up), its inputs over tensor next (output, down), so that one reduction ends each block. Layers are stacked first.
RULES: tuple[tuple[str, P], ...] = (
    (r"embeddings/word$", P("tensor", "fsdp")),
    (r"embeddings/(position|type)$", P(None, "fsdp")),
    (r"(attention|cross)/(query|key|value)/kernel$", P(None, "fsdp", "tensor")),
    (r"(attention|cross)/(query|key|value)/bias$", P(None, "tensor")),
    (r"(attention|cross)/output/kernel$", P(None, "tensor", "fsdp")),
    (r"ffn/up/kernel$", P(None, "fsdp", "tensor")),
    (r"ffn/up/bias$", P(None, "tensor")),
    (r"ffn/down/kernel$", P(None, "tensor", "fsdp")),
    (r"((attention|cross)/output|ffn/down)/bias$", P()),
    (r"mlm_head/table$", P("tensor", "fsdp")),
    (r"mlm_head/bias$", P("tensor")),
    (r"decoder/position$", P(None, "fsdp")),
    (r"latent/(into|back)$", P()),
    (r"classifier/\w+/(kernel|bias)$", P()),  # one output, or two, divide over nothing
    (r"(mlm_head|projection|embeddings)/\w+/kernel$", P("fsdp", "tensor")),
    (r"(mlm_head|projection|embeddings)/\w+/bias$", P()),
    (r"norm/(scale|bias)$", P()),
    (r"^step$|^rng$|^memory/|(^|/)(count|seen)$", P()),
)


def of_state(shapes: Any, mesh: Mesh) -> Any:
    """A tree of shardings for a tree of shapes (a State, parameters, or optimizer state).

    Raises:
        ConfigError: a leaf that no rule names, or a dimension that the mesh does not divide (both numbers are said).
    """
    return jax.tree_util.tree_map_with_path(lambda path, leaf: _sharding(path_name(path), leaf.shape, mesh), shapes)


def path_name(path: tuple[Any, ...]) -> str:
    """``('encoder', 'layers', 'kernel')`` as ``encoder/layers/kernel``, whatever kind of keys the tree has."""
    return "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)


def _sharding(name: str, shape: tuple[int, ...], mesh: Mesh) -> NamedSharding:
    spec = next((spec for pattern, spec in RULES if re.search(pattern, name)), None)
    if spec is None:
        raise ConfigError(f"no sharding rule for the parameter {name!r} of shape {list(shape)}; add one to parallel/sharding.py")
    for size, axis in zip(shape, spec, strict=False):
        if axis is not None and size % mesh.shape[axis]:
            raise ConfigError(
                f"parameter {name!r}: a dimension of {size} does not divide over {mesh.shape[axis]} devices on the mesh axis {axis!r}"
            )
    return NamedSharding(mesh, spec)

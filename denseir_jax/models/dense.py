"""The small parts of every BERT layer: matrix products by compute dtype, Linear, LayerNorm, exact GELU."""

import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

SQRT_HALF = 0.7071067811865476


def wide(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The array in at least float32; float64 stays float64."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def einsum(spec: str, a: Float[Array, "..."], b: Float[Array, "..."], dtype: str) -> Float[Array, "..."]:
    """``jnp.einsum`` of two arrays whose inputs are in the compute dtype and whose sums are in at least float32.

    Args:
        spec: as "bld,df->blf"; every letter appears in two of the three terms.
        dtype: "float32" (inputs as they are, at least float32, not rounded on any device) or "bfloat16" (inputs
            rounded to it, forward and backward).
    """
    if dtype == "bfloat16":
        return _rounded_einsum(spec, a.astype(jnp.float32), b.astype(jnp.float32))
    # By default accelerators would round float32 inputs to fewer bits.
    return jnp.einsum(spec, wide(a), wide(b), precision=jax.lax.Precision.HIGHEST)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rounded_einsum(spec: str, a: Array, b: Array) -> Array:
    # A rule of its own: the derived one would multiply the float32 cotangent by a bfloat16 array, in float32.
    a, b = a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)
    return jax.lax.platform_dependent(
        a,
        b,
        cpu=lambda a, b: jnp.einsum(spec, a.astype(jnp.float32), b.astype(jnp.float32)),  # no such product there; the same value
        default=lambda a, b: jnp.einsum(spec, a, b, preferred_element_type=jnp.float32),
    )


def _rounded_forward(spec: str, a: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
    return _rounded_einsum(spec, a, b), (a.astype(jnp.bfloat16), b.astype(jnp.bfloat16))


def _rounded_backward(spec: str, residuals: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    a, b = residuals
    (in_a, in_b), out = spec.split("->")[0].split(","), spec.split("->")[1]
    return _rounded_einsum(f"{out},{in_b}->{in_a}", gradient, b), _rounded_einsum(f"{out},{in_a}->{in_b}", gradient, a)


_rounded_einsum.defvjp(_rounded_forward, _rounded_backward)


def gelu(x: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """x Phi(x) through erf: exact, as BERT's "gelu"; cheaper on a CPU than the erfc form of ``jax.nn.gelu``."""
    return 0.5 * x * (1.0 + jax.lax.erf(x * SQRT_HALF))


class Linear(nn.Module):
    """y = x kernel + bias over the last dimension; kernel N(0, init_std), bias zero."""

    features: int
    init_std: float
    dtype: str = "float32"

    @nn.compact
    def __call__(self, x: Float[Array, "*s i"]) -> Float[Array, "*s o"]:
        kernel = self.param("kernel", nn.initializers.normal(self.init_std), (x.shape[-1], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        lead = "abc"[: x.ndim - 1]
        return einsum(f"{lead}i,io->{lead}o", x, kernel, self.dtype) + bias


class LayerNorm(nn.Module):
    """Normalises the last dimension; statistics in at least float32."""

    eps: float

    @nn.compact
    def __call__(self, x: Float[Array, "*s d"]) -> Float[Array, "*s d"]:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],))
        x = wide(x)
        centred = x - x.mean(-1, keepdims=True)
        variance = jnp.square(centred).mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt(variance + self.eps) * scale + bias


def unit(vectors: Float[Array, "*s d"]) -> Float[Array, "*s d"]:
    """Scaled to length 1; a zero vector stays zero, and its gradient finite."""
    return vectors * jax.lax.rsqrt(jnp.maximum(jnp.square(vectors).sum(-1, keepdims=True), 1e-24))


def l2_queries(q: Float[Array, "*s d"]) -> Float[Array, "*s e"]:
    """[2 q, 1, |q|^2]: the dot product with `l2_passages` of p is -|q - p|^2. Two dimensions more."""
    square = jnp.square(q).sum(-1, keepdims=True)
    return jnp.concatenate([2 * q, jnp.ones_like(square), square], axis=-1)


def l2_passages(p: Float[Array, "*s d"]) -> Float[Array, "*s e"]:
    """[p, -|p|^2, -1]; see `l2_queries`."""
    square = jnp.square(p).sum(-1, keepdims=True)
    return jnp.concatenate([p, -square, -jnp.ones_like(square)], axis=-1)


def init_params(module: nn.Module, key: Any, *args: Any) -> dict[str, Any]:
    """The module's parameters as a plain nested dict; nothing is computed but the initial values."""
    params: dict[str, Any] = jax.jit(module.init)(key, *args).get("params", {})
    return params


def apply(module: nn.Module, params: Mapping[str, Any], *args: Any) -> Any:
    """What the module gives for its arguments, from a plain tree of parameters, numpy or JAX."""
    return module.apply({"params": jax.tree.map(jnp.asarray, params)}, *args)

"""AdamW or LAMB as BERT-derived recipes use them: no decay on biases and LayerNorms, warm-up, decay, clipping, optional EMA."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from denseir_jax.core.config import later
from denseir_jax.parallel.sharding import path_name


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Defaults are PRETRAINING-style BERT values (AdamW .9/.999, decay .01, clip 1, warm-up 10 %, linear to zero).

    Attributes:
        name: adamw, or lamb: the same step, each tensor's scaled to the tensor's own length (You et al. 2020, arXiv 1904.00962).
        lr: peak learning rate. schedule: what follows the warm-up. warmup: share of all steps (below 1) or steps.
        b1, b2, eps, weight_decay: of either. clip: global gradient norm, 0 = off. ema: decay of an average of the
        parameters that is exported instead of them, 0 = off.
    """

    name: Literal["adamw", "lamb"] = later("adamw")
    lr: float = 1e-4
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    warmup: float = 0.1
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    clip: float = 1.0
    ema: float = 0.0

    def __post_init__(self) -> None:
        if self.lr <= 0:
            raise ValueError(f"lr={self.lr} must be above 0")
        if not (0 <= self.b1 < 1 and 0 <= self.b2 < 1 and 0 <= self.ema < 1):
            raise ValueError(f"b1={self.b1}, b2={self.b2}, ema={self.ema} must lie in [0, 1)")
        if self.warmup < 0 or self.weight_decay < 0 or self.clip < 0 or self.eps <= 0:
            raise ValueError("warmup, weight_decay and clip must not be negative, eps must be above 0")


def learning_rate(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Step (0-based) -> learning rate: up to the peak over the warm-up, then down to zero at `steps`."""
    warmup = min(round(config.warmup * steps) if config.warmup < 1 else round(config.warmup), steps)
    rest = max(steps - warmup, 1)
    decay = {
        "linear": optax.linear_schedule(config.lr, 0.0, rest),
        "cosine": optax.cosine_decay_schedule(config.lr, rest),
        "constant": optax.constant_schedule(config.lr),
    }[config.schedule]
    # The first step already moves: a rate of 0 would waste a batch (step i of the warm-up uses (i + 1) / (warmup + 1)).
    up = optax.linear_schedule(config.lr / (warmup + 1), config.lr, warmup) if warmup else optax.constant_schedule(config.lr)
    return optax.join_schedules([up, decay], [warmup])


def make(config: OptimizerConfig, steps: int) -> optax.GradientTransformationExtraArgs:
    """The whole update rule: clip, AdamW or LAMB, schedule, EMA. ``update(..., pace=p)`` multiplies the learning rate by p."""
    parts = [optax.clip_by_global_norm(config.clip)] if config.clip else []
    rule = lamb if config.name == "lamb" else optax.adamw
    parts.append(
        paced(rule(learning_rate(config, steps), config.b1, config.b2, config.eps, weight_decay=config.weight_decay, mask=decayed))
    )
    if config.ema:
        parts.append(average_of_params(config.ema))
    return optax.chain(*parts)


def decayed(params: Any) -> Any:
    """A tree of bools: True where weight decay applies (not to biases, not to LayerNorm scales)."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path_name(path).rsplit("/", 1)[-1] not in ("bias", "scale"), params)


def paced(rule: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """The same rule and state; ``update(..., pace=p)`` makes its step p times as long."""

    def update(gradients: Any, state: Any, params: Any = None, *, pace: Any = None, **_: Any) -> tuple[Any, Any]:
        updates, state = rule.update(gradients, state, params)
        return updates if pace is None else jax.tree.map(lambda u: (u * pace).astype(u.dtype), updates), state

    return optax.GradientTransformationExtraArgs(rule.init, update)


def lamb(
    rate: optax.Schedule, b1: float, b2: float, eps: float, *, weight_decay: float, mask: Callable[[Any], Any]
) -> optax.GradientTransformation:
    """As ``optax.lamb``, with a trust ratio for every layer's own tensor: ours lie stacked, all layers' in one array."""
    adam = optax.scale_by_adam(b1=b1, b2=b2, eps=eps)
    decay = optax.add_decayed_weights(weight_decay, mask=mask)
    return optax.chain(adam, decay, optax.stateless(_trusted), optax.scale_by_learning_rate(rate))


_IN_A_STACK = re.compile(r"(^|/)(attention|cross|ffn)/")  # the first axis of these counts layers


def _trusted(updates: Any, params: Any) -> Any:
    """Every update times |parameter| / |update|, or as it is where one of the two is zero."""

    def scaled(path: tuple[Any, ...], update: jax.Array, param: jax.Array) -> jax.Array:
        axes = tuple(range(1 if _IN_A_STACK.search(path_name(path)) else 0, update.ndim))
        step, size = (jnp.sqrt(jnp.sum(jnp.square(x), axis=axes, keepdims=True)) for x in (update, param))
        usable = (step > 0) & (size > 0)
        return jnp.where(usable, update * size / jnp.where(usable, step, 1), update)

    return jax.tree_util.tree_map_with_path(scaled, updates, params)


class AverageState(NamedTuple):
    """seen int32 []: updates so far; average: exponential moving average of the parameters."""

    seen: jax.Array
    average: Any


def average_of_params(decay: float) -> optax.GradientTransformation:
    """Keeps an exponential moving average of the updated parameters in the optimizer state; changes no update.

    The decay is ``min(decay, (1 + t) / (10 + t))`` so that the start does not weigh on a short run.
    """

    def init(params: Any) -> AverageState:
        return AverageState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.array, params))

    def update(updates: Any, state: AverageState, params: Any = None) -> tuple[Any, AverageState]:
        t = state.seen.astype(jnp.float32)
        d = jnp.minimum(decay, (1 + t) / (10 + t))
        new = jax.tree.map(lambda a, p, u: (d * a + (1 - d) * (p + u)).astype(a.dtype), state.average, params, updates)
        return updates, AverageState(state.seen + 1, new)

    return optax.GradientTransformation(init, update)


def exported_params(params: Any, opt_state: Any) -> Any:
    """The parameters to keep at the end: their moving average where there is one."""
    averages = [s.average for s in jax.tree.leaves(opt_state, is_leaf=lambda s: isinstance(s, AverageState)) if isinstance(s, AverageState)]
    return averages[0] if averages else params

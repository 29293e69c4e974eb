"""The update rule against numpy and closed forms."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from denseir_jax.train import optimizer
from denseir_jax.train.optimizer import OptimizerConfig


def test_linear_schedule_is_the_closed_form():
    rate = optimizer.learning_rate(OptimizerConfig(lr=2.0, warmup=0.1), 100)
    for step in range(100):
        expected = 2.0 * (step / 10 * (1 - 1 / 11) + 1 / 11) if step < 10 else 2.0 * (1 - (step - 10) / 90)
        np.testing.assert_allclose(rate(step), expected, rtol=1e-6, atol=1e-6)


def test_warmup_in_steps_cosine_and_constant():
    cosine = optimizer.learning_rate(OptimizerConfig(lr=1.0, warmup=20.0, schedule="cosine"), 100)
    np.testing.assert_allclose(cosine(60), 0.5 * (1 + np.cos(np.pi * 40 / 80)), rtol=1e-6)
    constant = optimizer.learning_rate(OptimizerConfig(lr=1.0, warmup=0.0, schedule="constant"), 100)
    assert float(constant(0)) == float(constant(99)) == 1.0
    all_warmup = optimizer.learning_rate(OptimizerConfig(lr=1.0, warmup=500.0), 100)
    assert float(all_warmup(0)) > 0 and float(all_warmup(99)) <= 1.0


def test_adamw_step_equals_numpy_and_spares_biases_and_norms():
    config = OptimizerConfig(lr=0.1, warmup=0.0, schedule="constant", weight_decay=0.3, clip=1.0, eps=1e-6, b1=0.5, b2=0.5)
    params = {"a": {"kernel": jnp.array([1.0, -2.0]), "bias": jnp.array([3.0])}, "norm": {"scale": jnp.array([4.0])}}
    gradients = {"a": {"kernel": jnp.array([3.0, 4.0]), "bias": jnp.array([0.0])}, "norm": {"scale": jnp.array([12.0])}}
    rule = optimizer.make(config, 10)
    updates, _ = rule.update(gradients, rule.init(params), params)
    norm = 13.0  # sqrt(9 + 16 + 144)
    for path, decay in (("kernel", 0.3), ("bias", 0.0), ("scale", 0.0)):
        owner = "norm" if path == "scale" else "a"
        g = np.asarray(gradients[owner][path]) / norm
        p = np.asarray(params[owner][path])
        expected = -0.1 * (g / (np.abs(g) + 1e-6) + decay * p)  # bias-corrected first step: m = g, v = g^2
        np.testing.assert_allclose(updates[owner][path], expected, rtol=1e-5)


def test_average_of_params_follows_its_recurrence_and_is_what_is_exported():
    config = OptimizerConfig(lr=0.1, warmup=0.0, schedule="constant", weight_decay=0.0, clip=0.0, ema=0.9)
    rule = optimizer.make(config, 10)
    params = {"kernel": jnp.array([1.0])}
    state, average = rule.init(params), 1.0
    for t in range(5):
        updates, state = rule.update({"kernel": jnp.array([1.0 + t])}, state, params)
        params = jax.tree.map(lambda p, u: p + u, params, updates)
        decay = min(0.9, (1 + t) / (10 + t))
        average = decay * average + (1 - decay) * float(params["kernel"][0])
    np.testing.assert_allclose(optimizer.exported_params(params, state)["kernel"], [average], rtol=1e-6)
    plain = optimizer.make(OptimizerConfig(), 10)
    assert optimizer.exported_params(params, plain.init(params)) is params


@pytest.mark.parametrize("bad", [{"lr": 0.0}, {"b1": 1.0}, {"ema": 1.0}, {"clip": -1.0}, {"warmup": -0.1}])
def test_impossible_values_are_refused(bad):
    with pytest.raises(ValueError):
        OptimizerConfig(**bad)


def test_lamb_equals_numpy_layer_by_layer():
    """You et al. 2020, algorithm 2: each tensor's step is as long as the tensor, times the rate. Layers lie stacked in one array."""
    config = OptimizerConfig(name="lamb", lr=0.1, warmup=0.0, schedule="constant", weight_decay=0.3, clip=0.0, eps=1e-6, b1=0.5, b2=0.5)
    rng = np.random.default_rng(0)
    params = {"layers": {"ffn": {"up": {"kernel": rng.normal(size=(2, 3, 4)) * [[[1.0]], [[50.0]]]}}}, "a": {"bias": np.zeros(3)}}
    gradients = jax.tree.map(lambda p: rng.normal(size=p.shape), params)
    rule = optimizer.make(config, 10)
    updates, _ = rule.update(*jax.tree.map(jnp.asarray, (gradients, rule.init(params), params)))
    for layer in range(2):
        p, g = (tree["layers"]["ffn"]["up"]["kernel"][layer] for tree in (params, gradients))
        step = g / (np.abs(g) + 1e-6) + 0.3 * p
        want = -0.1 * step * np.linalg.norm(p) / np.linalg.norm(step)
        np.testing.assert_allclose(updates["layers"]["ffn"]["up"]["kernel"][layer], want, rtol=1e-5)
    g = gradients["a"]["bias"]
    np.testing.assert_allclose(updates["a"]["bias"], -0.1 * g / (np.abs(g) + 1e-6), rtol=1e-5)  # a zero tensor has no length


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_pace_is_a_factor_of_the_rate_and_the_average_sees_it(name):
    config = OptimizerConfig(name=name, lr=0.1, warmup=0.0, schedule="constant", ema=0.9)
    params = {"layers": {"norm": {"scale": jnp.array([[1.0, 2.0]])}, "up": {"kernel": jnp.array([[3.0, -1.0]])}}}
    gradients = jax.tree.map(lambda p: 0.3 * p + 0.1, params)
    slow, fast = optimizer.make(dataclasses.replace(config, lr=0.025), 10), optimizer.make(config, 10)
    want, kept = slow.update(gradients, slow.init(params), params)
    got, state = fast.update(gradients, fast.init(params), params, pace=jnp.float32(0.25))
    for one, other in zip(jax.tree.leaves((want, kept)), jax.tree.leaves((got, state)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    assert jax.tree.structure(state) == jax.tree.structure(fast.update(gradients, fast.init(params), params)[1])

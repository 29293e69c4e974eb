"""SEED and Optimus: losses by hand, the latent's KL and its schedule, where noise comes from, and what the decoder needs."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_model import SEP, context, masked_rows, params_of, quick, run, same_in_parts
from tiny_passes import (
    entropy_given,
    exported_tower_is_the_encoder,
    few_words,
    flat_head,
    overfit,
    padding_changes_nothing,
    read,
    with_vector,
)

from denseir_jax.core.config import parse
from denseir_jax.core.errors import ConfigError
from denseir_jax.models.decoders import DecoderConfig
from denseir_jax.objectives.seed import LatentConfig, Seed, SeedConfig, kl_divergence, kl_weight, next_tokens, without_free_nats

ROWS = masked_rows(6)
SMALL = DecoderConfig(1, 2)
LATENT = LatentConfig(4, free_nats=0.0, cycle=16)


def seed(ctx: Any = None, **config: Any) -> Seed:
    built = SeedConfig(**({"decoder": SMALL} | config)).build(ctx or context())
    assert isinstance(built, Seed)
    return built


def test_every_next_token_and_the_last_one_is_a_target() -> None:
    """[SEP] is predicted, padding is not, [CLS] is only read: T - 1 targets a row."""
    ids, length = np.asarray(ROWS["input_ids"]), np.asarray(ROWS["length"])
    targets, weight = (np.asarray(x) for x in next_tokens(ROWS["input_ids"], ROWS["length"]))
    for row, n, target, real in zip(ids, length, targets, weight, strict=True):
        assert real.tolist() == [1.0] * (n - 1) + [0.0] * (17 - n)
        assert target[: n - 1].tolist() == row[1:n].tolist() and target[n - 2] == SEP


def test_seed_by_hand() -> None:
    """MLM + mean over all real targets of the batch; logits are states @ word table over the true vocabulary, without a bias."""
    objective = seed()
    params = params_of(objective)
    bias = jnp.linspace(-1, 1, 128)  # the MLM head's bias has no part in the decoder's logits
    params = params | {"mlm_head": params["mlm_head"] | {"bias": bias}}
    loss, metrics, vectors = run(objective, params, ROWS)
    states = quick(lambda h: objective.decode(params, ROWS["input_ids"], h, None))(vectors["cls"])
    logits = np.asarray(states, np.float64) @ np.asarray(params["encoder"]["embeddings"]["word"], np.float64)[:90].T
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    costs, right = [], 0
    for b, n in enumerate(np.asarray(ROWS["length"]).tolist()):
        for t in range(n - 1):
            target = int(ROWS["input_ids"][b, t + 1])
            costs.append(-log_p[b, t, target])
            right += int(logits[b, t].argmax() == target)
    assert metrics["decoder"][1] == len(costs) == (ROWS["length"] - 1).sum() and metrics["decoder_accuracy"][0] == right
    np.testing.assert_allclose(metrics["decoder"][0] / len(costs), np.mean(costs), rtol=1e-5)
    np.testing.assert_allclose(loss, np.mean(costs) + metrics["mlm"][0] / metrics["mlm"][1], rtol=1e-6)


def test_uniform_logits_cost_ln_v() -> None:
    """T6: a final LayerNorm without scale makes every logit 0; without the encoder's own loss there is one term less."""
    objective = seed()
    params = flat_head(params_of(objective))
    norm = params["decoder"]["norm"]
    params = params | {"decoder": params["decoder"] | {"norm": jax.tree.map(jnp.zeros_like, norm)}}
    loss, metrics, _ = run(objective, params, ROWS)
    np.testing.assert_allclose(loss, 2 * np.log(90), rtol=1e-6)
    np.testing.assert_allclose(metrics["decoder"][0] / metrics["decoder"][1], np.log(90), rtol=1e-6)
    alone = seed(mlm_weight=0.0)
    sums = jax.eval_shape(lambda: alone.per_row(params, ROWS, None, False)[1])
    assert alone.terms == {"decoder": 1.0} and "mlm" not in sums and "mlm" in objective.terms


def test_kl_by_hand_and_by_quadrature() -> None:
    """T9: N(0, 1) costs nothing, mean 1 half a nat a dimension; any other what numerical integration says."""
    nought, one = jnp.zeros((1, 3)), jnp.ones((1, 3))
    np.testing.assert_array_equal(kl_divergence(nought, nought), [[0, 0, 0]])
    np.testing.assert_allclose(kl_divergence(one, nought), [[0.5] * 3], rtol=1e-6)
    assert float(without_free_nats(kl_divergence(one, nought), 1.0)[0]) == 0
    assert float(without_free_nats(kl_divergence(one, nought), 0.5)[0]) == 0
    np.testing.assert_allclose(without_free_nats(kl_divergence(jnp.asarray([[2.0, 1.0]]), nought[:, :2]), 1.0), 2.0, rtol=1e-6)
    mean, log_variance = np.array([0.3, -1.7]), np.array([-1.2, 0.6])
    x = np.linspace(-20, 20, 400001)
    total = 0.0
    for m, v in zip(mean, np.exp(log_variance), strict=True):
        p = np.exp(-((x - m) ** 2) / (2 * v)) / math.sqrt(2 * math.pi * v)
        total += float((p * (-((x - m) ** 2) / (2 * v) - 0.5 * math.log(v) + x**2 / 2)).sum() * (x[1] - x[0]))
    found = kl_divergence(jnp.asarray(mean[None], jnp.float32), jnp.asarray(log_variance[None], jnp.float32)).sum()
    np.testing.assert_allclose(found, total, rtol=1e-5)


def test_free_bits_have_no_gradient() -> None:
    """T9: a dimension below its free nats is left alone, one above is pulled in full."""
    gradient = jax.grad(lambda mean: without_free_nats(kl_divergence(mean, jnp.zeros((1, 2))), 1.0).sum())(jnp.asarray([[1.0, 2.0]]))
    np.testing.assert_allclose(gradient, [[0, 2]], rtol=1e-6)


def frange_cycle(n: int, cycles: int, zero: float, rise: float, stop: float) -> list[float]:
    """The cyclical schedule step by step, as Optimus describes it."""
    period, weights = n / cycles, list[float]()
    for cycle in range(cycles):
        value = 0.0
        while len(weights) < (cycle + 1) * period:
            place = len(weights) - cycle * period
            if place < period * zero:
                weights.append(0.0)
            else:
                weights.append(min(value, stop))
                value += stop / (period * rise)
    return weights


@pytest.mark.parametrize("zero, rise, weight", [(0.5, 0.25, 1.0), (0.2, 0.8, 0.5), (0.0, 0.5, 2.0)])
def test_the_weight_of_kl_comes_in_cycles(zero: float, rise: float, weight: float) -> None:
    """T9: 100 rows, 10 cycles; with .5 and .25 the first half of each is 0."""
    config = LatentConfig(4, weight=weight, cycle=10, zero=zero, rise=rise)
    found = np.asarray(kl_weight(config, jnp.arange(100)))
    np.testing.assert_allclose(found, frange_cycle(100, 10, zero, rise, weight), atol=1e-5)
    assert zero != 0.5 or (not found.reshape(10, 10)[:, :5].any() and (found.reshape(10, 10)[:, 8:] == 1).all())
    at_once = kl_weight(dataclasses.replace(config, zero=0.3, rise=0.0), jnp.arange(10))
    np.testing.assert_array_equal(at_once, [0] * 3 + [weight] * 7)
    assert (kl_weight(LatentConfig(4, weight=weight), jnp.arange(100)) == weight).all()


def test_the_latent_loss_by_hand() -> None:
    """In evaluation the decoder gets the mean itself; KL is weighted at each row's place and counted by token."""
    objective = seed(latent=LATENT, decoder_weight=2.0)
    params = params_of(objective)
    params = params | {"latent": jax.tree.map(lambda leaf: leaf * 20, params["latent"])}
    loss, metrics, vectors = run(objective, params, ROWS)
    mean, log_variance = np.split(np.asarray(vectors["cls"] @ params["latent"]["into"], np.float64), 2, axis=1)
    kl = 0.5 * (mean**2 + np.exp(log_variance) - log_variance - 1).sum(1)
    place = (np.asarray(ROWS["index"]) % 16) / 16
    beta = np.clip((place - 0.5) / 0.25, 0, 1)
    tokens = float((ROWS["length"] - 1).sum())
    assert 0 < beta.sum() < len(beta)
    np.testing.assert_allclose(metrics["kl"], (kl.sum(), 6), rtol=1e-5)
    np.testing.assert_allclose(metrics["weighted_kl"], ((beta * kl).sum(), tokens), rtol=1e-5)
    plain = seed()
    through = jnp.asarray(mean, jnp.float32) @ params["latent"]["back"]

    def without_latent() -> Any:
        return plain.score(params, with_vector(read(plain, params, ROWS), lambda h: through))[1]["decoder"][0]

    np.testing.assert_allclose(metrics["decoder"][0], quick(without_latent)(), rtol=1e-5)
    parts = {name: metrics[name][0] / metrics[name][1] for name in ("mlm", "decoder", "weighted_kl")}
    np.testing.assert_allclose(loss, parts["mlm"] + 2 * parts["decoder"] + 2 * parts["weighted_kl"], rtol=1e-6)


def test_noise_is_drawn_by_row() -> None:
    """Without any dropout training still differs from evaluation, by noise; a row's is the same in any batch."""
    objective = seed(context(dropout=0.0, attention_dropout=0.0), latent=LATENT)
    params = jax.tree.map(lambda leaf: leaf + 0.3 * jax.random.normal(jax.random.key(1), leaf.shape), params_of(objective))
    drop = jax.vmap(jax.random.key)(jnp.arange(6, dtype=jnp.uint32))

    decoder = quick(lambda rows, keys: objective.per_row(params, rows, keys, True)[1]["decoder"][0])
    order = np.array([3, 0, 5, 1, 2, 4])
    found = [float(decoder({name: value[at] for name, value in ROWS.items()}, drop[at])) for at in (np.arange(6), order)]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)
    assert abs(float(decoder(ROWS, drop[order])) / found[0] - 1) > 1e-4, "it follows the key"
    assert abs(float(run(objective, params, ROWS)[1]["decoder"][0]) / found[0] - 1) > 1e-4


def test_parts_equal_the_whole() -> None:
    """T21, noise and dropout of the cross-attention included."""
    same_in_parts(seed(latent=LATENT), ROWS)


def test_padding() -> None:
    padding_changes_nothing(seed(latent=LATENT), ROWS)


def test_export() -> None:
    exported_tower_is_the_encoder(seed(latent=LATENT), ROWS)


def test_a_weak_decoder_needs_the_vector_and_a_strong_one_does_not() -> None:
    """T23: window 1 costs nothing with the vector and at least the entropy of a next token without; 12 layers and no window
    come down to the entropy given all tokens before, and lose less by other sentences' vectors."""
    rows, ctx = few_words(), context(hidden=32, heads=2, intermediate=64, layers=1)
    floor, low = entropy_given(rows, range(1, 16), (-1,)), entropy_given(rows, range(1, 16), tuple(range(-15, 0)))
    others = [lambda h, n=n: jnp.roll(h, n, axis=0) for n in (1, 2, 3)]
    costs, gaps = [], []
    for layers, window, steps in ((1, 1, 300), (12, None, 220)):
        objective = seed(ctx, decoder=DecoderConfig(layers, window))
        (true, _, *other), (_, blind, *_) = overfit(objective, rows, steps, 3e-3, lambda h: h, jnp.zeros_like, *others)
        costs += [true, blind]
        gaps.append(np.mean(other) - true)
    weak, weak_blind, strong, strong_blind = costs
    assert max(weak, strong) < 0.05 and gaps[0] > 0.5, "with the vector"
    assert 0.5 < floor - 1e-3 < weak_blind < floor + 0.1 and low - 1e-3 < strong_blind < 0.3 < floor, "without"
    assert gaps[1] < gaps[0] - 0.5


def test_impossible_settings_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"config\.decoder: window=0 must be at least 1"):
        parse(SeedConfig, {"decoder": {"window": 0}})
    with pytest.raises(ConfigError, match=r"objective\.decoder: hidden 16 does not divide into 3 heads"):
        seed(decoder=DecoderConfig(heads=3))
    with pytest.raises(ConfigError, match=r"config\.mask: mask rate 1\.5 is outside"):
        parse(SeedConfig, {"mask": {"rate": 1.5}})
    with pytest.raises(ConfigError, match=r"zero=0\.8 and rise=0\.3 are shares of a cycle"):
        parse(SeedConfig, {"latent": {"zero": 0.8, "rise": 0.3}})
    with pytest.raises(ConfigError, match="latent size=-1"):
        parse(SeedConfig, {"latent": {"size": -1}})
    with pytest.raises(ConfigError, match=r"decoder_weight=0\.0 above 0"):
        parse(SeedConfig, {"decoder_weight": 0.0})

"""Losses of a query's own group: worked values, identities, gradients in closed form, members that take no part."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, logsumexp, softmax

from denseir_jax.objectives import group_losses as losses


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def mean(pair) -> float:
    return float(pair[0] / pair[1])


def all_of(scores) -> jnp.ndarray:
    return jnp.ones(np.shape(scores), bool)


def test_worked_values() -> None:
    pair = jnp.asarray([[1.0, 3.0]])
    assert mean(losses.pairwise_nll(pair, all_of(pair))) == pytest.approx(2.1269280, abs=1e-7)
    assert mean(losses.hinge(pair, all_of(pair), 1.0)) == 3
    assert mean(losses.soft_margin(pair, all_of(pair), 1.0)) == pytest.approx(np.log1p(np.exp(3)), abs=1e-12)
    assert mean(losses.bce(pair, all_of(pair))) == pytest.approx(np.log1p(np.exp(-1)) + np.log1p(np.exp(3)), abs=1e-12)
    scores, teacher = jnp.asarray([[1.0, 0.0], [2.0, 0.0]]), jnp.asarray([[2.0, 0.0], [1.0, 1.0]])
    assert mean(losses.margin_mse(scores, teacher, all_of(scores))) == 2.5


def test_worked_values_of_distillation() -> None:
    """Two queries with two passages each; the student scores all four."""
    whole, teacher = np.array([[1.0, 0, 0, -1], [0, 1, 2, 0]]), jnp.asarray([[2.0, 0], [1, 1]])
    own = jnp.asarray([whole[0, :2], whole[1, 2:]])
    found = losses.global_kl(own, jnp.asarray(logsumexp(whole, axis=1)), teacher, all_of(own))
    assert mean(found) == pytest.approx(0.5905284, abs=1e-7)
    assert mean(losses.local_kl(own, teacher, all_of(own))) == pytest.approx(0.2504558, abs=1e-7)
    assert mean(losses.local_kl(own, teacher, all_of(own), by_element=True)) == pytest.approx(0.1252279, abs=1e-7)
    for i, (over_all, over_own) in enumerate([(0.3803923, 0.0671306), (0.8006645, 0.4337809)]):
        row, asked = own[i : i + 1], teacher[i : i + 1]
        total = jnp.asarray(logsumexp(whole[i : i + 1], axis=1))
        assert mean(losses.global_kl(row, total, asked, all_of(row))) == pytest.approx(over_all, abs=2e-7)
        assert mean(losses.local_kl(row, asked, all_of(row))) == pytest.approx(over_own, abs=2e-7)


FLOATS = st.floats(-8, 8)
ROWS = st.lists(st.lists(FLOATS, min_size=4, max_size=4), min_size=1, max_size=3)


@settings(deadline=None, max_examples=30)
@given(ROWS, st.lists(FLOATS, min_size=4, max_size=4), st.sampled_from([0.5, 1.0, 2.0]))
def test_kl_by_scipy(rows: list[list[float]], line: list[float], t: float) -> None:
    scores = np.array(rows)
    teacher = np.tile(line, (len(rows), 1)) + np.arange(len(rows))[:, None] * scores
    p = softmax(teacher, axis=1)
    want = (p * (log_softmax(teacher, axis=1) - log_softmax(scores / t, axis=1))).sum(1)
    assert mean(losses.local_kl(jnp.asarray(scores), jnp.asarray(teacher), all_of(scores), t)) == pytest.approx(want.mean(), abs=1e-9)
    others = logsumexp(np.concatenate([scores, scores + 1], axis=1) / t, axis=1)
    want = (p * (log_softmax(teacher, axis=1) - (scores / t - others[:, None]))).sum(1)
    found = losses.global_kl(jnp.asarray(scores), jnp.asarray(others), jnp.asarray(teacher), all_of(scores), t)
    assert mean(found) == pytest.approx(want.mean(), abs=1e-9)


def test_identities() -> None:
    rng = np.random.default_rng(0)
    scores, teacher = (jnp.asarray(rng.normal(size=(5, 4))) for _ in range(2))
    everyone = all_of(scores)
    assert mean(losses.local_kl(scores, scores + 3, everyone)) == pytest.approx(0, abs=1e-12)
    sure = teacher.at[:, 0].set(1e4)  # one passage has it all: the cross entropy of that passage
    total = jax.nn.logsumexp(jnp.concatenate([scores, teacher], axis=1), axis=1)
    assert mean(losses.global_kl(scores, total, sure, everyone)) == pytest.approx(float((total - scores[:, 0]).mean()), abs=1e-9)
    assert np.isfinite(mean(losses.local_kl(scores, sure, everyone, 1e-3, 1e-3)))
    shifted = teacher + jnp.arange(5.0)[:, None]
    assert mean(losses.margin_mse(scores, teacher, everyone)) == pytest.approx(mean(losses.margin_mse(scores, shifted, everyone)))
    for loss in (losses.pairwise_nll, losses.hinge, losses.soft_margin):
        margin = () if loss is losses.pairwise_nll else (0.5,)
        assert mean(loss(scores, everyone, *margin)) == pytest.approx(mean(loss(scores + 7, everyone, *margin)))


def test_gradient_of_the_pairwise_loss() -> None:
    """sigma(s- - s+), up and down."""
    gradient = jax.grad(lambda s: losses.pairwise_nll(s, all_of(s))[0])(jnp.asarray([[1.0, 3.0]]))
    np.testing.assert_allclose(gradient, [[-0.8807971, 0.8807971]], atol=1e-7)


@pytest.mark.parametrize("name", ["pairwise_nll", "hinge", "soft_margin", "bce", "margin_mse", "local_kl", "global_kl"])
def test_who_takes_no_part_changes_nothing(name: str) -> None:
    """Neither the loss nor a gradient; a row of which nothing is left but the positive is finite."""
    rng = np.random.default_rng(1)
    scores, teacher = (jnp.asarray(rng.normal(size=(3, 4))) for _ in range(2))
    keep = jnp.asarray([[True, True, False, True], [True, False, False, False], [True, True, True, True]])

    def loss(scores, teacher, keep):
        extra = {"margin_mse": (teacher,), "local_kl": (teacher,), "global_kl": (jnp.full(len(scores), 3.0), teacher)}.get(name, ())
        after = (1.0,) if name in ("hinge", "soft_margin") else ()
        return getattr(losses, name)(scores, *extra, keep, *after)

    def total(scores, teacher):
        pair = loss(scores, teacher, keep)
        return pair[0] / pair[1]

    value, gradients = jax.value_and_grad(total, (0, 1))(scores, teacher)
    loud = jnp.where(keep, 0, 1e3)
    np.testing.assert_allclose(total(scores + loud, teacher + loud), value, rtol=1e-12)
    assert all(bool(jnp.isfinite(g).all()) and not bool(jnp.where(keep, 0, g).any()) for g in gradients)
    alone = jnp.asarray([[True, False, False, False]] * 3)
    assert np.isfinite(loss(scores, teacher, alone)[0])

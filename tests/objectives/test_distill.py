"""Distillation against numpy, whole and on several devices; what a teacher's scores change and what they do not."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import log_softmax, logsumexp, softmax
from scipy.stats import kendalltau
from test_pair_objectives import SMALL, B, N, group_rows
from tiny_model import LENGTH, QUERY, evaluate, params_of, quick, run, texts

from denseir_jax.core.config import parse
from denseir_jax.core.errors import ConfigError, InputError
from denseir_jax.data.tokens import TokenStore
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.objectives.distill import DistillConfig
from denseir_jax.parallel import mesh as meshes
from denseir_jax.parallel.mesh import MeshConfig

TEACHER = np.random.default_rng(4).normal(size=(B, N)).astype(np.float32)
ROWS = group_rows() | {"teacher": jnp.asarray(TEACHER)}
KEEP = np.ones((B, N), bool)
KEEP[1, 1] = False  # known to answer query 1


def by_numpy(config: DistillConfig, q: np.ndarray, p: np.ndarray, nll: float) -> float:
    """A formula a branch, in float64 and loops."""
    s, t = np.einsum("bd,bnd->bn", q, p), TEACHER.astype(np.float64)
    total, cells = 0.0, 0
    for i in range(B):
        k, tau = KEEP[i], config.temperature
        if config.teach == "margin_mse":
            gaps = (s[i, :1] - s[i, 1:]) - (t[i, :1] - t[i, 1:])
            total, cells = total + (gaps[k[1:]] ** 2).sum(), cells + k[1:].sum()
            continue
        target = log_softmax(t[i, k] / config.teacher_temperature)
        if config.teach == "global_kl":
            known = set(np.asarray(ROWS["known"])[i].tolist()) - {-1}
            ids = np.asarray(ROWS["passage_row"]).reshape(-1)
            others = [j for j in range(B * N) if j == i * N or int(ids[j]) not in known]
            found = s[i, k] / tau - logsumexp(p.reshape(B * N, -1)[others] @ q[i] / tau)
        else:
            found = log_softmax(s[i, k] / tau)
        total += (softmax(t[i, k] / config.teacher_temperature) * (target - found)).sum()
        cells += k.sum() if config.teach == "local_kl_element" else 1
    factor = config.temperature**2 if config.square_temperature else 1.0
    return config.teacher_weight * factor * total / cells + config.nll_weight * nll


@pytest.mark.parametrize(
    "config",
    [
        DistillConfig(group_size=N, temperature=0.5, teacher_temperature=2.0, square_temperature=True),
        DistillConfig(group_size=N, teach="local_kl", temperature=0.5, nll_weight=0.3, teacher_weight=2.0),
        DistillConfig(group_size=N, teach="local_kl_element", in_batch=False),
        DistillConfig(group_size=N, teach="margin_mse", temperature=0.1, nll_weight=1.0),
    ],
    ids=lambda config: config.teach,
)
def test_each_formula_by_numpy(config: DistillConfig) -> None:
    objective = config.build(SMALL)
    params = params_of(objective)
    loss, metrics, vectors = run(objective, params, ROWS)
    q, p = (np.asarray(vectors[name], np.float64) for name in ("query", "passage"))
    plain = ContrastiveConfig(group_size=N, temperature=config.temperature, in_batch=config.in_batch).build(SMALL)
    np.testing.assert_allclose(loss, by_numpy(config, q, p, float(run(plain, params, ROWS)[0])), rtol=1e-4)
    assert set(objective.fields()) == set(plain.fields()) | {"teacher"} and objective.fields()["teacher"].dtype == "float32"
    s = np.where(KEEP, np.einsum("bd,bnd->bn", q, p), -np.inf)
    assert metrics["agreement"] == ((s.argmax(1) == np.where(KEEP, TEACHER, -np.inf).argmax(1)).sum(), B)


def test_a_teacher_that_is_sure_of_the_positive_is_the_contrastive_loss() -> None:
    objective, plain = DistillConfig(group_size=N).build(SMALL), ContrastiveConfig(group_size=N).build(SMALL)
    params, sure = params_of(objective), jnp.zeros((B, N)).at[:, 0].set(1e4)
    np.testing.assert_allclose(run(objective, params, ROWS | {"teacher": sure})[0], run(plain, params, ROWS)[0], rtol=1e-6)


def test_a_student_reaches_the_teachers_order() -> None:
    """Six queries with eight passages each, whose scores a teacher drew at random: nothing but the student's words can tell."""
    n = 8
    objective = DistillConfig(group_size=n, teach="local_kl", temperature=0.1, similarity="cosine").build(SMALL)
    query, passage = texts(B, QUERY, 1), texts(B * n, LENGTH, 2)
    teacher = np.random.default_rng(5).normal(size=(B, n)).astype(np.float32) * 2
    rows = {"query_ids": query[0], "query_length": query[1], "index": jnp.arange(B, dtype=jnp.int32), "teacher": jnp.asarray(teacher)}
    rows |= {"passage_ids": passage[0].reshape(B, n, LENGTH), "passage_length": passage[1].reshape(B, n)}
    rows |= {"passage_row": jnp.arange(B * n).reshape(B, n), "known": jnp.full((B, 1), -1)}
    descent = optax.adam(0.02)

    def step(now: tuple[Any, Any], _: Any) -> tuple[tuple[Any, Any], jax.Array]:
        loss, gradient = jax.value_and_grad(lambda params: evaluate(objective, False, params, rows)[0])(now[0])
        updates, state = descent.update(gradient, now[1], now[0])
        return (optax.apply_updates(now[0], updates), state), loss

    def agreement(params: Any) -> float:
        vectors = run(objective, params, rows)[2]
        found = np.einsum("bd,bnd->bn", vectors["query"], vectors["passage"])
        return float(np.mean([kendalltau(*line).statistic for line in zip(found, teacher, strict=True)]))

    params = params_of(objective)
    assert agreement(params) < 0.5
    (params, _), losses = quick(lambda params: jax.lax.scan(step, (params, descent.init(params)), length=200))(params)
    assert agreement(params) > 0.9 and losses[-1] < 0.1 * losses[0]


@pytest.mark.parametrize("shape", [(2, 1, 1), (1, 2, 1)])
def test_devices_change_nothing(shape: tuple[int, int, int]) -> None:
    objective = DistillConfig(group_size=N, nll_weight=0.5).build(SMALL)
    rng = np.random.default_rng(2)
    vectors = {"query": rng.normal(size=(B, 8)).astype(np.float32), "passage": rng.normal(size=(B, N, 8)).astype(np.float32)}

    def loss(vectors: Any) -> Any:
        return objective.over_batch({}, vectors, {}, ROWS)[0]

    whole = quick(jax.value_and_grad(loss))(vectors)
    mesh = meshes.make(MeshConfig(*shape), jax.devices()[:2])
    with jax.set_mesh(mesh):
        split = jax.device_put(vectors, meshes.batch_sharding(mesh))
        found = quick(jax.value_and_grad(loss))(split)
    np.testing.assert_allclose(found[0], whole[0], rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max()), found[1], whole[1])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"group_size": 1}, "a teacher compares passages of a group"),
        ({"in_batch": False}, "it needs in_batch=True"),
        ({"teacher_temperature": 0.0}, "must be positive"),
        ({"teacher_weight": 0.0}, "must be positive"),
        ({"teach": "kl"}, "did you mean 'local_kl'"),
        ({"symmetric": True}, "symmetric=True, loss='nll' are of the contrastive loss, which nll_weight=0 leaves out"),
        ({"teach": "local_kl", "in_batch": False, "loss": "pairwise"}, "loss='pairwise' are of the contrastive loss"),
        ({"nll_weight": 1.0, "margin": 0.5}, "margin=0.5 is of loss='hinge'"),
        ({"teach": "margin_mse", "teacher_temperature": 2.0, "nll_weight": 1.0}, "teacher_temperature=2.0, .*undivided scores"),
        ({"teach": "margin_mse", "square_temperature": True, "nll_weight": 1.0}, "square_temperature=True: .*undivided scores"),
        ({"teach": "margin_mse", "temperature": 0.1}, "temperature=0.1: .*nll_weight=0 leaves no other loss"),
        ({"fill": "error"}, "too few passages that the teacher knows is left out"),
    ],
)
def test_impossible_settings_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(DistillConfig, values)


def test_without_scores_it_is_said_which_file_is_missing(tmp_path: Any) -> None:
    with pytest.raises(InputError, match=r"teacher_scores\.jsonl does not exist: teach='global_kl' needs a teacher's scores"):
        DistillConfig(group_size=N).build(SMALL).rows(object.__new__(TokenStore), tmp_path)

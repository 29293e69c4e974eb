"""Groups that begin with several positives: numpy with loops, worked values, degenerate rows, devices, parts and orders."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from test_in_batch import mesh_of, on
from tiny_model import LENGTH, QUERY, context, params_of, quick, run, same_in_parts, texts

from denseir_jax.core.config import parse
from denseir_jax.core.errors import ConfigError
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.objectives.distill import DistillConfig
from denseir_jax.parallel import contrastive
from denseir_jax.parallel.contrastive import Targets

B, N, MOST = 6, 4, 3
SMALL = context(layers=0, embedder=EmbedderConfig(pooling="mean"))
NUMBER = np.array([1, 2, 3, 1, 2, 3])
# Row 1's second positive is row 0's; 40 is a negative of row 0 that answers row 3; 31 answers row 4, whose group it is not in;
# 32 answers row 5 and stands in its group as a negative, which the data would not do.
IDS = np.array([[10, 40, 41, 42], [11, 10, 43, 44], [12, 13, 14, 45], [15, 46, 31, 47], [16, 17, 48, 49], [18, 19, 20, 32]])
KNOWN = np.array([[10, -1, -1, -1], [11, 10, -1, -1], [12, 13, 14, -1], [15, 40, -1, -1], [16, 17, 31, -1], [18, 19, 20, 32]])


def rows() -> dict[str, jax.Array]:
    query, passage = texts(B, QUERY, 1), texts(B * N, LENGTH, 2)
    fields = {"passage_row": IDS, "known": KNOWN, "positives": NUMBER, "index": np.arange(B)}
    return {
        "query_ids": query[0],
        "query_length": query[1],
        "passage_ids": passage[0].reshape(B, N, LENGTH),
        "passage_length": passage[1].reshape(B, N),
        **{name: jnp.asarray(value, jnp.int32) for name, value in fields.items()},
    }


ROWS = rows()


def by_numpy(config: ContrastiveConfig, q: np.ndarray, p: np.ndarray) -> tuple[float, int, int, float]:
    """Loss, masked cells, kept negatives, sum of reciprocal ranks, by loops over rows and candidates in float64."""
    flat, ids = p.reshape(B * N, -1), IDS.reshape(-1)
    one_way, back, masked, kept, reciprocal = 0.0, 0.0, 0, 0, 0.0
    for i in range(B):
        mine = [i * N + j for j in range(NUMBER[i])]
        everything = range(B * N) if config.in_batch else range(i * N, i * N + N)
        others = [c for c in everything if c not in mine and ids[c] not in KNOWN[i]]
        s = flat @ q[i] / config.temperature
        if config.positives == "all":
            one_way += logsumexp(s[mine + others]) - logsumexp(s[mine])
        else:
            one_way += np.mean([logsumexp(s[[t, *others]]) - s[t] for t in mine])
        reciprocal += 1 / (1 + sum(s[others] >= s[mine].max()))
        masked, kept = masked + len(everything) - len(mine) - len(others), kept + len(others)
        for t in mine:
            rivals = [k for k in range(B) if k == i or ids[t] not in KNOWN[k]]
            back += (logsumexp(q[rivals] @ flat[t] / config.temperature) - s[t]) / len(mine)
    loss = (one_way + back) / (2 * B) if config.symmetric else one_way / B
    return float(loss), masked, kept, reciprocal


CONFIGS = [
    ContrastiveConfig(group_size=N, positives="all", max_positives=MOST, temperature=0.5, symmetric=True),
    ContrastiveConfig(group_size=N, positives="each", max_positives=MOST, temperature=0.5, symmetric=True),
    ContrastiveConfig(group_size=N, positives="all", max_positives=MOST, in_batch=False, similarity="cosine", temperature=0.1),
    ContrastiveConfig(group_size=N, positives="each", max_positives=MOST, in_batch=False, tied=False),
]


@pytest.mark.parametrize("config", CONFIGS, ids=["all", "each", "all_own_group", "each_own_group"])
def test_by_numpy(config: ContrastiveConfig) -> None:
    objective = config.build(SMALL)
    loss, metrics, vectors = run(objective, params_of(objective), ROWS)
    q, p = (np.asarray(vectors[name], np.float64) for name in ("query", "passage"))
    expected, masked, kept, reciprocal = by_numpy(config, q, p)
    np.testing.assert_allclose(loss, expected, rtol=2e-5)
    cells = B * B * N if config.in_batch else B * N
    assert metrics["masked_candidates"] == (masked, cells - NUMBER.sum()) and metrics["negatives"] == (kept, B) and masked > 0
    assert metrics["positives"] == (NUMBER.sum(), B)
    np.testing.assert_allclose(metrics["reciprocal_rank"][0], reciprocal, rtol=1e-5)
    assert "positives" in objective.fields() and "positives" not in ContrastiveConfig(group_size=N).build(SMALL).fields()


def test_parts_equal_the_whole() -> None:
    same_in_parts(CONFIGS[1].build(SMALL), ROWS)


def scored(scores: list[float], number: int, apart: bool, known: list[int] | None = None) -> Any:
    """One query of one dimension against candidates whose scores are given."""
    candidates = jnp.asarray(scores, jnp.float32)[:, None]
    ids = jnp.arange(len(scores))[:, None]
    blocked = jnp.asarray([known or [-1]])
    target = jnp.zeros(1, jnp.int32)

    def found(number: jax.Array) -> Any:
        return contrastive.in_batch_nll(jnp.ones((1, 1)), candidates, target, blocked, ids, targets=Targets(number, apart))

    return quick(found)(jnp.array([number]))


def test_worked_values() -> None:
    both = math.e + math.e**2
    np.testing.assert_allclose(scored([1, 2, 0], 2, apart=False).nll, [math.log((both + 1) / both)], rtol=1e-5)
    np.testing.assert_allclose(scored([1, 2, 0], 2, apart=True).nll, [(math.log1p(1 / math.e) + math.log1p(1 / math.e**2)) / 2], rtol=1e-6)
    for apart in (True, False):
        np.testing.assert_allclose(scored([1, 3], 1, apart).nll, [2.1269280], rtol=1e-6)
        found = scored([1, 2, 2, 5], 2, apart, known=[3])
        assert (found.rank.tolist(), found.masked.tolist(), found.targets.tolist()) == ([2], [1], [2]), (
            "a tie stands before the best target"
        )


@pytest.mark.parametrize("apart", [True, False])
def test_a_row_with_nothing_but_positives_costs_nothing_and_has_a_finite_gradient(apart: bool) -> None:
    q, c = jnp.ones((2, 3)), jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)), jnp.float32)
    ids = jnp.array([[0], [1], [2], [3]])
    known = jnp.array([[0, 1, 2, 3], [2, -1, -1, -1]])  # everything answers the first; the second has one positive

    def loss(q: jax.Array, c: jax.Array) -> Any:
        found = contrastive.in_batch_nll(q, c, jnp.array([0, 2]), known, ids, 1.0, targets=Targets(jnp.array([2, 1]), apart))
        return found.nll.sum(), found

    (_, found), gradients = quick(jax.value_and_grad(loss, (0, 1), has_aux=True))(q, c)
    assert found.nll[0] == 0 and found.nll[1] > 0 and found.rank[0] == 1 and found.masked.tolist() == [2, 0]
    assert all(np.isfinite(g).all() for g in gradients)
    alone = contrastive.own_group_nll(q, c.reshape(2, 2, 3), jnp.zeros((2, 2), bool), targets=Targets(jnp.array([2, 2]), apart))
    assert alone.nll.tolist() == [0, 0]


@pytest.mark.parametrize("apart", [True, False])
def test_one_positive_a_row_is_the_plain_loss(apart: bool) -> None:
    rng = np.random.default_rng(1)
    q, c = (jnp.asarray(rng.normal(size=(n, 8)), jnp.float32) for n in (5, 15))

    def loss(c: jax.Array, targets: Targets | None) -> jax.Array:
        return contrastive.in_batch_nll(q, c, jnp.arange(5) * 3, targets=targets).nll.mean()

    one = Targets(jnp.ones(5, jnp.int32), apart)
    for got, want in zip(*(quick(jax.value_and_grad(lambda c, t=targets: loss(c, t)))(c) for targets in (one, None)), strict=True):
        np.testing.assert_allclose(got, want, atol=2e-6)


def test_sharing_the_mass_and_answering_each_differ_where_one_positive_is_weak() -> None:
    """All together are content with one that is found; each apart is not."""
    assert scored([9, 0, 4], 2, apart=False).nll[0] < 0.01 < 1.9 < scored([9, 0, 4], 2, apart=True).nll[0]


def loss_of(apart: bool, scores: int = contrastive.SCORES) -> Any:
    def loss(q: jax.Array, p: jax.Array, known: jax.Array, ids: jax.Array, number: jax.Array) -> jax.Array:
        found = contrastive.in_batch_nll(q, p, jnp.arange(len(q)) * 4, known, ids[:, None], 0.3, scores, Targets(number, apart))
        back = contrastive.back_nll(
            q, p.reshape(len(q), 4, -1), jnp.where(jnp.arange(3) < number[:, None], ids.reshape(-1, 4)[:, :3], -1), known
        )
        return found.nll.mean() + back

    return loss


def batch() -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(2)
    vectors = (jnp.asarray(rng.normal(size=(n, 16)), jnp.float32) for n in (16, 64))
    return (*vectors, *(jnp.asarray(rng.integers(*span)) for span in ((0, 70, (16, 3)), (0, 70, 64), (1, 4, 16))))


@pytest.mark.parametrize("apart", [True, False])
def test_devices_and_groups_of_rows_change_nothing(apart: bool) -> None:
    """Each way candidates are gathered once and their gradients summed once; of 16 rows, 3 at a time leave one over."""
    value, gradients, _ = on(mesh_of(1), loss_of(apart), batch)
    for mesh, scores in ((mesh_of(8), contrastive.SCORES), (mesh_of(1), 3 * 64)):
        found, others, text = on(mesh, loss_of(apart, scores), batch)
        np.testing.assert_allclose(found, value, rtol=1e-6)
        for got, want in zip(others, gradients, strict=True):
            np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max(), rtol=0)
        if mesh.size == 8:
            assert text.count(" reduce-scatter(") == 2 and " all-reduce(" in text and "all-to-all" not in text


def test_permuting_groups_permutes_rows_alone() -> None:
    objective = CONFIGS[0].build(SMALL)
    order = np.random.default_rng(3).permutation(B)
    turned = {name: value[order] for name, value in ROWS.items()}
    first, second = (run(objective, params_of(objective), found) for found in (ROWS, turned))
    np.testing.assert_allclose(second[0], first[0], rtol=1e-6)
    np.testing.assert_allclose(second[2]["passage"], np.asarray(first[2]["passage"])[order], rtol=1e-6)


@pytest.mark.parametrize("positives", ["all", "each"])
def test_positives_are_told_to_a_teachers_student_too(positives: Any) -> None:
    """Local KL: all positives of a group take part, whatever is known; global KL: among all passages of the batch."""
    teacher = np.random.default_rng(5).normal(size=(B, N))
    keep = (np.arange(N) < NUMBER[:, None]) | ~np.array([[IDS[i, j] in KNOWN[i] for j in range(N)] for i in range(B)])
    assert (~keep).sum() == 1
    for teach in ("local_kl", "global_kl"):
        config = DistillConfig(group_size=N, teach=teach, positives=positives, max_positives=MOST)  # type: ignore[arg-type]
        objective = config.build(SMALL)
        loss, _, vectors = run(objective, params_of(objective), ROWS | {"teacher": jnp.asarray(teacher, jnp.float32)})
        q, p = (np.asarray(vectors[name], np.float64) for name in ("query", "passage"))
        total = 0.0
        for i in range(B):
            s, t, k = p[i] @ q[i], teacher[i], keep[i]
            every = [c for c in range(B * N) if (c // N == i and k[c % N]) or IDS.reshape(-1)[c] not in KNOWN[i]]
            below = logsumexp(p.reshape(B * N, -1)[every] @ q[i]) if teach == "global_kl" else logsumexp(s[k])
            log_t = t[k] - logsumexp(t[k])
            total += (np.exp(log_t) * (log_t - (s[k] - below))).sum()
        np.testing.assert_allclose(loss, total / B, rtol=1e-4)


@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        (ContrastiveConfig, {"positives": "all", "max_positives": 9}, "max_positives=9 .* expected 1 to 8"),
        (ContrastiveConfig, {"positives": "each", "max_positives": 8, "in_batch": False}, "expected 1 to 7"),
        (ContrastiveConfig, {"positives": "all", "max_positives": 0}, "expected 1 to 8"),
        (ContrastiveConfig, {"positives": "all", "loss": "hinge", "in_batch": False}, "loss='hinge' compares one positive"),
        (ContrastiveConfig, {"positives": "al"}, "did you mean 'all'"),
        (ContrastiveConfig, {"sources": ["bm25", "random"], "group_size": 2}, "leave 'random' no place"),
        (DistillConfig, {"positives": "all", "teach": "margin_mse"}, "it needs positives='sampled'"),
        (DistillConfig, {"sources": ["random"]}, "a teacher has not seen what is drawn at random"),
        (DistillConfig, {"teach": "in_batch_kl", "in_batch": False}, "it needs in_batch=True"),
    ],
)
def test_impossible_settings_are_refused(config: type, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(config, values)

"""A dense teacher that scores all pairs of the batch (TCT): numpy with loops, identities of KL, devices, masks, memory."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp
from test_in_batch import MOVED, mesh_of, on
from test_pair_objectives import SMALL, B, N, group_rows
from tiny_model import params_of, quick, run, same_in_parts

from denseir_jax.core.errors import InputError
from denseir_jax.data.tokens import TokenStore
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.objectives.distill import DistillConfig
from denseir_jax.parallel import contrastive
from denseir_jax.parallel.contrastive import Ranked, Targets, Teacher

WIDTH = 5  # of the teacher, another one than the student's
RNG = np.random.default_rng(4)
VECTORS = {
    "teacher_query": jnp.asarray(RNG.normal(size=(B, WIDTH)), jnp.float32),
    "teacher_passage": jnp.asarray(RNG.normal(size=(B, N, WIDTH)), jnp.float32),
}
ROWS = group_rows() | VECTORS
TCT = DistillConfig(
    group_size=N, teach="in_batch_kl", temperature=0.5, teacher_temperature=0.25, nll_weight=0.1, teacher_weight=0.9, symmetric=True
)


def test_the_whole_loss_by_numpy() -> None:
    """gamma NLL + (1 - gamma) KL: candidates that are known to answer, the target aside, are in neither softmax."""
    objective, params = TCT.build(SMALL), params_of(TCT.build(SMALL))
    loss, metrics, vectors = run(objective, params, ROWS)
    q, p, tq, tp = (np.asarray(x, np.float64) for x in (vectors["query"], vectors["passage"], *VECTORS.values()))
    ids, known = np.asarray(ROWS["passage_row"]).reshape(-1), np.asarray(ROWS["known"])
    divergence, agreed, masked = 0.0, 0, 0
    for i in range(B):
        kept = [c for c in range(B * N) if c == i * N or ids[c] not in set(known[i].tolist()) - {-1}]
        s = p.reshape(B * N, -1)[kept] @ q[i] / TCT.temperature
        t = tp.reshape(B * N, -1)[kept] @ tq[i] / TCT.teacher_temperature
        divergence += (np.exp(log_softmax(t)) * (log_softmax(t) - log_softmax(s))).sum()
        agreed, masked = agreed + int(s.argmax() == t.argmax()), masked + B * N - len(kept)
    plain = ContrastiveConfig(group_size=N, temperature=TCT.temperature, symmetric=True).build(SMALL)
    nll = float(run(plain, params, ROWS)[0])
    np.testing.assert_allclose(loss, 0.1 * nll + 0.9 * divergence / B, rtol=1e-4)
    np.testing.assert_allclose(metrics["teach"][0], divergence, rtol=1e-4)
    assert metrics["agreement"] == (agreed, B) and metrics["masked_candidates"][0] == masked > 0
    fields = objective.fields()
    assert set(fields) == set(plain.fields()) | set(VECTORS) and fields["teacher_passage"].tail[0] == N


def test_parts_equal_the_whole() -> None:
    same_in_parts(TCT.build(SMALL), ROWS)


def found_by(q: Any, c: Any, teacher: Teacher, temperature: float = 1.0, **more: Any) -> Ranked:
    n = len(c) // len(q)
    first = jnp.arange(len(q)) * n
    return contrastive.in_batch_nll(q, c, first, temperature=temperature, teacher=teacher, **more)


def pairs(seed: int = 0, b: int = 4, n: int = 3, d: int = 8) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(size=(b, d)), jnp.float32), jnp.asarray(rng.normal(size=(b * n, d)), jnp.float32)


def test_a_student_that_is_the_teacher_has_nothing_to_learn() -> None:
    q, c = pairs()
    known, ids = jnp.array([[0, 7], [3, -1], [6, 1], [9, -1]]), jnp.arange(12)[:, None]

    def loss(q: jax.Array, c: jax.Array) -> Any:
        found = found_by(q, c, Teacher(2 * q, c, 2.0), known=known, ids=ids)
        return found.kl.sum(), found

    (_, found), gradients = quick(jax.value_and_grad(loss, (0, 1), has_aux=True))(q, c)
    np.testing.assert_allclose(found.kl, 0, atol=1e-6)
    assert found.agreed.all() and found.masked.tolist() == [1, 0, 1, 0]
    assert all(np.abs(g).max() < 1e-6 for g in gradients), "and the teacher has no gradient"


def test_a_teacher_that_is_sure_of_the_positive_is_the_contrastive_loss() -> None:
    q, c = pairs()
    sure = jnp.repeat(jnp.eye(4), 3, axis=0) * jnp.tile(jnp.array([1e4, 0, 0]), 4)[:, None]
    found = quick(lambda q, c: found_by(q, c, Teacher(jnp.eye(4), sure, 1.0), 0.7))(q, c)
    np.testing.assert_allclose(found.kl, found.nll, rtol=1e-6)


def test_a_constant_added_to_a_querys_scores_changes_nothing() -> None:
    q, c = pairs()
    one, seven = jnp.ones((len(c), 1)), jnp.full((len(q), 1), 7.0)
    moved = Teacher(jnp.concatenate([q[::-1], seven], 1), jnp.concatenate([c, one], 1), 1.0)
    both = [quick(lambda q, c, t=t: found_by(q, c, t))(q, c).kl for t in (Teacher(q[::-1], c, 1.0), moved)]
    np.testing.assert_allclose(both[1], both[0], rtol=1e-5)
    assert both[0].min() > 0.1


def test_one_passage_and_one_row() -> None:
    q, c = pairs(b=1, n=1)
    alone = quick(lambda q, c: found_by(q, c, Teacher(-q, c, 1.0)))(q, c)
    assert (alone.kl.tolist(), alone.nll.tolist(), alone.agreed.tolist()) == ([0], [0], [True])
    rows = {name: value[:1, :1] if name.startswith("passage") or name == "teacher_passage" else value[:1] for name, value in ROWS.items()}
    objective = DistillConfig(group_size=1, teach="in_batch_kl", nll_weight=0.1).build(SMALL)
    assert run(objective, params_of(objective), rows)[0] == 0 and objective.least_rows == 2


def test_masked_candidates_are_out_of_both() -> None:
    """The vectors of what is masked, the teacher's and the student's, may be anything."""
    q, c = pairs()
    t = Teacher(*pairs(1), 0.5)
    known, ids = jnp.array([[8, 2], [8, -1], [8, -1], [8, -1]]), jnp.arange(12)[:, None]

    def kl(c: jax.Array, answers: jax.Array) -> jax.Array:
        return found_by(q, c, t._replace(candidates=answers), known=known, ids=ids).kl

    compiled = quick(kl)
    np.testing.assert_allclose(compiled(c.at[8].set(50), t.candidates.at[8].set(-50)), compiled(c, t.candidates), rtol=1e-6)
    assert not np.allclose(compiled(c.at[7].set(5), t.candidates), compiled(c, t.candidates))
    gradient = quick(jax.grad(lambda c: kl(c, t.candidates).sum()))(c)
    assert np.isfinite(gradient).all() and not gradient[8].any() and np.abs(gradient[7]).max() > 0


def batch() -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(2)
    shapes = ((32, 16), (64, 16), (32, WIDTH), (64, WIDTH))
    return (*(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes), jnp.asarray(rng.integers(0, 40, 64)))


def loss(q: jax.Array, p: jax.Array, tq: jax.Array, tp: jax.Array, ids: jax.Array, scores: int = contrastive.SCORES) -> jax.Array:
    targets = Targets(1 + ids[::2] % 2, False)
    found = found_by(q, p, Teacher(tq, tp, 0.25), 0.5, known=ids.reshape(32, 2), ids=ids[:, None], scores=scores, targets=targets)
    assert found.kl is not None
    return 0.1 * found.nll.mean() + 0.9 * found.kl.mean()


def test_devices_and_groups_of_rows_change_nothing() -> None:
    """The teacher's candidates are gathered once, and no gradient of theirs is ever sent."""
    value, gradients, _ = on(mesh_of(1), loss, batch)
    for mesh, scores in ((mesh_of(4, 2), contrastive.SCORES), (mesh_of(8), contrastive.SCORES), (mesh_of(1), 5 * 2 * 64)):
        found, others, text = on(mesh, lambda *x, scores=scores: loss(*x, scores=scores), batch)
        np.testing.assert_allclose(found, value, rtol=1e-6)
        for got, want in zip(others, gradients, strict=True):
            np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max(), rtol=0)
        if mesh.size == 8:
            talk = [(sizes, kind) for sizes, kind in MOVED.findall(text) if sizes.endswith((",16", f",{WIDTH}"))]
            assert sorted(talk) == sorted([("64,16", "all-gather"), ("8,16", "reduce-scatter"), (f"64,{WIDTH}", "all-gather")]), text


def test_many_rows_need_memory_for_vectors_not_for_scores() -> None:
    student, teacher = (jax.ShapeDtypeStruct((16384, width), jnp.float32) for width in (256, 128))

    def loss(q: jax.Array, c: jax.Array, tq: jax.Array, tc: jax.Array) -> jax.Array:
        kl = found_by(q, c, Teacher(tq, tc, 1.0)).kl
        assert kl is not None
        return kl.mean()

    memory = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(student, student, teacher, teacher).compile().memory_analysis()
    assert int(memory.temp_size_in_bytes) / 2**20 <= 96, "MiB; one array of all scores alone takes 1024"


def test_permuting_groups_permutes_rows_alone() -> None:
    objective, order = TCT.build(SMALL), np.random.default_rng(3).permutation(B)
    turned = {name: value[order] for name, value in ROWS.items()}
    first, second = (run(objective, params_of(objective), found)[0] for found in (ROWS, turned))
    np.testing.assert_allclose(second, first, rtol=1e-6)


def test_worked_value() -> None:
    """Two queries, two passages: teacher scores 2 and 0, student 1 and 0, of the own and the other passage."""
    found = found_by(jnp.eye(2), jnp.eye(2), Teacher(2 * jnp.eye(2), jnp.eye(2), 1.0))
    p, q = (np.array([s, 0.0]) - logsumexp([s, 0.0]) for s in (2.0, 1.0))
    np.testing.assert_allclose(found.kl, [(np.exp(p) * (p - q)).sum()] * 2, rtol=1e-5)
    np.testing.assert_allclose(found.kl, [0.0671306] * 2, rtol=1e-5)  # as the worked value of the local one, row [2, 0] against [1, 0]


def test_without_vectors_it_is_said_what_gives_them(tmp_path: Any) -> None:
    with pytest.raises(InputError, match=r"teacher_vectors does not exist: teach='in_batch_kl' needs .* --config\.write=vectors writes"):
        TCT.build(SMALL).rows(object.__new__(TokenStore), tmp_path)

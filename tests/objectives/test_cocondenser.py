"""coCondenser: the contrastive loss's known values, what it may not depend on, and that devices and micro-batches leave it alone."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_model import context, params_of, quick, run, same_in_parts, span_rows
from tiny_passes import exported_tower_is_the_encoder, flat_head, padding_changes_nothing

from denseir_jax.core.config import parse
from denseir_jax.core.errors import ConfigError
from denseir_jax.objectives.cocondenser import CoCondenser, CoCondenserConfig, span_nll
from denseir_jax.parallel import mesh as meshes
from denseir_jax.parallel.mesh import MeshConfig
from denseir_jax.train import step
from denseir_jax.train.state import named

ROWS = span_rows(8) | {"document": jnp.arange(8, dtype=jnp.int32)}  # every row a document of its own


def cocondenser(**config: Any) -> CoCondenser:
    built = CoCondenserConfig(**config).build(context())
    assert isinstance(built, CoCondenser)
    return built


def mean_nll(vectors: Any, **settings: Any) -> float:
    with jax.enable_x64(True):
        return float(span_nll(jnp.asarray(vectors, jnp.float64), None, **settings).nll.mean())


def plain(vectors: np.ndarray, document: list[int] | None = None, temperature: float = 1.0) -> np.ndarray:
    """The loss of each span by loops over all others, in float64."""
    spans, out = vectors.reshape(-1, vectors.shape[-1]).astype(np.float64), []
    of = np.repeat(np.arange(len(vectors)) if document is None else document, 2)
    for i, span in enumerate(spans):
        partner = i + 1 if i % 2 == 0 else i - 1
        rivals = [j for j in range(len(spans)) if j == partner or of[j] != of[i]]
        scores = np.array([span @ spans[j] / temperature for j in rivals])
        out.append(np.log(np.exp(scores).sum()) - span @ spans[partner] / temperature)
    return np.array(out)


def test_one_document_costs_nothing() -> None:
    """T7: a span with no other document beside it has one candidate."""
    assert mean_nll(np.random.default_rng(0).normal(size=(1, 2, 5))) == 0


@pytest.mark.parametrize("spans", [4, 4096])
def test_vectors_that_tell_nothing_cost_the_logarithm_of_the_candidates(spans: int) -> None:
    """T7: all equal, or all orthonormal: ln(N - 1), so a span is no candidate of its own."""
    same = np.ones((spans // 2, 2, 2))
    np.testing.assert_allclose(mean_nll(same), np.log(spans - 1), rtol=1e-6)
    alone = min(spans, 512)
    apart = np.eye(alone).reshape(alone // 2, 2, alone)
    np.testing.assert_allclose(mean_nll(apart), np.log(alone - 1), rtol=1e-6)


@pytest.mark.parametrize(("norm", "expected"), [(1, 0.551445), (3, 2.467892e-4)])
def test_pairs_of_equal_vectors(norm: float, expected: float) -> None:
    """T7: ln(1 + (N - 2) exp(-a^2)): the length of the vectors counts, unless they are normalised."""
    vectors = norm * np.repeat(np.eye(2)[:, None], 2, axis=1)
    np.testing.assert_allclose(mean_nll(vectors), expected, rtol=1e-6)
    np.testing.assert_allclose(mean_nll(vectors), np.log1p(2 * np.exp(-(norm**2))), rtol=1e-9)
    np.testing.assert_allclose(mean_nll(vectors, normalize=True), 0.551445, rtol=1e-5)
    np.testing.assert_allclose(mean_nll(vectors, temperature=float(norm**2)), 0.551445, rtol=1e-5)


def test_what_the_loss_does_not_depend_on() -> None:
    """T7: the order of documents and of the spans in one, and a part that all vectors share and none else has."""
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(5, 2, 6))
    loss = mean_nll(vectors)
    np.testing.assert_allclose(loss, plain(vectors).mean(), rtol=1e-6)
    np.testing.assert_allclose(mean_nll(vectors[rng.permutation(5)]), loss, rtol=1e-6)
    swapped = vectors.copy()
    swapped[[1, 3]] = swapped[[1, 3], ::-1]
    np.testing.assert_allclose(mean_nll(swapped), loss, rtol=1e-6)
    shared = np.concatenate([vectors, np.full((5, 2, 1), 2.0)], axis=2)
    np.testing.assert_allclose(mean_nll(shared), loss, rtol=1e-6)
    assert abs(mean_nll(vectors[:, :, :5]) - loss) > 1e-3 and abs(mean_nll(vectors * 1.1) - loss) > 1e-3


def test_a_document_that_comes_twice_is_no_negative_of_its_own() -> None:
    vectors, document = np.random.default_rng(2).normal(size=(4, 2, 6)), [7, 3, 7, 1]
    found = span_nll(jnp.asarray(vectors, jnp.float32), jnp.asarray(document), temperature=0.5)
    np.testing.assert_allclose(found.nll, plain(vectors, document, 0.5), rtol=1e-5)
    assert found.masked.tolist() == [3, 3, 1, 1, 3, 3, 1, 1], "itself, and the two spans of the duplicate"
    rows = ROWS | {"document": jnp.asarray([0, 1, 2, 3, 0, 5, 6, 7])}
    one, other = (cocondenser(mask_duplicates=mask) for mask in (True, False))
    params = params_of(one)
    _, sums, vectors = run(one, params, rows)
    h = np.asarray(vectors["cls"])
    for objective, names in ((one, rows["document"].tolist()), (other, None)):
        total, n = objective.over_batch(params, vectors, sums, rows)[1]["contrastive"]
        assert n == 16
        np.testing.assert_allclose(total / n, plain(h, names).mean(), rtol=1e-5)


def test_the_loss_is_condensers_and_the_contrastive_one() -> None:
    """T6 with T7: 2 ln V for uniform logits, and the loss of the masked texts' own vectors; each with its weight."""
    objective = cocondenser()
    params = flat_head(params_of(objective))
    loss, metrics, vectors = run(objective, params, ROWS)
    contrastive = plain(np.asarray(vectors["cls"])).mean()
    np.testing.assert_allclose(loss, 2 * np.log(90) + contrastive, rtol=1e-6)
    assert vectors["cls"].shape == (8, 2, 16) and metrics["tokens"][0] == ROWS["length"].sum()
    weighted = cocondenser(mlm_weight=2.0, contrastive_weight=0.5, temperature=0.5)
    expected = 4 * np.log(90) + 0.5 * plain(np.asarray(vectors["cls"]), temperature=0.5).mean()
    np.testing.assert_allclose(weighted.over_batch(params, vectors, metrics, ROWS)[0], expected, rtol=1e-6)


def test_two_texts_of_a_row_are_masked_apart() -> None:
    """The same text twice in one row gives two vectors, since masks differ (but by chance in a short text)."""
    objective = cocondenser()
    twice = ROWS | {name: jnp.repeat(ROWS[name][:, :1], 2, axis=1) for name in ("input_ids", "length", "word_start")}
    h = run(objective, params_of(objective), twice)[2]["cls"]
    assert (np.abs(h[:, 0] - h[:, 1]).max(1) > 1e-4).sum() >= 6


def test_parts_equal_the_whole() -> None:
    """T21: with dropout on, spans of a row not sharing it."""
    same_in_parts(cocondenser(), ROWS)


@functools.cache
def on_devices(shape: tuple[int, int, int], micro_batches: int) -> Any:
    """((loss, (metrics, None)), gradients) of the train step's loss, dropout on."""
    objective = cocondenser()
    params = jax.tree.map(np.asarray, params_of(objective))
    mesh = meshes.make(MeshConfig(*shape), jax.devices()[: int(np.prod(shape))])
    with jax.set_mesh(mesh):
        batch = jax.device_put(ROWS, meshes.batch_sharding(mesh))
        loss = quick(jax.value_and_grad(step.make_loss(objective, mesh, micro_batches), has_aux=True))
        return jax.tree.map(np.asarray, loss(params, batch, jax.random.key(1)))


@pytest.mark.parametrize(("shape", "micro_batches"), [((8, 1, 1), 1), ((1, 1, 1), 4)])  # both at once: train/test_step.py
def test_devices_and_micro_batches_change_nothing(shape: tuple[int, int, int], micro_batches: int) -> None:
    """T21, T22: the loss, its gradient, and a weight of exactly 1 for MLM, on 8 devices or 4 at a time."""
    (whole, (metrics, _)), expected = on_devices((1, 1, 1), 1)
    (loss, (found, _)), gradients = on_devices(shape, micro_batches)
    np.testing.assert_allclose(loss, whole, rtol=1e-6)
    parts = {name: found[name][0] / found[name][1] for name in ("head_mlm", "late_mlm", "contrastive")}
    np.testing.assert_allclose(loss, sum(parts.values()), rtol=1e-6)
    assert [found[name][1] for name in parts] == [metrics[name][1] for name in parts]
    for name, want in named(expected).items():  # a key's bias has no true gradient: what is there is rounding
        limit = 1e-6 if name.endswith("key/bias") else 1e-5 * np.abs(want).max()
        np.testing.assert_allclose(named(gradients)[name], want, rtol=0, atol=limit, err_msg=name)


def test_the_gradient_is_that_of_gathered_copies_times_their_number() -> None:
    """T22: W devices, each with all rows' loss but a gradient for its own rows alone; the mean of W times that is ours."""
    rng = np.random.default_rng(3)
    x, weights, devices = jnp.asarray(rng.normal(size=(8, 2, 6))), jnp.asarray(rng.normal(size=(6, 5))), 4

    def loss(weights: Any, vectors: Any = None) -> Any:
        return span_nll(x @ weights if vectors is None else vectors, None).nll.mean()

    def on_device(weights: Any, w: int) -> Any:
        mine = jnp.arange(8)[:, None, None] // 2 == w
        vectors = x @ weights
        return devices * loss(weights, jnp.where(mine, vectors, jax.lax.stop_gradient(vectors)))

    simulated = sum(jax.grad(on_device)(weights, w) for w in range(devices)) / devices
    np.testing.assert_allclose(simulated, jax.grad(loss)(weights), rtol=1e-4, atol=1e-6)


def test_padding() -> None:
    padding_changes_nothing(cocondenser(), ROWS)


def test_export() -> None:
    exported_tower_is_the_encoder(cocondenser(), ROWS)


def test_impossible_settings_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="pairs=None: coCondenser contrasts two spans of a document; expected 'random' or 'nearby'"):
        parse(CoCondenserConfig, {"pairs": None})
    with pytest.raises(ConfigError, match=r"temperature=0\.0 must be positive"):
        parse(CoCondenserConfig, {"temperature": 0.0})
    with pytest.raises(ConfigError, match="expected 0 or more, and not both 0"):
        parse(CoCondenserConfig, {"mlm_weight": 0.0, "contrastive_weight": 0.0})
    with pytest.raises(ConfigError, match="skip_from=3 is outside the encoder"):
        cocondenser(skip_from=3)

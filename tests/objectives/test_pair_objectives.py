"""ICT and contrastive fine-tuning on top of an embeddings-only encoder: losses by numpy from the vectors, masking, towers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from tiny_model import CLS, LENGTH, PAD, QUERY, SEP, VOCAB, context, evaluate, params_of, quick, run, same_in_parts, texts

from denseir_jax.core.config import parse
from denseir_jax.core.errors import ConfigError
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.objectives.ict import IctConfig

B, N = 6, 3
SMALL = context(layers=0, embedder=EmbedderConfig(pooling="mean"))


def pair_rows() -> dict[str, jax.Array]:
    query, passage = texts(B, QUERY, 1), texts(B, LENGTH, 2)
    return {
        "query_ids": query[0],
        "query_length": query[1],
        "passage_ids": passage[0],
        "passage_length": passage[1],
        "removed": jnp.array([1, 0, 1, 1, 0, 1]),
        "document": jnp.array([4, 9, 4, 2, 7, 3]),
        "index": jnp.arange(B, dtype=jnp.int32),
    }


def group_rows() -> dict[str, jax.Array]:
    query, passage = texts(B, QUERY, 1), texts(B * N, LENGTH, 2)
    return {
        "query_ids": query[0],
        "query_length": query[1],
        "passage_ids": passage[0].reshape(B, N, LENGTH),
        "passage_length": passage[1].reshape(B, N),
        # Row 2's positive is row 0's too; row 1's first negative is known to answer it; 30 is a negative of rows 3 and 4.
        "passage_row": jnp.array([[10, 20, 21], [11, 40, 23], [10, 24, 25], [13, 30, 26], [14, 30, 27], [15, 11, 28]]),
        "known": jnp.array([[10, -1], [11, 40], [10, -1], [13, -1], [14, 13], [15, -1]]),
        "index": jnp.arange(B, dtype=jnp.int32),
    }


def nll(scores: np.ndarray, target: np.ndarray, blocked: np.ndarray) -> np.ndarray:
    scores = np.where(blocked & (np.arange(scores.shape[1]) != target[:, None]), -np.inf, scores)
    return np.asarray(logsumexp(scores, axis=1) - scores[np.arange(len(target)), target])


@pytest.mark.parametrize("symmetric", [False, True])
def test_ict_by_numpy(symmetric: bool) -> None:
    objective, rows = IctConfig(temperature=0.5, symmetric=symmetric).build(SMALL), pair_rows()
    loss, metrics, vectors = run(objective, params_of(objective), rows)
    q, p = np.asarray(vectors["query"]), np.asarray(vectors["passage"])
    same, own = np.asarray(rows["document"])[:, None] == np.asarray(rows["document"]), np.arange(B)
    one_way = nll(q @ p.T / 0.5, own, same)
    other = nll(p @ q.T / 0.5, own, same)
    np.testing.assert_allclose(loss, (one_way.mean() + other.mean()) / 2 if symmetric else one_way.mean(), rtol=1e-5)
    removed = np.asarray(rows["removed"]) == 1
    for name, chosen in (("removed", removed), ("kept", ~removed)):
        total, count = metrics[f"nll_{name}"]
        np.testing.assert_allclose(total, one_way[chosen].sum(), rtol=1e-5)
        assert count == chosen.sum() == metrics[f"accuracy_{name}"][1]
    assert metrics["accuracy"][0] == metrics["accuracy_removed"][0] + metrics["accuracy_kept"][0]
    assert metrics["masked_candidates"] == (2, B * (B - 1)), "rows 0 and 2 are one document"
    assert metrics["tokens"][0] == rows["query_length"].sum() + rows["passage_length"].sum()
    assert metrics["cells"][0] == B * (QUERY + LENGTH)


@pytest.mark.parametrize(
    "config",
    [
        ContrastiveConfig(group_size=N, temperature=0.5),
        ContrastiveConfig(group_size=N, temperature=0.1, similarity="cosine", tied=False, symmetric=True),
        ContrastiveConfig(group_size=N, in_batch=False),
    ],
    ids=["tied", "untied_cosine_symmetric", "own_group"],
)
def test_contrastive_by_numpy(config: ContrastiveConfig) -> None:
    objective, rows = config.build(SMALL), group_rows()
    params = params_of(objective)
    loss, metrics, vectors = run(objective, params, rows)
    q, p = np.asarray(vectors["query"]), np.asarray(vectors["passage"])
    flat, ids = p.reshape(B * N, -1), np.asarray(rows["passage_row"]).reshape(-1)
    known = [set(np.asarray(rows["known"])[i].tolist()) - {-1} for i in range(B)]
    answers = np.array([[int(row) in known[i] for row in ids] for i in range(B)])
    target = np.arange(B) * N
    if not config.in_batch:
        answers = answers | (np.arange(B * N) // N != np.arange(B)[:, None])
    expected = nll(q @ flat.T / config.temperature, target, answers).mean()
    if config.symmetric:
        expected = (expected + nll(p[:, 0] @ q.T / config.temperature, np.arange(B), answers[:, target].T).mean()) / 2
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    # in the batch: 10 answers rows 0 and 2, 40 row 1, 11 (a negative of row 5) row 1, 13 row 4; in the own group: 40 alone
    assert metrics["masked_candidates"] == ((5, B * (B * N - 1)) if config.in_batch else (1, B * (N - 1)))
    if config.similarity == "cosine":
        np.testing.assert_allclose(np.linalg.norm(flat, axis=1), 1, rtol=1e-5)
        np.testing.assert_allclose(quick(objective.embed_query)(params, rows["query_ids"], rows["query_length"]), q, rtol=1e-4, atol=1e-6)
    assert set(objective.towers(params)) == ({"encoder"} if config.tied else {"query", "passage"})
    assert objective.similarity == config.similarity


@pytest.mark.parametrize("similarity", ["dot", "l2"])
@pytest.mark.parametrize("loss", ["pairwise", "hinge", "soft_margin", "bce"])
def test_losses_of_the_own_group_by_numpy(loss: Any, similarity: Any) -> None:
    margin = {"margin": 0.3} if loss in ("hinge", "soft_margin") else {}
    objective = ContrastiveConfig(group_size=N, in_batch=False, loss=loss, temperature=0.5, similarity=similarity, **margin).build(SMALL)
    found, metrics, vectors = run(objective, params_of(objective), group_rows())
    q, p = np.asarray(vectors["query"], np.float64), np.asarray(vectors["passage"], np.float64)
    s = (np.einsum("bd,bnd->bn", q, p) if similarity == "dot" else -np.square(q[:, None] - p).sum(-1)) / 0.5
    gaps, keep = s[:, 1:] - s[:, :1], np.ones((B, N - 1))
    keep[1, 0] = 0  # known to answer query 1
    cell = {
        "pairwise": np.logaddexp(0, gaps),
        "hinge": np.maximum(0.3 + gaps, 0),
        "soft_margin": np.logaddexp(0, 0.3 + gaps),
        "bce": np.logaddexp(0, s[:, 1:]),
    }[loss]
    expected = (keep * cell).sum() / keep.sum()
    if loss == "bce":
        expected = (np.logaddexp(0, -s[:, 0]) + (keep * cell).sum(1)).mean()
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert metrics["masked_candidates"] == (1, B * (N - 1)) and objective.similarity == similarity


def test_distances_as_dot_products_in_the_batch() -> None:
    objective = ContrastiveConfig(group_size=N, similarity="l2").build(SMALL)
    rows = group_rows() | {"known": jnp.full((B, 1), -1), "passage_row": jnp.arange(B * N).reshape(B, N)}
    loss, _, vectors = run(objective, params_of(objective), rows)
    q, p = np.asarray(vectors["query"], np.float64), np.asarray(vectors["passage"], np.float64).reshape(B * N, -1)
    scores = -np.square(q[:, None] - p[None]).sum(-1)
    np.testing.assert_allclose(loss, nll(scores, np.arange(B) * N, np.zeros_like(scores, bool)).mean(), rtol=1e-4)


def test_untied_towers_learn_apart() -> None:
    objective = ContrastiveConfig(group_size=N, tied=False).build(SMALL)
    params, rows = params_of(objective), group_rows()
    start = jax.tree.map(lambda a, b: bool((a == b).all()), params["query"], params["passage"])
    assert all(jax.tree.leaves(start)), "two towers start from one encoder"
    louder = params | {"query": jax.tree.map(lambda x: x * 1.5, params["query"])}
    before, after = run(objective, params, rows)[2], run(objective, louder, rows)[2]
    np.testing.assert_array_equal(before["passage"], after["passage"])
    assert (np.asarray(before["query"]) != np.asarray(after["query"])).any()


@pytest.mark.parametrize(("config", "rows"), [(IctConfig(), pair_rows()), (ContrastiveConfig(group_size=N), group_rows())])
def test_padding(config: Any, rows: Any) -> None:
    """T24, with an encoder that attends."""
    objective = config.build(context(layers=1))
    wider = {name: jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 5)]) if name.endswith("_ids") else x for name, x in rows.items()}
    short, long = (run(objective, params_of(objective), found)[0] for found in (rows, wider))
    np.testing.assert_allclose(long, short, rtol=1e-5)


@pytest.mark.parametrize(("config", "rows"), [(IctConfig(), pair_rows()), (ContrastiveConfig(group_size=N), group_rows())])
def test_parts_equal_the_whole(config: Any, rows: Any) -> None:
    same_in_parts(config.build(SMALL), rows)


@pytest.mark.parametrize("in_batch", [False, True])
def test_accumulated_small_batches_are_the_whole_only_where_rows_do_not_meet(in_batch: bool) -> None:
    """Plain accumulation: the mean of the gradients of halves that are batches by themselves, each with fewer candidates."""
    objective, rows = ContrastiveConfig(group_size=N, in_batch=in_batch).build(SMALL), group_rows()
    # No passage is masked, so that halves have as many candidates each.
    rows |= {"known": jnp.full((B, 1), -1), "passage_row": jnp.arange(B * N).reshape(B, N)}
    step = quick(jax.value_and_grad(lambda params, rows: evaluate(objective, False, params, rows)[0]))
    params = params_of(objective)
    whole = step(params, rows)
    halves = [step(params, {name: value[half] for name, value in rows.items()}) for half in (slice(None, B // 2), slice(B // 2, None))]
    plain = jax.tree.map(lambda a, b: (a + b) / 2, *halves)
    (loss, gradient), (plain_loss, plain_gradient) = whole, plain
    distance, size = (
        np.sqrt(sum(float(jnp.square(leaf).sum()) for leaf in jax.tree.leaves(tree)))
        for tree in (jax.tree.map(jnp.subtract, plain_gradient, gradient), gradient)
    )
    if in_batch:
        assert float(loss) - float(plain_loss) > 0.1 and distance > 0.05 * size
    else:
        np.testing.assert_allclose(plain_loss, loss, rtol=1e-6)
        assert distance < 1e-5 * size


def test_hard_negatives_have_a_larger_gradient_than_random_ones() -> None:
    """A query is five words of its positive; a hard negative has four of these, with other words around, a random one no word.

    The random ones are told by their words from the first step on, as they are after some training in general: they teach little.
    """
    rng, n, size = np.random.default_rng(0), 16, 5
    asked = np.stack([rng.permutation(np.arange(5, 45))[:size] for _ in range(n)])

    def framed(words: np.ndarray, length: int) -> tuple[jax.Array, jax.Array]:
        ids = np.full((*words.shape[:-1], length), PAD)
        ids[..., 0], ids[..., 1 : words.shape[-1] + 1], ids[..., words.shape[-1] + 1] = CLS, words, SEP
        return jnp.asarray(ids, jnp.int32), jnp.full(words.shape[:-1], words.shape[-1] + 2, jnp.int32)

    def gradient(shared: int) -> float:
        others = rng.integers(45, VOCAB, (n, 2, 10))
        others[:, 0, :size], others[:, 1, :shared] = asked, asked[:, :shared]
        (query, query_length), (passage, passage_length) = framed(asked, QUERY), framed(others, LENGTH)
        rows = {"query_ids": query, "query_length": query_length, "passage_ids": passage, "passage_length": passage_length}
        rows |= {"passage_row": jnp.arange(2 * n).reshape(n, 2), "known": jnp.full((n, 1), -1), "index": jnp.arange(n, dtype=jnp.int32)}
        found = step(params_of(objective), rows)
        return float(np.sqrt(sum(float(jnp.square(leaf).sum()) for leaf in jax.tree.leaves(found))))

    objective = ContrastiveConfig(group_size=2, temperature=0.02, similarity="cosine", in_batch=False).build(SMALL)
    step = quick(jax.grad(lambda params, rows: evaluate(objective, False, params, rows)[0]))
    ratio = gradient(size - 1) / gradient(0)
    assert ratio > 1, ratio


@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        (IctConfig, {"temperature": 0.0}, "temperature=0.0 must be positive"),
        (IctConfig, {"keep_rate": 1.5}, "keep_rate=1.5 is outside"),
        (IctConfig, {"chunk_min": 9, "chunk_max": 8}, "chunk_min=9"),
        (ContrastiveConfig, {"group_size": 0}, "group_size=0"),
        (ContrastiveConfig, {"in_batch": False, "group_size": 1}, "in_batch=False"),
        (ContrastiveConfig, {"loss": "hinge"}, "needs in_batch=False"),
        (ContrastiveConfig, {"margin": 0.5}, "loss='nll' has none"),
        (ContrastiveConfig, {"margin": 0.5, "loss": "bce", "in_batch": False}, "loss='bce' has none"),
        (ContrastiveConfig, {"max_positives": 2}, "needs positives='all' or 'each'"),
        (ContrastiveConfig, {"group_size": 1, "sources": ("bm25",)}, "leaves negatives no place"),
        (ContrastiveConfig, {"group_size": 2, "sources": ("bm25", "random")}, "leave 'random' no place: expected group_size > 2"),
        (ContrastiveConfig, {"similarity": "cosin"}, "did you mean 'cosine'"),
    ],
)
def test_impossible_settings_are_refused(config: type, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(config, values)


def test_a_chunk_that_fits_no_query_is_refused() -> None:
    with pytest.raises(ConfigError, match="chunk_min=7 does not fit queries of 8 tokens"):
        IctConfig(unit="chunk", chunk_min=7).build(SMALL)

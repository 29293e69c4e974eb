"""The queue of earlier passages: loss and gradients over several steps by torch, what is masked, in which order it fills."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from test_pair_objectives import SMALL, B, N, group_rows
from tiny_model import params_of, quick, run

from denseir_jax.core.config import parse
from denseir_jax.core.errors import ConfigError
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.objectives.distill import DistillConfig
from denseir_jax.objectives.ict import IctConfig
from denseir_jax.objectives.mixture import MixtureConfig
from denseir_jax.parallel import contrastive
from denseir_jax.parallel import mesh as meshes
from denseir_jax.parallel.mesh import MeshConfig
from denseir_jax.parallel.queue import Queue, enqueue

STEPS, TEXTS = 5, 25
CONFIGS = {
    "dot": ContrastiveConfig(group_size=N, memory=40),  # two batches and a bit
    "cosine_symmetric_late": ContrastiveConfig(
        group_size=N, memory=36, memory_start=2, similarity="cosine", temperature=0.1, symmetric=True
    ),
    "l2_shorter_than_a_batch": ContrastiveConfig(group_size=N, memory=7, similarity="l2", temperature=0.5),
    "global_kl": DistillConfig(group_size=N, memory=40, memory_start=1, temperature=0.5, nll_weight=0.3),
}


def steps(width: int) -> list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
    """Vectors and batches; 25 texts, so that many a passage comes again, and some of them answer a query by another id."""
    rng, made = np.random.default_rng(0), []
    for _ in range(STEPS):
        vectors = {"query": rng.normal(size=(B, width)), "passage": rng.normal(size=(B, N, width))}
        rows = np.stack([rng.permutation(TEXTS)[:N] for _ in range(B)])
        known = np.concatenate([rng.integers(0, TEXTS, (B, 2)), np.full((B, 1), -1)], axis=1)
        known[rng.random(known.shape) < 0.3] = -1
        batch = {"passage_row": rows, "known": known, "teacher": rng.normal(size=(B, N)).astype(np.float32)}
        made.append((vectors, {name: x.astype(np.float32 if name == "teacher" else np.int32) for name, x in batch.items()}))
    return made


def score(config: ContrastiveConfig, q: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    return (-torch.cdist(q, p).square() if config.similarity == "l2" else q @ p.T) / config.temperature


def by_torch(config: ContrastiveConfig, width: int) -> list[dict[str, Any]]:
    """Every step in float64, the queue a list of (text, vector)."""
    queue: list[tuple[int, torch.Tensor]] = []
    found = []
    for number, (vectors, batch) in enumerate(steps(width)):
        q, p = (torch.tensor(unit(vectors[name]) if config.similarity == "cosine" else vectors[name]) for name in ("query", "passage"))
        q.requires_grad_()
        p.requires_grad_()
        texts, flat = batch["passage_row"].reshape(-1).tolist(), p.reshape(B * N, width)
        taking = queue if number >= config.memory_start else []
        everything = torch.cat([flat, *(vector[None] for _, vector in taking)])
        ids = texts + [text for text, _ in taking]
        known = [{*batch["known"][i].tolist(), texts[i * N]} - {-1} for i in range(B)]
        answers = torch.tensor([[text in known[i] for text in ids] for i in range(B)])
        targets = torch.arange(B) * N
        masked = answers & (torch.arange(len(ids)) != targets[:, None])
        log = score(config, q, everything).masked_fill(masked, -torch.inf).log_softmax(1)
        loss = -log[torch.arange(B), targets].mean()
        if config.symmetric:
            other = answers[:, targets].T & ~torch.eye(B, dtype=torch.bool)
            back = score(config, p[:, 0], q).masked_fill(other, -torch.inf).log_softmax(1)
            loss = (loss - back.diagonal().mean()) / 2
        if isinstance(config, DistillConfig):
            keep = torch.stack([~answers[i, i * N : (i + 1) * N] for i in range(B)])
            keep[:, 0] = True
            teacher = torch.tensor(batch["teacher"]).double().masked_fill(~keep, -torch.inf).log_softmax(1)
            own = torch.stack([score(config, q[i : i + 1], p[i])[0] for i in range(B)])
            own = (
                own
                - torch.stack(
                    [score(config, q[i : i + 1], everything)[0].masked_fill(masked[i], -torch.inf).logsumexp(0) for i in range(B)]
                )[:, None]
            )
            cells = torch.where(keep, teacher.exp() * (teacher - own), 0.0)
            loss = config.nll_weight * loss + cells.sum(1).mean()
        loss.backward()
        newest = dict(queue)
        met = [torch.cosine_similarity(flat[i].detach(), newest[text], 0).item() for i, text in enumerate(texts) if text in newest]
        found.append(
            {
                "loss": loss.item(),
                "gradients": {"query": q.grad.numpy(), "passage": p.grad.numpy()},
                "masked_candidates": (int(masked.sum()), B * (len(ids) - 1)),
                "negatives": (B * (len(ids) - 1) - int(masked.sum()), B),
                "memory_filled": (len(queue), config.memory),
                "memory_cosine": (sum(met), len(met)),
                "queue": [text for text, _ in queue],
            }
        )
        queue = (queue + list(zip(texts, flat.detach(), strict=True)))[-config.memory :]
    return found


def unit(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_steps_by_torch(config: ContrastiveConfig) -> None:
    """Loss, gradients, what is masked, how full and how stale the queue is; nothing flows into what is stored."""
    objective: Any = config.build(SMALL)

    @quick
    def step(vectors: Any, memory: Any, batch: Any) -> Any:
        def loss(vectors: Any, stored: Any) -> Any:
            seen = batch | memory | {"stored": stored}
            value, metrics = objective.over_batch({}, vectors, {}, seen)
            return value, (metrics, objective.remember(vectors, seen))

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(vectors, memory["stored"])

    memory, width = objective.init_memory(), objective.embedder.size
    lengths = {name: group_rows()[name] for name in ("query_length", "passage_length")}
    met = 0
    for number, ((vectors, batch), want) in enumerate(zip(steps(width), by_torch(config, width), strict=True)):
        given = {name: jnp.asarray(unit(x) if config.similarity == "cosine" else x, jnp.float32) for name, x in vectors.items()}
        stored = [text for text in memory["stored_row"].tolist() if text >= 0]
        assert stored == want["queue"] and int(memory["stored_steps"]) == number
        (value, (metrics, memory)), (gradients, of_stored) = step(given, memory, lengths | batch)
        np.testing.assert_allclose(value, want["loss"], rtol=1e-5)
        assert not np.asarray(of_stored).any()
        for side, gradient in want["gradients"].items():
            np.testing.assert_allclose(gradients[side], gradient, atol=1e-5 * np.abs(gradient).max(), rtol=0, err_msg=f"{number} {side}")
        for name in ("masked_candidates", "negatives", "memory_filled", "memory_cosine"):
            np.testing.assert_allclose(metrics[name], want[name], rtol=1e-5, atol=1e-5, err_msg=f"{number} {name}")
        met += want["memory_cosine"][1]
    assert met and len(want["queue"]) == config.memory, "the queue was full in the end, and passages came again"


def test_an_empty_memory_changes_nothing_and_what_it_holds_costs() -> None:
    """The same passages again are all masked for whoever they answer, and negatives for the others."""
    rows = group_rows()
    plain, config = ContrastiveConfig(group_size=N).build(SMALL), ContrastiveConfig(group_size=N, memory=B * N)
    objective: Any = config.build(SMALL)
    params, memory = params_of(plain), objective.init_memory()
    loss, metrics, vectors = run(plain, params, rows)
    first, found, _ = run(objective, params, rows | memory)
    np.testing.assert_allclose(first, loss, rtol=1e-6)
    assert {name: found[name] for name in metrics} == metrics and found["memory_filled"] == (0, B * N) and found["memory_cosine"] == (0, 0)
    memory = objective.remember(vectors, rows | memory)
    second, found, _ = run(objective, params, rows | memory)
    assert second > loss
    # of the 5 masked in the batch (see test_pair_objectives) each again, and the 6 own positives
    assert found["masked_candidates"] == (5 + 5 + B, B * (2 * B * N - 1))
    assert found["memory_cosine"][1] == B * N


@pytest.mark.parametrize("shape", [(8, 1, 1), (2, 2, 2)])
@pytest.mark.parametrize("places", [5, 48, 61])
def test_the_queue_is_the_same_on_any_mesh(shape: tuple[int, int, int], places: int) -> None:
    rng = np.random.default_rng(0)
    batches = [(rng.normal(size=(24, 4)).astype(np.float32), rng.integers(0, 99, 24).astype(np.int32)) for _ in range(4)]
    vectors, ids = (np.concatenate(arrays)[-places:] for arrays in zip(*batches, strict=True))
    mesh = meshes.make(MeshConfig(*shape), jax.devices())
    with jax.set_mesh(mesh):
        queue = Queue(jnp.zeros((places, 4)), jnp.full(places, -1))
        enter = quick(enqueue)
        for batch in batches:
            queue = enter(queue, *jax.device_put(batch, meshes.batch_sharding(mesh)))
    assert queue.vectors.sharding.is_fully_replicated
    assert np.array_equal(queue.vectors, vectors) and np.array_equal(queue.ids, ids)


def test_a_long_queue_is_never_scored_at_once() -> None:
    """2048 rows against 2^17 stored passages would be a GiB of scores, and as much of their gradient."""
    rows, width, places = 2048, 16, 1 << 17
    shapes = [jax.ShapeDtypeStruct((n, width), jnp.float32) for n in (rows, rows, places)]

    def loss(q: jax.Array, c: jax.Array, stored: jax.Array) -> jax.Array:
        own, queue = jnp.arange(rows), Queue(stored, jnp.arange(places))
        return contrastive.in_batch_nll(q, c, own, own[:, None], own[:, None], queue=queue).nll.mean()

    memory = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(*shapes).compile().memory_analysis()
    assert int(memory.temp_size_in_bytes) < 64 * 2**20


@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        (ContrastiveConfig, {"memory": -1}, "memory=-1 and memory_start=0 must be at least 0"),
        (ContrastiveConfig, {"memory_start": 5}, "but memory=0: there is none"),
        (ContrastiveConfig, {"memory": 8, "in_batch": False}, "needs in_batch=True"),
        (DistillConfig, {"memory": 8, "teach": "margin_mse"}, "no loss compares with it"),
    ],
)
def test_a_memory_that_nothing_reads_is_refused(config: type, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(config, values)


def test_a_mixture_keeps_none() -> None:
    parts = {"pairs": IctConfig(), "groups": ContrastiveConfig(memory=8)}
    with pytest.raises(ConfigError, match="part 'groups' of the mixture has a memory of earlier batches"):
        MixtureConfig(parts=parts, weights={"pairs": 1.0, "groups": 1.0}).build(SMALL)

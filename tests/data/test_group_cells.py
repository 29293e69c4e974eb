"""Several positives in a group, negatives drawn at random, and that nothing that answers a query is ever a negative of it."""

from collections import Counter
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_training_set import MIXED, POOLS, POSITIVES, TEMPLATE, content, groups, make, store  # noqa: F401  # the fixture

from denseir_jax.core.errors import InputError
from denseir_jax.data.teacher_scores import TeacherScores
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.objectives.base import Context
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.parallel import mesh as meshes
from denseir_jax.parallel.mesh import MeshConfig

MANY = make(
    ([0, 1, 2, 3, 20], {"bm25": [4, 5, 6, 7, 8]}),  # 20 has the text of 0: four texts that answer
    ([9], {"bm25": [10, 11, 12, 13]}),
    ([14, 15], {}),
)


def query_of(group: np.ndarray, answers: list[set[int]]) -> int:
    return next(i for i, known in enumerate(answers) if group[0] in known)


def test_groups_begin_with_positives_and_end_with_negatives(store):  # noqa: F811
    source = groups(store, MANY, size=5, max_positives=3)
    assert source.counts == {"queries": 3, "skipped": 0, "negatives": 9, "dropped": 0, "short": 1, "filled": 3, "positives": 6}
    answers, uses = [{0, 1, 2, 3}, {9}, {14, 15}], Counter[int]()
    for epoch in range(8):
        rows = source.rows(np.arange(3 * epoch, 3 * epoch + 3))
        assert rows["positives"].dtype == np.int32 and rows["passage_ids"].shape == (3, 5, 8)
        for group, number in zip(rows["passage_row"], rows["positives"].tolist(), strict=True):
            query = query_of(group, answers)
            assert number == min(len(answers[query]), 3) and len(set(group.tolist())) == 5
            assert set(group[:number].tolist()) <= answers[query] and not answers[query] & set(group[number:].tolist())
            if query == 0:
                uses.update(group[:3].tolist())
                assert set(group[3:].tolist()) <= {4, 5, 6, 7, 8}
            if query == 1:
                assert set(group[1:].tolist()) == {10, 11, 12, 13}, "a query with one positive has more negatives"
    assert set(uses.values()) == {6}, "8 epochs x 3 places over 4 texts, by turns: the two with one text count as one"


def test_more_positives_than_places_and_nothing_but_positives(store):  # noqa: F811
    source = groups(store, make(([0, 1, 2, 3], {"bm25": [4]})), size=2, max_positives=2)
    assert source.counts["short"] == source.counts["filled"] == 0 and source.counts["positives"] == 2
    found = source.rows(np.arange(4))
    assert set(found["passage_row"].reshape(-1).tolist()) == {0, 1, 2, 3} and found["positives"].tolist() == [2] * 4
    everything = make((list(range(20)), {"bm25": [20]}))
    assert groups(store, everything, size=4, max_positives=4).rows(np.arange(2))["positives"].tolist() == [4, 4]
    with pytest.raises(InputError, match="has 20 different passages; groups of 4 need 21 of them"):
        groups(store, everything, size=4, max_positives=3)
    with pytest.raises(InputError, match=r"1 queries have too few negatives \(the first: 'q2' with 0\); expected 3"):
        groups(store, MANY, size=5, max_positives=3, fill="error")


def test_random_negatives_are_fresh_and_counted(store):  # noqa: F811
    alone = groups(store, MIXED, size=5, sources=("random",))
    assert alone.counts == {"queries": 4, "skipped": 0, "negatives": 0, "dropped": 0, "short": 0, "filled": 0, "random": 16}
    drawn = alone.rows(np.arange(400))
    seen = [Counter[int]() for _ in POOLS]
    for group in drawn["passage_row"]:
        seen[query_of(group, POSITIVES)].update(group[1:].tolist())
    for known, found in zip(POSITIVES, seen, strict=True):
        assert set(found) == set(range(20)) - known, "everything but what answers, each text under its first row"
        shares = [uses / (2 if text < 2 else 1) for text, uses in found.items()]  # two passages have each of the first two texts
        assert max(shares) < 2.5 * min(shares), "400 draws over 20 or 21 passages: 4 standard deviations and more"
    both = groups(store, MIXED, size=6, sources=("bm25", "random"))
    assert both.counts["random"] == 4 * 2 and both.counts["filled"] == 3 + 2 + 3, "of 5 places half, rounded down, are random"
    pool = {2, 3, 4, 5, 6}
    for group in both.rows(np.arange(40))["passage_row"]:
        if group[0] == 0:
            assert set(group[1:4].tolist()) <= pool and len(set(group.tolist())) == 6


def test_random_negatives_that_cannot_be(store):  # noqa: F811
    with pytest.raises(InputError, match="the training set has a pool called 'random'"):
        groups(store, make(([0], {"random": [1]})), size=2, sources=("random",))
    assert groups(store, make(([0], {"random": [1]})), size=2).rows(np.arange(1))["passage_row"].tolist() == [[0, 1]]
    with pytest.raises(ValueError, match="a teacher knows nothing random"):
        groups(store, MIXED, size=2, sources=("random",), teacher=TeacherScores(np.zeros(1, np.int64), np.zeros(1, np.float32), 23))
    with pytest.raises(InputError, match="groups of 20 need 21 of them"):
        groups(store, MIXED, size=20, sources=("random",))


# Up to six queries with one to four positives; the pool holds anything, texts that answer among it.
NUMBERS = st.integers(0, 21)
QUERIES = st.tuples(st.lists(NUMBERS, min_size=1, max_size=4, unique=True), st.lists(NUMBERS, max_size=8, unique=True))
CONTEXT = Context(EncoderConfig(120), EmbedderConfig(), 2, 3, 0, 4, 120, TEMPLATE.query_length, TEMPLATE.passage_length, seed=3)
SOURCES = {"hard": ("hard",), "random": ("random",), "both": ("hard", "random"), "filled": ()}


@pytest.mark.parametrize("sources", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("positives", ["sampled", "all"])
def test_what_answers_is_no_negative_whatever_its_source(store, sources, positives):  # noqa: F811
    """By text, of which an id is one: in the group by what is drawn, in the batch and over devices by what is masked and counted."""
    most = {} if positives == "sampled" else {"max_positives": 3}
    objective = ContrastiveConfig(group_size=5, sources=sources, positives=positives, **most).build(CONTEXT)
    mesh = meshes.make(MeshConfig(), jax.devices()[:8])

    @jax.jit
    def over_batch(vectors: Any, rows: Any) -> Any:
        return objective.over_batch({}, vectors, {}, rows)

    @settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.lists(QUERIES, min_size=1, max_size=6), st.integers(0, 1000))
    def check(queries: list[tuple[list[int], list[int]]], start: int) -> None:
        training_set = make(*((answers, {"hard": pool}) for answers, pool in queries))
        several = None if positives == "sampled" else 3
        source, stream = groups(store, training_set, size=5, sources=sources, max_positives=several), np.arange(start, start + 16)
        rows, names = source.rows(stream), source.names(stream)
        rows["known"] = np.pad(rows["known"], ((0, 0), (0, 4 - rows["known"].shape[1])), constant_values=-1)
        known = [{content(item) for item in training_set.positives.row(int(name[1:]))} for name in names]
        groups_ = [[content(row) for row in group] for group in rows["passage_row"].tolist()]
        first = rows["positives"].tolist() if several else [1] * 16
        for answers, group, number in zip(known, groups_, first, strict=True):
            assert set(group[:number]) <= answers and not answers & set(group[number:]) and len(set(group)) == 5
        kept = sum(text not in answers for answers in known for group in groups_ for text in group)
        rng = np.random.default_rng(start)
        vectors = {"query": rng.normal(size=(16, 4)).astype(np.float32), "passage": rng.normal(size=(16, 5, 4)).astype(np.float32)}
        whole, metrics = over_batch(vectors, rows)
        assert metrics["negatives"] == (kept, 16) and metrics["masked_candidates"] == (16 * 80 - sum(first) - kept, 16 * 80 - sum(first))
        with jax.set_mesh(mesh):
            split = jax.device_put((vectors, rows), meshes.batch_sharding(mesh))
            found, spread = over_batch(*split)
        np.testing.assert_allclose(found, whole, rtol=1e-5, atol=1e-6)
        assert spread["negatives"] == metrics["negatives"] and spread["masked_candidates"] == metrics["masked_candidates"]

    check()

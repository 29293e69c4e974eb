import tracemalloc

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from denseir_jax.data.records import Passage
from denseir_jax.search.negatives import Miner, NegativesConfig, text_keys
from denseir_jax.search.rankings import Places, Rankings


def test_lines_are_what_an_index_gave() -> None:
    scores, rows = np.array([[3.0, 2.0], [1.5, -np.inf], [-np.inf] * 2]), np.array([[2, 0], [1, -1], [-1, -1]])
    rankings = Rankings(["q", "r", "s"], ["a", "b", "c"], scores, rows)
    assert dict(rankings) == {"q": [("c", 3.0), ("a", 2.0)], "r": [("b", 1.5)], "s": []}
    assert rankings.passages() == {"a", "b", "c"} and rankings.row_of["c"] == 2 and len(rankings) == 3


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-1, 8), max_size=30))
def test_places_are_all_places(rows: list[int]) -> None:
    places = Places(np.array(rows, np.int32))
    assert all(places.of(row) == [i for i, other in enumerate(rows) if other == row] for row in range(9))


def test_mining_a_line_at_a_time_takes_no_more_than_its_arrays() -> None:
    """A list of (id, score) takes more than 64 bytes a result; arrays take 8."""
    queries, depth, n = 60, 100, 1000
    rng = np.random.default_rng(0)
    rows = np.stack([rng.choice(n, depth, replace=False) for _ in range(queries)]).astype(np.int32)
    ids = [f"d{i}" for i in range(n)]
    keys = text_keys((Passage(item, item) for item in ids), ids)
    scores = -np.sort(rng.random((queries, depth), np.float32))
    tracemalloc.start()
    rankings = Rankings([f"q{i}" for i in range(queries)], ids, scores, rows)
    miner = Miner(keys, NegativesConfig(hi=depth, n=5), 0)
    kept = sum(len(miner.choose(query, line, ()).negatives) for query, line in rankings.items())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert kept == queries * 5 and peak < 24 * queries * depth

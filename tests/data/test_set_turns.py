"""Several data sets by turns: the quota holds in every window, and each set's rows come in its own order, whole."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denseir_jax.core.errors import InputError
from denseir_jax.data import set_turns
from denseir_jax.data.order import SeededOrder
from denseir_jax.data.set_turns import SetRows, Turns, shares_of

WEIGHTS = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6)


def shares(weights: list[float]) -> dict[str, float]:
    return {f"s{i}": weight / sum(weights) for i, weight in enumerate(weights)}


@settings(max_examples=30, deadline=None)
@given(WEIGHTS, st.integers(0, 2**32 - 1), st.integers(0, 3 * set_turns.PERIOD))
def test_every_window_holds_the_weights_within_the_stated_bound(weights, seed, start):
    turns = Turns(shares(weights), seed)
    taken = turns.of(np.arange(start, start + 600))[0]
    for number, share in enumerate(shares(weights).values()):
        before = np.concatenate([[0], np.cumsum(taken == number)])
        first = np.arange(len(before))
        drift = before - first * share  # a window's error is the difference of two of these
        bound = 1 + share * (len(weights) - 2) + 600 / set_turns.PERIOD  # shares are rounded to whole turns of a period
        assert drift.max() - drift.min() <= bound


@settings(max_examples=20, deadline=None)
@given(WEIGHTS, st.integers(0, 2**32 - 1), st.integers(0, 2 * set_turns.PERIOD + 500))
def test_turns_are_numbered_without_gap_and_counted(weights, seed, start):
    turns = Turns(shares(weights), seed)
    counted = turns.counts(start)
    assert sum(counted.values()) == start
    steps = np.arange(start, start + 300)
    sets, turn = turns.of(steps)
    for number, name in enumerate(turns.names):
        assert turn[sets == number].tolist() == list(range(counted[name], counted[name] + int((sets == number).sum())))
    at = np.random.default_rng(0).permutation(300)
    assert np.array_equal(turns.of(steps[at])[0], sets[at]), "a function of the step alone"


def test_the_seed_decides_who_begins_and_a_small_set_is_not_lost():
    first = {int(Turns({"a": 0.5, "b": 0.5}, seed).of(np.zeros(1, np.int64))[0][0]) for seed in range(20)}
    assert first == {0, 1}
    turns = Turns({"big": 1 - 1e-9, "small": 1e-9}, 0)
    assert turns.counts(set_turns.PERIOD) == {"big": set_turns.PERIOD - 1, "small": 1}


def test_shares_follow_weight_and_size():
    weights, sizes = {"a": 1.0, "b": 2.0}, {"a": 100, "b": 10_000}
    assert shares_of(weights, sizes, 0.0) == pytest.approx({"a": 1 / 3, "b": 2 / 3})
    assert shares_of(weights, sizes, 1.0) == pytest.approx({"a": 1 / 201, "b": 200 / 201})
    assert shares_of(weights, sizes, 0.5) == pytest.approx({"a": 10 / 210, "b": 200 / 210})  # roots: 10 and 100


class Numbered:
    """Rows that say which item they are; `width` known ones."""

    def __init__(self, n: int, width: int, base: int, **more: np.ndarray):
        self.n_items, self.counts, self.more = n, {"queries": n}, more
        self.width, self.base, self.order = width, base, SeededOrder(n, 5)

    def rows(self, stream: np.ndarray) -> dict[str, np.ndarray]:
        items = self.order.items(stream) + self.base
        known = np.repeat(items[:, None], self.width, 1).astype(np.int32)
        more = {name: np.repeat(value[None], len(stream), 0) for name, value in self.more.items()}
        return {"item": items.astype(np.int32), "known": known, "index": stream.astype(np.int32), **more}

    def names(self, stream: np.ndarray) -> list[str]:
        return [str(item) for item in self.order.items(stream)]


def test_rows_of_a_set_come_in_its_order_and_batches_do_not_mix():
    sources = {"b": Numbered(30, 3, 1000), "a": Numbered(7, 1, 0)}
    rows = SetRows(sources, {"a": 0.25, "b": 0.75}, batch_size=4, seed=1)
    assert rows.n_items == 37 and rows.counts == {"a/queries": 7, "b/queries": 30}
    found = rows.rows(np.arange(4 * 60))
    items = found["item"].reshape(60, 4)
    of_b = items >= 1000
    assert (of_b.all(1) | ~of_b.any(1)).all() and of_b.any(1).sum() == 45
    for source, seen in ((sources["a"], items[~of_b]), (sources["b"], items[of_b])):
        assert np.array_equal(seen, source.rows(np.arange(len(seen)))["item"])
        whole = seen[: len(seen) // source.n_items * source.n_items]
        assert set(Counter(whole.tolist()).values()) == {len(whole) // source.n_items}, "each epoch takes every item once"
    assert np.array_equal(found["index"], np.arange(240)), "dropout is keyed by the row's place in training"
    assert found["known"].shape == (240, 3)
    assert (found["known"][~of_b.reshape(-1)][:, 1:] == -1).all() and (found["known"][:, 0] == found["item"]).all()
    mixed = np.random.default_rng(0).permutation(240)[:50]  # what any process may ask for
    assert all(np.array_equal(values, found[name][mixed]) for name, values in rows.rows(mixed).items())
    names = rows.names(np.arange(240))
    assert names[0].split("/")[0] == ("b" if of_b[0, 0] else "a") and {name[0] for name in names} == {"a", "b"}
    logged = [rows.by_set(step, (2.0, 1.0)) for step in range(60)]
    assert sum(one["steps/b"][0] for one in logged) == 45 and all(
        sum(v[0] for k, v in one.items() if k[:5] == "steps") == 1 for one in logged
    )


def test_sets_with_other_fields_are_refused():
    sources = {
        "a": Numbered(7, 1, 0, passage_ids=np.zeros((2, 9), np.int32)),
        "b": Numbered(7, 2, 0, passage_ids=np.zeros((2, 8), np.int32)),
    }
    with pytest.raises(InputError, match=r"data sets 'a' and 'b' differ in 'passage_ids': \('int32', \(2, 9\)\) and \('int32', \(2, 8\)\)"):
        SetRows(sources, {"a": 0.5, "b": 0.5}, 4, 0)
    with pytest.raises(InputError, match="differ in 'teacher': missing and"):
        SetRows({"a": Numbered(7, 1, 0), "b": Numbered(7, 1, 0, teacher=np.zeros(2, np.float32))}, {"a": 0.5, "b": 0.5}, 4, 0)

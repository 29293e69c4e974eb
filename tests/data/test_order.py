import pickle

import numpy as np
import pytest

from denseir_jax.data import hashing
from denseir_jax.data.order import SeededOrder


@pytest.mark.parametrize("n", [1, 2, 7, 100])
def test_every_epoch_is_a_permutation_of_its_own(n):
    order = SeededOrder(n, seed=3)
    epochs = order.items(np.arange(5 * n)).reshape(5, n)
    assert (np.sort(epochs, axis=1) == np.arange(n)).all()
    if n >= 7:
        assert len({tuple(epoch) for epoch in epochs.tolist()}) == 5


def test_an_item_is_a_function_of_its_position():
    order = SeededOrder(10, seed=1)
    positions = np.random.default_rng(0).integers(0, 70, 500)
    one_by_one = [SeededOrder(10, seed=1).item(int(position)) for position in positions]
    assert order.items(positions).tolist() == one_by_one
    in_batches = np.concatenate([order.items(np.arange(start, start + 4)) for start in range(0, 40, 4)])
    assert in_batches.tolist() == order.items(np.arange(40)).tolist()
    assert pickle.loads(pickle.dumps(order)).items(positions).tolist() == one_by_one


def test_seeds_differ():
    assert SeededOrder(50, 1).items(np.arange(50)).tolist() != SeededOrder(50, 2).items(np.arange(50)).tolist()


def test_no_items_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        SeededOrder(0, 1)


def test_hashed_draws_are_uniform_and_independent():
    draws = hashing.uniform(5, "test", np.arange(200_000)[:, None], np.arange(2))
    assert draws.min() >= 0 and draws.max() < 1
    counts = np.histogram2d(draws[:, 0], draws[:, 1], bins=10, range=[[0, 1], [0, 1]])[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 99 + 5 * np.sqrt(2 * 99)  # chi square with 99 degrees of freedom
    assert abs(np.corrcoef(draws[:-1, 0], draws[1:, 0])[0, 1]) < 0.01
    assert not np.isin(hashing.bits(5, "test", np.arange(1000)), hashing.bits(5, "other", np.arange(1000))).any()


def test_below_never_reaches_n():
    draws = np.array([0.0, 0.5, np.nextafter(1.0, 0.0)])
    assert hashing.below(draws, 3).tolist() == [0, 1, 2]
    assert hashing.below(draws, np.array([1, 1, 1])).tolist() == [0, 0, 0]


def test_a_draw_is_pinned():
    """A change here changes every crop ever drawn: computed by an independent implementation in plain Python integers."""

    def mixed(x):
        x = (x + 0x9E3779B97F4A7C15) % 2**64
        x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) % 2**64
        x = ((x ^ x >> 27) * 0x94D049BB133111EB) % 2**64
        return x ^ x >> 31

    state = mixed(7 ^ mixed(int.from_bytes(b"crop\0\0\0\0", "little")))
    assert int(hashing.bits(7, "crop", 12345)) == mixed(state ^ mixed(12345))

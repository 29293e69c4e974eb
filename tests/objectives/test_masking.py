"""Whole-word masks: the greedy fill against plain Python, the properties of the rule, and independence of the batch."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from denseir_jax.objectives import masking
from denseir_jax.objectives.masking import MaskConfig, Text

PAD, UNK, CLS, SEP, MASK = range(5)
SPECIAL, VOCAB, LENGTH = (PAD, UNK, CLS, SEP, MASK), 100, 24


def rows(rng: np.random.Generator, b: int, length: int = LENGTH, words: float = 0.6) -> dict[str, np.ndarray]:
    """Random texts of 1 .. length - 2 tokens, framed and padded, with an [UNK] now and then."""
    ids = rng.integers(5, VOCAB, (b, length), dtype=np.int32)
    ids[rng.random((b, length)) < 0.05] = UNK
    start = (rng.random((b, length)) < words).astype(np.int32)
    size = rng.integers(3, length + 1, b, dtype=np.int32)
    at = np.arange(length)
    ids = np.where(at < size[:, None] - 1, ids, PAD)
    ids[:, 0], ids[np.arange(b), size - 1] = CLS, SEP
    start[:, 1] = 1
    start[(at >= size[:, None] - 1) | (at == 0)] = 0
    return {"ids": ids, "length": size, "start": start}


def words_of(ids: np.ndarray, length: int, start: np.ndarray) -> dict[int, list[int]]:
    """First position -> positions of every maskable word; an id of SPECIAL is no part of any."""
    out: dict[int, list[int]] = {}
    current = None
    for at in range(1, length - 1):
        if ids[at] in SPECIAL:
            current = None
            continue
        if start[at] or current is None:
            current = out.setdefault(at, [])
        current.append(at)
    return out


def greedy(words: dict[int, list[int]], order: np.ndarray, budget: int) -> set[int]:
    """The collator's rule, word by word."""
    chosen: set[int] = set()
    for at in order:
        if len(chosen) >= budget:
            break
        word = words.get(int(at), [])
        if len(chosen) + len(word) <= budget:
            chosen |= set(word)
    return chosen


def draw(config: MaskConfig, data: dict[str, np.ndarray], index: np.ndarray, seed: int = 7) -> masking.Masked:
    args = (jnp.asarray(data[name]) for name in ("ids", "length", "start"))
    return jax.tree.map(np.asarray, _draw(config, seed, *args, jnp.asarray(index)))


def _plain_draw(config: MaskConfig, seed: int, ids: jax.Array, length: jax.Array, start: jax.Array, index: jax.Array) -> masking.Masked:
    return masking.draw(config, Text.of(ids, length, start, index, SPECIAL, seed), MASK, VOCAB)[0]


_draw = jax.jit(_plain_draw, static_argnums=(0, 1))


@jax.jit
def _fill(ids: jax.Array, length: jax.Array, start: jax.Array, order: jax.Array, budget: jax.Array) -> tuple[jax.Array, jax.Array]:
    sizes = masking.word_sizes(ids, length, start, SPECIAL)
    return sizes, masking.fill(sizes, order, budget)


def chosen(masked: masking.Masked, row: int) -> list[int]:
    return masked.positions[row][masked.weight[row] > 0].tolist()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.1, 0.15, 0.3, 0.5, 1.0]), st.sampled_from([0.2, 0.6, 1.0]))
def test_greedy_fill_equals_plain_python(seed: int, rate: float, words: float) -> None:
    rng = np.random.default_rng(seed)
    data = rows(rng, 16, words=words)
    order = np.stack([rng.permutation(LENGTH) for _ in range(16)]).astype(np.int32)
    budget = masking.budget_table(MaskConfig(rate), LENGTH)[0, data["length"]]
    sizes, taken = map(np.asarray, _fill(*(data[k] for k in ("ids", "length", "start")), order, budget))
    for i in range(16):
        whole = words_of(data["ids"][i], int(data["length"][i]), data["start"][i])
        assert {at: len(word) for at, word in whole.items()} == {at: int(n) for at, n in enumerate(sizes[i]) if n}
        got = {at for first in np.flatnonzero(taken[i]) for at in whole[int(first)]}
        assert got == greedy(whole, order[i], int(budget[i]))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31 - 64), st.sampled_from([MaskConfig(0.15), MaskConfig(0.5, True), MaskConfig(1.0)]))
def test_a_mask_is_whole_words_within_the_budget(index: int, config: MaskConfig) -> None:
    """T4."""
    data = rows(np.random.default_rng(index), 32)
    masked = draw(config, data, index + np.arange(32, dtype=np.int32))
    budget = masking.budget_table(config, LENGTH)[0, data["length"]]
    for i in range(32):
        positions = chosen(masked, i)
        words = words_of(data["ids"][i], int(data["length"][i]), data["start"][i])
        assert positions == sorted(set(positions)) and len(positions) <= budget[i]
        for word in words.values():
            assert len(set(word) & set(positions)) in (0, len(word)), "part of a word"
        assert set(positions) <= {at for word in words.values() for at in word}, "a special token, padding, or no word"
        assert masked.labels[i][masked.weight[i] > 0].tolist() == data["ids"][i][positions].tolist()
        apart = np.delete(np.arange(LENGTH), positions)
        assert (masked.ids[i][apart] == data["ids"][i][apart]).all()
        if words and all(len(word) <= budget[i] - len(positions) for at, word in words.items() if at not in positions):
            assert len(positions) == sum(map(len, words.values())), "a word that fits was left"
    assert ((masked.labels == 0) & (masked.positions == 0))[masked.weight == 0].all()


def test_budgets() -> None:
    """T4."""
    (table,) = masking.budget_table(MaskConfig(0.15), 512)
    assert [int(table[t + 2]) for t in (0, 1, 10, 30, 126)] == [1, 1, 2, 4, 19]  # 1.5 -> 2, 4.5 -> 4, 18.9 -> 19
    assert [int(masking.budget_table(MaskConfig(0.5, True), 12)[0, t]) for t in (5, 10, 12)] == [2, 5, 6]  # 2.5 -> 2
    assert int(masking.budget_table(MaskConfig(1.0), 20)[0, 20]) == 18


def test_an_empty_mask_where_no_word_fits() -> None:
    data = {"ids": np.full((1, 12), 9, np.int32), "length": np.array([12], np.int32), "start": np.zeros((1, 12), np.int32)}
    data["start"][:, 1] = 1
    masked = draw(MaskConfig(0.15), data, np.zeros(1, np.int32))  # one word of 10 tokens, a budget of 2
    assert masked.weight.sum() == 0 and (masked.ids == data["ids"]).all()


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5])
def test_impossible_rates_are_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="outside"):
        MaskConfig(rate)


def test_a_row_is_masked_alike_whatever_the_batch() -> None:
    data = rows(np.random.default_rng(3), 64)
    index = np.random.default_rng(4).permutation(1000)[:64].astype(np.int32)
    whole = draw(MaskConfig(), data, index)
    for part in (np.array([5]), np.array([63, 5, 17])):
        alone = draw(MaskConfig(), {name: value[part] for name, value in data.items()}, index[part])
        for got, expected in zip(alone, whole, strict=True):
            np.testing.assert_array_equal(got, expected[part])
    other_seed = draw(MaskConfig(), data, index, seed=8)
    later = draw(MaskConfig(), data, index + 1000)
    assert (other_seed.positions != whole.positions).any(1).mean() > 0.5 and (later.positions != whole.positions).any(1).mean() > 0.5


def test_eight_devices_draw_the_masks_of_one() -> None:
    data = rows(np.random.default_rng(3), 64)
    index = np.arange(64, dtype=np.int32)
    mesh = Mesh(np.asarray(jax.devices()[:8]), ("data",), axis_types=(AxisType.Auto,))
    by_rows = NamedSharding(mesh, P("data"))
    args = [jax.device_put(x, by_rows) for x in (data["ids"], data["length"], data["start"], index)]
    with jax.set_mesh(mesh):
        spread = jax.jit(lambda *x: _plain_draw(MaskConfig(), 7, *x))(*args)
    assert len(spread.ids.sharding.device_set) == 8
    for got, expected in zip(spread, draw(MaskConfig(), data, index), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_rates_over_many_draws() -> None:
    """T4."""
    b, length = 6000, 122
    data = {"ids": np.full((b, length), 50, np.int32), "length": np.full(b, length, np.int32), "start": np.ones((b, length), np.int32)}
    data["ids"][:, 0], data["ids"][:, -1] = CLS, SEP
    data["start"][:, [0, -1]] = 0
    masked = draw(MaskConfig(), data, np.arange(b, dtype=np.int32))
    assert (masked.weight.sum(1) == 18).all()  # every word has one token: the budget is met exactly
    new = np.take_along_axis(masked.ids, masked.positions, axis=1).reshape(-1)
    n = new.size
    assert n > 100_000

    def near(count: int, p: float, trials: int) -> bool:
        return abs(count - p * trials) < 3 * math.sqrt(trials * p * (1 - p))

    assert near((new == MASK).sum(), 0.8 + 0.1 / VOCAB, n)
    assert near((new == 50).sum(), 0.1 + 0.1 / VOCAB, n)
    random = new[(new != MASK) & (new != 50)]
    counts = np.bincount(random, minlength=VOCAB)[np.delete(np.arange(VOCAB), [MASK, 50])]
    expected = random.size / (VOCAB - 2)
    assert counts.size == VOCAB - 2 and ((counts - expected) ** 2 / expected).sum() < VOCAB - 3 + 4 * math.sqrt(2 * (VOCAB - 3))
    where = np.bincount(masked.positions.reshape(-1), minlength=length)[1:-1]  # every position is as likely
    assert ((where - n / 120) ** 2 / (n / 120)).sum() < 119 + 4 * math.sqrt(2 * 119)


def test_labels_given_from_outside_take_the_whole_length() -> None:
    labels = jnp.array([[-100, 7, -100, 9], [-100, -100, -100, -100]])
    masked = masking.given(jnp.ones((2, 4), jnp.int32), labels)
    assert masked.positions.tolist() == [[0, 1, 2, 3]] * 2
    assert masked.weight.tolist() == [[0, 1, 0, 1], [0, 0, 0, 0]] and masked.labels.tolist() == [[0, 7, 0, 9], [0, 0, 0, 0]]

"""Masks on a schedule, and masks that know of each other: around one, apart from one, many of one row."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from test_masking import LENGTH, MASK, SPECIAL, VOCAB, rows, words_of

from denseir_jax.core.config import parse
from denseir_jax.core.errors import ConfigError
from denseir_jax.objectives import masking
from denseir_jax.objectives.masking import DECODER_MASK, ENCODER_MASK, MaskConfig, Text

B = 48
DATA = rows(np.random.default_rng(5), B)


def single_words(b: int = B) -> dict[str, np.ndarray]:
    """22 words of one token a row, so that every budget is met exactly."""
    data = {"ids": np.full((b, LENGTH), 50, np.int32), "length": np.full(b, LENGTH, np.int32), "start": np.ones((b, LENGTH), np.int32)}
    return data


def text(data: dict[str, np.ndarray] = DATA, index: Any = None, side: Any = None) -> Text:
    index = jnp.arange(len(data["ids"]), dtype=jnp.int32) if index is None else jnp.asarray(index, jnp.int32)
    ids, length, start = (jnp.asarray(data[name]) for name in ("ids", "length", "start"))
    return Text.of(ids, length, start, index, SPECIAL, seed=7, side=side)


def budget(rate: float, length: Any) -> np.ndarray:
    """By numpy: round half to even of the text's share, at least 1."""
    return np.maximum(1, np.round(rate * (np.asarray(length) - 2))).astype(int)


def assert_whole_words(chosen: Any, data: dict[str, np.ndarray] = DATA) -> None:
    for i, taken in enumerate(np.asarray(chosen)):
        words = words_of(data["ids"][i], int(data["length"][i]), data["start"][i])
        inside = [at for word in words.values() for at in word]
        assert not np.delete(taken, inside).any(), "a special token or padding"
        assert all(taken[word].all() or not taken[word].any() for word in words.values()), "part of a word"


def placed(length: Any, index: Any) -> Text:
    """Rows of these lengths at these places of the stream; what they say is no matter."""
    blank = jnp.zeros((len(length), LENGTH), jnp.int32)
    return Text.of(blank, jnp.asarray(length), blank, jnp.asarray(index), SPECIAL, seed=0)


@pytest.mark.parametrize("rate, final", [(0.3, 0.5), (0.8, 0.2)])
def test_a_scheduled_rate_at_its_start_middle_and_end(rate: float, final: float) -> None:
    config, length = MaskConfig(rate, final_rate=final, ramp=1000), np.arange(3, LENGTH + 1)
    for index, now in ((0, rate), (500, (rate + final) / 2), (1000, final), (2**31 - 1, final)):
        found = masking.budgets(config, placed(length, np.full(len(length), index)))
        np.testing.assert_array_equal(found, budget(round(now, 6), length))
    assert masking.most_labels(config, LENGTH) == budget(max(rate, final), LENGTH)
    on_the_way = np.asarray(masking.budgets(config, placed(np.full(1001, LENGTH), np.arange(1001))))
    exact = rate + (final - rate) * np.arange(1001) / 1000
    assert np.abs(on_the_way - exact * 22).max() <= 0.5 + 22 * abs(final - rate) / 64
    assert (np.sign(np.diff(on_the_way)) * np.sign(final - rate) >= 0).all(), "evenly, without going back"


def test_a_scheduled_mask_depends_on_the_stream_index_alone() -> None:
    config, data, index = MaskConfig(0.3, final_rate=0.5, ramp=1000), single_words(), np.arange(B) * 25
    whole, chosen = masking.draw(config, text(data, index), MASK, VOCAB)
    assert sorted(set(chosen.sum(1).tolist())) == [7, 8, 9, 10, 11], "22 x 0.3 up to 22 x 0.5"
    np.testing.assert_array_equal(whole.weight.sum(1), chosen.sum(1))
    for part in (slice(0, 7), slice(40, 41)):
        alone = masking.draw(config, text({name: value[part] for name, value in data.items()}, index[part]), MASK, VOCAB)[0]
        for got, want in zip(alone, whole, strict=True):
            np.testing.assert_array_equal(got, want[part])


def test_more_around_a_mask() -> None:
    """T5."""
    first_of, more = MaskConfig(0.3), MaskConfig(0.5)
    first = masking.choose(first_of, text(), ENCODER_MASK)
    found = masking.choose_more(more, text(), first, DECODER_MASK)
    assert_whole_words(found)
    assert not (first & ~found).any(), "all of the first"
    assert (found.sum(1) <= np.maximum(budget(0.5, DATA["length"]), first.sum(1))).all()
    short = masking.choose_more(MaskConfig(0.1), text(), first, DECODER_MASK)
    over = np.asarray(first.sum(1)) >= budget(0.1, DATA["length"])
    np.testing.assert_array_equal(short[over], first[over], err_msg="a budget that is spent adds nothing")
    data = single_words()
    first = masking.choose(first_of, text(data), ENCODER_MASK)
    assert set(first.sum(1).tolist()) == {7}
    assert set(masking.choose_more(more, text(data), first, DECODER_MASK).sum(1).tolist()) == {11}, "half of the text"


def test_apart_from_a_mask() -> None:
    first = masking.choose(MaskConfig(0.6), text(), ENCODER_MASK)
    found = masking.choose_apart(MaskConfig(0.6), text(), first, DECODER_MASK)
    assert_whole_words(found)
    assert not (first & found).any() and (found.sum(1) <= budget(0.6, DATA["length"])).all() and found.any()
    data = single_words()
    first = masking.choose(MaskConfig(0.3), text(data), ENCODER_MASK)
    for rate, size in ((0.5, 11), (1.0, 22 - 7)):
        found = masking.choose_apart(MaskConfig(rate), text(data), first, DECODER_MASK)
        assert set(found.sum(1).tolist()) == {size} and not (first & found).any()


def test_many_masks_of_a_row() -> None:
    found = masking.choose_many(MaskConfig(0.5), text(), 6, DECODER_MASK)
    assert found.shape == (B, 6, LENGTH)
    for k in range(6):
        assert_whole_words(found[:, k])
    assert (found.sum(2) <= budget(0.5, DATA["length"])[:, None]).all()
    np.testing.assert_array_equal(found[:, :2], masking.choose_many(MaskConfig(0.5), text(), 2, DECODER_MASK))
    single = np.asarray(masking.choose_many(MaskConfig(0.5), text(single_words()), 6, DECODER_MASK))
    assert (single.sum(2) == 11).all()
    assert all(len({mask.tobytes() for mask in row}) == 6 for row in single), "each drawn for itself"
    share = single.mean((0, 1))[1:-1]  # 288 masks: 0.5 give or take
    assert np.abs(share - 0.5).max() < 4 * 0.5 / np.sqrt(6 * B)


def test_purposes_and_sides_have_masks_of_their_own() -> None:
    data = single_words()
    draws = [
        masking.choose(MaskConfig(0.5), text(data), ENCODER_MASK),
        masking.choose(MaskConfig(0.5), text(data), DECODER_MASK),
        masking.choose(MaskConfig(0.5), text(data, side=jnp.ones(B, jnp.int32)), ENCODER_MASK),
    ]
    for i, one in enumerate(draws):
        for other in draws[:i]:
            assert (np.asarray(one) != np.asarray(other)).any(1).all()


@pytest.mark.parametrize("masked, random", [(1.0, 0.0), (0.0, 0.0), (0.0, 1.0)])
def test_what_stands_in_a_masked_place(masked: float, random: float) -> None:
    data = single_words(400)
    found, chosen = masking.draw(MaskConfig(0.5, masked=masked, random=random), text(data), MASK, VOCAB)
    new = np.asarray(found.ids)[np.asarray(chosen)]
    assert new.size == 400 * 11 and (found.labels[found.weight > 0] == 50).all()
    np.testing.assert_array_equal(np.asarray(found.ids)[~np.asarray(chosen)], 50)
    if random:
        counts = np.bincount(new, minlength=VOCAB)  # 44 each, give or take
        assert counts.size == VOCAB and np.abs(counts - 44).max() < 5 * np.sqrt(44)
    else:
        assert (new == (MASK if masked else 50)).all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rate": 0.0}, r"mask rate 0\.0 is outside \(0, 1\]"),
        ({"rate": 1.5}, r"mask rate 1\.5 is outside"),
        ({"final_rate": 1.5, "ramp": 10}, r"mask rate 1\.5 is outside"),
        ({"final_rate": 0.5}, r"final_rate=0\.5 and ramp=0: a schedule needs both"),
        ({"ramp": 10}, "final_rate=None and ramp=10"),
        ({"final_rate": 0.5, "ramp": -1}, "ramp=-1"),
        ({"masked": 0.8, "random": 0.3}, r"masked=0\.8 and random=0\.3 are shares"),
        ({"masked": -0.1}, r"masked=-0\.1"),
    ],
)
def test_impossible_masks_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(MaskConfig, values)

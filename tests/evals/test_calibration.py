"""Thresholds on probabilities: against a search over every possible threshold."""

import io

import matplotlib.image
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denseir_jax.evals import calibration
from denseir_jax.evals.calibration import calibrate


def floats(values: list[float]) -> np.ndarray:
    return np.array(values, np.float32)


def test_by_hand() -> None:
    positives, negatives = floats([0.05, 0.3, 0.8, 0.95, 0.99]), floats([0.01, 0.02, 0.04, 0.06, 0.9])
    retrieved = np.array([True, True, True, True, False])
    # Retrieved, downwards: 0.95 +, 0.9 -, 0.8 +, 0.3 +, 0.06 -: three of four above 0.06 are judged, three of five after it.
    found = calibrate(positives, retrieved, negatives, 0.2, 0.7)
    assert found.precision == 0.75 and found.positive_above == pytest.approx((0.3 + 0.06) / 2) and found.positives_found == 0.75
    assert found.keep_below == found.positive_above and found.false_negative_rate == 0.2  # 0.05 is lost, one of five
    assert found.negatives_kept == 0.8
    strict = calibrate(positives, retrieved, negatives, 0.2, 1.0)
    assert strict.keep_below == pytest.approx(0.3) and strict.positive_above == pytest.approx((0.95 + 0.9) / 2)
    assert strict.positives_found == 0.25 and strict.false_negative_rate == 0.2


def test_a_positive_is_no_negative_too() -> None:
    found = calibrate(floats([0.9] * 10), np.ones(10, bool), floats([0.1] * 10), 0.0, 0.9)
    assert found.keep_below == found.positive_above == pytest.approx(0.5)


def test_no_threshold_is_precise_enough() -> None:
    found = calibrate(floats([0.4]), np.array([True]), floats([0.4, 0.9]), 0.0, 0.9)
    assert found.positive_above is None and found.precision == pytest.approx(1 / 3) and found.keep_below == pytest.approx(0.4)
    nothing = calibrate(floats([0.4]), np.array([False]), floats([]), 0.5, 0.9)
    assert nothing.positive_above is None and nothing.positives_found == nothing.precision == 0.0
    with pytest.raises(ValueError, match="no positive"):
        calibrate(floats([]), np.zeros(0, bool), floats([0.5]), 0.1, 0.9)


@pytest.mark.parametrize("high", [1.0, 0.9, 0.5, 1e-45])
def test_neighbours_are_parted_though_there_is_no_number_between_them(high: float) -> None:
    """As probabilities are compared: in float32, where midway between 1 and the next number below is 1."""
    (upper,) = floats([high])
    lower = np.nextafter(upper, np.float32(0))
    found = calibrate(floats([upper]), np.array([True]), floats([lower]), 0.0, 1.0)
    assert found.positive_above is not None and lower <= found.positive_above < upper
    assert found.precision == found.positives_found == 1.0
    assert floats([upper])[0] > found.positive_above and not floats([lower])[0] > found.positive_above


numbers = st.integers(0, 20).map(lambda n: n / 20)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(numbers, st.booleans()), min_size=1, max_size=12),
    st.lists(numbers, max_size=12),
    st.sampled_from([0.0, 0.1, 0.25, 0.9]),
    st.sampled_from([0.3, 0.5, 0.9, 1.0]),
)
def test_targets_are_kept_and_nothing_larger_would_keep_them(
    positives: list[tuple[float, bool]], negatives: list[float], rate: float, precision: float
) -> None:
    values, retrieved = floats([value for value, _ in positives]), np.array([yes for _, yes in positives])
    found = calibrate(values, retrieved, floats(negatives), rate, precision)
    assert (values < found.keep_below).mean() == pytest.approx(found.false_negative_rate) and found.false_negative_rate <= rate + 1e-9
    inside, outside = values[retrieved], floats(negatives)

    def share(threshold: float) -> float:
        above = (inside > threshold).sum(), (outside > threshold).sum()
        return above[0] / sum(above) if sum(above) else 0.0

    grid = floats([n / 20 for n in range(21)])  # as the values are: 0.3 in float64 lies below 0.3 in float32
    able = [t for t in grid if share(t) >= precision and (inside > t).any()]
    if found.positive_above is None:
        assert not able and found.precision < precision
    else:
        assert share(found.positive_above) >= precision
        assert ((inside > found.positive_above).sum(), (outside > found.positive_above).sum()) == (
            (inside > min(able)).sum(),
            (outside > min(able)).sum(),
        )
        assert found.keep_below <= found.positive_above
    limit = 1.0 if found.positive_above is None else found.positive_above
    larger = [t for t in grid if found.keep_below + 1e-6 < t <= limit]
    assert all((values < t).mean() > rate for t in larger)


def test_the_picture_is_one_and_differs_with_what_it_shows() -> None:
    positives, negatives = floats([0.8, 0.9, 0.95]), floats([0.02, 0.1, 0.2, 0.7])
    found = calibrate(positives, np.ones(3, bool), negatives, 0.1, 0.9)
    image = calibration.picture(positives, negatives, found)
    assert image == calibration.picture(positives, negatives, found)
    pixels = matplotlib.image.imread(io.BytesIO(image))
    assert pixels.shape[0] > 300 and pixels.shape[1] > 600 and pixels[..., :3].min() < 0.2
    other = calibration.picture(negatives, positives, found)
    assert (matplotlib.image.imread(io.BytesIO(other)) != pixels).any()

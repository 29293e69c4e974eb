import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denseir_jax.data.sentences import split_sentences


def pieces(text: str) -> list[str]:
    starts = [*split_sentences(text), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(starts)]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("One. Two! Three? Four", ["One. ", "Two! ", "Three? ", "Four"]),
        ('He said "stop." Then he left.', ['He said "stop." ', "Then he left."]),
        ("Dr. Smith met Mr. Jones. They spoke.", ["Dr. Smith met Mr. Jones. ", "They spoke."]),
        ("J. R. R. Tolkien wrote it. It sold.", ["J. R. R. Tolkien wrote it. ", "It sold."]),
        ("It costs 3.14 euros. See www.a.org for more.", ["It costs 3.14 euros. ", "See www.a.org for more."]),
        ("The U.S. Army left the U.S. The end.", ["The U.S. Army left the U.S. ", "The end."]),
        ("See No. 5 and fig. 2. No. He did not.", ["See No. 5 and fig. 2. ", "No. ", "He did not."]),
        ("Fruit, e.g. apples, vs. Pears. Done.", ["Fruit, e.g. apples, vs. Pears. ", "Done."]),
        ("1. First point. 2. Second point.", ["1. First point. ", "2. Second point."]),
        ("Well... maybe. Yes?! No.", ["Well... maybe. ", "Yes?! ", "No."]),
        ("今日は。明日！はい", ["今日は。", "明日！", "はい"]),
        ("A heading\n\nA text that\ngoes on.", ["A heading\n\n", "A text that\ngoes on."]),
        ("Das ist z.B. gut. Und das auch.", ["Das ist z.B. gut. ", "Und das auch."]),
        ("no end at all", ["no end at all"]),
        ("", []),
        ("  ", ["  "]),
    ],
)
def test_splits(text, expected):
    assert pieces(text) == expected


@given(st.text(alphabet=st.sampled_from("aB .!?\n\"'。1é\u2019)")))
def test_loses_nothing(text):
    starts = split_sentences(text)
    assert "".join(pieces(text)) == text
    assert starts == sorted(set(starts)) and all(start < len(text) for start in starts)


@pytest.mark.parametrize("unit", [" ", ".", "\n", ". ", '."', "。", "a. ", "A.", "1. ", "\n ", "x"])
def test_a_long_odd_line_takes_linear_time(unit):
    text = unit * (200_000 // len(unit))
    assert "".join(pieces(text)) == text  # quadratic would take many minutes

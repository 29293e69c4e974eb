"""DPR's has_answer: worked values, and DPR's own tokenisation by the library that it uses."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denseir_jax.evals.answers import Answers, has_answer, prepared


@pytest.mark.parametrize(
    ("answer", "text", "expected"),
    [
        ("U.S.", "the US army", False),
        ("U.S.", "the u.s. army", True),
        ("art", "The artist", False),
        ("Beyoncé", "Beyonce sang", False),
        (unicodedata.normalize("NFC", "Beyoncé"), unicodedata.normalize("NFD", "then Beyoncé sang"), True),
        (unicodedata.normalize("NFD", "Beyoncé"), unicodedata.normalize("NFC", "then Beyoncé sang"), True),
        ("1,000", "1 , 000 men", True),
        ("O'Neil", "O’Neil", False),
        ("", "anything", False),
        (" \t\x00", "anything", False),
        ("new york", "New\nYork", True),
        ("new york", "york new", False),
        ("b", "a b", True),
    ],
)
def test_worked_values(answer: str, text: str, expected: bool) -> None:
    assert has_answer([answer], text) is expected


def test_one_of_several_is_enough_and_none_is_none() -> None:
    assert has_answer(["", "x", "b c"], "A B C") and not has_answer(["", "x"], "a b c") and not has_answer([], "a")


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("19[0-9]{2}", "in 1987", True),
        ("^born", "one\nBORN in", True),
        ("(unclosed", "(unclosed", False),
        ("a{99999999999}", "a", False),
        ("", "anything", False),
        ("caf\u00e9", "CAFE\u0301", True),
    ],
)
def test_patterns(pattern: str, text: str, expected: bool) -> None:
    assert has_answer([pattern], text, "regex") is expected


def test_a_bad_pattern_does_not_hide_a_good_one() -> None:
    assert Answers(["(", "b+"], "regex").within(prepared("abb", "regex"))


# Without what one edition of Unicode assigns and another does not.
texts = st.text(st.sampled_from("aAbBéΣς.,'’ -\t\n\u00a0\u0301\u200b1½İ東"), max_size=12) | st.text(
    st.characters(exclude_categories=["Cn"]), max_size=8
)


@settings(max_examples=300, deadline=None)
@given(texts, texts)
def test_as_the_tokeniser_of_dpr_has_it(answer: str, text: str) -> None:
    """Karpukhin et al.'s rule spelt out with the `regex` library: tokens, then every place of the text."""
    regex = pytest.importorskip("regex")

    def tokens(value: str) -> list[str]:
        found = regex.findall(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]", unicodedata.normalize("NFD", value))
        return [token.lower() for token in found]

    wanted, there = tokens(answer), tokens(text)
    expected = bool(wanted) and any(there[i : i + len(wanted)] == wanted for i in range(len(there) - len(wanted) + 1))
    assert has_answer([answer], text) == expected

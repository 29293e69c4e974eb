"""Wrong decoding told from honest text; lengths against numpy."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denseir_jax.data import lengths
from denseir_jax.data.mojibake import mojibake

HONEST = [
    "«CAFÉ», naïve façade – 25 °C, § 4 ½ £3 ©2020 … “quoted” ‘so’ 5 €, A™, ÂGE, SÃO PAULO, “IRMÔ… AÑO, Ängström, Île",
    "Größe über Straße; ÄÖÜ äöüß „Anführung“ — Ende…",
    "Tiếng Việt: Ầ ẩ ặ ơ ư đ; Čeština: příliš žluťoučký kůň; Română: ÂNTÂI, în; Polski: zażółć gęślą jaźń",
    "Ελληνικά: Ο καφές· «Ναι», Русский: «Ёлка» — съешь; العربية: مرحبا، هندي; हिन्दी: नमस्ते।",
    "黑豹队的防守只丢了 308分，在联赛中排名第六；「日本語」テスト、한국어 문장입니다。 🎉🙂 naïve",
    "a\u0085b\u00a0c \u2028 d",  # unusual white space is no fault
]


@pytest.mark.parametrize("text", HONEST)
def test_honest_text_is_left_alone(text):
    assert mojibake(text) == ""


@pytest.mark.parametrize(
    "text", ["café", "Größe", "l’été", "it’s", "5 €", "→ ™ −", "Привет", "Καλημέρα", "黑豹队", "日本語", "🎉", "\ufeffx", "¿qué?"]
)
@pytest.mark.parametrize("wrong", ["latin-1", "cp1252"])
def test_utf8_read_as_something_else_is_seen(text, wrong):
    damaged = text.encode("utf-8").decode(wrong, "ignore")  # cp1252 has no character for five bytes
    lossless = len(damaged) == len(text.encode("utf-8"))
    assert mojibake(f"so: {damaged}.") or not lossless
    assert lossless or wrong == "cp1252"


@given(st.text(st.characters(min_codepoint=0xA0, max_codepoint=0xFF), min_size=1, max_size=5))
def test_every_latin_letter_read_as_latin_1_is_seen(letters):
    assert mojibake(letters.encode("utf-8").decode("latin-1"))


def test_real_texts(shared_data):
    """None of three languages is taken for damaged; read as Latin-1, every one of them with a letter beyond ASCII is."""
    seen = 0
    for language in ("en", "de", "zh"):
        for line in (shared_data / "xquad" / language / "corpus.jsonl").read_text(encoding="utf-8").splitlines():
            text = json.loads(line)["text"]
            assert mojibake(text) == ""
            if not text.isascii():
                assert mojibake(text.encode("utf-8").decode("latin-1"))
                seen += 1
    assert seen > 400


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=60), st.integers(1, 3000))
def test_summary_is_numpys(values, limit):
    array = np.array(values, np.int64)
    found = lengths.summary(array, limit)
    for name, q in (("median", 0.5), ("p95", 0.95)):
        assert found[name] == np.quantile(array, q, method="inverted_cdf")
    edges = [0] + [2**k for k in range(14)]
    counts, _ = np.histogram(array, edges)
    assert dict(found["histogram"]) == {edge: n for edge, n in zip(edges[1:], counts.tolist(), strict=True) if n}
    assert found["truncated"] == pytest.approx(sum(v > limit for v in values) / len(values))
    assert found["longest"] == max(values) and found["n"] == len(values)


def test_a_summary_in_one_line():
    made = lengths.summary(np.array([1] + [20] * 500 + [40] * 498 + [900], np.int64), 32)
    assert lengths.as_text(made) == "median 20, 95% 40, longest 900; 49.9% cut at 32  |  <32 50%  <64 50%  longer 0.1%"
    assert lengths.as_text(lengths.summary(np.zeros(0, np.int64))) == "none"

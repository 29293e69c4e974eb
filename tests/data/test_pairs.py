"""Pairs as arrays: what comes out is what the file said, equal questions know each other's passages, and memory stays small."""

import json
import tracemalloc

import numpy as np
import pytest

from denseir_jax.core.errors import InputError
from denseir_jax.data.lines import BadRows
from denseir_jax.data.order import SeededOrder
from denseir_jax.data.pairs import PairRows, write_pairs
from denseir_jax.data.sources import read_dataset
from denseir_jax.data.template import TextTemplate

TEXTS = [f"{word} tail of text number {i}" for i, word in enumerate("abcdefghijklmnopqrst")] + ["", "a tail of text number 0"]  # 21 as 0
TEMPLATE = TextTemplate(query_prefix="ask ", query_length=7, passage_length=9)
ROWS = [  # question, ids of its positives
    ("text number 3", ["d3"]),
    ("number", ["d4", "d5"]),
    ("text number 3", ["d6", "d21"]),
    ("tail", ["d20"]),  # a passage without a token
    ("number 7 of a text that is too long to stay whole", ["d7"]),
]


@pytest.fixture(scope="module")
def store(make_store):
    return make_store(TEXTS, vocab_size=150, template=TEMPLATE)


def tevatron(path, rows):
    lines = [
        {"query_id": str(i), "query_text": q, "positive_document_ids": ids, "negative_document_ids": []} for i, (q, ids) in enumerate(rows)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"tevatron:{path}"


def made(folder, rows, store, bad=None, split="train"):
    bad = bad or BadRows()
    source = rows if isinstance(rows, str) else tevatron(folder.with_suffix(".jsonl"), rows)
    return write_pairs(folder, read_dataset(source, bad), split, store, store.tokenizer(), bad)


def test_pairs_come_back_as_they_were_given(store, tmp_path):
    rows = ROWS
    assert made(tmp_path / "pairs", rows, store) == {"pairs": 6, "without_tokens": 1, "without_positives": 0}
    pairs = PairRows(tmp_path / "pairs", store, seed=2)
    given = [(q, int(id[1:])) for q, ids in rows for id in ids if id != "d20"]
    assert pairs.n_items == len(given) and pairs.counts["repeated"] == 5
    found, tokenizer = pairs.rows(np.arange(9)), store.tokenizer()
    answers = {q: {0 if row == 21 else row for other, row in given if other == q} for q, _ in given}
    for place, item in enumerate(SeededOrder(6, 2).items(np.arange(9)).tolist()):
        question, row = given[item]
        ids = [tokenizer.cls_id, *tokenizer.encode("ask " + question).ids.tolist()[:5], tokenizer.sep_id]
        assert found["query_ids"][place].tolist() == ids + [tokenizer.pad_id] * (7 - len(ids)) and found["query_length"][place] == len(ids)
        ids = [tokenizer.cls_id, *store.document(row)[0].tolist()[:7], tokenizer.sep_id]
        assert found["passage_ids"][place, 0, : len(ids)].tolist() == ids and found["passage_length"][place, 0] == len(ids)
        assert found["passage_row"][place, 0] == (0 if row == 21 else row), "equal texts have one number"
        assert {n for n in found["known"][place].tolist() if n >= 0} == answers[question]
        assert pairs.names(np.arange(9))[place] == f"pair {item} (d{row})"
    assert all(values.dtype == np.int32 and len(values) == 9 for values in found.values())
    at = np.array([8, 1, 5])
    assert all(np.array_equal(values, found[name][at]) for name, values in pairs.rows(at).items())


@pytest.mark.parametrize("rows", [[("a", ["d3"]), ("b", ["d3"])], [("a", ["d3", "d4", "d5"])], [("a", ["d0"]), ("b", ["d21"])]])
def test_pairs_without_a_negative_are_refused(store, tmp_path, rows):
    made(tmp_path / "pairs", rows, store)
    with pytest.raises(InputError, match="there is none to tell its own from"):
        PairRows(tmp_path / "pairs", store, seed=2)


def test_judged_queries_are_pairs_too(store, tmp_path):
    (tmp_path / "beir" / "qrels").mkdir(parents=True)
    (tmp_path / "beir" / "corpus.jsonl").write_text('{"_id": "d0", "title": "", "text": "x"}\n')
    (tmp_path / "beir" / "queries.jsonl").write_text('{"_id": "a", "text": "text"}\n{"_id": "b", "text": "tail"}\n')
    (tmp_path / "beir" / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\na\td3\t1\na\td4\t0\nb\td5\t2\n")
    assert made(tmp_path / "pairs", f"beir:{tmp_path / 'beir'}", store)["pairs"] == 2
    rows = PairRows(tmp_path / "pairs", store, 0).rows(np.arange(2))
    assert sorted(rows["passage_row"][:, 0].tolist()) == [3, 5] and rows["known"].shape == (2, 1)


def test_what_cannot_be_used_is_named_or_counted(store, tmp_path):
    with pytest.raises(InputError, match=r"pairs\.jsonl:2: unknown passage 'd99'; expected an id of the corpus in "):
        made(tmp_path / "pairs", [("text", ["d1"]), ("text", ["d99"])], store)
    assert not (tmp_path / "pairs").exists()
    bad = BadRows("skip")
    assert made(tmp_path / "pairs", [("text", ["d1"]), ("text", ["d99", "d2"])], store, bad)["pairs"] == 2
    assert bad.counts["unknown passage"] == 1
    with pytest.raises(InputError, match=r"holds no pair of a question and a passage \(1 x without_tokens\)"):
        made(tmp_path / "none", [("text", ["d20"])], store)
    (tmp_path / "pairs" / "start.bin").write_bytes(b"12")
    with pytest.raises(InputError, match=r"start\.bin is missing or torn; remove"):
        PairRows(tmp_path / "pairs", store, 0)


def test_other_tokens_are_refused(store, make_store, tmp_path):
    made(tmp_path / "pairs", [("text", ["d1"])], store)
    with pytest.raises(InputError, match="holds rows of other tokens than those in"):
        PairRows(tmp_path / "pairs", make_store(TEXTS, vocab_size=120, template=TEMPLATE), 0)


def test_memory_goes_with_pairs_by_bytes_not_by_objects(store, tmp_path):
    """65 million pairs are to fit. Here most questions are asked again, which costs most."""
    n = 8000
    made(tmp_path / "pairs", ((f"text number {i}", [f"d{i % 20}"]) for i in range(n)), store)
    store.content_ids  # noqa: B018  # it belongs to the corpus
    tracemalloc.start()
    try:
        pairs = PairRows(tmp_path / "pairs", store, 0)
        pairs.rows(np.arange(64))
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert pairs.n_items == n and pairs.counts["repeated"] > n / 2
    assert kept < 30 * n + 100_000 and peak < 90 * n + 100_000

import dataclasses
import itertools
import json
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from denseir_jax.core.command import execute
from denseir_jax.core.errors import InputError
from denseir_jax.data.examples import Example, read_examples, write_examples
from denseir_jax.data.lines import BadRows
from denseir_jax.data.template import TextTemplate
from denseir_jax.data.tokens import TokenStore
from denseir_jax.data.training_set import GroupRows, Ragged, TrainingSet, read_training_set
from denseir_jax.pipeline.stages import prepare

EXAMPLES = [
    Example("q1", 'what is "x"?', ("d1", "d2"), {"mined": ("d5", "d4"), "bm25": ("d3",)}),
    Example("q2", "zweite ü", ("d3",)),
]


def test_examples_round_trip(tmp_path):
    path = tmp_path / "train.jsonl"
    facts = write_examples(path, EXAMPLES)
    assert facts == {"queries": 2, "positives": 3, "negatives": {"bm25": 1, "mined": 2}}
    assert list(read_examples(path, BadRows())) == EXAMPLES
    first = path.read_bytes()
    turned = dataclasses.replace(EXAMPLES[0], negatives={"bm25": ("d3",), "mined": ("d5", "d4")})
    write_examples(path, [turned, EXAMPLES[1]])
    assert path.read_bytes() == first


def test_bytes_do_not_depend_on_the_hash_seed(tmp_path):
    code = """
import sys, pathlib
from denseir_jax.data.examples import Example, write_examples
pools = {name: (name + "1", name + "2") for name in {"bm25", "mined", "random", "other", "last"}}
write_examples(pathlib.Path(sys.argv[1]), [Example("q", "text", ("d",), pools)])
"""
    for seed in "12":
        subprocess.run([sys.executable, "-c", code, str(tmp_path / seed)], env={"PYTHONHASHSEED": seed}, check=True)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_nothing_is_left_of_a_broken_write(tmp_path):
    def broken():
        yield EXAMPLES[0]
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        write_examples(tmp_path / "train.jsonl", broken())
    assert list(tmp_path.iterdir()) == []


GOOD = {"query_id": "q", "query": "text", "positives": ["d1"], "negatives": {"bm25": ["d2"]}}
BAD = {
    "unknown passage": {"positives": ["d1", "d77"]},
    "unknown passage ": {"negatives": {"bm25": ["d77"]}},
    "positive among the negatives": {"negatives": {"bm25": ["d2"], "mined": ["d1"]}},
    "query without positives": {"positives": []},
    "not a list of ids": {"positives": "d1"},
    "not a list of ids ": {"negatives": {"bm25": [3]}},
    "negatives is not an object": {"negatives": ["d2"]},
    "passage twice in a list": {"negatives": {"bm25": ["d2", "d3", "d2"]}},
    "unknown key": {"postives": ["d1"]},
    "empty query": {"query": " "},
    "id is not a string": {"query_id": 3},
    "duplicate query id": {"query_id": "first"},
}


@pytest.mark.parametrize("reason", BAD)
def test_bad_examples_are_named_or_counted(tmp_path, reason):
    path = tmp_path / "train.jsonl"
    rows = [{**GOOD, "query_id": "first"}, {**GOOD, **BAD[reason]}, {**GOOD, "query_id": "last"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    row_of = {f"d{i}": i for i in range(5)}
    with pytest.raises(InputError, match=rf"train\.jsonl:2: {reason.strip()}.*; expected"):
        read_training_set(path, row_of, BadRows())
    bad = BadRows("skip")
    assert read_training_set(path, row_of, bad).query_ids == ["first", "last"]
    assert bad.counts == {reason.strip(): 1}


def test_missing_positives_and_an_empty_file(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text('{"query_id": "q", "query": "text"}\n')
    with pytest.raises(InputError, match=r"train\.jsonl:1: not a list of ids: positives is missing"):
        list(read_examples(path, BadRows()))
    path.write_text("\n")
    with pytest.raises(InputError, match=r"train\.jsonl holds no query to learn from \(skipped: .*blank line"):
        read_training_set(path, {}, BadRows())


def test_read_training_set_gives_rows(tmp_path):
    path = tmp_path / "train.jsonl"
    write_examples(path, EXAMPLES)
    found = read_training_set(path, {f"d{i}": 10 + i for i in range(6)}, BadRows())
    assert found.queries == [example.query for example in EXAMPLES]
    assert [found.positives.row(i).tolist() for i in range(2)] == [[11, 12], [13]]
    assert {name: [pool.row(i).tolist() for i in range(2)] for name, pool in found.negatives.items()} == {
        "bm25": [[13], []],
        "mined": [[15, 14], []],
    }


# Documents 0..19 differ; 20 and 21 repeat 0 and 1; 22 has no token.
TEXTS = [f"{word} tail of text number {i} and more of it" for i, word in enumerate("abcdefghijklmnopqrst")]
TEXTS += [TEXTS[0], TEXTS[1], ""]
TEMPLATE = TextTemplate(query_prefix="ask ", query_length=6, passage_length=8)


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> TokenStore:
    folder = tmp_path_factory.mktemp("prepared")
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"_id": f"d{i}", "text": text}) + "\n" for i, text in enumerate(TEXTS)))
    config = prepare.PrepareConfig(corpus=f"jsonl:{corpus}", vocab_size=120, workers=1, template=TEMPLATE)
    execute(prepare.stage, config, folder / "run")
    return TokenStore.open(folder / "run")


def make(*queries: tuple[list[int], dict[str, list[int]]]) -> TrainingSet:
    """A training set from (positive rows, pool -> negative rows)."""
    names = sorted({name for _, pools in queries for name in pools})
    pools = {name: Ragged.of([pools.get(name, []) for _, pools in queries]) for name in names}
    n = len(queries)
    return TrainingSet([f"q{i}" for i in range(n)], [f"query {i} of text" for i in range(n)], Ragged.of([p for p, _ in queries]), pools)


def groups(store: TokenStore, training_set: TrainingSet, size: int, **options) -> GroupRows:
    options = {"template": TEMPLATE, "seed": 3, **options}
    return GroupRows(training_set, store, store.tokenizer(), group_size=size, **options)


def content(row: int) -> int:
    return TEXTS.index(TEXTS[row])


MIXED = make(
    ([0], {"bm25": [2, 3, 4, 5, 6], "mined": [6, 7, 8]}),
    ([1, 9], {"mined": [10, 11, 12]}),
    ([13, 14], {"bm25": [15]}),
    ([16], {}),
)
POOLS = [{2, 3, 4, 5, 6, 7, 8}, {10, 11, 12}, {15}, set()]
POSITIVES = [{0}, {1, 9}, {13, 14}, {16}]


def test_groups_hold_what_they_promise(store):
    source = groups(store, MIXED, size=4)
    assert source.counts == {"queries": 4, "skipped": 0, "negatives": 11, "dropped": 1, "short": 2, "filled": 2 + 3}
    uses: list[Counter[int]] = [Counter() for _ in POOLS]
    queries_of_epoch = []
    for epoch in range(21):
        rows = source.rows(np.arange(4 * epoch, 4 * epoch + 4))
        assert all(array.dtype == np.int32 for array in rows.values())
        queries = [next(i for i, known in enumerate(POSITIVES) if group[0] in known) for group in rows["passage_row"]]
        queries_of_epoch.append(queries)
        for query, group, known in zip(queries, rows["passage_row"].tolist(), rows["known"].tolist(), strict=True):
            assert {id for id in known if id >= 0} == POSITIVES[query]
            assert len(set(group)) == 4
            assert not POSITIVES[query] & set(group[1:])
            from_pool = POOLS[query] & set(group[1:])
            assert len(from_pool) == min(3, len(POOLS[query]))
            uses[query].update(from_pool)
    assert all(sorted(queries) == [0, 1, 2, 3] for queries in queries_of_epoch)
    assert len(set(map(tuple, queries_of_epoch))) > 3, "every epoch has an order of its own"
    assert set(uses[0].values()) == {9}, "21 epochs x 3 places over 7 negatives: each 9 times"
    assert rows["known"].shape == (4, 2)


def test_every_negative_is_used_before_any_is_used_twice_more(store):
    source = groups(store, make(([0], {"bm25": [2, 3, 4, 5, 6, 7, 8]})), size=3)
    uses = Counter(dict.fromkeys(range(2, 9), 0))
    for epoch in range(11):
        uses.update(source.rows(np.array([epoch]))["passage_row"][0, 1:].tolist())
        assert max(uses.values()) - min(uses.values()) <= 1


def test_positives_and_fills_vary_by_stream_index(store):
    source = groups(store, make(([0, 1, 2], {})), size=3)
    found = source.rows(np.arange(300))["passage_row"]
    shares = np.bincount(found[:, 0], minlength=23)[:3] / 300
    assert np.all(np.abs(shares - 1 / 3) < 0.12)  # 4.4 standard deviations
    fills = np.bincount(found[:, 1:].reshape(-1), minlength=23)
    assert set(np.flatnonzero(fills)) == set(range(3, 20)), "all texts but the positives', under the first row of each; no empty one"


def test_a_row_is_a_function_of_its_stream_index(store):
    stream = np.array([7, 2, 30, 11, 5])
    source = groups(store, MIXED, size=5)
    together = source.rows(stream)
    for i, index in enumerate(stream):
        alone = groups(store, MIXED, size=5).rows(np.array([index]))
        for name, array in together.items():
            np.testing.assert_array_equal(array[i], alone[name][0], err_msg=name)
    assert together["index"].tolist() == stream.tolist()
    other = groups(store, MIXED, size=5, seed=4).rows(stream)
    assert not np.array_equal(other["passage_row"], together["passage_row"])


def test_tokens_are_those_of_the_texts(store):
    tokenizer = store.tokenizer()
    rows = groups(store, MIXED, size=3).rows(np.arange(4))

    def framed(text: str, length: int) -> list[int]:
        ids = [tokenizer.cls_id, *tokenizer.encode(text).ids[: length - 2].tolist(), tokenizer.sep_id]
        return ids + [tokenizer.pad_id] * (length - len(ids))

    for i, group in enumerate(rows["passage_row"]):
        query = next(q for q, known in enumerate(POSITIVES) if group[0] in known)
        assert rows["query_ids"][i].tolist() == framed(f"ask query {query} of text", 6)
        assert [ids.tolist() for ids in rows["passage_ids"][i]] == [framed(TEXTS[row], 8) for row in group]
    for side in ("query", "passage"):
        np.testing.assert_array_equal(rows[f"{side}_length"], (rows[f"{side}_ids"] != tokenizer.pad_id).sum(-1))


def test_texts_that_are_equal_count_as_one(store):
    source = groups(store, make(([20], {"bm25": [0, 2, 21, 1], "mined": [1, 3]})), size=4)
    assert source.counts["dropped"] == 3, "row 0 has the positive's text, rows 21 and 1 share one, and 1 comes again"
    for stream in range(6):
        row = source.rows(np.array([stream]))
        assert row["passage_row"][0, 0] == row["known"][0, 0] == 0
        assert sorted(row["passage_row"][0, 1:].tolist()) == [1, 2, 3]


def test_documents_without_tokens_are_not_learnt_from(store):
    source = groups(store, make(([22], {"bm25": [2]}), ([3, 22], {"bm25": [4, 22]})), size=2)
    assert source.counts == {"queries": 1, "skipped": 1, "negatives": 2, "dropped": 1, "short": 0, "filled": 0}
    assert {tuple(group) for group in source.rows(np.arange(8))["passage_row"].tolist()} == {(3, 4)}
    with pytest.raises(InputError, match="none of 1 queries has a token and a positive with a token"):
        groups(store, make(([22], {})), size=2)


def test_sources_choose_the_pools(store):
    found = groups(store, MIXED, size=4, sources=("mined",)).rows(np.arange(4))["passage_row"]
    group = next(group for group in found.tolist() if group[0] == 0)
    assert set(group[1:]) == {6, 7, 8}
    with pytest.raises(InputError, match=r"no negatives of the source 'bm52'; expected some of: bm25, mined"):
        groups(store, MIXED, size=4, sources=("bm52",))


def test_too_few_negatives(store):
    with pytest.raises(InputError, match=r"2 queries have too few negatives \(the first: 'q2' with 1\); expected 3"):
        groups(store, MIXED, size=4, fill="error")
    crowded = groups(store, MIXED, size=19).rows(np.arange(40))["passage_row"]
    assert all(len(set(group)) == 19 for group in crowded.tolist()), "nearly the whole corpus, and still no text twice"
    with pytest.raises(InputError, match="has 20 different passages; groups of 20 need 21 of them"):
        groups(store, MIXED, size=20)
    assert groups(store, MIXED, size=1).rows(np.arange(4))["passage_ids"].shape == (4, 1, 8)
    with pytest.raises(ValueError, match="group_size is 0"):
        groups(store, MIXED, size=0)


def test_the_store_must_be_of_the_same_template_and_tokenizer(store, tmp_path):
    with pytest.raises(InputError, match=r"was prepared with use_title=True, the template says False; expected the same"):
        groups(store, MIXED, size=2, template=dataclasses.replace(TEMPLATE, use_title=False))
    corpus = tmp_path / "other.txt"
    corpus.write_text("entirely different words\n")
    config = prepare.PrepareConfig(corpus=f"txt:{corpus}", vocab_size=60, workers=1)
    execute(prepare.stage, config, tmp_path / "run")
    with pytest.raises(InputError, match="tokenizer of the queries is not the one that made the tokens"):
        GroupRows(MIXED, store, TokenStore.open(tmp_path / "run").tokenizer(), TEMPLATE, 2, 0)


def test_ragged_agrees_with_lists():
    rng = np.random.default_rng(0)
    lists = [rng.integers(0, 50, size=size).tolist() for size in (0, 3, 0, 0, 5, 1, 0)]
    ragged = Ragged.of(lists)
    assert [ragged.row(i).tolist() for i in range(7)] == lists
    assert ragged.lengths.tolist() == [len(items) for items in lists]
    pairs = [(i, value) for i, items in enumerate(lists) for value in items]
    assert list(zip(*(side.tolist() for side in ragged.pairs()), strict=True)) == pairs
    again = Ragged.of_pairs(*ragged.pairs(), 7)
    assert again.starts.tolist() == ragged.starts.tolist()
    expected = [list(itertools.islice(itertools.chain(lists[i], itertools.repeat(-1)), 5)) for i in (6, 4, 1)]
    assert ragged.padded(np.array([6, 4, 1])).tolist() == expected
    assert Ragged.of([[], []]).padded(np.array([1])).tolist() == [[-1]]

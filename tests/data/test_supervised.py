"""Data sets that bring training examples of their own: what one row says, what rows say together, and the mistakes users make."""

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denseir_jax.core.errors import InputError
from denseir_jax.data import sources
from denseir_jax.data.beir import write_folder
from denseir_jax.data.examples import Example, read_examples, write_examples
from denseir_jax.data.lines import BadRows
from denseir_jax.data.records import Passage
from denseir_jax.data.supervised import Supervised


def write(path: Path, *rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8")
    return path


def opened(source: str, bad: BadRows | None = None) -> Any:
    found = sources.read_dataset(source, bad or BadRows())
    assert isinstance(found, Supervised)
    return found


def hashed(prefix: str, *parts: str) -> str:
    """The documented id of a text, by another road."""
    return prefix + hashlib.sha256(b"\0".join(part.encode() for part in parts)).hexdigest()[:20]


def p(text: str, title: str = "") -> str:
    return hashed("p", title, text)


def q(text: str) -> str:
    return hashed("q", text)


FLAG = {
    "query": "closest planet to sun",
    "pos": ["Mercury is ..."],
    "neg": ["Venus ...", "Mars"],
    "pos_scores": [9.1],
    "neg_scores": [-2.0, 0],
}


def test_flag_embedding(tmp_path):
    again = {"query": "closest planet to sun", "pos": ["Mercury, of course"], "neg": ["Mars"]}
    other = {"query": "red planet", "pos": ["Mars"], "neg": ["Mercury is ..."], "prompt": "Find: ", "type": "normal"}
    bad = BadRows()
    found = opened(f"flag_embedding:{write(tmp_path / 'f.jsonl', FLAG, again, other)}", bad)
    sun, red = q("closest planet to sun"), q("red planet")
    mercury, course, mars, venus = p("Mercury is ..."), p("Mercury, of course"), p("Mars"), p("Venus ...")
    assert found.splits == ("train",)
    assert [(one.id, one.text) for one in found.corpus()] == [
        (mercury, "Mercury is ..."), (venus, "Venus ..."), (mars, "Mars"), (course, "Mercury, of course")
    ]  # fmt: skip
    assert found.queries("train") == {sun: "closest planet to sun", red: "red planet"}
    assert found.qrels("train") == {sun: {mercury: 1, course: 1}, red: {mars: 1}}
    assert list(found.examples("train")) == [
        Example(sun, "closest planet to sun", (mercury, course), {"given": (venus, mars)}),
        Example(red, "red planet", (mars,), {"given": (mercury,)}),
    ]
    assert list(found.scores("train")) == [(sun, mercury, 9.1), (sun, venus, -2.0), (sun, mars, 0.0)]
    assert found.answers("train") == {}
    assert bad.counts == {"prompt not applied (set template.query_prefix)": 1}
    assert sources.check(found, "train").warnings() == []


def test_what_one_row_calls_positive_is_no_negative_in_another(tmp_path):
    rows = [{"query": "x", "pos": ["a"], "neg": ["b", "c", "c"]}, {"query": "x", "pos": ["b"], "neg": ["d"]}]
    bad = BadRows()
    (example,) = opened(f"flag_embedding:{write(tmp_path / 'f.jsonl', *rows)}", bad).examples("train")
    assert example == Example(q("x"), "x", (p("a"), p("b")), {"given": (p("c"), p("d"))})
    assert bad.counts == {"negative that another row calls positive": 1}


@settings(deadline=None, max_examples=20)
@given(
    st.lists(
        st.tuples(st.sampled_from("xyz"), st.sets(st.sampled_from("abcdef"), min_size=1), st.lists(st.sampled_from("abcdef"))), min_size=1
    )
)
def test_examples_are_always_a_training_set(tmp_path_factory, rows):
    """Whatever rows say together, what is written is a training set that the reader of training sets takes."""
    folder = tmp_path_factory.mktemp("rows")
    lines = [{"query": query, "pos": sorted(pos), "neg": [text for text in neg if text not in pos]} for query, pos, neg in rows]
    found = opened(f"flag_embedding:{write(folder / 'f.jsonl', *lines)}")
    corpus = {passage.id: n for n, passage in enumerate(found.corpus())}
    write_examples(folder / "set.jsonl", found.examples("train"))
    read = list(read_examples(folder / "set.jsonl", BadRows(), corpus))
    assert read == list(found.examples("train"))
    for example in read:
        mine = [(pos, neg) for query, pos, neg in rows if query == example.query]
        positives = {p(text) for pos, _ in mine for text in pos}
        assert set(example.positives) == positives
        assert set(example.negatives.get("given", ())) == {p(text) for _, neg in mine for text in neg} - positives


FLAG_FAULTS = {
    "pos is not a list": ({"query": "x", "pos": "Mercury"}, r"but a string; expected a list of strings: write \"pos\": \[\"...\"\]"),
    "no pos": ({"query": "x", "positive": ["a"]}, r"expected a list of strings under pos \(the row has query, positive\)"),
    "pos holds something else": ({"query": "x", "pos": ["a", 3]}, "a number; expected a list of strings"),
    "query without positives": ({"query": "x", "pos": []}, "expected at least one"),
    "positive among the negatives": ({"query": "x", "pos": ["a"], "neg": ["b", "a"]}, "in given; expected passages that are not positive"),
    "empty query": ({"query": " ", "pos": ["a"]}, "expected text"),
    "empty passage": ({"query": "x", "pos": ["a"], "neg": [""]}, "expected a text or a title"),
    "neg_scores of another length": (
        {"query": "x", "pos": ["a"], "neg": ["b", "c"], "pos_scores": [1], "neg_scores": [1]},
        "1 scores, 2 texts; expected one for each",
    ),
    "scores on one side only": ({"query": "x", "pos": ["a"], "neg": ["b"], "pos_scores": [1]}, "expected pos_scores and neg_scores"),
    "pos_scores holds something else": ({"query": "x", "pos": ["a"], "pos_scores": ["1"]}, "expected finite numbers"),
    "key twice": ('{"query": "x", "pos": ["a"], "pos": ["b"]}', "every key once"),
    "no text": ({"pos": ["a"]}, "expected a string under query"),
}


@pytest.mark.parametrize("reason", FLAG_FAULTS)
def test_faults_of_flag_embedding(tmp_path, reason):
    row, expected = FLAG_FAULTS[reason]
    path = write(tmp_path / "f.jsonl", FLAG, row, {"query": "z", "pos": ["end"]})
    with pytest.raises(InputError, match=rf"f\.jsonl:2: {reason}.*{expected}"):
        opened(f"flag_embedding:{path}").queries("train")
    bad = BadRows("skip")
    assert list(opened(f"flag_embedding:{path}", bad).queries("train").values()) == ["closest planet to sun", "z"]
    assert bad.counts == {reason: 1}


def test_byte_order_mark_and_mixed_ends_of_lines(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"query": "x", "pos": ["a"]}\r\n\r\n{"query": "y", "pos": ["b\\r\\n\\"c\\""]}\n')
    found = opened(f"flag_embedding:{path}")
    assert list(found.queries("train").values()) == ["x", "y"]
    assert [one.text for one in found.corpus()] == ["a", 'b\r\n"c"']


def test_a_folder_has_a_split_for_each_file(tmp_path):
    write(tmp_path / "dev.jsonl", {"query": "y", "pos": ["b"], "neg": ["a"]})
    (tmp_path / "train.jsonl.gz").write_bytes(gzip.compress(json.dumps({"query": "x", "pos": ["a"]}).encode()))
    found = opened(f"flag_embedding:{tmp_path}")
    assert found.splits == ("train", "dev")
    assert [one.text for one in found.corpus()] == ["a", "b"]
    assert (found.queries("train"), found.queries("dev")) == ({q("x"): "x"}, {q("y"): "y"})
    with pytest.raises(InputError, match="no split 'test'; expected one of: train, dev"):
        found.qrels("test")
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match=r"holds no SPLIT\.jsonl; expected one for each split"):
        opened(f"flag_embedding:{tmp_path / 'none'}")


V1 = {
    "query_id": "7",
    "query": "closest planet",
    "answers": ["Mercury"],
    "positive_passages": [{"docid": "d1", "title": "Mercury", "text": "is small"}],
    "negative_passages": [{"docid": "d2", "text": "Venus"}, {"docid": "d3", "title": None, "text": "Mars"}],
}


def test_tevatron_with_texts(tmp_path):
    found = opened(f"tevatron:{write(tmp_path / 't.jsonl', V1)}")
    assert list(found.corpus()) == [Passage("d1", "is small", "Mercury"), Passage("d2", "Venus"), Passage("d3", "Mars")]
    assert list(found.examples("train")) == [Example("7", "closest planet", ("d1",), {"given": ("d2", "d3")})]
    assert found.answers("train") == {"7": ("Mercury",)}


def test_tevatron_by_id(tmp_path):
    row = {"query_id": "7", "query_text": "closest planet", "positive_document_ids": ["d1"], "negative_document_ids": ["d2"]}
    write(tmp_path / "corpus.jsonl", {"docid": "d1", "document_text": "is small", "title": "M"}, {"docid": "d2", "text": "Venus"})
    write(tmp_path / "train.jsonl", row)
    found = opened(f"tevatron:{tmp_path}")
    assert found.splits == ("train",)
    assert list(found.corpus()) == [Passage("d1", "is small", "M"), Passage("d2", "Venus")]
    assert found.qrels("train") == {"7": {"d1": 1}}
    assert list(found.examples("train")) == [Example("7", "closest planet", ("d1",), {"given": ("d2",)})]
    with pytest.raises(InputError, match=r"train\.jsonl:1: passages by id alone; expected a folder with corpus\.jsonl beside it"):
        list(sources.read_corpus(f"tevatron:{tmp_path / 'train.jsonl'}", BadRows()))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**V1, "query_id": 7}, r'id is not a string: query_id is a number; expected a string \(write it as "7"\)'),
        ({**V1, "positive_passages": [{"docid": 3, "text": "x"}]}, r'docid is a number; expected a string \(write it as "3"\)'),
        ({**V1, "query_id": "8", "query": [101, 7]}, "text is not a string: query is a list"),
        ({**V1, "positive_passages": {"docid": "d1"}}, "positive_passages is not a list but an object; expected a list of objects"),
        ({**V1, "query": "another"}, "query id with two texts: '7' asks something else above"),
        ({**V1, "negative_passages": [{"docid": "d2", "text": "Earth"}]}, "passage id with two texts: 'd2' is another passage above"),
        ({"query_id": "9", "query_text": "x", "positive_document_ids": [4]}, r'positive_document_ids is a number; .*write it as "4"'),
        ({"query_id": "9", "query_text": "x", "positive_document_ids": "d1"}, "positive_document_ids is not a list but a string"),
    ],
)
def test_faults_of_tevatron(tmp_path, row, message):
    path = write(tmp_path / "t.jsonl", V1, row)
    with pytest.raises(InputError, match=rf"t\.jsonl:2: .*{message}"):
        opened(f"tevatron:{path}").queries("train")
    bad = BadRows("skip")
    assert list(opened(f"tevatron:{path}", bad).queries("train")) == ["7"] and sum(bad.counts.values()) == 1


def test_tevatron_dangling_positives_are_named(tmp_path):
    write(tmp_path / "corpus.jsonl", {"docid": "d2", "text": "Venus"})
    write(tmp_path / "train.jsonl", V1)
    assert sources.check(opened(f"tevatron:{tmp_path}"), "train").passages == ("d1",)


def test_any_source_can_be_written_as_a_beir_folder(tmp_path):
    write(tmp_path / "in" / "train.jsonl", V1)
    write(
        tmp_path / "in" / "dev.jsonl",
        {**V1, "positive_passages": [{"docid": "d4", "text": 'says "é"\n\tand more'}], "negative_passages": []},
    )
    given = opened(f"tevatron:{tmp_path / 'in'}")
    write_folder(tmp_path / "out", given)
    found = sources.read_dataset(f"beir:{tmp_path / 'out'}", BadRows())
    assert list(found.corpus()) == list(given.corpus())
    assert found.splits == given.splits
    for split in found.splits:
        assert (found.queries(split), found.qrels(split)) == (given.queries(split), given.qrels(split))
    write(tmp_path / "in" / "corpus.jsonl", {"docid": "d1", "text": "x"})
    write(tmp_path / "in" / "dev.jsonl", {**V1, "query": "another text"})
    given = opened(f"tevatron:{tmp_path / 'in'}")
    with pytest.raises(InputError, match="query '7' has another text in the split 'dev'"):
        write_folder(tmp_path / "again", given)
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(("name", "passages", "counted"), [("msmarco", 260, 260), ("nq", 986, 987)])
def test_real_flag_embedding(shared_data, name, passages, counted):
    found = opened(f"flag_embedding:{shared_data / 'flag_embedding' / name}.jsonl")
    lines = [json.loads(line) for line in (shared_data / "flag_embedding" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {one.text for one in found.corpus()} == {text for line in lines for text in [*line["pos"], *line["neg"]]}
    assert sum(1 for _ in found.corpus()) == passages
    assert list(found.queries("train").values()) == [line["query"] for line in lines]
    scores = {(query, passage): score for query, passage, score in found.scores("train")}
    assert len(scores) == counted
    for line in lines:
        for text, score in zip(line["pos"] + line["neg"], line["pos_scores"] + line["neg_scores"], strict=True):
            if (line["pos"] + line["neg"]).count(text) == 1:
                assert scores[q(line["query"]), p(text)] == score

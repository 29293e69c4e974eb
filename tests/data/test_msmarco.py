"""Formats by id and in tab-separated text: MS MARCO and what others add to it, RocketQA, columns, rankings."""

import json
from pathlib import Path

import pytest

from denseir_jax.core.errors import InputError
from denseir_jax.data import by_id, sources, trec
from denseir_jax.data.examples import Example
from denseir_jax.data.lines import BadRows
from denseir_jax.data.records import Passage
from denseir_jax.data.supervised import passage_of, query_of


def write(path: Path, *rows: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(row + "\n" for row in rows), encoding="utf-8")
    return path


def titles_of(source: str) -> list[tuple[str, str, str]]:
    return [(one.id, one.title, one.text) for one in sources.read_corpus(source, BadRows())]


def test_documents_with_empty_fields(tmp_path):
    path = write(tmp_path / "msmarco-docs.tsv", 'D1\thttp://x\tA "title\tbody', "D2\t\t\tonly a body", "D3\thttp://y\t\t")
    assert titles_of(f"msmarco_docs:{path}") == [("D1", 'A "title', "body"), ("D2", "", "only a body"), ("D3", "", "")]
    write(path, "D1\thttp://x\ttitle")
    with pytest.raises(InputError, match=r"msmarco-docs\.tsv:1: wrong number of columns: 3 instead of 4; .*its tab may not be missing"):
        titles_of(f"msmarco_docs:{path}")


def test_document_folder(tmp_path):
    write(tmp_path / "msmarco-docs.tsv", "D1\tu\tt\tb")
    write(tmp_path / "msmarco-doctrain-queries.tsv", "7\tfirst", "8\tunjudged")
    write(tmp_path / "msmarco-doctrain-qrels.tsv", "7 0 D1 1")
    found = sources.read_dataset(f"msmarco_docs:{tmp_path}", BadRows())
    assert found.splits == ("train",)
    assert (found.queries("train"), found.qrels("train")) == ({"7": "first"}, {"7": {"D1": 1}})
    with pytest.raises(InputError, match="has passages but no queries"):
        sources.read_dataset(f"msmarco_docs:{tmp_path / 'msmarco-docs.tsv'}", BadRows())


def test_triples_by_id(tmp_path):
    write(tmp_path / "collection.tsv", "1\ta", "2\tb", "3\tc")
    write(tmp_path / "queries.train.tsv", "7\tfirst", "8\tsecond")
    write(tmp_path / "qrels.train.tsv", "7\t0\t1\t1", "7\t0\t2\t1", "8\t0\t3\t0")
    write(tmp_path / "qidpidtriples.train.tsv", "7\t1\t3", "7\t1\t2", "7\t2\t3")
    bad = BadRows()
    found = sources.read_dataset(f"tsv:{tmp_path}", bad)
    # 2 is positive by the judgments, so it is no negative, whatever the triples say
    assert list(found.examples("train")) == [Example("7", "first", ("1", "2"), {"triples": ("3",)})]
    assert bad.counts == {"query without positives": 1}
    write(tmp_path / "qidpidtriples.train.tsv", "7\t1\t1")
    with pytest.raises(InputError, match=r"qidpidtriples\.train\.tsv:1: positive among the negatives: '1' twice"):
        list(found.examples("train"))
    write(tmp_path / "qidpidtriples.train.tsv", "7\t1")
    with pytest.raises(InputError, match="wrong number of columns: 2; expected 3: query, positive and negative passage"):
        list(found.examples("train"))


def test_retromae_and_rocketqa_folder(tmp_path):
    write(tmp_path / "para.txt", "1\t-\tone\t0", "2\t-\ttwo\t0", "3\t-\tthree\t0")
    write(tmp_path / "para.title.txt", "2\tTwo", "1\tOne", "3\t-")
    write(tmp_path / "train.query.txt", "7\tfirst", "8\tsecond")
    write(tmp_path / "train_qrels.txt", "7\t1,2", "8\t3")
    write(tmp_path / "train_negs.tsv", "7\t3,2,3", "8\t1")
    write(tmp_path / "train_scores.txt", "7 1 [1.25]", "7 3 -2", "8\t1\t[ 0.5 ]")
    assert titles_of(f"tsv:{tmp_path}") == [("1", "One", "one"), ("2", "Two", "two"), ("3", "", "three")]
    bad = BadRows()
    found = sources.read_dataset(f"tsv:{tmp_path}", bad)
    assert found.qrels("train") == {"7": {"1": 1, "2": 1}, "8": {"3": 1}}
    assert list(found.examples("train")) == [
        Example("7", "first", ("1", "2"), {"given": ("3",)}), Example("8", "second", ("3",), {"given": ("1",)})
    ]  # fmt: skip
    assert list(found.scores("train")) == [("7", "1", 1.25), ("7", "3", -2.0), ("8", "1", 0.5)]
    assert bad.counts == {"passage again in its list": 1}
    write(tmp_path / "para.title.txt", "1\tOne", "9\tNine")
    with pytest.raises(InputError, match=r"para\.title\.txt: 1 titles have no passage in .*para\.txt \(the first: '9'\)"):
        titles_of(f"tsv:{tmp_path}")


def test_titles_in_one_order_are_not_kept(tmp_path, monkeypatch):
    write(tmp_path / "para.txt", *(f"{n}\t-\ttext {n}\t0" for n in range(200)))
    write(tmp_path / "para.title.txt", *(f"{n}\tTitle {n}" for n in range(0, 200, 2)))
    found = titles_of(f"tsv:{tmp_path}")
    assert found == [(str(n), f"Title {n}" if n % 2 == 0 else "", f"text {n}") for n in range(200)]


@pytest.mark.parametrize("score", ["[1.2, 3]", "[]", "nan", "x", "[inf]", "['1']", "1_0"])
def test_bad_scores(tmp_path, score):
    path = write(tmp_path / "s.txt", "7 1 2.5", f"7 2 {score}")
    with pytest.raises(InputError, match=r"s\.txt:2: bad score .*; expected a finite number, perhaps in brackets"):
        list(by_id.scores(str(path), BadRows()))


@pytest.mark.parametrize(
    ("row", "message"), [("7\t1,,2", "empty id"), ("7\t1,2\t3", "wrong number of columns: 3"), ("6\t1", "duplicate query id '6'")]
)
def test_bad_lists(tmp_path, row, message):
    with pytest.raises(InputError, match=rf"n\.tsv:2: {message}"):
        list(by_id.lists(str(write(tmp_path / "n.tsv", "6\t4", row)), BadRows()))


def test_triples_of_texts(tmp_path):
    path = write(tmp_path / "triples.train.small.tsv", 'q "x\ta\tb', 'q "x\ta\tc', "r\tb\ta")
    for source, split in ((f"triples:{path}", "train"), (f"triples:{tmp_path}", "train.small")):
        found = sources.read_dataset(source, BadRows())
        assert found.splits == (split,)
        a, b, c = (passage_of(text).id for text in "abc")
        assert list(found.examples(split)) == [
            Example(query_of('q "x').id, 'q "x', (a,), {"given": (b, c)}), Example(query_of("r").id, "r", (b,), {"given": (a,)})
        ]  # fmt: skip
        assert [one.text for one in found.corpus()] == ["a", "b", "c"]
    write(path, "q\ta\tb", "q\ta\ta")
    with pytest.raises(InputError, match=r":2: positive among the negatives"):
        found.queries("train.small")
    write(path, "q\ta\tb", "q\ta")
    with pytest.raises(InputError, match=r":2: wrong number of columns: 2 instead of 3; expected query <tab> positive text <tab> negative"):
        found.queries("train.small")


def test_candidates(tmp_path):
    path = write(tmp_path / "top1000.dev.tsv", "7\t1\tfirst\ta", "8\t1\tsecond\ta", "7\t2\tfirst\tb")
    write(tmp_path / "qrels.dev.tsv", "7\t0\t2\t1", "9\t0\t1\t1")
    found = sources.read_dataset(f"top1000:{tmp_path}", BadRows())
    assert titles_of(f"top1000:{path}") == [("1", "", "a"), ("2", "", "b")] == titles_of(f"top1000:{tmp_path}")
    assert list(found.examples("dev")) == [Example("7", "first", ("2",), {"top1000": ("1",)})]
    write(path, "7\t1\tfirst\ta", "7\t1\tfirst\tb")
    with pytest.raises(InputError, match=r":2: passage id with two texts: '1' is another passage above"):
        list(found.corpus())


def test_rocketqa_rows(tmp_path):
    write(tmp_path / "dual.tsv", "q\tT\ta\t-\tb\t0", "q\tT\ta\tU\tc\t0")
    write(tmp_path / "cross.tsv", "q\tT\ta\t1", "q\t-\tb\t0", "r\t-\tb\t0")
    bad = BadRows()
    found = sources.read_dataset(f"rocketqa:{tmp_path}", bad)
    a, b, c = passage_of("a", "T"), passage_of("b"), passage_of("c", "U")
    query = query_of("q").id
    assert list(found.examples("dual")) == [Example(query, "q", (a.id,), {"given": (b.id, c.id)})]
    assert list(found.examples("cross")) == [Example(query, "q", (a.id,), {"given": (b.id,)})]
    assert bad.counts == {"query without positives": 1}
    assert list(found.corpus()) == [a, b, c]
    write(tmp_path / "cross.tsv", "q\tT\ta\t0.7")
    with pytest.raises(InputError, match=r"cross\.tsv:1: bad label '0\.7'; expected 1"):
        found.queries("cross")


def test_columns(tmp_path):
    rows = [
        {"anchor": "q", "positive": "a", "negative_1": "b", "negative_2": "c", "scores": [3, 1.5, -1]},
        {"anchor": "r", "positive": "b"},
    ]
    rows[1].update(negative_1="a", negative_2="c", scores=[1, 0, 0])
    path = write(tmp_path / "train.jsonl", *map(json.dumps, rows))
    found = sources.read_dataset(f"columns:{path}", BadRows())
    q, r, a, b, c = query_of("q").id, query_of("r").id, *(passage_of(text).id for text in "abc")
    assert list(found.examples("train")) == [Example(q, "q", (a,), {"given": (b, c)}), Example(r, "r", (b,), {"given": (a, c)})]
    assert list(found.scores("train"))[:3] == [(q, a, 3.0), (q, b, 1.5), (q, c, -1.0)]
    path = tmp_path / "pairs.csv"
    path.write_bytes(b'question,passage,label\r\n"q, with ""x""","a\r\nb",1\r\nr,b,1.0\r\nr,c,0\r\n')
    found = sources.read_dataset(f"columns:{path}", BadRows())
    assert list(found.queries("train").values()) == ['q, with "x"', "r"]
    assert [one.text for one in found.corpus()] == ["a\nb", "b", "c"]
    assert list(found.examples("train"))[1] == Example(r, "r", (b,), {"given": (c,)})
    path = write(tmp_path / "lists.jsonl", '{"query": "q", "docs": ["a", "b", "c"], "labels": [0, 1, 1]}')
    assert list(sources.read_dataset(f"columns:{path}", BadRows()).examples("train")) == [Example(q, "q", (b, c), {"given": (a,)})]
    path = write(tmp_path / "pairs.tsv", "query\tpassage", "q\ta")
    assert list(sources.read_dataset(f"columns:{path}", BadRows()).examples("train")) == [Example(q, "q", (a,), {})]


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("c.jsonl", ['{"a": "q", "b": "x", "c": "y", "score": 2.5}'], "1: labels of another length: 1 labels, 2 passages; .*margin"),
        ("c.jsonl", ['{"a": "q", "b": "x", "score": 0.7}'], "1: bad label '0.7'; expected 1"),
        ("c.jsonl", ['{"a": "q", "b": "x"}', '{"a": "q", "c": "x"}'], "2: other columns than in the first row: a, c; expected a, b"),
        ("c.jsonl", ['{"query_id": "q", "document_ids": ["x"]}'], "1: a column 'query_id': ids without texts"),
        ("c.jsonl", ['{"a": "q"}'], "1: columns a; expected a query and one or more passages"),
        ("c.csv", ["a,b", "q"], "2: wrong number of columns: 1 instead of 2; expected a, b"),
        ("c.csv", ["a,b,label", "q,x,yes"], "2: bad label 'yes'; expected numbers"),
        ("c.csv", ["a,b", 'q,"x', "r,y"], "2: quotes that do not match"),
    ],
)
def test_faults_of_columns(tmp_path, name, rows, message):
    with pytest.raises(InputError, match=rf"{name}:{message}"):
        sources.read_dataset(f"columns:{write(tmp_path / name, *rows)}", BadRows()).queries("train")


def test_parquet_is_refused_with_a_way(tmp_path):
    with pytest.raises(InputError, match=r"parquet is not read; expected JSON lines: .*to_json"):
        sources.read_dataset(f"columns:{write(tmp_path / 'c.parquet', 'PAR1')}", BadRows())


def test_rankings_as_others_write_them(tmp_path):
    ranking = {"7": [("a", 1.5), ("b", 1.5), ("c", -0.25)], "8": [("a", 3.0)]}
    trec.write_run(tmp_path / "t", ranking, layout="tevatron")
    assert (tmp_path / "t").read_text().splitlines() == ["7\tb\t1.5", "7\ta\t1.5", "7\tc\t-0.25", "8\ta\t3.0"]
    trec.write_run(tmp_path / "m", ranking, layout="msmarco")
    assert (tmp_path / "m").read_text().splitlines() == ["7\tb\t1", "7\ta\t2", "7\tc\t3", "8\ta\t1"]
    assert [id for id, _ in trec.read_run(str(tmp_path / "m")).ranking["7"]] == ["b", "a", "c"]


def test_a_corpus_of_an_unknown_layout_names_what_is_read(tmp_path):
    with pytest.raises(
        InputError, match=r"holds no collection\.tsv \(or corpus\.tsv, para\.txt\); expected collection\.tsv, queries\.SPLIT"
    ):
        sources.read_dataset(f"tsv:{tmp_path}", BadRows())
    write(tmp_path / "corpus.tsv", "1\tT\ta")
    assert list(sources.read_dataset(f"tsv:{tmp_path}", BadRows()).corpus()) == [Passage("1", "a", "T")]

import gzip
import json
from pathlib import Path

import pytest

from denseir_jax.core.errors import InputError
from denseir_jax.data import sources
from denseir_jax.data.lines import BadRows
from denseir_jax.data.records import Dataset, Passage
from denseir_jax.data.template import TextTemplate

SHARED = Path(__file__).parents[3] / "shared" / "data"


def write(path: Path, *rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8")
    return path


def read(source: str, policy: str = "error") -> tuple[list[Passage], dict[str, int]]:
    bad = BadRows(policy)
    return list(sources.read_corpus(source, bad)), bad.counts


def test_jsonl_fields(tmp_path):
    path = write(
        tmp_path / "c.jsonl",
        {"_id": "a", "text": "t", "title": "T", "other": [1]},
        {"id": "b", "contents": "u", "title": None},
        {"docid": "c", "text": ""},
    )
    assert read(f"jsonl:{path}")[0] == [Passage("a", "t", "T"), Passage("b", "u"), Passage("c", "")]


def test_jsonl_without_ids_takes_line_numbers(tmp_path):
    path = write(tmp_path / "c.jsonl", {"text": "x"}, "", {"text": "y"})
    assert [p.id for p in read(f"jsonl:{path}")[0]] == ["0", "2"]
    write(path, {"text": "x"}, {"id": "7", "text": "y"})
    with pytest.raises(InputError, match=r"c.jsonl:2: id where earlier rows have none; expected"):
        read(f"jsonl:{path}")


BAD_OBJECTS = {
    "not JSON": '{"_id": "b", "text": }',
    "not an object": ["b", "text"],
    "no id": {"text": "x"},
    "id is not a string": {"_id": 7, "text": "x"},
    "empty id": {"_id": "", "text": "x"},
    "id with whitespace": {"_id": "a\tb", "text": "x"},
    "no text": {"_id": "b", "title": "x"},
    "text is not a string": {"_id": "b", "text": None},
    "title is not a string": {"_id": "b", "text": "x", "title": 3},
    "duplicate id": {"_id": "a", "text": "x"},
    "half a surrogate pair": '{"_id": "b", "text": "\\ud83d"}',
}


@pytest.mark.parametrize("reason", BAD_OBJECTS)
def test_bad_objects_are_named_or_counted(tmp_path, reason):
    path = write(tmp_path / "c.jsonl", {"_id": "a", "text": "x"}, BAD_OBJECTS[reason], {"_id": "z", "text": "end"})
    with pytest.raises(InputError, match=rf"c\.jsonl:2: {reason}.*; expected"):
        read(f"jsonl:{path}")
    passages, counts = read(f"jsonl:{path}", "skip")
    assert [p.id for p in passages] == ["a", "z"]
    assert counts == {reason: 1}


def test_deep_nesting_is_a_bad_row_not_a_crash(tmp_path):
    path = write(tmp_path / "c.jsonl", "[" * 200_000)
    with pytest.raises(InputError, match=r"c\.jsonl:1: not JSON"):
        read(f"jsonl:{path}")


def test_whole_surrogate_pair_is_good(tmp_path):
    path = write(tmp_path / "c.jsonl", '{"_id": "a", "text": "\\ud83d\\ude00"}')
    assert read(f"jsonl:{path}")[0][0].text == "😀"


def test_txt(tmp_path):
    path = tmp_path / "t.txt"
    path.write_bytes(b'first "line"\r\n\r\nthird\ttab\n')
    passages, counts = read(f"txt:{path}")
    assert passages == [Passage("0", 'first "line"'), Passage("2", "third\ttab")]
    assert counts == {"blank line": 1}


def test_tsv_quotes_are_data(tmp_path):
    path = tmp_path / "c.tsv"
    path.write_bytes(b'7\t"unbalanced\r\n8\tsays ""x""\n9\t\n')
    assert read(f"tsv:{path}")[0] == [Passage("7", '"unbalanced'), Passage("8", 'says ""x""'), Passage("9", "")]
    path.write_bytes(b"7\tTitle\ttext\n8\t\tno title\n")
    assert read(f"tsv:{path}")[0] == [Passage("7", "text", "Title"), Passage("8", "no title", "")]


@pytest.mark.parametrize(
    ("reason", "row"),
    [
        ("wrong number of columns", "8"),
        ("wrong number of columns", "8\ta\tb"),
        ("empty id", "\ttext"),
        ("id with whitespace", "8 9\ttext"),
        ("duplicate id", "7\ttext"),
    ],
)
def test_bad_tsv_rows(tmp_path, reason, row):
    path = write(tmp_path / "c.tsv", "7\tgood", row, "z\tend")
    with pytest.raises(InputError, match=rf"c\.tsv:2: {reason}.*; expected"):
        read(f"tsv:{path}")
    passages, counts = read(f"tsv:{path}", "skip")
    assert [p.id for p in passages] == ["7", "z"]
    assert counts == {reason: 1}


def test_empty_corpus_is_refused(tmp_path):
    path = write(tmp_path / "c.tsv", "", "onecolumn")
    with pytest.raises(InputError, match=r"c\.tsv holds no passage \(skipped: 1 x blank line, 1 x wrong number of columns\)"):
        read(f"tsv:{path}", "skip")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("corpus.jsonl", "no format; expected format:path, format one of jsonl, txt, tsv, msmarco_docs, "),
        ("jsnl:x", "unknown format 'jsnl'; .*did you mean jsonl:x"),
        ("jsonl:", "no path; expected jsonl:PATH"),
        ("jsonl:/no/such", "/no/such does not exist"),
        ("demo:x", "expected demo: without a path"),
        ("beir:-", "- does not exist"),
    ],
)
def test_bad_sources(source, message):
    with pytest.raises(InputError, match=message):
        sources.read_corpus(source, BadRows())  # at once, before anything is read


def test_file_and_folder_are_told_apart(tmp_path):
    path = write(tmp_path / "c.jsonl", {"text": "x"})
    with pytest.raises(InputError, match="is a folder; expected a file"):
        sources.read_corpus(f"jsonl:{tmp_path}", BadRows())
    with pytest.raises(InputError, match="is a file; expected a folder"):
        sources.read_corpus(f"beir:{path}", BadRows())
    with pytest.raises(InputError, match="has passages but no queries"):
        sources.read_dataset(f"jsonl:{path}", BadRows())


def beir(folder: Path) -> Path:
    write(folder / "corpus.jsonl", {"_id": "d1", "title": None, "text": "one"}, {"_id": "d2", "text": "two", "metadata": {}})
    write(folder / "queries.jsonl", {"_id": "q2", "text": "second"}, {"_id": "q1", "text": "first"}, {"_id": "q3", "text": "unjudged"})
    write(folder / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore", "q1\td1\t1", "q2\td2\t0", "q2\td9\t0", "q8\td1\t2")
    write(folder / "qrels" / "train.tsv", "query-id\tcorpus-id\tscore", "q3\td1\t1")
    return folder


@pytest.mark.parametrize("packed", [False, True])
def test_beir_folder(tmp_path, packed):
    folder = beir(tmp_path / "set")
    if packed:
        for path in [folder / "corpus.jsonl", folder / "queries.jsonl", folder / "qrels" / "test.tsv"]:
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    dataset = sources.read_dataset(f"beir:{folder}", BadRows())
    assert isinstance(dataset, Dataset)
    assert dataset.splits == ("train", "test")
    assert list(dataset.corpus()) == [Passage("d1", "one"), Passage("d2", "two")] == read(f"beir:{folder}")[0]
    assert list(dataset.queries("test").items()) == [("q2", "second"), ("q1", "first")]
    assert dataset.qrels("test") == {"q1": {"d1": 1}, "q2": {"d2": 0, "d9": 0}, "q8": {"d1": 2}}
    dangling = sources.check(dataset, "test")
    assert dangling == sources.Dangling(judgments=4, passages=("d9",), queries=("q8",), without_positive=1)
    assert dangling == sources.check(dataset, "test", passage_ids=["d1", "d2"])
    assert len(dangling.warnings()) == 3
    assert sources.check(dataset, "train").warnings() == []
    with pytest.raises(InputError, match="no split 'dev'; expected one of: train, test"):
        dataset.qrels("dev")


def test_beir_faults(tmp_path):
    folder = beir(tmp_path)
    write(folder / "queries.jsonl", {"_id": "q1", "text": "first"}, {"_id": "q1", "text": "again"})
    with pytest.raises(InputError, match=r"queries\.jsonl:2: duplicate id 'q1'"):
        sources.read_dataset(f"beir:{folder}", BadRows()).queries("test")
    write(folder / "queries.jsonl", {"_id": "q1", "text": "  "})
    with pytest.raises(InputError, match=r"queries\.jsonl:1: empty query"):
        sources.read_dataset(f"beir:{folder}", BadRows()).queries("test")
    (folder / "corpus.jsonl").unlink()
    with pytest.raises(InputError, match=r"holds no corpus\.jsonl"):
        sources.read_dataset(f"beir:{folder}", BadRows())


def test_msmarco_folder(tmp_path):
    write(tmp_path / "collection.tsv", "0\tzero", '1\t"one')
    write(tmp_path / "queries.dev.small.tsv", "10\tfirst", "11\tnot judged")
    write(tmp_path / "qrels.dev.small.tsv", "10\t0\t1\t1")
    dataset = sources.read_dataset(f"tsv:{tmp_path}", BadRows())
    assert dataset.splits == ("dev.small",)
    assert list(dataset.corpus()) == [Passage("0", "zero"), Passage("1", '"one')] == read(f"tsv:{tmp_path}")[0]
    assert dataset.queries("dev.small") == {"10": "first"}
    assert dataset.qrels("dev.small") == {"10": {"1": 1}}
    assert sources.check(dataset, "dev.small").warnings() == []


def test_identity_follows_content(tmp_path):
    path = write(tmp_path / "a.tsv", "1\tx")
    before = sources.identity(f"tsv:{path}")
    assert before.startswith("sha256:")
    assert sources.identity(f"tsv:{write(tmp_path / 'b.tsv', '1	x')}") == before
    assert sources.identity(f"tsv:{write(path, '1	y')}") != before
    assert sources.identity("tsv:-") == sources.identity("txt:-")


COUNTS = {  # passages; judged queries and judgments of the split
    "cacm": ("test", 3204, 52, 796),
    "cranfield": ("test", 1400, 225, 1837),
    "noveleval": ("test", 420, 21, 420),
    "squad_new_wiki": ("train", 1581, None, None),
    "xquad/de": ("test", 240, 1190, 1190),
    "xquad/zh": ("test", 240, 1190, 1190),
}


@pytest.mark.parametrize("name", COUNTS)
def test_real_folders(name):
    if not (SHARED / name).exists():
        pytest.skip("the shared collections are not here")
    split, n_passages, n_queries, n_judgments = COUNTS[name]
    bad = BadRows()
    dataset = sources.read_dataset(f"beir:{SHARED / name}", bad)
    assert sum(1 for _ in dataset.corpus()) == n_passages
    dangling = sources.check(dataset, split)
    assert dangling.passages == dangling.queries == ()
    if n_queries is not None:
        assert (len(dataset.queries(split)), dangling.judgments) == (n_queries, n_judgments)
    assert bad.counts == {}


def test_template():
    passage = Passage("1", "body", "Head")
    assert TextTemplate().passage(passage) == "Head body"
    assert TextTemplate(title_join=" | ", passage_prefix="p: ").passage(passage) == "p: Head | body"
    assert TextTemplate(use_title=False).passage(passage) == "body"
    assert TextTemplate().passage(Passage("1", "body")) == "body"
    assert TextTemplate().passage(Passage("1", "", "Head")) == "Head"
    assert TextTemplate(query_prefix="query: ").query("x") == "query: x"
    with pytest.raises(ValueError, match="query_length is 2; expected 3"):
        TextTemplate(query_length=2)


def test_a_key_twice_in_one_object_is_refused_wherever_it_stands(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text('{"id": "a", "text": "x"}\n{"id": "b", "text": "y", "id": "c"}\n{"id": "d", "text": "z", "more": {"k": 1, "k": 1}}\n')
    with pytest.raises(InputError, match=r"c\.jsonl:2: key twice: 'id' in one object; expected every key once"):
        list(sources.read_corpus(f"jsonl:{path}", BadRows()))
    bad = BadRows("skip")
    assert [passage.id for passage in sources.read_corpus(f"jsonl:{path}", bad)] == ["a"] and bad.counts == {"key twice": 2}


def test_closed_standard_input_is_one_line(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InputError, match="standard input is closed"):
        list(sources.read_corpus("jsonl:-", BadRows()))

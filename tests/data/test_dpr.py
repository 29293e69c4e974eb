import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denseir_jax.core.errors import InputError
from denseir_jax.data import json_array, lines, sources
from denseir_jax.data.examples import Example
from denseir_jax.data.lines import BadRows
from denseir_jax.data.questions import Question, read_questions
from denseir_jax.data.records import Passage
from denseir_jax.data.results import Context, Result, ranking_of, read_results, results_of, write_results
from denseir_jax.data.supervised import passage_of, query_of

ROW = {
    "dataset": "nq",
    "question": "closest planet?",
    "answers": ["Mercury", "the planet Mercury"],
    "positive_ctxs": [{"title": "Mercury", "text": "is small", "score": 1000, "title_score": 1, "passage_id": "11"}],
    "negative_ctxs": [{"title": "Venus", "text": "is hot", "psg_id": "12"}],
    "hard_negative_ctxs": [{"text": "Mars, without a title"}],
}


def text_file(path: Path, content: str) -> str:
    path.write_text(content, encoding="utf-8", newline="")
    return str(path)


@pytest.mark.parametrize("form", ["indented array", "array in one line", "lines"])
def test_training_rows(tmp_path, form):
    other = {"question": "nobody knows", "answers": [], "positive_ctxs": [], "negative_ctxs": [], "hard_negative_ctxs": []}
    content = {
        "indented array": json.dumps([ROW, other], indent=4),
        "array in one line": "\ufeff" + json.dumps([ROW, other]),
        "lines": json.dumps(ROW) + "\r\n" + json.dumps(other),
    }[form]
    bad = BadRows()
    found = sources.read_dataset(f"dpr:{text_file(tmp_path / 'train.json', content)}", bad)
    query, mars = query_of("closest planet?").id, passage_of("Mars, without a title")
    assert list(found.corpus()) == [Passage("11", "is small", "Mercury"), Passage("12", "is hot", "Venus"), mars]
    assert list(found.examples("train")) == [Example(query, "closest planet?", ("11",), {"negative": ("12",), "hard_negative": (mars.id,)})]
    assert list(found.scores("train")) == []
    assert found.answers("train") == {query: ("Mercury", "the planet Mercury")}
    assert bad.counts == {"question without positives": 1}


def test_a_folder_with_wikipedia(tmp_path):
    text_file(tmp_path / "psgs_w100.tsv", "id\ttext\ttitle\n11\tis small\tMercury\n12\tis hot\tVenus\n")
    text_file(tmp_path / "nq-dev.json", json.dumps([{**ROW, "hard_negative_ctxs": []}]))
    found = sources.read_dataset(f"dpr:{tmp_path}", BadRows())
    assert found.splits == ("nq-dev",)
    assert [passage.id for passage in found.corpus()] == ["11", "12"]
    assert sources.check(found, "nq-dev").warnings() == []


ARRAY_FAULTS = [
    ('[{"question": "x"},\n {"question": }]', r"2: not JSON \(.*\); expected an object that begins here"),
    ('[{"question": "x"}\n {"question": "y"}]', r"2: not JSON: '\{'; expected , or \]"),
    ('[{"question": "x"}\n', r"2: not JSON: the end of the file; expected , or \]"),
    ('[{"question": "x"}]\n[]', r"2: more after the array; expected one array"),
    ('[\n"x"]', "2: not an object but a string; expected an array of objects"),
    ('[\n{"a": 1, "b": {"a": 1, "a": 2}}]', "2: key twice: 'a' in one object"),
    ('[{"a": "\\ud83d"}]', "1: half a surrogate pair"),
    ("[" * 100_000, r"1: not JSON \(.*recursion"),
]


@pytest.mark.parametrize(("content", "message"), ARRAY_FAULTS)
def test_faults_of_arrays(tmp_path, content, message):
    path = text_file(tmp_path / "a.json", content)
    with pytest.raises(InputError, match=r"a\.json:" + message):
        list(json_array.objects(path, BadRows()))


def test_a_bad_object_in_an_array_can_be_skipped(tmp_path):
    path = text_file(tmp_path / "a.json", '[{"a": 1},\n"x",\n{"a": 1, "a": 2}, {"a": "\\ud83d"},\n\n{"a": 3}]')
    bad = BadRows("skip")
    assert list(json_array.objects(path, bad)) == [(1, {"a": 1}), (5, {"a": 3})]
    assert bad.counts == {"half a surrogate pair": 1, "key twice": 1, "not an object": 1}
    with pytest.raises(InputError, match="is not UTF-8"):
        (tmp_path / "b.json").write_bytes(b'[{"a": "\xff"}]')
        list(json_array.objects(str(tmp_path / "b.json"), BadRows()))


texts = st.text(st.sampled_from('aé"\\{}[],\n 😀'), max_size=6)


@settings(deadline=None, max_examples=20)
@given(
    st.lists(st.dictionaries(texts, texts | st.lists(texts, max_size=2), max_size=2), max_size=4),
    st.sampled_from([None, 1]),
    st.integers(1, 9),
)
def test_arrays_are_read_whole_however_the_file_is_cut(tmp_path_factory, content, indent, chunk):
    path = tmp_path_factory.mktemp("array") / "a.json"
    text_file(path, json.dumps(content, ensure_ascii=False, indent=indent))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_CHUNK", chunk)
        found = list(json_array.objects(str(path), BadRows()))
    assert [value for _, value in found] == json.loads(path.read_text(encoding="utf-8"))
    rows = path.read_text(encoding="utf-8").split("\n")
    assert all(rows[line - 1].lstrip("[ ").startswith("{") for line, _ in found)


def test_an_array_is_never_in_memory_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "_CHUNK", 1000)
    path = text_file(tmp_path / "a.json", json.dumps([{"text": "x" * 300}] * 500))
    longest, more = 0, json_array._Text.more

    def watched(self):
        nonlocal longest
        grew = more(self)
        longest = max(longest, len(self.text))
        return grew

    monkeypatch.setattr(json_array._Text, "more", watched)
    assert sum(1 for _ in json_array.objects(path, BadRows())) == 500
    assert longest < 3000


def test_wikipedia_is_quoted(tmp_path):
    content = 'id\ttext\ttitle\r\n1\t"says ""x"" here"\tTitle\r\n2\tplain\t"A ""B"""\r\n3\t\t\r\n'
    path = text_file(tmp_path / "psgs_w100.tsv", content)
    assert list(sources.read_corpus(f"dpr_wiki:{path}", BadRows())) == [
        Passage("1", 'says "x" here', "Title"), Passage("2", "plain", 'A "B"'), Passage("3", "")
    ]  # fmt: skip
    text_file(tmp_path / "psgs_w100.tsv", "title\tid\ttext\nT\t1\tbody\n")
    assert list(sources.read_corpus(f"dpr_wiki:{path}", BadRows())) == [Passage("1", "body", "T")]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("2\ttext", "wrong number of columns: 2 instead of 3; expected id <tab> text <tab> title"),
        ('2\t"text\tT', "quotes that do not match .*; expected a quoted cell to end in its line"),
        ('2\t"te"xt\tT', "quotes that do not match"),
        ("1\ttext\tT", "duplicate id '1'"),
        ("1 2\ttext\tT", "id with whitespace '1 2'"),
    ],
)
def test_faults_of_wikipedia(tmp_path, row, message):
    path = text_file(tmp_path / "w.tsv", f"1\ttext\tT\n{row}\n3\tend\tT\n")
    with pytest.raises(InputError, match=r"w\.tsv:2: " + message):
        list(sources.read_corpus(f"dpr_wiki:{path}", BadRows()))
    bad = BadRows("skip")
    assert [passage.id for passage in sources.read_corpus(f"dpr_wiki:{path}", bad)] == ["1", "3"]
    assert sum(bad.counts.values()) == 1


def test_questions(tmp_path):
    rows = ["who?\t[\"Destiny's Child\", 'Solange']", "what is \"x\"\t['a', '', ' ']", '"quoted ""q"""\t"[""a"", \'b\']"']
    bad = BadRows()
    assert list(read_questions(text_file(tmp_path / "qa.csv", "\r\n".join(rows)), bad)) == [
        Question("0", "who?", ("Destiny's Child", "Solange")),
        Question("1", 'what is "x"', ("a",)),
        Question("2", 'quoted "q"', ("a", "b")),
    ]
    assert bad.counts == {"empty answer": 2}


@pytest.mark.parametrize("answers", ["['a'", "a", "__import__('os').system('true')", "['a', 3]", "'a'", "[" * 5000, "{'a'}"])
def test_malformed_answers(tmp_path, answers):
    path = text_file(tmp_path / "qa.csv", f"who?\t['x']\nwhat?\t{answers}\n")
    with pytest.raises(
        InputError, match=r"qa\.csv:2: answers are no list of strings as Python writes it: .*; expected \['answer', \.\.\.\]"
    ):
        list(read_questions(path, BadRows()))


def test_real_questions(shared_data):
    found = list(read_questions(str(shared_data / "trec_files" / "topics.nq.test.txt"), BadRows()))
    assert len(found) == 3610
    assert found[0] == Question("0", "who got the first nobel prize in physics", ("Wilhelm Conrad Röntgen",))
    assert all(question.answers for question in found)


RESULTS = [
    Result(
        "0", "first?", ("a",), (Context(Passage("d2", "text\nof two lines", "T"), 1.5, True), Context(Passage("d1", "u"), -0.25, False))
    ),
    Result("1", "second?", (), ()),
]


@pytest.mark.parametrize("layout", ["dpr", "pyserini"])
def test_results_written_are_the_results_read(tmp_path, layout):
    write_results(tmp_path / "r.json", RESULTS, layout)
    assert list(read_results(str(tmp_path / "r.json"))) == RESULTS
    assert ranking_of(RESULTS) == {"0": [("d2", 1.5), ("d1", -0.25)], "1": []}
    content = json.loads((tmp_path / "r.json").read_text())
    if layout == "dpr":
        assert content[0]["ctxs"][0] == {"id": "d2", "title": "T", "text": "text\nof two lines", "score": "1.5", "has_answer": True}
    else:
        assert content["0"]["contexts"][1] == {"docid": "d1", "score": -0.25, "text": "\nu", "has_answer": False}


def test_results_of_a_ranking(tmp_path):
    passages = {"a": Passage("a", "x"), "b": Passage("b", "y", "B")}
    ranking = {"q1": [("b", 2.0), ("a", 1.0)]}
    found = list(results_of(ranking, {"q1": "one", "q2": "two"}, passages, {"q2": ("z",)}))
    assert found[0] == Result("q1", "one", (), (Context(passages["b"], 2.0), Context(passages["a"], 1.0)))
    assert found[1] == Result("q2", "two", ("z",), ())
    write_results(tmp_path / "r.json", found)
    assert "has_answer" not in (tmp_path / "r.json").read_text()
    with pytest.raises(InputError, match="passage 'c' in the ranking of 'q1' is not in the corpus"):
        list(results_of({"q1": [("c", 1.0)]}, {"q1": "one"}, passages, {}))
    with pytest.raises(ValueError, match="not finite"):
        write_results(tmp_path / "n.json", [Result("0", "x", (), (Context(Passage("a", "x"), float(np.nan)),))])
    assert not (tmp_path / "n.json").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"question": "x", "answers": []}]', "1: no contexts in question '0'; expected a list under ctxs or contexts"),
        ('[{"question": "x", "ctxs": [{"id": 3, "text": "t", "score": "1"}]}]', 'id is not a string in question .*write it as "3"'),
        ('[{"question": "x", "ctxs": [{"id": "3", "text": "t", "score": "nan"}]}]', "bad score in question '0' of passage '3': 'nan'"),
        ('{"7": {"question": "x", "contexts": "y"}}', "contexts is not a list in question '7' but a string"),
        ('{"7": ', "is not JSON"),
        ('"7"', "holds a string; expected a list, or an object by question id"),
    ],
)
def test_faults_of_results(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        list(read_results(text_file(tmp_path / "r.json", content)))

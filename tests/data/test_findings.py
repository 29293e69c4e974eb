"""Faults gathered instead of raised, through the readers that the stages use."""

import gzip

import pytest

from denseir_jax.core.errors import InputError
from denseir_jax.data import jsonl, sources, trec
from denseir_jax.data.findings import Findings
from denseir_jax.data.lines import BadRows

ROWS = b'{"_id": "a", "text": "x"}\n{"_id": "a", "text": "y"}\n\xff\n{"_id": "a", "text": "z"}\n{"_id": "b", "text": 3}\n\n'


def table(findings):
    return {(found.what, found.fault): (found.count, found.first) for found in findings.all()}


def test_bad_rows_are_counted_with_the_place_of_the_first(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(ROWS)
    findings = Findings()
    for _ in range(2):  # a second reading counts nothing twice
        assert [(p.id, p.text) for p in jsonl.passages(str(path), findings)] == [("a", "x")]
    assert table(findings) == {
        ("duplicate id", True): (2, f"{path}:2: 'a'; expected every id once"),
        ("not UTF-8", True): (1, f"{path}:3: (byte 0xff at column 1); expected text in UTF-8"),
        ("text is not a string", True): (1, f"{path}:5: text is a number; expected a string"),
        ("blank line", False): (1, str(path)),
    }


def test_the_count_is_what_skipping_readers_count_and_the_first_is_what_strict_ones_raise(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(ROWS)
    findings, skipping = Findings(), BadRows("skip")
    list(jsonl.passages(str(path), findings))
    list(jsonl.passages(str(path), skipping))
    assert {found.what: found.count for found in findings.all()} == skipping.counts
    with pytest.raises(InputError) as strict:
        list(jsonl.passages(str(path), BadRows("error")))
    first = min((found.first for found in findings.all() if found.fault), key=lambda text: int(text.split(":")[1]))
    assert str(strict.value).replace("duplicate id ", "") == first


def test_rows_that_will_be_skipped_are_warnings(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(ROWS)
    findings = Findings("skip")
    list(jsonl.passages(str(path), findings))
    assert not any(found.fault for found in findings.all())


def test_a_source_that_breaks_off_is_noted_once_and_the_rest_goes_on(tmp_path):
    whole = gzip.compress(b'{"id": "a", "text": "x"}\n')
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[:-4])
    findings, seen = Findings(), []
    for _ in range(2):
        with findings.going_on():
            seen += list(sources.read_corpus(f"jsonl:{tmp_path / 'cut.jsonl.gz'}", findings))
    with findings.going_on():
        trec.read_qrels(str(tmp_path / "absent.tsv"), findings)
    (found,) = findings.all()
    assert found.fault and found.count == 2 and "cut.jsonl.gz is damaged" in found.first


def test_where_names_the_line_of_the_row_in_hand(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": "a", "text": "x"}\n\n{"id": "b", "text": "y"}\n')
    findings = Findings()
    assert findings.where("nothing yet") == "nothing yet"
    places = [findings.where(passage.id) for passage in sources.read_corpus(f"jsonl:{path}", findings)]
    assert places == [f"{path}:1 (a)", f"{path}:3 (b)"]

"""Sources that other packages provide: TensorFlow Datasets (without TensorFlow) and ir_datasets (a stand-in of the same interface)."""

import json
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest

from denseir_jax.core.errors import InputError
from denseir_jax.data import sources
from denseir_jax.data.lines import BadRows
from denseir_jax.data.records import Dataset, Passage


def field(number: int, content: bytes) -> bytes:
    """A length-delimited protocol buffer field shorter than 128 bytes."""
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def example(values: dict[str, bytes]) -> bytes:
    """tf.train.Example of byte strings, by its published schema."""
    entries = (field(1, field(1, name.encode()) + field(2, field(1, field(1, value)))) for name, value in values.items())
    return field(1, b"".join(entries))


def prepared(folder: Path, rows: list[dict[str, bytes]], file_format: str = "array_record") -> Path:
    """What ``tfds build --file_format=array_record`` leaves."""
    from array_record.python import array_record_module
    from tensorflow_datasets.core import features

    folder.mkdir(parents=True)
    writer = array_record_module.ArrayRecordWriter(str(folder / "toy-train.array_record-00000-of-00001"), "group_size:1")
    for row in rows:
        writer.write(example(row))
    writer.close()
    features.FeaturesDict({name: features.Text() for name in rows[0]}).save_config(str(folder))
    split = {
        "name": "train",
        "shardLengths": [str(len(rows))],
        "numBytes": "9",
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
    }
    info = {"name": "toy", "version": "1.0.0", "fileFormat": file_format, "moduleName": "toy", "splits": [split]}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return folder


def test_tfds(tmp_path):
    rows = [{"id": b"d1", "title": "T é".encode(), "text": b"one"}, {"id": b"d2", "title": b"", "text": b"two"}]
    folder = prepared(tmp_path / "toy" / "1.0.0", rows)
    assert list(sources.read_corpus(f"tfds:{folder}", BadRows())) == [Passage("d1", "one", "T é"), Passage("d2", "two")]
    assert sources.identity(f"tfds:{folder}").startswith("sha256:")
    code = f"""
import sys
from denseir_jax.data import sources
from denseir_jax.data.lines import BadRows
assert len(list(sources.read_corpus('tfds:{folder}', BadRows()))) == 2
assert 'tensorflow' not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr


def test_tfds_faults(tmp_path):
    folder = prepared(tmp_path / "a" / "1.0.0", [{"id": b"d1", "text": b"x"}, {"id": b"d1", "text": b"y"}, {"id": b"d2", "text": b"\xff"}])
    with pytest.raises(InputError, match=r"train:2: duplicate id 'd1'"):
        list(sources.read_corpus(f"tfds:{folder}", BadRows()))
    bad = BadRows("skip")
    assert list(sources.read_corpus(f"tfds:{folder}", bad)) == [Passage("d1", "x")]
    assert bad.counts == {"duplicate id": 1, "not UTF-8": 1}
    with pytest.raises(InputError, match=r"holds no dataset_info\.json; expected a prepared folder NAME/VERSION"):
        list(sources.read_corpus(f"tfds:{tmp_path}", BadRows()))
    with pytest.raises(InputError, match="has the fields label; expected a text under text or contents"):
        list(sources.read_corpus(f"tfds:{prepared(tmp_path / 'b' / '1.0.0', [{'label': b'x'}])}", BadRows()))
    with pytest.raises(InputError, match=r"train cannot be read .*expected ArrayRecord files: tfds build NAME"):
        list(sources.read_corpus(f"tfds:{prepared(tmp_path / 'c' / '1.0.0', [{'text': b'x'}], 'tfrecord')}", BadRows()))
    numbered = prepared(tmp_path / "d" / "1.0.0", [{"article": b"x"}, {"article": b"y"}])
    assert [one.id for one in sources.read_corpus(f"tfds:{numbered}", BadRows())] == ["0", "1"]


Doc = namedtuple("Doc", "doc_id title body")
Question = namedtuple("Question", "query_id text")
Judgment = namedtuple("Judgment", "query_id doc_id relevance iteration")


class Part:
    def __init__(self, docs, queries=(), qrels=()):
        self.docs_iter, self.queries_iter, self.qrels_iter = lambda: iter(docs), lambda: iter(queries), lambda: iter(qrels)
        self.has_docs, self.has_qrels = lambda: True, lambda: bool(qrels)


@pytest.fixture
def package(monkeypatch):
    docs = [Doc("d1", "T", "one"), Doc("d2", None, "two")]
    queries, qrels = [Question("q1", "first"), Question("q2", "unjudged")], [Judgment("q1", "d2", 2, "0"), Judgment("q1", "d1", 0, "0")]
    known = {
        "toy": Part(docs),
        "toy/train": Part(docs, queries, qrels),
        "toy/dev": Part(docs, queries),
        "toy/dl19": Part(docs, queries, qrels),
    }
    monkeypatch.setitem(sys.modules, "ir_datasets", SimpleNamespace(load=known.__getitem__, __version__="0.5"))


def test_ir_datasets(package):
    found = sources.read_dataset("ir_datasets:toy", BadRows())
    assert isinstance(found, Dataset)
    assert found.splits == ("train",)
    assert (
        list(found.corpus()) == [Passage("d1", "one", "T"), Passage("d2", "two")] == list(sources.read_corpus("ir_datasets:toy", BadRows()))
    )
    assert (found.queries("train"), found.qrels("train")) == ({"q1": "first"}, {"q1": {"d2": 2, "d1": 0}})
    assert sources.read_dataset("ir_datasets:toy/dl19", BadRows()).splits == ("test",)
    assert sources.read_dataset("ir_datasets:toy/train", BadRows()).splits == ("train",)
    assert sources.identity("ir_datasets:toy") != sources.identity("ir_datasets:toy/train")
    with pytest.raises(InputError, match="ir_datasets knows no data set 'toi'"):
        sources.read_dataset("ir_datasets:toi", BadRows())


def test_ir_datasets_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    for read in (lambda: sources.read_dataset("ir_datasets:toy", BadRows()), lambda: sources.identity("ir_datasets:toy")):
        with pytest.raises(
            InputError, match="needs the Python package ir-datasets, which is missing; install it with: pip install ir-datasets"
        ):
            read()

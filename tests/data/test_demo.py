import hashlib
import importlib.util
import subprocess
import sys

import pytest

from denseir_jax.core.errors import InputError
from denseir_jax.data import demo
from denseir_jax.data.lines import BadRows
from denseir_jax.data.sources import check, read_corpus, read_dataset

needs_package = pytest.mark.skipif(importlib.util.find_spec(demo.PACKAGE) is None, reason="the demo's package is not installed")


@needs_package
def test_the_collection_is_the_published_one():
    dataset = read_dataset("demo:", BadRows())
    passages = {passage.id: passage for passage in read_corpus("demo:", BadRows())}
    assert len(passages) == 10_033
    assert {split: len(dataset.queries(split)) for split in dataset.splits} == {"train": 6_133, "dev": 742, "test": 789}
    for split in dataset.splits:
        assert check(dataset, split, passages).warnings() == []
        for query, judged in dataset.qrels(split).items():
            (passage,) = judged
            digest = hashlib.sha1(passages[passage].title.encode()).hexdigest()
            assert query == f"q{digest[:12]}"
            assert {8: "dev", 9: "test"}.get(int(digest, 16) % 10, "train") == split
    texts = [text.lower() for split in dataset.splits for text in dataset.queries(split).values()]
    assert len(set(texts)) == len(texts) == 7_664
    assert "CC BY-SA 4.0" in dataset.attribution
    with pytest.raises(InputError, match="no split 'all'; expected one of: train, dev, test"):
        dataset.qrels("all")


@needs_package
def test_the_package_is_not_imported():
    code = "from denseir_jax.data.demo import Demo, PACKAGE; import sys; Demo(); print(PACKAGE in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"


def test_missing_package(monkeypatch):
    monkeypatch.setattr(demo, "PACKAGE", "no_such_package_at_all")
    with pytest.raises(InputError, match=r"no-such-package-at-all, which is missing; .*pip install 'denseir_jax\[demo\]', or .*jsonl:PATH"):
        demo.Demo()


def test_another_file_is_refused(monkeypatch, tmp_path):
    path = tmp_path / "summaries.json"
    path.write_text("{}")
    monkeypatch.setattr(demo, "_path", lambda: path)
    with pytest.raises(InputError, match=r"summaries\.json has sha256 44136fa3.*; expected 05ed445d"):
        read_corpus("demo:", BadRows())

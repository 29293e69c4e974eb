import json
from pathlib import Path

import pytest

from denseir_jax.core import artifacts
from denseir_jax.core.command import execute, run_command
from denseir_jax.core.errors import ConfigError, InputError
from denseir_jax.data.examples import Example, read_examples, write_examples
from denseir_jax.data.lines import BadRows
from denseir_jax.pipeline.stages.unite import UniteConfig, stage


def written(folder: Path, name: str, *examples: Example) -> str:
    write_examples(folder / f"{name}.jsonl", examples)
    return str(folder / f"{name}.jsonl")


def test_queries_positives_and_pools_are_united_in_order(tmp_path: Path) -> None:
    one = written(tmp_path, "one", Example("q", "t", ("a",), {"bm25": ("b", "c")}), Example("r", "u", ("c",), {"bm25": ("a",)}))
    two = written(tmp_path, "two", Example("s", "v", ("b",)), Example("q", "t", ("d", "a"), {"bm25": ("e", "b"), "mined": ("c",)}))
    three = written(tmp_path, "three", Example("r", "u", ("a",), {"mined": ("d",)}))
    card = f"--config={Path(__file__).parents[2] / 'configs' / 'unite.py'}:smoke"
    words = ["launch/unite.py", card, f"--config.training_sets={one},{two},{three}", f"--workdir={tmp_path / 'run'}"]
    assert run_command(stage, words) == 0
    metrics = artifacts.read_json(tmp_path / "run" / "metrics.json")
    assert list(read_examples(tmp_path / "run" / "training_set.jsonl", BadRows())) == [
        Example("q", "t", ("a", "d"), {"bm25": ("b", "c", "e"), "mined": ("c",)}),
        Example("r", "u", ("c", "a"), {"bm25": (), "mined": ("d",)}),
        Example("s", "v", ("b",)),
    ]
    assert metrics["dropped"] == {"negative that another set calls positive": 1} and metrics["queries"] == 3
    again = execute(stage, UniteConfig(training_sets=f"{tmp_path / 'run'},{three}"), tmp_path / "again")  # a run is a set too
    assert again["positives"] == metrics["positives"]
    (tmp_path / "run" / "training_set.jsonl").write_text("")
    with pytest.raises(InputError, match="was changed after its run had finished"):
        execute(stage, UniteConfig(training_sets=f"{tmp_path / 'run'},{two}"), tmp_path / "changed")


def test_bad_requests_are_named(tmp_path: Path) -> None:
    one, two = written(tmp_path, "one", Example("q", "t", ("a",))), written(tmp_path, "two", Example("q", "other", ("a",)))
    with pytest.raises(ConfigError, match="names fewer than two"):
        execute(stage, UniteConfig(training_sets=one), tmp_path / "run")
    with pytest.raises(InputError, match=r"two\.jsonl: query 'q' is 'other', and 't' in a set before it; expected one text"):
        execute(stage, UniteConfig(training_sets=f"{one},{two}"), tmp_path / "run")
    assert not (tmp_path / "run" / "training_set.jsonl").exists()
    artifacts.write_text(tmp_path / "bad.jsonl", json.dumps({"query_id": "q", "query": "t", "positives": []}) + "\n")
    with pytest.raises(InputError, match=r"bad\.jsonl:1: query without positives"):
        execute(stage, UniteConfig(training_sets=f"{one},{tmp_path / 'bad.jsonl'}"), tmp_path / "run")

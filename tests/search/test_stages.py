"""The stages encode and mine as a user runs them, on a small BEIR folder."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_retriever import TEMPLATE, passages, tokenizer

from denseir_jax.core import artifacts, failpoints
from denseir_jax.core.command import execute, run_command
from denseir_jax.core.errors import InputError
from denseir_jax.data.examples import read_examples
from denseir_jax.data.lines import BadRows
from denseir_jax.pipeline.stages import encode, mine
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.pipeline.stages.prepare import stage as prepare_stage
from denseir_jax.search.embeddings import Embeddings
from denseir_jax.search.scann_index import ScannConfig

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """70 passages, one of them twice (d10, d11); 30 queries of words of their passage, one with an unknown positive."""
    folder = tmp_path_factory.mktemp("beir")
    texts = {passage.id: passage.text for passage in passages(70)}
    texts["d11"] = texts["d10"].upper()
    queries = {f"q{i}": " ".join(texts[f"d{i}"].split()[:6]) for i in range(10, 40)}
    lines = [json.dumps({"_id": name, "text": text}) for name, text in texts.items()]
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "queries.jsonl").write_text("".join(json.dumps({"_id": name, "text": text}) + "\n" for name, text in queries.items()))
    (folder / "qrels").mkdir()
    judged = [f"{name}\td{name[1:]}\t1" for name in queries if name != "q39"] + ["q39\tlost\t1", "q12\td13\t1", "q12\td14\t0"]
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(judged) + "\n")
    return folder


def mined(folder: Path, dataset: Path, **keys: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the stage; returns its metrics and the training set by query."""
    config = mine.MineConfig(dataset=f"beir:{dataset}", **{"depth": 30, "hi": 30, "n": 5, "index": "exact", **keys})
    metrics = execute(mine.stage, config, folder)
    return dict(metrics), {example.query_id: example for example in read_examples(folder / mine.TRAINING_SET, BadRows())}


def test_bm25_negatives_then_a_retrievers_beside_them(dataset: Path, run_folder: Path, tmp_path: Path) -> None:
    metrics, first = mined(tmp_path / "bm25", dataset)
    assert metrics["queries"] == 29 and "q39" not in first and metrics["queries_without_positive_in_corpus"] == 1
    assert metrics["positive_in_ranking"] == pytest.approx(29 / 30) and metrics["dropped"]["known positive by id"] >= 29
    assert first["q12"].positives == ("d12", "d13")
    for query, example in first.items():
        assert 0 < len(example.negatives["bm25"]) <= 5 and not set(example.positives) & set(example.negatives["bm25"])
        twins = {"d10": "d11", "d11": "d10"}
        assert not {twins.get(item) for item in example.positives} & set(example.negatives["bm25"]), query
    assert metrics["dropped"]["known positive by text"] >= 2
    metrics, both = mined(tmp_path / "both", dataset, retriever=f"run:{run_folder}", training_set=str(tmp_path / "bm25"))
    assert both.keys() == first.keys() and metrics["negatives"] == {"bm25": 29 * 5, "mined": 29 * 5}
    for query, example in both.items():
        assert example.negatives["bm25"] == first[query].negatives["bm25"] and not set(example.positives) & set(example.negatives["mined"])
    with pytest.raises(InputError, match="already has negatives in the pool 'mined'"):
        mined(tmp_path / "again", dataset, retriever=f"run:{run_folder}", training_set=str(tmp_path / "both"))


def test_mining_again_gives_the_same_bytes_and_ranks_are_true(dataset: Path, run_folder: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        mined(tmp_path / name, dataset, retriever=f"run:{run_folder}", lo=2, hi=20)
    for file in (mine.TRAINING_SET, mine.MINED):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    for text in (tmp_path / "one" / mine.MINED).read_text().splitlines():
        line = json.loads(text)["negatives"]
        assert all(2 <= item["rank"] < 20 for item in line) and line == sorted(line, key=lambda item: (-item["score"], item["rank"]))
    other = mined(tmp_path / "three", dataset, retriever=f"run:{run_folder}", lo=2, hi=20, seed=1)[1]
    assert other != mined(tmp_path / "one", dataset, retriever=f"run:{run_folder}", lo=2, hi=20)[1]


@pytest.mark.parametrize("retriever", ["bm25", "run"])
def test_a_margin_uses_true_scores_of_positives(dataset: Path, run_folder: Path, tmp_path: Path, retriever: str) -> None:
    keys = {"retriever": "bm25" if retriever == "bm25" else f"run:{run_folder}", "n": 30}
    free, _ = mined(tmp_path / "free", dataset, **keys)
    strict, found = mined(tmp_path / "strict", dataset, relative_margin=0.2, **keys)
    assert strict["dropped"]["within the margin of the positive"] > 0
    assert sum(strict["negatives"].values()) < sum(free["negatives"].values())
    ranked = {}
    for text in (tmp_path / "free" / mine.MINED).read_text().splitlines():
        row = json.loads(text)
        ranked[row["query_id"]] = {item["id"]: item["score"] for item in row["negatives"]}
    kept = {query: next(iter(example.negatives.values())) for query, example in found.items()}
    for query, line in kept.items():
        dropped = set(ranked[query]) - set(line)
        assert not dropped or not line or min(ranked[query][item] for item in dropped) >= max(ranked[query][item] for item in line)


def test_given_embeddings_are_used_and_checked(dataset: Path, run_folder: Path, other_run_folder: Path, tmp_path: Path) -> None:
    config = encode.EncodeConfig(retriever=f"run:{run_folder}", corpus=f"beir:{dataset}", shard_rows=16)
    execute(encode.stage, config, tmp_path / "vectors")
    _, here = mined(tmp_path / "here", dataset, retriever=f"run:{run_folder}")
    _, given = mined(tmp_path / "given", dataset, retriever=f"run:{run_folder}", embeddings=str(tmp_path / "vectors"))
    assert given == here and not (tmp_path / "given" / encode.VECTORS).exists()
    with pytest.raises(InputError, match="made by another model"):
        mined(tmp_path / "other", dataset, retriever=f"run:{other_run_folder}", embeddings=str(tmp_path / "vectors"))


def test_scann_finds_what_exact_search_finds(dataset: Path, run_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("scann")
    _, exact = mined(tmp_path / "exact", dataset, retriever=f"run:{run_folder}")
    keys = {"retriever": f"run:{run_folder}", "index": "scann", "scann": ScannConfig(min_points=16, recall=1.0)}
    metrics, close = mined(tmp_path / "scann", dataset, **keys)
    assert metrics["index_kind"] == "scann" and metrics["index_recall"] == 1.0
    assert artifacts.read_json(tmp_path / "scann" / "manifest.json")["index"]["leaves"] >= 1
    assert {query: example.positives for query, example in close.items()} == {query: example.positives for query, example in exact.items()}
    same = [set(close[query].negatives["mined"]) == set(exact[query].negatives["mined"]) for query in exact]
    assert np.mean(same) > 0.9  # scores closer than float32 may change places


def test_a_prepare_run_encodes_like_the_corpus(dataset: Path, run_folder: Path, tmp_path: Path) -> None:
    tokenizer().save(tmp_path / "tokenizer")
    settings = PrepareConfig(corpus=f"beir:{dataset}", tokenizer=str(tmp_path / "tokenizer"), template=TEMPLATE, workers=1)
    execute(prepare_stage, settings, tmp_path / "prepare")
    common = {"retriever": f"run:{run_folder}", "dtype": "float32", "shard_rows": 16}
    execute(encode.stage, encode.EncodeConfig(tokens=str(tmp_path / "prepare"), **common), tmp_path / "tokens")
    execute(encode.stage, encode.EncodeConfig(corpus=f"beir:{dataset}", **common), tmp_path / "corpus")
    one, two = (Embeddings.open(tmp_path / name / encode.VECTORS) for name in ("tokens", "corpus"))
    assert one.ids == two.ids
    np.testing.assert_array_equal(one.whole(), two.whole())


def words(dataset: Path, run_folder: Path, workdir: Path, *more: str) -> list[str]:
    card = f"--config={ROOT / 'configs' / 'encode.py'}:smoke"
    keys = [f"--config.retriever=run:{run_folder}", f"--config.corpus=beir:{dataset}", "--config.shard_rows=16"]
    return [str(ROOT / "launch" / "encode.py"), card, *keys, f"--workdir={workdir}", *more]


def launched(arguments: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], env={**os.environ, **environment}, capture_output=True, text=True)


def test_killed_in_the_middle_of_a_shard_it_goes_on_to_the_same_bytes(dataset: Path, run_folder: Path, tmp_path: Path) -> None:
    killed = launched(words(dataset, run_folder, tmp_path / "killed"), DENSEIR_FAILPOINT="encode_shard:3")
    vectors = tmp_path / "killed" / encode.VECTORS
    assert killed.returncode == -9 and sorted(path.name for path in vectors.glob("*.json")) == ["00000.json", "00001.json"]
    kept = (vectors / "00000.npy").stat().st_mtime_ns
    again = launched(words(dataset, run_folder, tmp_path / "killed"))
    assert again.returncode == 0, again.stderr
    line = json.loads(again.stdout.splitlines()[-1])
    assert line["stage"] == "encode" and line["metrics"]["n"] == 70 and line["metrics"]["encoded"] == 70 - 32
    assert (vectors / "00000.npy").stat().st_mtime_ns == kept and "32 vectors are already in" in again.stderr
    whole = launched(words(dataset, run_folder, tmp_path / "whole"))
    assert whole.returncode == 0
    for path in sorted(vectors.iterdir()):
        assert path.read_bytes() == (tmp_path / "whole" / encode.VECTORS / path.name).read_bytes(), path.name


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--config.retriever=run:/no/such"], "is not a folder"),
        (["--config.corpus="], "set one of config.corpus"),
        (["--config.template.query_length=9"], "was trained with the template"),
        (["--config.dtype=float8"], "is not one of 'float16', 'float32'"),
    ],
)
def test_bad_requests_are_one_line(
    dataset: Path, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert run_command(encode.stage, words(dataset, run_folder, tmp_path / "run", *more)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and message in lines[0]


def test_impossible_mining_is_refused() -> None:
    with pytest.raises(ValueError, match="beyond depth=10"):
        mine.MineConfig(depth=10, hi=20)
    with pytest.raises(ValueError, match="set one"):
        mine.MineConfig(absolute_margin=0.1, relative_margin=0.1)


def test_a_kill_after_the_index_was_kept_gives_the_same_bytes(
    dataset: Path, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder as a kill would leave it is copied away in the middle of a run, and finished by a second one."""
    pytest.importorskip("scann")

    def copy(name: str) -> None:
        assert name == "mine_index"
        shutil.copytree(tmp_path / "whole", tmp_path / "killed", ignore=shutil.ignore_patterns(".lock"))

    monkeypatch.setattr(failpoints, "reach", lambda name: copy(name) if name == "mine_index" else None)
    keys = {"retriever": f"run:{run_folder}", "index": "scann", "scann": ScannConfig(min_points=16, recall=0.5)}
    mined(tmp_path / "whole", dataset, **keys)
    monkeypatch.undo()
    assert not (tmp_path / "killed" / mine.TRAINING_SET).exists()
    mined(tmp_path / "killed", dataset, **keys)
    for name in (mine.TRAINING_SET, mine.MINED, "metrics.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes()


@pytest.fixture
def encoded(dataset: Path, run_folder: Path, tmp_path: Path) -> Path:
    execute(encode.stage, encode.EncodeConfig(retriever=f"run:{run_folder}", corpus=f"beir:{dataset}", shard_rows=32), tmp_path / "vectors")
    return tmp_path / "vectors"


def test_changed_embeddings_are_never_mined_from(dataset: Path, run_folder: Path, encoded: Path, tmp_path: Path) -> None:
    keys = {"retriever": f"run:{run_folder}", "embeddings": str(encoded)}
    ids = encoded / encode.VECTORS / "ids.txt"
    before = ids.read_text()
    ids.write_text("".join(reversed(before.splitlines(keepends=True))))
    with pytest.raises(InputError, match=r"ids\.txt was changed"):
        mined(tmp_path / "ids", dataset, **keys)
    facts = encoded / encode.VECTORS / "embeddings.json"
    known = artifacts.read_json(facts)
    artifacts.write_json(facts, {**known, "ids_sha256": artifacts.file_sha256(ids)})  # changed together
    with pytest.raises(InputError, match=r"embeddings\.json was changed"):
        mined(tmp_path / "facts", dataset, **keys)


def test_a_lost_shard_is_encoded_again(
    dataset: Path, run_folder: Path, encoded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = encoded / encode.VECTORS / "00001.npy"
    before = shard.read_bytes()
    shard.unlink()
    config = encode.EncodeConfig(retriever=f"run:{run_folder}", corpus=f"beir:{dataset}", shard_rows=32)
    metrics = execute(encode.stage, config, encoded)
    assert shard.read_bytes() == before and metrics["encoded"] == 32
    assert "00001.npy cannot be read" in capsys.readouterr().err


def test_a_changed_training_set_is_not_extended(dataset: Path, run_folder: Path, tmp_path: Path) -> None:
    mined(tmp_path / "bm25", dataset)
    path = tmp_path / "bm25" / mine.TRAINING_SET
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(InputError, match=r"training_set\.jsonl was changed"):
        mined(tmp_path / "both", dataset, retriever=f"run:{run_folder}", training_set=str(tmp_path / "bm25"))


@pytest.mark.parametrize("keys", [{"seed": -1}, {"absolute_margin": float("nan")}, {"relative_margin": float("inf")}])
def test_numbers_that_are_none_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"seed|margins"):
        mine.MineConfig(**keys)

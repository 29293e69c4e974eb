"""Long documents as a user gets them: fine-tune on their best blocks, encode, evaluate, mine, and let a teacher score what was mined."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from test_lexical_retriever import command

from denseir_jax.core import artifacts
from denseir_jax.data.trec import read_run
from denseir_jax.pipeline.stages import check_data, encode, evaluate, finetune, mine, teach
from denseir_jax.search.embeddings import Embeddings
from denseir_jax.search.encode import encode_queries
from denseir_jax.search.retriever import load_retriever

pytestmark = pytest.mark.usefixtures("module_on_one_device")
FILLER = " ".join(["alpha", "beta", "gamma", "delta"] * 3 + ["alpha", "beta"])  # a whole block of the card's 16 tokens, the same in all


def texts(beir: Path, name: str) -> dict[str, str]:
    return {row["_id"]: row["text"] for row in map(json.loads, (beir / f"{name}.jsonl").read_text().splitlines())}


@pytest.fixture(scope="module")
def long(beir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `beir` with what tells documents apart behind their first block, and every tenth short."""
    folder = tmp_path_factory.mktemp("long") / "beir"
    shutil.copytree(beir, folder)
    rows = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    for i, row in enumerate(rows):
        row["text"] = row["text"] if i % 10 == 0 else f"{FILLER} {row['text']}"
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


LEARNING = {
    "steps": 90, "batch_size": 32, "encoder.layers": 1, "encoder.dropout": 0.0, "encoder.attention_dropout": 0.0,
    "embedder.pooling": "mean", "optimizer.lr": 3e-3, "cadence.save": 0, "cadence.log": 30,
    "objective.similarity": "cosine", "objective.temperature": 0.05,
}  # fmt: skip


@pytest.fixture(scope="module")
def tuned(long: Path, module_on_one_device: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tuned"
    more = {"cadence.probe": 90, "probe_size": 40}
    assert command(finetune.stage, "finetune/documents.py:smoke", folder, dataset=f"beir:{long}", **LEARNING, **more) == 0
    return folder


@pytest.fixture(scope="module")
def vectors(long: Path, tuned: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "vectors"
    assert command(encode.stage, "encode.py:smoke", folder, retriever=f"run:{tuned}", corpus=f"beir:{long}", dtype="float32") == 0
    return folder


def test_it_learns_what_the_first_block_does_not_say(long: Path, tuned: Path, vectors: Path, tmp_path: Path) -> None:
    events = [json.loads(line) for line in (tuned / "events.jsonl").read_text().splitlines()]
    assert next(line for line in events if line["kind"] == "probe")["RR@10"] > 0.8
    assert all(0 < line["padding_share"] < 1 for line in events if line["kind"] == "train")
    common = {"dataset": f"beir:{long}", "retriever": f"run:{tuned}"}
    given, here = tmp_path / "given", tmp_path / "here"
    assert command(evaluate.stage, "evaluate/run.py", given, **common, embeddings=vectors) == 0
    assert command(evaluate.stage, "evaluate/run.py", here, **common) == 0
    assert artifacts.read_json(given / "metrics.json")["RR@10"] > 0.8
    found = Embeddings.open(vectors / encode.VECTORS)
    assert found.ids == [f"p{i}" for i in range(60)] and np.diff(found.starts).tolist() == [1 if i % 10 == 0 else 2 for i in range(60)]
    first = found.take(found.starts[1:-1][np.diff(found.starts)[1:] == 2])
    np.testing.assert_allclose(first, first[:1].repeat(len(first), axis=0), atol=1e-5)  # to FirstP these documents are one
    ranking, queries = read_run(str(given / "run.trec")).ranking, texts(long, "queries")
    asked = {query: queries[query] for query in ranking}
    scores = encode_queries(load_retriever(f"run:{tuned}"), asked) @ found.whole().T
    for (query, line), row in zip(ranking.items(), np.maximum.reduceat(scores, found.starts[:-1], axis=1), strict=True):
        assert sorted(item for item, _ in line) == sorted(found.ids), f"{query}: every document once"
        np.testing.assert_allclose([value for _, value in line], np.sort(row)[::-1], atol=1e-4)
        np.testing.assert_allclose([value for _, value in line], [row[int(item[1:])] for item, _ in line], atol=1e-4)


@pytest.mark.parametrize("index", ["exact", "scann"])
def test_documents_are_mined_and_scored(long: Path, tuned: Path, vectors: Path, tmp_path: Path, index: str) -> None:
    common = {"dataset": f"beir:{long}", "retriever": f"run:{tuned}", "embeddings": vectors}
    told = {"index": index, "depth": 20, "hi": 20, "relative_margin": 0.01, "scann.min_points": 16}
    assert command(mine.stage, "mine.py:smoke", tmp_path / "mined", **common, **told) == 0
    facts = artifacts.read_json(tmp_path / "mined" / "manifest.json")["index"]
    assert facts["kind"] == index and facts["documents"] == 60 and facts["n"] == 60 + 54
    rows = [json.loads(line) for line in (tmp_path / "mined" / mine.MINED).read_text().splitlines()]
    mined = [[item["id"] for item in row["negatives"]] for row in rows]
    assert any(mined) and all(len(set(line)) == len(line) for line in mined)
    if index == "scann":
        return
    teacher = {"dataset": common["dataset"], "training_set": tmp_path / "mined", "teacher": common["retriever"], "embeddings": vectors}
    assert command(teach.stage, "teach.py:smoke", tmp_path / "taught", **teacher) == 0
    scores = {
        (row["query_id"], row["passage_id"]): row["score"] for row in map(json.loads, (tmp_path / "taught" / "teacher_scores.jsonl").open())
    }
    for row in rows:
        for item in row["negatives"]:
            assert scores[row["query_id"], item["id"]] == pytest.approx(item["score"], abs=1e-4)


def test_checks_know_blocks(long: Path, tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = {"dataset": f"beir:{long}", "tokens": tuned / "prepare"}
    assert command(check_data.stage, "check_data.py:smoke", tmp_path / "check", **told) == 0
    report = artifacts.read_json(tmp_path / "check" / check_data.REPORT)
    assert report["corpus"]["tokens"]["limit"] == 2 + 2 * 14 and report["corpus"]["tokens"]["truncated"] == 0
    figures = {line["name"]: line for line in report["estimates"]}
    assert figures["vectors on disk"]["value"] == (60 + 54) * 32 * 2 and figures["texts a step"]["value"] == 8 * (1 + 8 * 2)
    assert "blocks x 32 x 2 bytes" in capsys.readouterr().out

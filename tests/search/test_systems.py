"""The stage evaluate over a dataset: dense, BM25 and hybrid runs against brute force."""

import dataclasses
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_retriever import passages

from denseir_jax.core import artifacts
from denseir_jax.core.command import execute
from denseir_jax.core.errors import ConfigError, InputError
from denseir_jax.data.trec import read_run
from denseir_jax.pipeline.stages import encode
from denseir_jax.pipeline.stages.evaluate import EvaluateConfig, VectorFiles, stage
from denseir_jax.search.bm25 import Bm25, Bm25Config
from denseir_jax.search.embeddings import Embeddings
from denseir_jax.search.encode import encode_queries
from denseir_jax.search.retriever import load_retriever


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 passages; 12 dev and 15 test queries, each some words of its passage; one test query asks for a lost passage."""
    folder = tmp_path_factory.mktemp("beir")
    texts = {passage.id: passage.text for passage in passages(60)}
    queries = {f"q{i}": " ".join(texts[f"d{i}"].split()[:4]) for i in range(10, 37)}
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"_id": name, "text": text}) + "\n" for name, text in texts.items()))
    (folder / "queries.jsonl").write_text("".join(json.dumps({"_id": name, "text": text}) + "\n" for name, text in queries.items()))
    (folder / "qrels").mkdir()
    for split, numbers in {"dev": range(10, 22), "test": range(22, 37)}.items():
        rows = [f"q{i}\t{'lost' if i == 36 else f'd{i}'}\t1" for i in numbers]
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(rows) + "\n")
    return folder


def evaluated(folder: Path, dataset: Path, **keys: Any) -> tuple[Mapping[str, Any], dict[str, list[tuple[str, float]]]]:
    """Run the stage; returns its metrics and its run."""
    metrics = execute(stage, EvaluateConfig(dataset=f"beir:{dataset}", **keys), folder)
    return metrics, read_run(str(folder / "run.trec")).ranking


def brute_force(folder: Path, run_folder: Path, dataset: Path, split: str) -> tuple[dict[str, str], list[str], np.ndarray]:
    """Query texts of a split, passage ids, and every cosine [q, n], from the stored vectors."""
    stored = Embeddings.open(folder / "vectors")
    texts = {row["_id"]: row["text"] for row in map(json.loads, (dataset / "queries.jsonl").read_text().splitlines())}
    judged = {line.split("\t")[0] for line in (dataset / "qrels" / f"{split}.tsv").read_text().splitlines()[1:]}
    queries = {name: text for name, text in texts.items() if name in judged}
    vectors = encode_queries(load_retriever(f"run:{run_folder}"), queries)
    matrix = stored.whole().astype(np.float64)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    return queries, stored.ids, (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)) @ matrix.T


def test_a_dense_run_is_brute_force(dataset: Path, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics, run = evaluated(tmp_path / "dense", dataset, retriever=f"run:{run_folder}", depth=20)
    queries, ids, cosines = brute_force(tmp_path / "dense", run_folder, dataset, "test")
    assert list(run) == list(queries) and metrics["queries"] == 15
    for line, scores in zip(run.values(), cosines, strict=True):
        assert len(line) == 20
        np.testing.assert_allclose([score for _, score in line], np.sort(scores)[::-1][:20], atol=1e-5)
        np.testing.assert_allclose([scores[ids.index(document)] for document, _ in line], [score for _, score in line], atol=1e-5)
    assert "1 judged passages do not exist in the corpus (lost ...)" in capsys.readouterr().err
    assert metrics["params_sha256"] == load_retriever(f"run:{run_folder}").params_sha256


def test_vectors_of_an_encode_run_serve_unless_another_model_made_them(
    dataset: Path, run_folder: Path, other_run_folder: Path, tmp_path: Path
) -> None:
    settings = encode.EncodeConfig(retriever=f"run:{run_folder}", corpus=f"beir:{dataset}")
    execute(encode.stage, settings, tmp_path / "encoded")
    evaluated(tmp_path / "here", dataset, retriever=f"run:{run_folder}")
    evaluated(tmp_path / "given", dataset, retriever=f"run:{run_folder}", embeddings=str(tmp_path / "encoded"))
    assert artifacts.file_sha256(tmp_path / "here" / "run.trec") == artifacts.file_sha256(tmp_path / "given" / "run.trec")
    assert not (tmp_path / "given" / "vectors").exists()
    with pytest.raises(InputError, match="made by another model than this retriever"):
        evaluated(tmp_path / "mixed", dataset, retriever=f"run:{other_run_folder}", embeddings=str(tmp_path / "encoded"))


def test_a_hybrid_is_the_sum_over_the_union_of_both_lists(dataset: Path, run_folder: Path, tmp_path: Path) -> None:
    metrics, run = evaluated(tmp_path / "hybrid", dataset, retriever=f"run:{run_folder}", hybrid=True, depth=15)
    tuned = metrics["hybrid"]
    assert tuned["split"] == "dev" and tuned["value"] == max(value for _, value in tuned["tried"])
    queries, ids, cosines = brute_force(tmp_path / "hybrid", run_folder, dataset, "test")
    bm25 = Bm25.build(passages(60), Bm25Config())
    for (query, text), cosine in zip(queries.items(), cosines, strict=True):
        sparse = np.array(bm25.score_of(text, ids))
        candidates = {document for document, _ in bm25.search({query: text}, 15)[query]} | {ids[i] for i in np.argsort(-cosine)[:15]}
        total = {document: sparse[ids.index(document)] + tuned["weight"] * cosine[ids.index(document)] for document in candidates}
        best = sorted(total.values(), reverse=True)[:15]
        np.testing.assert_allclose([score for _, score in run[query]], best, rtol=1e-4)
    assert metrics["nDCG@10"] > 0.5


def test_reciprocal_ranks_and_scann_on_a_small_corpus(dataset: Path, run_folder: Path, tmp_path: Path) -> None:
    keys = {"retriever": f"run:{run_folder}", "hybrid": True, "fusion": "reciprocal_rank", "index": "scann"}
    metrics, run = evaluated(tmp_path / "fused", dataset, **keys)
    assert "hybrid" not in metrics and metrics["index"]["kind"] == "exact"  # too few passages for a tree
    assert max(score for line in run.values() for _, score in line) <= 2 / 61 + 1e-9


def test_bm25_alone(dataset: Path, tmp_path: Path) -> None:
    metrics, run = evaluated(tmp_path / "bm25", dataset, retriever="bm25")
    assert metrics["RR@10"] > 0.5 and all(score > 0 for line in run.values() for _, score in line)


def test_what_cannot_be_is_refused(dataset: Path, tmp_path: Path) -> None:
    for keys in ({"retriever": "bm25", "hybrid": True}, {"retriever": "run:x", "hybrid": True, "tune_split": "test"}, {"depth": 0}):
        with pytest.raises(ValueError):
            EvaluateConfig(dataset=f"beir:{dataset}", **keys)
    with pytest.raises(ValueError, match="adds no scores and has no weight to tune: it needs no normalisation, tune_split"):
        EvaluateConfig(retriever="run:x", hybrid=True, fusion="reciprocal_rank", normalisation="minmax", tune_split="train")
    with pytest.raises(InputError, match="no split 'tset'"):
        evaluated(tmp_path / "w", dataset, retriever="bm25", split="tset")
    with pytest.raises(InputError, match="expected run:DIR"):
        evaluated(tmp_path / "w", dataset, retriever="minilm")


def test_vectors_of_another_tool_are_searched_as_they_are(dataset: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    corpus, queries = rng.normal(size=(60, 6)).astype(np.float32), rng.normal(size=(15, 6))
    ids, names = [f"d{i}" for i in range(60)], [f"q{i}" for i in range(22, 37)]
    for part in range(2):  # DPR's shards, and Tevatron's one file
        rows = range(30 * part, 30 * part + 30)
        (tmp_path / f"part{part}.pkl").write_bytes(pickle.dumps([(ids[i], corpus[i]) for i in rows]))
    (tmp_path / "queries.pkl").write_bytes(pickle.dumps((queries, names)))
    files = VectorFiles((f"{tmp_path}/part0.pkl", f"{tmp_path}/part1.pkl"), (f"{tmp_path}/queries.pkl",))
    metrics, run = evaluated(tmp_path / "run", dataset, retriever="", vectors=files, depth=20)
    assert metrics["index"]["kind"] == "exact" and set(run) == set(names)
    scores = queries.astype(np.float32) @ corpus.T
    for row, name in enumerate(names):
        assert [passage for passage, _ in run[name]] == [ids[i] for i in np.argsort(-scores[row])[:20]]
    twice = dataclasses.replace(files, passages=(files.passages[0], files.passages[0]))
    for wrong, words in (
        (twice, "30 ids are in several files"),
        (dataclasses.replace(files, queries=files.passages), "no vector for the query"),
    ):
        with pytest.raises(InputError, match=words):
            evaluated(tmp_path / "wrong", dataset, retriever="", vectors=wrong)
    with pytest.raises(ConfigError, match="go together"):
        evaluated(tmp_path / "half", dataset, retriever="", vectors=VectorFiles(files.passages))

"""Vectors with a lexical part: on disk, in exact search, and against a plain dense + lexical computation."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_retriever import passages, weights, write_run

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError
from denseir_jax.models.embedder import WordVectors
from denseir_jax.search import embeddings, shards
from denseir_jax.search.embeddings import Embeddings
from denseir_jax.search.encode import encode_queries
from denseir_jax.search.index import ExactIndex, row_scorer
from denseir_jax.search.retriever import Retriever, load_retriever
from denseir_jax.search.scann_index import ScannConfig
from denseir_jax.search.scann_shards import open_or_build

K, TEXTS = 8, passages(40)


@pytest.fixture(scope="module")
def run_of_words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a retriever that keeps 8 words of a text."""
    return write_run(tmp_path_factory.mktemp("words"), lexical=K)


@pytest.fixture(scope="module")
def retriever(run_of_words: Path) -> Retriever:
    return load_retriever(f"run:{run_of_words}")


def encode(folder: Path, retriever: Retriever, size: int = 16, dtype: str = "float32") -> dict[str, Any]:
    return shards.encode_corpus(folder, retriever, shards.chunks_of_passages(TEXTS, retriever, size), None, dtype, 0)


@pytest.fixture(scope="module")
def encoded(retriever: Retriever, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All texts in three shards, in float32."""
    folder = tmp_path_factory.mktemp("encoded") / "vectors"
    encode(folder, retriever)
    return folder


def whole_vectors(retriever: Retriever, texts: list[str], length: int) -> np.ndarray:
    """[n, dense + vocabulary] by the function that training uses, every row padded to the longest."""
    words, tower = retriever.tokenizer, retriever.passage
    rows = [[words.cls_id, *found.ids[: length - 2], words.sep_id] for found in words.encode_batch(texts)]
    ids = np.array([row + [words.pad_id] * (length - len(row)) for row in rows], np.int32)
    return np.asarray(tower.embedder.embed(tower.params, jnp.asarray(ids), jnp.asarray([len(row) for row in rows])))


def test_search_and_single_scores_are_those_of_whole_vectors(retriever: Retriever, encoded: Path) -> None:
    texts = {f"q{i}": " ".join(TEXTS[i].text.split()[:5]) for i in (3, 8, 5, 20, 31)}
    queries, vectors = encode_queries(retriever, texts), shards.open_for(encoded, retriever)
    assert isinstance(queries, WordVectors) and (vectors.dimension, vectors.lexical, queries.words.shape) == (32, K, (5, K))
    q = whole_vectors(retriever, [retriever.template.query(text) for text in texts.values()], 16)
    p = whole_vectors(retriever, [retriever.template.passage(passage) for passage in TEXTS], 40)
    wanted = q.astype(np.float64) @ p.T.astype(np.float64)
    dense = q[:, :32] @ p[:, :32].T
    assert not np.array_equal(np.argsort(-wanted)[:, :3], np.argsort(-dense)[:, :3]), "the lexical part changes nothing here"
    index = ExactIndex(vectors, "dot", block_rows=8, query_rows=2)
    scores, rows = index.search(queries, 40)
    np.testing.assert_allclose(scores, -np.sort(-wanted), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(np.take_along_axis(wanted, rows, 1), scores, rtol=1e-5, atol=1e-4)
    score = row_scorer(vectors, queries, "dot")
    for query, some in enumerate((np.array([39, 0, 17]), np.zeros(0, np.int64), np.array([4]), np.array([4, 4]), np.arange(40))):
        np.testing.assert_allclose(score(query, some), wanted[query, some], rtol=1e-5, atol=1e-4)


def test_equal_scores_stay_in_the_order_of_rows() -> None:
    """Small whole numbers, so that every sum is exact and many are equal."""
    rng = np.random.default_rng(0)

    def drawn(n: int) -> tuple[WordVectors, np.ndarray]:
        words = np.stack([rng.choice(12, 3, replace=False) for _ in range(n)]).astype(np.int32)
        kept = WordVectors(rng.integers(-1, 2, (n, 2)).astype(np.float32), words, rng.integers(-2, 3, (n, 3)).astype(np.float32), 12)
        whole = np.zeros((n, 14))
        whole[:, :2] = kept.dense
        np.put_along_axis(whole[:, 2:], kept.words, kept.weights, 1)
        return kept, whole

    (queries, q), (corpus, p) = drawn(9), drawn(50)
    found = Embeddings.of_array([f"d{i}" for i in range(50)], corpus)
    scores, rows = ExactIndex(found, "dot", block_rows=16, query_rows=8).search(queries, 20)
    order = np.argsort(-(q @ p.T), axis=1, kind="stable")[:, :20]
    np.testing.assert_array_equal(rows, order)
    np.testing.assert_array_equal(scores, np.take_along_axis(q @ p.T, order, 1))
    with pytest.raises(InputError, match="query vectors have a lexical part over 0 words, the index over 12"):
        ExactIndex(found, "dot").search(queries.dense, 3)
    with pytest.raises(InputError, match="over 12 words, the index over 0"):
        ExactIndex(Embeddings.of_array(found.ids, corpus.dense), "dot").search(queries, 3)
    queries.weights[2, 1] = np.nan
    with pytest.raises(InputError, match="the lexical part of the query vectors is not finite"):
        ExactIndex(found, "dot").search(queries, 3)


def test_rows_come_back_over_shards(retriever: Retriever, encoded: Path) -> None:
    read = Embeddings.open(encoded)
    p = whole_vectors(retriever, [retriever.template.passage(passage) for passage in TEXTS], 40)[:, 32:]
    for start, stop in ((0, 40), (15, 17), (3, 9), (30, 99)):
        np.testing.assert_allclose(read.lexical_rows(start, stop).toarray(), p[start:stop], rtol=1e-4, atol=1e-4)
    some = np.array([39, 0, 16, 16])
    np.testing.assert_allclose(read.lexical_take(some).toarray(), p[some], rtol=1e-4, atol=1e-4)
    assert np.load(encoded / "00002.words.npy").dtype == np.uint16 and np.load(encoded / "00002.weights.npy").shape == (8, K)


def test_a_kill_within_a_shard_goes_on_to_the_same_bytes(
    retriever: Retriever, encoded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = []

    def kill(name: str) -> None:
        reached.append(name)
        if len(reached) == 2:  # the second shard's arrays are written, its record is not
            raise KeyboardInterrupt

    monkeypatch.setattr(embeddings.failpoints, "reach", kill)
    with pytest.raises(KeyboardInterrupt):
        encode(tmp_path / "v", retriever)
    monkeypatch.undo()
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "v").glob("00000.*")}
    assert len(kept) == 4 and not (tmp_path / "v" / "00001.json").exists()
    assert encode(tmp_path / "v", retriever)["encoded"] == 40 - 16
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "v").glob("00000.*")} == kept
    assert sorted(path.name for path in (tmp_path / "v").iterdir()) == sorted(path.name for path in encoded.iterdir())
    for path in encoded.iterdir():
        assert path.read_bytes() == (tmp_path / "v" / path.name).read_bytes(), path.name


@pytest.mark.parametrize("name", ["00001.words.npy", "00001.weights.npy"])
def test_a_lost_file_is_made_again_and_a_changed_one_refused(retriever: Retriever, encoded: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "v"
    shutil.copytree(encoded, folder)
    (folder / name).unlink()
    with pytest.raises(InputError, match=f"{name} cannot be read"):
        Embeddings.open(folder)
    assert encode(folder, retriever)["encoded"] == 16
    assert (folder / name).read_bytes() == (encoded / name).read_bytes()
    np.save(folder / name, np.load(folder / name)[::-1])
    read = Embeddings.open(folder)
    touches: list[Callable[[], Any]] = [
        lambda: read.rows(16, 17),
        lambda: read.lexical_rows(0, 40),
        lambda: read.lexical_take(np.array([20])),
    ]
    for touch in touches:
        with pytest.raises(InputError, match=f"{name} was changed after the vectors had been made"):
            touch()


def test_vectors_of_another_number_of_words_are_another_models(
    run_of_words: Path, retriever: Retriever, encoded: Path, tmp_path: Path
) -> None:
    shutil.copytree(run_of_words, tmp_path / "run")
    facts = artifacts.read_json(tmp_path / "run" / "encoder" / "denseir.json")
    artifacts.write_json(tmp_path / "run" / "encoder" / "denseir.json", {**facts, "lexical": 4})
    other = load_retriever(f"hf:{tmp_path / 'run' / 'encoder'}")
    assert other.lexical == 4
    with pytest.raises(InputError, match="made by another model"):
        shards.open_for(encoded, other)
    shutil.copytree(encoded, tmp_path / "v")
    with pytest.raises(InputError, match="refusing to mix models"):
        encode(tmp_path / "v", other)


def test_scann_names_what_to_use_instead(retriever: Retriever, encoded: Path, tmp_path: Path) -> None:
    vectors = shards.open_for(encoded, retriever)
    with pytest.raises(InputError, match=f"lexical part of {K} words a text: use index=exact"):
        open_or_build(tmp_path / "index", vectors, "dot", np.zeros((1, 32), np.float32), 3, ScannConfig(), 0)


@pytest.mark.parametrize("untied", [False, True])
def test_an_exported_head_comes_back_bit_for_bit(run_of_words: Path, tmp_path: Path, untied: bool) -> None:
    run = write_run(tmp_path / "run", untied=True, lexical=K) if untied else run_of_words
    found = load_retriever(f"run:{run}")
    assert (found.query is found.passage) != untied and found.lexical == found.query.embedder.config.lexical == K
    shapes = jax.eval_shape(found.passage.embedder.init, jax.random.key(0))
    size = found.tokenizer.vocab_size
    for tower, seed in ((found.query, 0), (found.passage, 100 if untied else 0)):
        written = weights(shapes, seed)
        for leaf in (written["mlm_head"]["bias"], written["encoder"]["embeddings"]["word"]):
            leaf[size:] = 0  # the padding of the vocabulary is not kept
        jax.tree.map(np.testing.assert_array_equal, dict(tower.params), written)


def test_a_changed_or_lost_head_is_refused(run_of_words: Path, tmp_path: Path) -> None:
    file, bias = tmp_path / "run" / "encoder" / "model.safetensors", "cls.predictions.bias"
    shutil.copytree(run_of_words, tmp_path / "run")
    tensors = load_file(file)
    save_file({**tensors, bias: tensors[bias] + 1}, file)
    with pytest.raises(InputError, match="the folder was changed or mixed"):
        load_retriever(f"run:{tmp_path / 'run'}")
    save_file({name: tensor for name, tensor in tensors.items() if not name.startswith("cls.")}, file)
    with pytest.raises(InputError, match=r"has a lexical part by its denseir\.json, but no mlm_head"):
        load_retriever(f"run:{tmp_path / 'run'}")

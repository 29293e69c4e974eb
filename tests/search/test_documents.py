"""Documents of several blocks: their vectors on disk, and search by best block, against brute force."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_retriever import TEMPLATE, passages, tokenizer

from denseir_jax.core import artifacts
from denseir_jax.core.command import execute
from denseir_jax.core.errors import InputError
from denseir_jax.data.tokens import TokenStore
from denseir_jax.models.embedder import WordVectors
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.pipeline.stages.prepare import stage as prepare
from denseir_jax.search import documents, embeddings, scann_index, shards, teacher_vectors
from denseir_jax.search.documents import DocumentIndex, by_document
from denseir_jax.search.embeddings import Embeddings
from denseir_jax.search.encode import BatchEncoder
from denseir_jax.search.index import ExactIndex, Found, row_scorer
from denseir_jax.search.retriever import Retriever, load_retriever
from denseir_jax.search.scann_index import Sample, ScannConfig, ScannIndex

MODEL = {"params_sha256": "aaa", "dtype": "float32"}


class Rows:
    """An index over rows by plain numpy that counts how deep it was asked; of `seen` rows alone, as an approximate one."""

    def __init__(self, vectors: np.ndarray, seen: np.ndarray | None = None):
        self.vectors, self.n, self.facts, self.depths = vectors, len(vectors), {"kind": "plain"}, list[int]()
        self.seen = np.arange(self.n) if seen is None else seen

    def search(self, queries: np.ndarray, k: int) -> Found:
        self.depths.append(k)
        scores = queries @ self.vectors[self.seen].T
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        missing = ((0, 0), (0, min(k, self.n) - order.shape[1]))
        found = np.pad(np.take_along_axis(scores, order, 1), missing, constant_values=-np.inf)
        return found.astype(np.float32), np.pad(self.seen[order], missing, constant_values=-1)


def brute_force(scores: np.ndarray, blocks: np.ndarray, k: int) -> Found:
    """Best k documents of scores [q, rows], equal ones by number."""
    ends = np.cumsum(blocks)
    best = np.stack([scores[:, end - n : end].max(1) for end, n in zip(ends, blocks, strict=True)], axis=1)
    order = np.argsort(-best, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(best, order, 1), order


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.integers(1, 40), st.integers(0, 99), st.sampled_from([1, 10**9]))
def test_as_many_documents_as_asked_for_in_the_order_of_brute_force(blocks: list[int], k: int, seed: int, cells: int) -> None:
    rng, number_of = np.random.default_rng(seed), np.array(blocks)
    # Of small numbers: scores are often equal. Of the first document: its blocks crowd out all others.
    vectors, queries = rng.integers(-2, 3, (sum(blocks), 3)).astype(np.float32), rng.integers(-2, 3, (4, 3)).astype(np.float32)
    vectors[: blocks[0]] *= 5
    found = Embeddings.of_array([f"d{i}" for i in range(len(blocks))], vectors, number_of)
    index = DocumentIndex(Rows(vectors), found, "dot")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "_CELLS", cells)
        scores, rows = index.search(queries, k)
    expected = brute_force(queries @ vectors.T, number_of, k)
    assert rows.shape[1] == min(k, len(blocks)) == index.search(queries[:0], k)[0].shape[1]
    np.testing.assert_array_equal(rows, expected[1])
    np.testing.assert_array_equal(scores, expected[0])
    assert index.n == len(blocks) and index.facts == {"kind": "plain", "documents": len(blocks)}


def test_it_searches_deeper_only_for_those_who_need_it() -> None:
    vectors = np.zeros((40, 2), np.float32)
    vectors[:32, 0], vectors[32:, 1] = 2, 1  # one document of 32 blocks, eight of one
    found = Embeddings.of_array([f"d{i}" for i in range(9)], vectors, np.array([32] + [1] * 8))
    plain = Rows(vectors)
    asked: list[int] = []
    plain.search = lambda queries, k, real=plain.search: (asked.append(len(queries)), real(queries, k))[1]  # type: ignore[method-assign]
    _, rows = DocumentIndex(plain, found, "dot").search(np.array([[1, 0.5], [0, 1]], np.float32), 2)
    assert rows.tolist() == [[0, 1], [1, 2]]
    assert plain.depths == [4, 8, 16, 32, 40] and asked == [2, 1, 1, 1, 1]


def test_what_an_approximate_index_cannot_give_is_searched_exactly(capsys: pytest.CaptureFixture[str]) -> None:
    rng, number_of = np.random.default_rng(3), np.full(12, 3)
    vectors, queries = rng.normal(size=(36, 4)).astype(np.float32), rng.normal(size=(2, 4)).astype(np.float32)
    found = Embeddings.of_array([f"d{i}" for i in range(12)], vectors, number_of)
    _, rows = DocumentIndex(Rows(vectors, np.arange(9)), found, "dot").search(queries, 5)
    np.testing.assert_array_equal(rows, brute_force(queries @ vectors.T, number_of, 5)[1])
    assert "2 queries found fewer than 5 documents" in capsys.readouterr().err


@pytest.mark.parametrize("similarity", ["dot", "cosine", "l2"])
def test_exact_search_and_true_scores_are_of_the_best_block(similarity: str) -> None:
    rng = np.random.default_rng(1)
    number_of = rng.integers(1, 5, 30)
    vectors, queries = rng.normal(size=(number_of.sum(), 6)).astype(np.float32), rng.normal(size=(5, 6)).astype(np.float32)
    found = Embeddings.of_array([f"d{i}" for i in range(30)], vectors, number_of)
    scores, rows = by_document(ExactIndex(found, similarity), found, similarity).search(queries, 30)
    a, b = ((x / np.linalg.norm(x, axis=1, keepdims=True) if similarity == "cosine" else x) for x in (queries, vectors))
    plain = -np.square(a[:, None] - b[None]).sum(-1) if similarity == "l2" else a @ b.T
    expected = brute_force(plain, number_of, 30)
    np.testing.assert_array_equal(rows, expected[1])
    np.testing.assert_allclose(scores, expected[0], atol=1e-4)
    score = row_scorer(found, queries, similarity)
    for query in range(5):
        np.testing.assert_allclose(score(query, rows[query]), scores[query], atol=1e-5)
    assert score(0, np.zeros(0, np.int64)).shape == (0,)
    whole = Embeddings.of_array([f"d{i}" for i in range(len(vectors))], vectors)
    assert isinstance(by_document(ExactIndex(whole, similarity), whole, similarity), ExactIndex)


def test_a_lexical_part_goes_with_its_block() -> None:
    rng, number_of = np.random.default_rng(2), np.array([2, 1, 3, 1])
    dense, words = rng.normal(size=(7, 3)).astype(np.float32), np.stack([rng.permutation(9)[:2] for _ in range(7)]).astype(np.int32)
    rows = WordVectors(dense, words, rng.random((7, 2)).astype(np.float32), 9)
    found, queries = Embeddings.of_array(list("abcd"), rows, number_of), WordVectors(dense[:3], words[:3], rows.weights[:3], 9)
    spread = np.zeros((7, 9), np.float32)
    np.put_along_axis(spread, words, rows.weights, 1)
    expected = brute_force(dense[:3] @ dense.T + spread[:3] @ spread.T, number_of, 4)
    scores, of = by_document(ExactIndex(found, "dot"), found, "dot").search(queries, 4)
    np.testing.assert_array_equal(of, expected[1])
    np.testing.assert_allclose(scores, expected[0], rtol=1e-5)


def test_scann_gives_k_documents_from_the_leaves_or_exactly() -> None:
    pytest.importorskip("scann")
    rng = np.random.default_rng(0)
    number_of = rng.integers(1, 5, 800)
    vectors = np.tanh(rng.normal(size=(int(number_of.sum()), 8)) @ rng.normal(size=(8, 16))).astype(np.float32)
    found, queries = Embeddings.of_array([f"d{i}" for i in range(800)], vectors, number_of), vectors[:40] + 0.01
    config = ScannConfig(sample=40, recall=1.0)
    wide = scann_index.build(found, "dot", Sample.draw(found, "dot", queries, 60, config, seed=0), config)
    _, rows = by_document(wide, found, "dot").search(queries, 20)
    expected = brute_force(queries @ vectors.T, number_of, 20)[1]
    assert np.mean([len(set(a) & set(b)) / 20 for a, b in zip(rows.tolist(), expected.tolist(), strict=True)]) > 0.97
    narrow = by_document(ScannIndex(wide._searcher, {**wide.facts, "leaves_to_search": 1}), found, "dot")
    scores, rows = narrow.search(queries, 300)
    assert (rows >= 0).all() and all(len(set(line)) == 300 for line in rows.tolist()) and (np.diff(scores, axis=1) <= 1e-6).all()


def write(folder: Path, vectors: np.ndarray, blocks: np.ndarray, size: int) -> None:
    starts = np.concatenate([[0], np.cumsum(blocks)])
    for number, first in enumerate(range(0, len(blocks), size)):
        last = min(first + size, len(blocks))
        rows, ids = vectors[starts[first] : starts[last]], [f"d{i}" for i in range(first, last)]
        embeddings.write_shard(folder, number, ids, rows, "float32", MODEL, f"texts {number}", blocks[first:last])
    embeddings.finish(folder, [f"d{i}" for i in range(len(blocks))], "all texts")


def test_a_folder_says_which_rows_are_of_which_document(tmp_path: Path) -> None:
    blocks = np.array([2, 1, 4, 1, 3])
    vectors = np.random.default_rng(0).normal(size=(11, 3)).astype(np.float32)
    write(tmp_path / "v", vectors, blocks, 2)
    read = Embeddings.open(tmp_path / "v")
    assert read.ids == [f"d{i}" for i in range(5)] and read.n == 11 and read.facts["documents"] == 5
    assert read.starts is not None and read.starts.tolist() == [0, 2, 3, 7, 8, 11]
    assert [read.name(row) for row in range(11)] == [f"d{i}" for i, n in enumerate(blocks) for _ in range(n)]
    np.testing.assert_array_equal(read.whole(), vectors)
    assert embeddings.shard_finished(tmp_path / "v", 1, MODEL, "texts 1", 2)
    with pytest.raises(InputError, match=r"made from other texts \(2 documents there, 3 here\)"):
        embeddings.shard_finished(tmp_path / "v", 1, MODEL, "texts 1", 3)
    with pytest.raises(InputError, match="document 'y' is not finite"):
        embeddings.write_shard(tmp_path, 0, ["x", "y"], np.array([[0], [1], [np.nan]], np.float32), "float32", MODEL, "t", np.array([2, 1]))
    with pytest.raises(InputError, match="11 vectors for 4 ids"):
        Embeddings(read.ids[:4], [vectors], {}, blocks=blocks)
    artifacts.write_array(tmp_path / "v" / "blocks.npy", blocks[::-1].astype(np.uint16))
    with pytest.raises(InputError, match=r"blocks\.npy was changed"):
        Embeddings.open(tmp_path / "v")


@pytest.fixture(scope="module")
def retriever(run_folder: Path) -> Retriever:
    """Reads a passage in up to three blocks of 18 tokens, each begun 12 after the last one."""
    found = load_retriever(f"run:{run_folder}")
    return dataclasses.replace(found, template=dataclasses.replace(TEMPLATE, passage_length=20, blocks=3, stride=12))


def test_a_corpus_in_blocks_is_encoded_whole_in_shards_and_from_tokens(retriever: Retriever, tmp_path: Path) -> None:
    texts = passages(40)

    def encode(name: str, size: int, chunks: object = None) -> Embeddings:
        made = shards.chunks_of_passages(texts, retriever, size) if chunks is None else chunks
        done = shards.encode_corpus(tmp_path / name, retriever, made, 40, "float32", 1024)
        found = Embeddings.open(tmp_path / name)
        assert done["documents"] == 40 == done["encoded"] and done["n"] == found.n
        return found

    whole = encode("whole", 10_000)
    expected = []
    for passage in texts:
        ids = retriever.tokenizer.encode(passage.text).ids
        expected.append([ids[start : start + 18] for start in (0, 12, 24) if start == 0 or len(ids) > start + 6])
    assert np.diff(whole.starts).tolist() == [len(found) for found in expected] and set(np.diff(whole.starts)) == {1, 2, 3}
    encoder = BatchEncoder(retriever.passage.embedder, retriever.tokenizer.special_ids, 20, 1024)
    alone = encoder.encode(retriever.passage.params, [block for found in expected for block in found])
    np.testing.assert_allclose(whole.whole(), alone, atol=1e-5)
    parts = encode("parts", 24)
    assert len(parts.facts["shards"]) == 5, "eight documents a shard: no more than 24 vectors"
    np.testing.assert_allclose(parts.whole(), whole.whole(), atol=1e-5)
    before = {path.name: path.read_bytes() for path in (tmp_path / "parts").iterdir()}
    for name in ("00002.json", "embeddings.json"):
        (tmp_path / "parts" / name).unlink()
    again = shards.encode_corpus(tmp_path / "parts", retriever, shards.chunks_of_passages(texts, retriever, 24), 40, "float32", 1024)
    assert again["encoded"] == 8 and {path.name: path.read_bytes() for path in (tmp_path / "parts").iterdir()} == before
    tokenizer().save(tmp_path / "tokenizer")
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"_id": p.id, "text": p.text}) + "\n" for p in texts))
    corpus = PrepareConfig(corpus=f"jsonl:{tmp_path / 'c.jsonl'}", tokenizer=str(tmp_path / "tokenizer"), template=TEMPLATE, workers=1)
    execute(prepare, corpus, tmp_path / "prepare")
    stored = encode("stored", 24, shards.chunks_of_store(TokenStore.open(tmp_path / "prepare"), retriever, 24))
    np.testing.assert_array_equal(stored.whole(), parts.whole())
    with pytest.raises(InputError, match="made by another model than this retriever"):
        shards.open_for(tmp_path / "parts", dataclasses.replace(retriever, template=dataclasses.replace(retriever.template, blocks=2)))


def test_one_block_writes_what_was_always_written(retriever: Retriever, tmp_path: Path) -> None:
    first = dataclasses.replace(retriever, template=dataclasses.replace(retriever.template, blocks=1, stride=0))
    shards.encode_corpus(tmp_path, first, shards.chunks_of_passages(passages(10), first, 16), 10, "float32", 1024)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000.json", "00000.npy", "embeddings.json", "ids.txt"]
    facts, record = (artifacts.read_json(tmp_path / name) for name in ("embeddings.json", "00000.json"))
    assert set(facts) == {"n", "model", "dimension", "source_sha256", "ids_sha256", "shards"}
    assert set(record) == {"model", "source", "rows", "dimension", "sha256"} and "blocks" not in record["model"]["template"]
    assert Embeddings.open(tmp_path).starts is None


def test_vectors_of_a_teacher_that_reads_blocks_are_refused(retriever: Retriever) -> None:
    with pytest.raises(InputError, match="in several blocks, of which write=vectors keeps one vector; expected write=scores"):
        teacher_vectors.need_vectors(retriever)

import shutil
from pathlib import Path

import numpy as np
import pytest

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError
from denseir_jax.search import scann_index, scann_shards
from denseir_jax.search.embeddings import Embeddings
from denseir_jax.search.index import ExactIndex, Similarity, best_of, to_ranking
from denseir_jax.search.scann_index import Sample, ScannConfig, ScannIndex


def corpus(n: int, d: int, seed: int = 0) -> Embeddings:
    rng = np.random.default_rng(seed)
    points = np.tanh(rng.normal(size=(n, 8)) @ rng.normal(size=(8, d))).astype(np.float32)
    return Embeddings.of_array([f"d{i}" for i in range(n)], points)


def brute_force(vectors: np.ndarray, queries: np.ndarray, k: int, similarity: str) -> tuple[np.ndarray, np.ndarray]:
    vectors, queries = vectors.astype(np.float64), queries.astype(np.float64)
    if similarity == "cosine":
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
        queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    scores = queries @ vectors.T
    if similarity == "l2":
        scores = -np.square(queries[:, None] - vectors[None]).sum(-1)
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, rows, 1), rows


@pytest.mark.parametrize("similarity", ["dot", "cosine", "l2"])
@pytest.mark.parametrize("block_rows", [16, 64, 4096])
def test_exact_equals_brute_force_in_any_block_size(similarity: str, block_rows: int) -> None:
    vectors = corpus(203, 12)
    queries = np.random.default_rng(1).normal(size=(21, 12)).astype(np.float32)
    scores, rows = ExactIndex(vectors, similarity, block_rows=block_rows, query_rows=8).search(queries, 30)
    expected_scores, expected_rows = brute_force(vectors.whole(), queries, 30, similarity)
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("block_rows", [4, 8, 64])
def test_equal_scores_come_in_row_order_across_blocks(block_rows: int) -> None:
    vectors = Embeddings.of_array([str(i) for i in range(40)], np.tile(np.eye(4, dtype=np.float32), (10, 1)))
    _, rows = ExactIndex(vectors, "dot", block_rows=block_rows).search(np.eye(4, dtype=np.float32)[:2], 13)
    expected = [[*range(0, 40, 4), 1, 2, 3], [*range(1, 40, 4), 0, 2, 3]]
    np.testing.assert_array_equal(rows, expected)


def test_exact_returns_all_documents_when_k_is_larger_and_keeps_empty_queries() -> None:
    vectors = corpus(7, 5)
    scores, rows = ExactIndex(vectors, "dot").search(np.ones((1, 5), np.float32), 100)
    assert rows.shape == scores.shape == (1, 7) and sorted(rows[0]) == list(range(7))
    assert ExactIndex(vectors, "dot").search(np.zeros((0, 5), np.float32), 3)[1].shape == (0, 3)


def test_a_zero_vector_has_cosine_zero() -> None:
    vectors = Embeddings.of_array(["a", "b", "c"], np.array([[0, 0], [1, 0], [-1, 0]], np.float32))
    scores, rows = ExactIndex(vectors, "cosine").search(np.array([[2, 0]], np.float32), 3)
    np.testing.assert_array_equal(rows, [[1, 0, 2]])
    np.testing.assert_array_equal(scores, [[1, 0, -1]])


def test_bad_vectors_are_refused_by_name() -> None:
    points = np.ones((3, 4), np.float32)
    points[1, 2] = np.nan
    with pytest.raises(InputError, match="document 'b' is not finite"):
        ExactIndex(Embeddings.of_array(["a", "b", "c"], points), "dot").search(np.ones((1, 4), np.float32), 1)
    good = Embeddings.of_array(["a"], np.ones((1, 4), np.float32))
    with pytest.raises(InputError, match="query vector 1 is not finite"):
        ExactIndex(good, "dot").search(np.array([[1, 1, 1, 1], [1, np.inf, 1, 1]], np.float32), 1)
    with pytest.raises(InputError, match="3 dimensions, the index 4"):
        ExactIndex(good, "dot").search(np.ones((1, 3), np.float32), 1)


def test_ranking_leaves_out_empty_places() -> None:
    ranking = to_ranking(["q"], ["a", "b"], np.array([[2.0, -np.inf]], np.float32), np.array([[1, -1]]))
    assert ranking == {"q": [("b", 2.0)]}


def one_shard(vectors: Embeddings, similarity: Similarity, queries: np.ndarray, k: int, config: ScannConfig) -> ScannIndex:
    return scann_index.build(vectors, similarity, Sample.draw(vectors, similarity, queries, k, config, seed=0), config)


class Padding:
    """A searcher that pads as ScaNN does: document 0 with a NaN score."""

    def search_batched_parallel(self, queries: np.ndarray, **settings: int) -> tuple[np.ndarray, np.ndarray]:
        rows = np.array([[3, 0, 0, 0], [2, 1, 0, 3]], np.uint32)
        scores = np.array([[0.9, 0.5, np.nan, np.nan], [0.7, 0.7, 0.7, 0.1]], np.float32)
        return rows, scores


def test_padding_is_dropped_but_a_true_document_zero_survives() -> None:
    facts = {"n": 4, "dimension": 2, "similarity": "dot", "leaves_to_search": 1, "candidates": 4}
    scores, rows = ScannIndex(Padding(), facts).search(np.ones((2, 2), np.float32), 4)
    np.testing.assert_array_equal(rows, [[3, 0, -1, -1], [0, 1, 2, 3]])
    assert np.isneginf(scores[0, 2:]).all() and np.isfinite(scores[1]).all()


@pytest.fixture(scope="module")
def built() -> tuple[Embeddings, np.ndarray, ScannIndex]:
    pytest.importorskip("scann")
    vectors = corpus(2500, 24)
    queries = corpus(80, 24, seed=5).whole()
    return vectors, queries, one_shard(vectors, "cosine", queries, 50, ScannConfig(sample=40))


def test_scann_reaches_the_recall_that_it_reports(built: tuple[Embeddings, np.ndarray, ScannIndex]) -> None:
    vectors, queries, index = built
    assert index.facts["recall"] >= 0.95 and index.facts["sample"] == 40
    scores, rows = index.search(queries, 50)
    _, expected = brute_force(vectors.whole(), queries, 50, "cosine")
    overlap = np.mean([len(set(a) & set(b)) / 50 for a, b in zip(rows, expected, strict=True)])
    assert overlap > 0.9
    assert (np.diff(np.where(np.isfinite(scores), scores, -9), axis=1) <= 1e-6).all()


def test_scann_with_all_leaves_and_candidates_is_exact(built: tuple[Embeddings, np.ndarray, ScannIndex]) -> None:
    vectors, queries, index = built
    wide = ScannIndex(index._searcher, {**index.facts, "leaves_to_search": index.facts["leaves"], "candidates": vectors.n})
    scores, rows = wide.search(queries, 20)
    expected_scores, expected = brute_force(vectors.whole(), queries, 20, "cosine")
    np.testing.assert_allclose(scores, expected_scores, atol=2e-5)
    assert np.mean(rows == expected) > 0.99  # equal up to scores closer than float32 tells apart


def test_scann_orders_by_distance(built: tuple[Embeddings, np.ndarray, ScannIndex]) -> None:
    vectors, queries, _ = built
    index = one_shard(vectors, "l2", queries, 10, ScannConfig(sample=20, recall=1.0))
    scores, rows = index.search(queries[:20], 10)
    expected_scores, expected = brute_force(vectors.whole(), queries[:20], 10, "l2")
    assert index.facts["recall"] == 1 and index.facts["dimension"] == 24
    assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(rows, expected, strict=True)]) > 0.95
    np.testing.assert_allclose(scores[:, 0], expected_scores[:, 0], atol=1e-3)


def test_an_underfilled_search_has_short_lines_and_no_made_up_document(built: tuple[Embeddings, np.ndarray, ScannIndex]) -> None:
    vectors, queries, index = built
    narrow = ScannIndex(index._searcher, {**index.facts, "leaves_to_search": 1})
    scores, rows = narrow.search(queries, 400)
    assert (rows < 0).any() and ((rows < 0) == np.isneginf(scores)).all()
    directions = vectors.whole() / np.linalg.norm(vectors.whole(), axis=1, keepdims=True)
    for query, line, values in zip(queries, rows, scores, strict=True):
        found = line[line >= 0]
        assert len(set(found)) == len(found)
        np.testing.assert_allclose(directions[found] @ (query / np.linalg.norm(query)), values[line >= 0], atol=1e-4)


def test_a_moved_index_gives_the_same_results(
    built: tuple[Embeddings, np.ndarray, ScannIndex], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, queries, index = built
    index.save(tmp_path / "one")
    shutil.move(tmp_path / "one", tmp_path / "two")
    monkeypatch.chdir(tmp_path)
    moved = ScannIndex.load(Path("two"))
    assert moved.facts == index.facts
    np.testing.assert_array_equal(moved.search(queries, 30)[1], index.search(queries, 30)[1])


def test_a_kept_index_is_used_again_and_never_for_other_vectors(built: tuple[Embeddings, np.ndarray, ScannIndex], tmp_path: Path) -> None:
    vectors, queries, index = built
    index.save(tmp_path / "index")
    written = artifacts.file_sha256(tmp_path / "index" / "dataset.npy")
    again = scann_shards.open_or_build(tmp_path / "index", vectors, "cosine", queries, 50, ScannConfig(), 0)
    assert again.facts == index.facts and artifacts.file_sha256(tmp_path / "index" / "dataset.npy") == written
    with pytest.raises(InputError, match="built from other vectors"):
        scann_shards.open_or_build(tmp_path / "index", corpus(2500, 24, seed=9), "cosine", queries, 50, ScannConfig(), 0)


def test_shards_are_one_index(tmp_path: Path) -> None:
    pytest.importorskip("scann")
    vectors, queries = corpus(2500, 24), corpus(40, 24, seed=5).whole()
    exact = ScannConfig(shard_rows=700, recall=1.0, sample=40)
    index = scann_shards.open_or_build(tmp_path / "index", vectors, "dot", queries, 60, exact, 0)
    assert index.facts["starts"] == [0, 625, 1250, 1875] and index.n == 2500 and index.facts["recall"] == 1
    scores, rows = index.search(queries, 60)
    expected_scores, expected = ExactIndex(vectors, "dot").search(queries, 60)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-5, atol=1e-5)
    assert np.mean(rows == expected) > 0.99  # equal up to scores closer than float32 tells apart
    again = scann_shards.open_or_build(tmp_path / "index", vectors, "dot", queries, 60, exact, 0)
    assert again.facts == index.facts
    np.testing.assert_array_equal(again.search(queries, 700)[1][:, :60], rows)
    with pytest.raises(InputError, match="built from other vectors"):
        scann_shards.open_or_build(tmp_path / "index", corpus(2500, 24, seed=9), "dot", queries, 60, exact, 0)


def test_the_recall_of_shards_is_that_of_the_merged_lists(tmp_path: Path) -> None:
    pytest.importorskip("scann")
    vectors, queries = corpus(2500, 24), corpus(50, 24, seed=5).whole()
    config = ScannConfig(shard_rows=1300, recall=0.7, sample=50)
    index = scann_shards.open_or_build(tmp_path / "index", vectors, "dot", queries, 80, config, 0)
    _, rows = index.search(queries, 80)
    _, expected = ExactIndex(vectors, "dot").search(queries, 80)
    overlap = np.mean([len(set(a) & set(b)) / 80 for a, b in zip(rows.tolist(), expected.tolist(), strict=True)])
    assert 0.7 <= index.facts["recall"] < 1 and abs(index.facts["recall"] - overlap) < 0.01


def test_an_interrupted_build_goes_on_after_its_last_whole_shard(tmp_path: Path) -> None:
    pytest.importorskip("scann")
    vectors, queries, config = corpus(2500, 24), corpus(40, 24, seed=5).whole(), ScannConfig(shard_rows=900)
    folder = tmp_path / "index"
    index = scann_shards.open_or_build(folder, vectors, "cosine", queries, 20, config, 0)
    kept = artifacts.file_sha256(folder / "00000" / "dataset.npy")
    (folder / "index.json").unlink()
    shutil.rmtree(folder / "00002")
    again = scann_shards.open_or_build(folder, vectors, "cosine", queries, 20, config, 0)
    assert again.n == index.n == 2500 and artifacts.file_sha256(folder / "00000" / "dataset.npy") == kept
    (folder / "index.json").unlink()
    with pytest.raises(InputError, match="another shard_rows"):
        scann_shards.open_or_build(folder, vectors, "cosine", queries, 20, ScannConfig(shard_rows=1250), 0)


def test_lists_are_merged_by_score_then_row_with_empty_places_last() -> None:
    nothing = -np.inf
    one = np.array([[3.0, 1.0], [nothing, nothing]], np.float32), np.array([[5, 4], [-1, -1]])
    two = np.array([[3.0, 2.0], [7.0, nothing]], np.float32), np.array([[2, 9], [8, -1]])
    scores, rows = best_of([one, two], 3)
    np.testing.assert_array_equal(rows, [[2, 5, 9], [8, -1, -1]])
    np.testing.assert_array_equal(scores, [[3, 3, 2], [7, nothing, nothing]])
    assert best_of([one, two], 6)[1].shape == (2, 6)


def test_a_small_corpus_is_searched_exactly_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors = corpus(100, 8)
    index = scann_shards.open_or_build(tmp_path / "index", vectors, "dot", np.ones((1, 8), np.float32), 10, ScannConfig(), 0)
    assert isinstance(index, ExactIndex) and "100 documents, fewer than min_points=2,000" in capsys.readouterr().err
    assert index.facts["kind"] == "exact" and not (tmp_path / "index").exists()


def test_without_scann_the_message_says_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "scann.scann_ops.py", None)
    with pytest.raises(InputError, match="use index=exact"):
        one_shard(corpus(20, 4), "dot", np.ones((1, 4), np.float32), 5, ScannConfig(min_points=16))


def test_the_librarys_log_lines_stay_off_standard_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("scann")
    vectors = corpus(300, 8)
    index = scann_shards.open_or_build(tmp_path / "index", vectors, "dot", vectors.whole()[:9], 5, ScannConfig(min_points=16), seed=0)
    assert index.facts["kind"] == "scann"
    assert all(line.startswith("index: ") for line in capfd.readouterr().err.splitlines())


def test_a_damaged_index_is_one_line(tmp_path: Path) -> None:
    artifacts.write_json(tmp_path / "index.json", {"n": 3})
    with pytest.raises(InputError, match=r"index\.json holds no usable"):
        ScannIndex.load(tmp_path)
    with pytest.raises(InputError, match=r"index\.json holds no usable"):
        scann_shards.open_or_build(tmp_path, corpus(2500, 24), "dot", np.ones((1, 24), np.float32), 5, ScannConfig(), 0)


@pytest.mark.parametrize("threshold", [float("nan"), -1.0, 1.0])
def test_an_impossible_threshold_is_refused(threshold: float) -> None:
    with pytest.raises(ValueError, match="threshold"):
        ScannConfig(threshold=threshold)

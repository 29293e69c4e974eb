from pathlib import Path

import numpy as np
import pytest

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError
from denseir_jax.search import embeddings
from denseir_jax.search.embeddings import Embeddings

MODEL = {"params_sha256": "aaa", "dtype": "float16"}


def write(folder: Path, vectors: np.ndarray, ids: list[str], size: int) -> None:
    for number, start in enumerate(range(0, len(vectors), size)):
        embeddings.write_shard(
            folder, number, ids[start : start + size], vectors[start : start + size], "float16", MODEL, f"texts {number}"
        )
    embeddings.finish(folder, ids, "all texts")


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, np.ndarray, list[str]]:
    vectors = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
    ids = ["a", "b\u2028c", 'quote"', "new\nline", *map(str, range(6))]
    write(tmp_path / "vectors", vectors, ids, 4)
    return tmp_path / "vectors", vectors, ids


def test_any_slice_over_shards_is_what_was_written(written: tuple[Path, np.ndarray, list[str]]) -> None:
    folder, vectors, ids = written
    read = Embeddings.open(folder)
    stored = vectors.astype(np.float16).astype(np.float32)
    assert read.ids == ids and (read.n, read.dimension) == (10, 3)
    for start in range(10):
        for stop in range(start, 12):
            np.testing.assert_array_equal(read.rows(start, stop), stored[start:stop])
    np.testing.assert_array_equal(np.concatenate([block for _, block in read.blocks(3)]), stored)
    np.testing.assert_array_equal(read.take(np.array([9, 0, 4, 4, 3])), stored[[9, 0, 4, 4, 3]])
    np.testing.assert_array_equal(read.whole(), stored)


def test_a_vector_that_is_not_finite_is_refused_by_name(tmp_path: Path) -> None:
    vectors = np.ones((3, 2), np.float32)
    vectors[2, 1] = 1e6  # infinite in float16
    with pytest.raises(InputError, match=r"document 'z' is not finite.*dtype is float16"):
        embeddings.write_shard(tmp_path, 0, ["x", "y", "z"], vectors, "float16", MODEL, "t")
    assert not list(tmp_path.glob("0*"))


def test_damage_found_on_reading_is_refused_by_name(written: tuple[Path, np.ndarray, list[str]]) -> None:
    folder, _, _ = written
    shard = np.load(folder / "00001.npy")
    shard[1, 0] = np.nan
    np.save(folder / "00001.npy", shard)
    facts = artifacts.read_json(folder / "embeddings.json")
    facts["shards"][1]["sha256"] = artifacts.file_sha256(folder / "00001.npy")  # as if it had been written so
    artifacts.write_json(folder / "embeddings.json", facts)
    with pytest.raises(InputError, match="document '1' is not finite"):
        Embeddings.open(folder).whole()
    np.save(folder / "00001.npy", shard[:3])
    with pytest.raises(InputError, match=r"00001.npy has shape \(3, 3\)"):
        Embeddings.open(folder)


def test_as_many_ids_as_vectors(written: tuple[Path, np.ndarray, list[str]]) -> None:
    folder, _, ids = written
    embeddings.write_ids(folder / "ids.txt", ids[:-1])
    with pytest.raises(InputError, match=r"ids\.txt was changed"):
        Embeddings.open(folder)
    with pytest.raises(InputError, match="10 vectors for 9 ids"):
        Embeddings(ids[:-1], [np.zeros((10, 3), np.float32)], {})
    with pytest.raises(InputError, match="10 vectors for 9 documents"):
        embeddings.finish(folder, ids[:-1], "t")


def test_shards_of_two_models_never_mix(written: tuple[Path, np.ndarray, list[str]]) -> None:
    folder, vectors, _ = written
    assert embeddings.shard_finished(folder, 0, MODEL, "texts 0", 4)
    assert not embeddings.shard_finished(folder, 7, MODEL, "texts 7", 4)
    with pytest.raises(InputError, match="refusing to mix models"):
        embeddings.shard_finished(folder, 0, {**MODEL, "params_sha256": "bbb"}, "texts 0", 4)
    with pytest.raises(InputError, match="made from other texts"):
        embeddings.shard_finished(folder, 0, MODEL, "other texts", 4)
    embeddings.write_shard(folder, 2, ["x", "y"], vectors[8:], "float16", {**MODEL, "params_sha256": "bbb"}, "texts 2")
    with pytest.raises(InputError, match="several models"):
        embeddings.finish(folder, [str(i) for i in range(10)], "t")


def test_an_unfinished_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has not finished"):
        Embeddings.open(tmp_path)


def test_a_changed_shard_is_refused_when_it_is_first_read(written: tuple[Path, np.ndarray, list[str]]) -> None:
    folder, _, _ = written
    shard = np.load(folder / "00001.npy")
    np.save(folder / "00001.npy", shard[::-1])
    read = Embeddings.open(folder)
    assert read.rows(0, 4).shape == (4, 3) and read.take(np.array([9, 1])).shape == (2, 3)
    for touch in (lambda: read.rows(3, 5), lambda: read.take(np.array([0, 7])), read.whole):
        with pytest.raises(InputError, match=r"00001\.npy was changed after the vectors had been made"):
            touch()


@pytest.mark.parametrize("change", ["reversed", "gone", "not json", "not strings"])
def test_ids_are_compared_with_their_hash(written: tuple[Path, np.ndarray, list[str]], change: str) -> None:
    folder, _, ids = written
    path = folder / "ids.txt"
    path.unlink()
    if change == "reversed":
        embeddings.write_ids(path, ids[::-1])
    elif change != "gone":
        path.write_text("{\n" if change == "not json" else '"a"\n1\n')
    said = {"reversed": "was changed", "gone": "does not exist", "not json": "not a list of ids", "not strings": "ids.txt:2: not an id"}
    with pytest.raises(InputError, match=said[change]):
        Embeddings.open(folder)


@pytest.mark.parametrize("name", ["embeddings.json", "00000.json"])
@pytest.mark.parametrize("content", ["{}", "[]", "", '{"n": "x", "model": {}}'])
def test_facts_that_are_none_are_one_line(written: tuple[Path, np.ndarray, list[str]], name: str, content: str) -> None:
    folder, _, _ = written
    (folder / name).write_text(content)
    with pytest.raises(InputError, match=name):
        if name == "embeddings.json":
            Embeddings.open(folder)
        else:
            embeddings.shard_finished(folder, 0, MODEL, "texts 0", 4)


def test_a_shard_that_is_lost_or_cut_off_is_not_finished(written: tuple[Path, np.ndarray, list[str]]) -> None:
    folder, _, _ = written
    path = folder / "00000.npy"
    path.write_bytes(path.read_bytes()[:-2])
    assert not embeddings.shard_finished(folder, 0, MODEL, "texts 0", 4)
    path.unlink()
    assert not embeddings.shard_finished(folder, 0, MODEL, "texts 0", 4)
    with pytest.raises(InputError, match=r"00000\.npy cannot be read"):
        Embeddings.open(folder)

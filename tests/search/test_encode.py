import os
import signal
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_retriever import TEMPLATE, passages

from denseir_jax.core import artifacts, signals
from denseir_jax.core.errors import InputError, Stopped
from denseir_jax.data.records import Passage
from denseir_jax.search import shards
from denseir_jax.search.embeddings import Embeddings
from denseir_jax.search.encode import BatchEncoder, buckets, encode_queries, plan
from denseir_jax.search.retriever import Retriever, load_retriever


@pytest.fixture(scope="module")
def retriever(run_folder: Path) -> Retriever:
    return load_retriever(f"run:{run_folder}")


def fully_padded(retriever: Retriever, texts: list[str], length: int, side: str = "passage") -> np.ndarray:
    """The plain way: one batch, every row padded to the longest."""
    words, tower = retriever.tokenizer, getattr(retriever, side)
    rows = [[words.cls_id, *encoded.ids[: length - 2], words.sep_id] for encoded in words.encode_batch(texts)]
    ids = np.array([row + [words.pad_id] * (length - len(row)) for row in rows], np.int32)
    lengths = np.array([len(row) for row in rows], np.int32)
    return np.asarray(tower.embedder.embed(tower.params, jnp.asarray(ids), jnp.asarray(lengths)))


@pytest.mark.parametrize("batch_tokens", [64, 2048])
def test_bucketed_equals_full_padding_in_the_given_order(retriever: Retriever, batch_tokens: int) -> None:
    texts = [passage.text for passage in passages(100)]
    encoder = BatchEncoder(retriever.passage.embedder, retriever.tokenizer.special_ids, 40, batch_tokens)
    compiled = encoder._embed._cache_size()
    vectors = encoder.encode(retriever.passage.params, [encoded.ids for encoded in retriever.tokenizer.encode_batch(texts)])
    np.testing.assert_allclose(vectors, fully_padded(retriever, texts, 40), atol=1e-5)
    assert len(encoder.shapes) <= len(buckets(40)) == 3
    assert encoder._embed._cache_size() - compiled <= len(encoder.shapes)


def test_few_texts_and_none(retriever: Retriever) -> None:
    encoder = BatchEncoder(retriever.passage.embedder, retriever.tokenizer.special_ids, 40)
    assert encoder.encode(retriever.passage.params, []).shape == (0, 32)
    one = encoder.encode(retriever.passage.params, [np.zeros(0, np.int32)])
    np.testing.assert_allclose(one, fully_padded(retriever, [""], 2), atol=1e-5)
    assert encoder.shapes == {(jax.local_device_count(), 16)}


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(2, 200), max_size=120),
    st.sampled_from([16, 50, 200, 700]),
    st.sampled_from([100, 1000, 16384]),
    st.sampled_from([1, 8]),
)
def test_a_plan_holds_every_text_once_where_it_fits(lengths: list[int], longest: int, batch_tokens: int, multiple: int) -> None:
    real = np.minimum(np.array(lengths, np.int64), longest)
    batches = plan(real, longest, batch_tokens, multiple)
    rows = np.concatenate([batch.rows for batch in batches]) if batches else np.zeros(0)
    assert sorted(rows) == list(range(len(lengths)))
    for batch in batches:
        assert batch.size % multiple == 0 and 0 < len(batch.rows) <= batch.size and batch.length in buckets(longest)
        assert (real[batch.rows] <= batch.length).all()
    assert len({(batch.size, batch.length) for batch in batches}) <= len(buckets(longest))


def test_a_plan_wastes_little() -> None:
    lengths = np.clip(np.random.default_rng(0).lognormal(4, 0.5, 16384).astype(np.int64), 2, 128)
    computed = sum(batch.size * batch.length for batch in plan(lengths, 128, 16384, 1))
    assert computed < 1.25 * lengths.sum() < 0.75 * len(lengths) * 128


def test_queries_are_written_by_the_template(retriever: Retriever) -> None:
    vectors = encode_queries(retriever, {"a": "barn cest", "b": " ".join(["dimp"] * 50)})
    np.testing.assert_allclose(vectors, fully_padded(retriever, ["q: barn cest", "q: " + " ".join(["dimp"] * 50)], 16, "query"), atol=1e-5)


def encode(folder: Path, retriever: Retriever, texts: list[Passage], size: int = 16, dtype: str = "float32") -> Embeddings:
    chunks = shards.chunks_of_passages(texts, retriever, size)
    shards.encode_corpus(folder, retriever, chunks, len(texts), dtype, 1024)
    return Embeddings.open(folder)


def test_a_corpus_is_encoded_whole(retriever: Retriever, tmp_path: Path) -> None:
    texts = [*passages(70), Passage("titled", "cest", title="barn")]
    found = encode(tmp_path / "v", retriever, texts)
    assert found.ids == [passage.id for passage in texts] and len(found.facts["shards"]) == 5
    np.testing.assert_allclose(found.whole(), fully_padded(retriever, [TEMPLATE.passage(passage) for passage in texts], 40), atol=1e-5)
    half = encode(tmp_path / "h", retriever, texts, dtype="float16")
    np.testing.assert_allclose(half.whole(), found.whole(), atol=1e-3)


def test_several_processes_share_the_shards(retriever: Retriever, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = passages(70)
    met: list[int] = []
    monkeypatch.setattr(shards, "_meet", lambda processes, place: met.append(processes))
    monkeypatch.setattr(
        artifacts, "read_json", lambda path, real=artifacts.read_json: {"n": 0, "dimension": 0} if not path.exists() else real(path)
    )
    for process in (1, 2, 0):
        shards.encode_corpus(tmp_path, retriever, shards.chunks_of_passages(texts, retriever, 16), 70, "float32", 1024, process, 3)
    assert met == [3] * 6
    np.testing.assert_array_equal(Embeddings.open(tmp_path).whole(), encode(tmp_path / "one", retriever, texts).whole())


def test_a_signal_stops_between_shards_and_the_rest_goes_on(retriever: Retriever, tmp_path: Path) -> None:
    texts = passages(70)

    def interrupted() -> Iterator[Passage]:
        for number, passage in enumerate(texts):
            if number == 33:
                os.kill(os.getpid(), signal.SIGTERM)
            yield passage

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signals.listen()
    try:
        with pytest.raises(Stopped, match="finished shards are kept"):
            shards.encode_corpus(tmp_path / "v", retriever, shards.chunks_of_passages(interrupted(), retriever, 16), 70, "float32", 1024)
    finally:
        signals._received.clear()
        for number, handler in before.items():
            signal.signal(number, handler)
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "v").glob("*.npy")}
    assert sorted(kept) == ["00000.npy", "00001.npy"]
    with pytest.raises(InputError, match="has not finished"):
        Embeddings.open(tmp_path / "v")
    done = shards.encode_corpus(tmp_path / "v", retriever, shards.chunks_of_passages(texts, retriever, 16), 70, "float32", 1024)
    assert done["encoded"] == 70 - 32 and all((tmp_path / "v" / name).stat().st_mtime_ns == time for name, time in kept.items())
    np.testing.assert_array_equal(Embeddings.open(tmp_path / "v").whole(), encode(tmp_path / "whole", retriever, texts).whole())


def test_models_and_texts_are_never_mixed(retriever: Retriever, other_run_folder: Path, tmp_path: Path) -> None:
    texts = passages(40)
    encode(tmp_path / "v", retriever, texts)
    other = load_retriever(f"run:{other_run_folder}")
    with pytest.raises(InputError, match="refusing to mix models"):
        encode(tmp_path / "v", other, texts)
    with pytest.raises(InputError, match="made from other texts"):
        encode(tmp_path / "v", retriever, passages(40, seed=1))
    with pytest.raises(InputError, match=r"made by another model than this retriever \(params_sha256"):
        shards.open_for(tmp_path / "v", other)
    assert shards.open_for(tmp_path / "v", retriever).n == 40

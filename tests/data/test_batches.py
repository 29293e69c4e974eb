import time

import numpy as np
import pytest

from denseir_jax.core.errors import InputError
from denseir_jax.data.batches import MaskedTextRows, crop, frame, pack_row, random_of
from denseir_jax.data.tokens import TokenStore


@pytest.fixture(scope="module")
def store(make_store, texts):
    return make_store(texts)


def test_a_row_is_one_window_of_its_document(store):
    source = MaskedTextRows(store, 20, seed=1)
    rows = source.rows(np.arange(3 * source.n_items))
    assert {name: array.dtype.name for name, array in rows.items()} == dict.fromkeys(rows, "int32")
    special = store.special_ids
    for i in range(len(rows["index"])):
        ids, words = store.document(int(rows["document"][i]))
        length = int(rows["length"][i])
        row = rows["input_ids"][i].tolist()
        assert length == min(len(ids), 18) + 2
        assert row[0] == special.cls and row[length - 1] == special.sep and row[length:] == [special.pad] * (20 - length)
        inner = row[1 : length - 1]
        places = [s for s in range(len(ids) - length + 3) if ids[s : s + length - 2].tolist() == inner]
        assert places  # one contiguous window
        starts = [[1, *words[s + 1 : s + length - 2].astype(int)] for s in places]
        assert rows["word_start"][i, 1 : length - 1].tolist() in starts
        assert rows["word_start"][i, 0] == 0 and not rows["word_start"][i, length - 1 :].any()


def test_an_epoch_has_every_document_with_text_once(store, texts):
    source = MaskedTextRows(store, 20, seed=1)
    assert source.skipped == 1 and source.n_items == len(texts) - 1
    first = source.rows(np.arange(source.n_items))["document"]
    assert sorted(first.tolist()) == [row for row in range(len(texts)) if row != 7]
    assert source.names(np.array([0]))[0] == f"d{first[0]}"


def test_a_row_is_a_function_of_its_stream_index(store):
    source = MaskedTextRows(store, 20, seed=1)
    stream = np.arange(200)
    whole = source.rows(stream)
    shuffled = np.random.default_rng(0).permutation(stream)
    other = MaskedTextRows(TokenStore.open(store.folder), 20, seed=1).rows(shuffled)
    for name in whole:
        assert (whole[name][shuffled] == other[name]).all()
        assert (whole[name][13:14] == source.rows(np.array([13]))[name]).all()
    assert not all((whole[name] == MaskedTextRows(store, 20, seed=2).rows(stream)[name]).all() for name in whole)


def test_random_windows_reach_both_ends_evenly_and_the_head_stays(make_store):
    words = [chr(97 + i) * 2 for i in range(12)]
    store = make_store([" ".join(words)] * 2, vocab_size=100)
    ids = store.document(0)[0]
    assert len(set(ids.tolist())) == len(ids) == 12
    source = MaskedTextRows(store, 8, seed=0)
    first = source.rows(np.arange(7000))["input_ids"][:, 1]
    counts = np.array([(first == id).sum() for id in ids])
    assert (counts[7:] == 0).all() and np.abs(counts[:7] - 1000).max() < 160
    assert (MaskedTextRows(store, 8, seed=0, crop="head").rows(np.arange(20))["input_ids"][:, 1] == ids[0]).all()


def test_no_text_is_refused(make_store, store):
    empty = make_store([""], tokenizer=str(store.folder))
    with pytest.raises(InputError, match="no text to train on"):
        MaskedTextRows(empty, 20, seed=0)


def test_pack_row_and_frame_agree():
    rng = np.random.default_rng(0)
    ids = rng.integers(5, 50, (6, 7))
    lengths = np.array([0, 1, 7, 3, 6, 2])
    rows, real = frame(ids, lengths, 2, 3, 0)
    for i, length in enumerate(lengths):
        assert rows[i].tolist() == pack_row(ids[i, :length], 2, 3, 0, 9).tolist()
        assert real[i] == length + 2
    assert pack_row(np.arange(10, 30), 2, 3, 0, 6).tolist() == [2, 10, 11, 12, 13, 3]


def test_crop():
    ids, words = np.arange(10), np.array([1, 0] * 5, bool)
    head, starts = crop(ids, words, 4, "head")
    assert head.tolist() == [0, 1, 2, 3] and starts.tolist() == [True, False, True, False]
    seen = {int(crop(ids, words, 4, "random", random_of(3, i))[0][0]) for i in range(100)}
    assert seen == set(range(7))
    window, starts = next(c for c in (crop(ids, words, 4, "random", random_of(3, i)) for i in range(100)) if c[0][0] == 1)
    assert window.tolist() == [1, 2, 3, 4] and starts.tolist() == [True, True, False, True] and not words[1]
    assert crop(ids, words, 99, "random", random_of(0, 0))[0].tolist() == ids.tolist()


def test_random_of_is_a_function_of_seed_and_index():
    assert random_of(1, 2).integers(1 << 40) == random_of(1, 2).integers(1 << 40)
    assert len({int(random_of(seed, i).integers(1 << 40)) for seed in range(5) for i in range(5)}) == 25


def test_rows_are_made_faster_than_they_are_trained_on(make_store, texts):
    source = MaskedTextRows(make_store(texts * 5), 128, seed=0)
    source.rows(np.arange(256))
    begin = time.perf_counter()
    for start in range(0, 2560, 256):
        source.rows(np.arange(start, start + 256))
    rate = 2560 / (time.perf_counter() - begin)
    assert rate > 3_000  # some 50,000 a second on a free core

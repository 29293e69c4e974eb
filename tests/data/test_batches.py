import numpy as np
import pytest

from denseir_jax.core.errors import InputError
from denseir_jax.data.batches import MaskedTextRows, frame
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
    assert source.counts == {"rows": len(texts) - 1, "empty_pieces": 1} and source.n_items == len(texts) - 1
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


def test_frame_equals_a_plain_loop():
    ids = np.random.default_rng(0).integers(5, 50, (6, 7))
    lengths = np.array([0, 1, 7, 3, 6, 2])
    rows, real = frame(ids, lengths, 2, 3, 0)
    for i, length in enumerate(lengths):
        assert rows[i].tolist() == ([2, *ids[i, :length].tolist(), 3] + [0] * 9)[:9]
        assert real[i] == length + 2

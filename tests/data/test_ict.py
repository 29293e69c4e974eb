import itertools

import numpy as np
import pytest

from denseir_jax.core.errors import InputError
from denseir_jax.data.ict import IctRows


@pytest.fixture(scope="module")
def store(make_store, texts):
    return make_store(texts)


def parts(rows, i):
    """Query and passage of row i without their specials."""
    query = rows["query_ids"][i, 1 : rows["query_length"][i] - 1].tolist()
    return query, rows["passage_ids"][i, 1 : rows["passage_length"][i] - 1].tolist()


def document_of(store, source, rows, i):
    row = store.row_of[source.names(rows["index"][i : i + 1].astype(np.int64))[0]]
    assert store.content_ids[row] == rows["document"][i]
    return row


def test_framing_and_types(store):
    source = IctRows(store, 12, 40, seed=0)
    rows = source.rows(np.arange(100))
    assert {array.dtype.name for array in rows.values()} == {"int32"}
    special = store.special_ids
    for kind, width in (("query", 12), ("passage", 40)):
        ids, length = rows[f"{kind}_ids"], rows[f"{kind}_length"]
        assert ids.shape == (100, width) and (length >= 3).all() and (length <= width).all()
        assert (ids[:, 0] == special.cls).all() and (ids[np.arange(100), length - 1] == special.sep).all()
        assert (ids[np.arange(width) >= length[:, None]] == special.pad).all()


def test_sentence_mode_takes_one_whole_sentence_out_of_the_crop(store):
    source = IctRows(store, 12, 40, seed=0, keep_rate=0.3)
    rows = source.rows(np.arange(400))
    kept = 0
    for i in range(400):
        row = document_of(store, source, rows, i)
        ids, _, starts = store.piece(row)
        crop = ids[:38].tolist()
        bounds = [*np.flatnonzero(starts[:38]).tolist(), len(crop)]
        query, passage = parts(rows, i)
        sentences = [(a, b) for a, b in itertools.pairwise(bounds) if crop[a:b][:10] == query]
        assert sentences
        if rows["removed"][i]:
            assert any(crop[:a] + crop[b:] == passage for a, b in sentences)
        else:
            assert passage == crop
            kept += 1
    assert abs(kept / 400 - 0.3) < 0.08


def test_chunk_mode_takes_a_stretch_of_whole_words(store):
    source = IctRows(store, 12, 40, seed=0, unit="chunk", chunk_min=3, chunk_max=7, keep_rate=0.5)
    rows = source.rows(np.arange(400))
    aligned = 0
    for i in range(400):
        ids, words, _ = store.piece(document_of(store, source, rows, i))
        crop = ids[:38].tolist()
        borders = {0, len(crop), *np.flatnonzero(words[:38]).tolist()}
        query, passage = parts(rows, i)
        assert 3 <= len(query) <= 10
        ends = [(a, a + len(query)) for a in sorted(borders) if crop[a : a + len(query)] == query]
        if rows["removed"][i]:
            ends = [(a, b) for a, b in ends if crop[:a] + crop[b:] == passage]
            assert len(passage) >= 3
        else:
            assert passage == crop
        assert ends  # begins at a word's border, always
        aligned += any(b in borders for _, b in ends)
    assert aligned > 0.8 * 400


def test_keep_rate_bounds(store):
    assert IctRows(store, 12, 40, 0, keep_rate=0.0).rows(np.arange(50))["removed"].all()
    assert not IctRows(store, 12, 40, 0, keep_rate=1.0).rows(np.arange(50))["removed"].any()


def test_every_sentence_can_be_the_query(make_store):
    store = make_store(["Aa aa. Bb bb. Cc cc. Dd dd."], vocab_size=60)
    source = IctRows(store, 12, 40, seed=0)
    first = source.rows(np.arange(4000))["query_ids"][:, 1]
    values, counts = np.unique(first, return_counts=True)
    assert len(values) == 4 and np.abs(counts - 1000).max() < 150


@pytest.mark.parametrize("unit", ["sentence", "chunk"])
def test_short_pieces_are_left_out_and_counted(store, unit):
    source = IctRows(store, 12, 40, seed=0, unit=unit, chunk_min=10, chunk_max=10)
    enough = [
        (starts[:38].sum() >= 2) if unit == "sentence" else min(len(ids), 38) >= 20
        for ids, _, starts in (store.piece(row) for row in range(store.n_pieces))
    ]
    assert source.n_items == sum(enough) < len(enough)
    assert source.counts == {"rows": sum(enough), "too_short_pieces": len(enough) - sum(enough)}
    used = {store.row_of[name] for name in source.names(np.arange(source.n_items))}
    assert used == set(np.flatnonzero(enough).tolist())


@pytest.mark.parametrize("unit", ["sentence", "chunk"])
def test_a_row_is_a_function_of_its_stream_index(store, unit):
    source = IctRows(store, 12, 40, seed=5, unit=unit)
    whole = source.rows(np.arange(150))
    picked = np.array([149, 3, 77])
    other = IctRows(store, 12, 40, seed=5, unit=unit).rows(picked)
    assert all((whole[name][picked] == other[name]).all() for name in whole)
    changed = IctRows(store, 12, 40, seed=6, unit=unit).rows(np.arange(150))
    assert not (changed["query_ids"] == whole["query_ids"]).all()


def test_refusals(make_store, store):
    one = make_store(["Only one sentence here."], tokenizer=str(store.folder))
    with pytest.raises(InputError, match="two sentences"):
        IctRows(one, 12, 40, 0)
    with pytest.raises(ValueError, match="keep_rate"):
        IctRows(store, 12, 40, 0, keep_rate=1.5)
    with pytest.raises(ValueError, match="chunk_min"):
        IctRows(store, 12, 40, 0, unit="chunk", chunk_min=11, chunk_max=12)

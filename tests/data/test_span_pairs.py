"""Span pairs: both from one document, different, drawn anew every epoch, the same for every process."""

import numpy as np
import pytest

from denseir_jax.core.errors import InputError
from denseir_jax.data.batches import RowSource
from denseir_jax.data.span_pairs import SpanPairRows
from denseir_jax.data.tokens import TokenStore

LENGTH = 64  # no span is cropped


@pytest.fixture(scope="module")
def store(make_store, texts):
    return make_store(texts, split="spans", span_tokens=20, span_minimum=3, short_share=0.1)


def spans_of(store) -> dict[bytes, list[tuple[int, int]]]:
    """(document, place among the document's spans) of every span, by its tokens."""
    found: dict[bytes, list[tuple[int, int]]] = {}
    counts = np.zeros(store.n_documents, int)
    for number, document in enumerate(store.piece_document.tolist()):
        ids = store.piece(number)[0]
        if len(ids):
            found.setdefault(ids.astype(np.int32).tobytes(), []).append((document, int(counts[document])))
            counts[document] += 1
    return found


def places(store, rows) -> list[list[tuple[int, int, int]]]:
    """For every row the possible (document, place of the first span, place of the second)."""
    spans, out = spans_of(store), []
    for ids, length in zip(rows["input_ids"], rows["length"], strict=True):
        one, other = (spans[text[1 : n - 1].tobytes()] for text, n in zip(ids, length, strict=True))
        out.append([(d, a, b) for d, a in one for e, b in other if d == e])
    return out


def sizes(store) -> np.ndarray:
    real = store.pieces[:, 1] > store.pieces[:, 0]
    return np.bincount(store.piece_document[real], minlength=store.n_documents)


def test_a_row_is_two_different_spans_of_one_document(store):
    """T25; and documents of fewer than two spans give none, which is counted."""
    source = SpanPairRows(store, LENGTH, seed=1)
    assert isinstance(source, RowSource)
    rows = source.rows(np.arange(2 * source.n_items))
    k = 2 * source.n_items
    assert {name: (array.dtype.name, array.shape) for name, array in rows.items()} == {
        "input_ids": ("int32", (k, 2, LENGTH)),
        "word_start": ("int32", (k, 2, LENGTH)),
        "length": ("int32", (k, 2)),
        "index": ("int32", (k,)),
        "document": ("int32", (k,)),
    }
    several = np.flatnonzero(sizes(store) >= 2)
    assert 0 < len(several) < store.n_documents
    assert source.n_items == len(several) and source.counts == {"rows": len(several), "documents_without_a_pair": 60 - len(several)}
    for row, possible in enumerate(places(store, rows)):
        assert any(a != b for _, a, b in possible), "the same span twice"
        assert rows["document"][row] in store.content_ids[[d for d, _, _ in possible]]
        for text, n, words in zip(rows["input_ids"][row], rows["length"][row], rows["word_start"][row], strict=True):
            assert text[0] == store.special_ids.cls and text[n - 1] == store.special_ids.sep and not text[n:].any()
            assert words[1] == 1 and not words[0] and not words[n - 1 :].any()


def test_an_epoch_has_every_document_once_and_the_next_one_other_pairs(store):
    """T25: a new pair every epoch."""
    source = SpanPairRows(store, LENGTH, seed=1)
    n, names = source.n_items, []
    pairs: dict[str, set[bytes]] = {}
    for epoch in range(8):
        stream = np.arange(epoch * n, (epoch + 1) * n)
        names = source.names(stream)
        assert sorted(names) == sorted(store.ids[row] for row in np.flatnonzero(sizes(store) >= 2))
        for name, ids in zip(names, source.rows(stream)["input_ids"], strict=True):
            pairs.setdefault(name, set()).add(ids.tobytes())
    possible = {store.ids[row]: int(size) * (int(size) - 1) for row, size in enumerate(sizes(store)) if size >= 2}
    assert all(len(seen) <= possible[name] for name, seen in pairs.items())
    assert all(len(seen) > 2 for name, seen in pairs.items() if possible[name] >= 12)


def test_pairs_are_uniform_and_ordered_both_ways(make_store):
    """Of a document of 4 spans all 12 ordered pairs come equally often; nearby ones are the 6 of neighbours."""
    words = [chr(97 + i) * 2 for i in range(4)]
    store = make_store([" ".join(f"{word} {word}{word}." for word in words).title()] * 2, split="spans", span_tokens=4, span_minimum=1)
    spans = int(sizes(store)[0])
    assert spans >= 3
    for pairing, expected in (("random", spans * (spans - 1)), ("nearby", 2 * (spans - 1))):
        rows = SpanPairRows(store, LENGTH, seed=0, pairing=pairing).rows(np.arange(6000))
        found = [next((a, b) for d, a, b in possible if d == 0) for possible in places(store, rows)]
        pairs, counts = np.unique(found, axis=0, return_counts=True)
        steps = np.abs(pairs[:, 0] - pairs[:, 1])
        assert len(pairs) == expected and (steps > 0).all() and (pairing == "random" or (steps == 1).all())
        share = 6000 / expected
        assert np.abs(counts - share).max() < 5 * np.sqrt(share)


def test_a_document_that_comes_twice_is_known_as_one(make_store):
    text = "One two three four. Five six seven eight. Nine ten eleven twelve."
    store = make_store([text, "Other words are here now. And here are some more.", text], split="spans", span_tokens=8, span_minimum=1)
    rows = SpanPairRows(store, LENGTH, seed=0).rows(np.arange(30))
    assert set(rows["document"].tolist()) == {0, 1} and (rows["document"] == 0).sum() == 20


def test_a_row_is_a_function_of_its_stream_index(store):
    """T25: any process makes the same rows, in any order and in any batch; another seed other ones."""
    stream = np.arange(150)
    shuffled = np.random.default_rng(0).permutation(stream)
    whole = SpanPairRows(store, 12, seed=1).rows(stream)  # short enough to crop at random
    assert (whole["length"] == 12).any()
    other = SpanPairRows(TokenStore.open(store.folder), 12, seed=1)
    for name, rows in other.rows(shuffled).items():
        assert (rows == whole[name][shuffled]).all(), name
        assert (other.rows(np.array([13]))[name] == whole[name][13:14]).all(), name
    changed = SpanPairRows(store, 12, seed=2).rows(stream)
    assert (changed["input_ids"] != whole["input_ids"]).any((1, 2)).mean() > 0.5


def test_long_spans_are_cropped_each_at_its_own_place(make_store):
    """Two equal spans of one text are cropped at windows drawn apart, or both at their heads."""
    sentence = "".join(f"{chr(97 + i) * 2} " for i in range(12)).strip().capitalize() + ". "
    store = make_store([sentence * 2] * 2, split="spans", span_tokens=13, span_minimum=1, short_share=0.0, vocab_size=100)
    assert sizes(store).tolist() == [2, 2]
    rows = SpanPairRows(store, 8, seed=0).rows(np.arange(200))
    assert (rows["length"] == 8).all()
    apart = (rows["input_ids"][:, 0] != rows["input_ids"][:, 1]).any(1)
    assert 0.6 < apart.mean() < 1
    heads = SpanPairRows(store, 8, seed=0, crop="head").rows(np.arange(20))["input_ids"]
    assert (heads == heads[0, 0]).all()


def test_documents_of_one_span_each_are_refused(make_store, store):
    alone = make_store(["One two three.", "Four five."], tokenizer=str(store.folder), split="spans", span_tokens=80)
    with pytest.raises(InputError, match=r"none of 2 documents has two spans; prepare with split=spans and span_tokens well below"):
        SpanPairRows(alone, LENGTH, seed=0)
    empty = make_store(["", ""], tokenizer=str(store.folder), split="spans")
    with pytest.raises(InputError, match="none of 2 documents has two spans"):
        SpanPairRows(empty, LENGTH, seed=0)

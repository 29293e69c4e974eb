import json
import pickle
import shutil

import numpy as np
import pytest

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError
from denseir_jax.data import token_checks
from denseir_jax.data.sentences import split_sentences
from denseir_jax.data.token_merge import _Bits, token_dtype
from denseir_jax.data.token_parts import sentence_starts
from denseir_jax.data.tokens import FILES, TokenStore


@pytest.fixture(scope="module")
def blocks(make_store, texts):
    return make_store(texts, split="blocks", block_length=32, chunk=7)


def test_documents_are_what_the_tokenizer_gives(blocks, texts):
    tokenizer = blocks.tokenizer()
    assert blocks.n_documents == len(texts) and blocks.vocab_size == tokenizer.vocab_size
    for row, encoded in enumerate(tokenizer.encode_batch(texts)):
        ids, word_start = blocks.document(row)
        assert ids.dtype == np.int32 and ids.tolist() == encoded.ids.tolist()
        assert word_start.tolist() == encoded.word_start.tolist()
    assert blocks.ids == [f"d{i}" for i in range(len(texts))] and blocks.row_of["d5"] == 5


def test_pieces_partition_their_documents_into_whole_sentences(blocks):
    seen = {row: [] for row in range(blocks.n_documents)}
    for number in range(blocks.n_pieces):
        ids, word_start, sentence_start = blocks.piece(number)
        assert sentence_start[0] and word_start[0] and len(ids) == len(word_start) == len(sentence_start)
        assert len(ids) <= 30 or sentence_start.sum() == 1
        seen[int(blocks.piece_document[number])] += ids.tolist()
    assert all(ids == blocks.document(row)[0].tolist() for row, ids in seen.items())
    assert (blocks.pieces[:, 1] > blocks.pieces[:, 0]).all()  # the empty document has no block


def test_sentence_starts_lie_where_sentences_start(blocks, texts):
    tokenizer = blocks.tokenizer()
    for text in texts:
        encoded = tokenizer.encode(text)
        starts = sentence_starts(text, encoded)
        assert encoded.offsets[starts, 0].tolist() == split_sentences(text)


def test_a_token_with_a_leading_space_begins_the_sentence_after_it():
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers

    from denseir_jax.data.tokenizer import Tokenizer

    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    text = "One two.  Three four.。五六。七"
    inner.train_from_iterator([text] * 9, trainers.BpeTrainer(vocab_size=300, special_tokens=specials, show_progress=False))
    encoded = Tokenizer(inner).encode(text)
    starts = sentence_starts(text, encoded)
    assert [text[a:b].strip()[0] for a, b in encoded.offsets[starts]] == [text[s] for s in split_sentences(text)]


def test_none_keeps_one_piece_a_document(make_store, texts):
    store = make_store(texts)
    assert store.n_pieces == store.n_documents and (store.piece_document == np.arange(len(texts))).all()
    assert all(store.piece(row)[0].tolist() == store.document(row)[0].tolist() for row in range(store.n_documents))


def test_spans_and_their_counts(make_store, texts):
    store = make_store(texts, split="spans", span_tokens=20, span_minimum=5)
    manifest = artifacts.finished_run(store.folder)
    per_document = np.bincount(store.piece_document, minlength=store.n_documents)
    assert manifest["counts"]["documents_with_one_piece"] == (per_document < 2).sum()
    sizes = store.pieces[:, 1] - store.pieces[:, 0]
    assert (sizes[per_document[store.piece_document] > 1] >= 5).all()


def test_equal_texts_share_their_content_id(blocks):
    content = blocks.content_ids
    assert content.dtype == np.int32 and content[20] == 3 and content[3] == 3
    assert (np.delete(content, 20) == np.delete(np.arange(blocks.n_documents), 20)).all()


def test_a_window_is_the_tokens_one_by_one(blocks):
    rng = np.random.default_rng(1)
    starts = rng.integers(0, blocks.n_tokens - 40, 50)
    lengths = rng.integers(0, 40, 50)
    window = blocks.window(starts, lengths, 25)
    stream = np.concatenate([blocks.document(row)[0] for row in range(blocks.n_documents)])
    words = np.concatenate([blocks.document(row)[1] for row in range(blocks.n_documents)])
    for row, (start, length) in enumerate(zip(starts, np.minimum(lengths, 25), strict=True)):
        assert window.ids[row].tolist() == stream[start : start + length].tolist() + [0] * (25 - length)
        assert window.word_start[row].tolist() == words[start : start + length].tolist() + [False] * (25 - length)
    counts = blocks.sentence_counts(starts, lengths, 25)
    assert counts.tolist() == (window.sentence_start[:, 1:].sum(1) + (lengths > 0)).tolist()


def test_a_store_travels_by_its_path(blocks):
    sent = pickle.dumps(blocks)
    assert len(sent) < 500 and pickle.loads(sent).piece(3)[0].tolist() == blocks.piece(3)[0].tolist()


@pytest.mark.parametrize("sizes", [[0], [3], [8, 8], [5, 0, 9, 1, 30]])
def test_bits_go_on_over_the_borders_of_parts(tmp_path, sizes):
    values = np.random.default_rng(0).random(sum(sizes)) < 0.5
    bits = _Bits(tmp_path / "bits")
    for part in np.split(values, np.cumsum(sizes)[:-1]):
        bits.append(part)
    bits.close()
    packed = np.fromfile(tmp_path / "bits", np.uint8)
    assert packed.tolist() == np.packbits(values, bitorder="little").tolist()


def test_token_type_by_vocabulary():
    assert token_dtype(65536) == np.uint16 and token_dtype(65537) == np.uint32


def test_a_store_of_empty_documents_opens(make_store, blocks):
    store = make_store(["", " "], tokenizer=str(blocks.folder / "tokenizer"), split="blocks")
    assert (store.n_documents, store.n_pieces, store.n_tokens) == (2, 0, 0)
    assert store.document(1)[0].tolist() == [] and store.content_ids.tolist() == [0, 0]


def test_torn_and_foreign_folders_are_refused(blocks, tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        TokenStore.open(tmp_path / "nowhere")
    shutil.copytree(blocks.folder, tmp_path / "torn")
    tokens = tmp_path / "torn" / "tokens" / "tokens.bin"
    tokens.write_bytes(tokens.read_bytes()[:-2])
    with pytest.raises(InputError, match=r"tokens\.bin has"):
        TokenStore.open(tmp_path / "torn")
    (tmp_path / "torn" / "tokens" / "pieces.npy").write_bytes(b"no array")
    with pytest.raises(InputError, match=r"pieces\.npy"):
        TokenStore.open(tmp_path / "torn")
    shutil.copytree(blocks.folder, tmp_path / "mixed")
    content = json.loads((tmp_path / "mixed" / "tokenizer" / "tokenizer.json").read_text())
    content["normalizer"]["lowercase"] = False
    (tmp_path / "mixed" / "tokenizer" / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="not the tokenizer"):
        TokenStore.open(tmp_path / "mixed").tokenizer()


@pytest.fixture
def copied(blocks, tmp_path):
    """A copy of the store, to be damaged."""
    return shutil.copytree(blocks.folder, tmp_path / "copy") / "tokens"


def damage(path, dtype, change, header=0):
    """Change the numbers in a file, its size and header kept."""
    content = path.read_bytes()
    values = np.frombuffer(content[header:], dtype).copy()
    change(values)
    path.write_bytes(content[:header] + values.tobytes())


def changed(name, dtype, change):
    header = 128 if name.endswith(".npy") else 0
    return pytest.param(name, dtype, change, header)


@pytest.mark.parametrize(
    "name, dtype, change, header",
    [
        changed("tokens.bin", "<u2", lambda v: v.fill(60000)),
        changed("tokens.bin", "<u2", lambda v: v.__setitem__(slice(None), v[::-1].copy())),
        changed("tokens.bin", "<u2", lambda v: v.__setitem__(-1, v[-1] ^ 1)),
        changed("word_start.bin", "u1", lambda v: v.fill(0)),
        changed("sentence_start.bin", "u1", lambda v: v.fill(0)),
        changed("offsets.npy", "<i8", lambda v: v.__setitem__(3, v[2] - 1)),
        changed("offsets.npy", "<i8", lambda v: v.__setitem__(-1, v[-1] + 1)),
        changed("pieces.npy", "<i8", lambda v: v.__setitem__(1, 10**6)),
        changed("pieces.npy", "<i8", lambda v: v.__setitem__(0, -1)),
        changed("piece_document.npy", "<i8", lambda v: v.__setitem__(0, 10**6)),
        changed("content.npy", "<u8", lambda v: v.__setitem__(slice(None), v[::-1].copy())),
    ],
)
def test_a_changed_file_is_refused_when_the_store_is_opened(copied, name, dtype, change, header):
    damage(copied / name, dtype, change, header)
    with pytest.raises(InputError, match="it was changed: remove it and run prepare again"):
        TokenStore.open(copied.parent)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_one_line(copied, name):
    (copied / name).unlink()
    with pytest.raises(InputError, match=f"{name}"):
        assert TokenStore.open(copied.parent).ids


def test_a_token_beyond_the_vocabulary_is_refused_by_every_reader(copied, monkeypatch):
    monkeypatch.setattr(token_checks, "sampled_rows", lambda n: np.arange(0))  # the document is not in the sample
    damage(copied / "tokens.bin", "<u2", lambda v: v.__setitem__(5, 300))
    store = TokenStore.open(copied.parent)
    first = np.array([0])
    for read in (lambda: store.document(0), lambda: store.piece(0), lambda: store.window(first, np.array([9]), 9)):
        with pytest.raises(InputError, match=r"tokens\.bin holds the token 300; expected less than vocab_size"):
            read()
    assert store.window(first, np.array([5]), 5).ids.shape == (1, 5)


def test_ids_in_another_order_are_refused(copied):
    lines = (copied / "ids.txt").read_text().splitlines()
    for content in ("\n".join(reversed(lines)) + "\n", "no json\n"):
        (copied / "ids.txt").write_text(content)
        with pytest.raises(InputError, match=r"ids\.txt was changed"):
            assert TokenStore.open(copied.parent).row_of


def test_equal_content_that_was_changed_outside_the_sample_is_refused(copied, monkeypatch):
    monkeypatch.setattr(token_checks, "sampled_rows", lambda n: np.arange(0))
    damage(copied / "content.npy", "<u8", lambda v: v.__setitem__(1, v[0]), 128)
    with pytest.raises(InputError, match=r"content\.npy was changed"):
        assert TokenStore.open(copied.parent).content_ids.shape


@pytest.mark.parametrize("key, value", [("counts", {}), ("template", {"no": 1}), ("special_ids", {}), ("outputs", []), ("vocab_size", "8")])
def test_a_manifest_that_lacks_something_is_one_line(copied, key, value):
    path = copied.parent / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(InputError, match=r"manifest\.json (holds no usable|is not the manifest of a run)"):
        TokenStore.open(copied.parent)


def test_the_sample_of_a_large_store_has_both_ends():
    rows = token_checks.sampled_rows(10**7)
    assert rows[0] == 0 and rows[-1] == 10**7 - 1 and len(rows) > 200 and token_checks.sampled_rows(3).tolist() == [0, 1, 2]

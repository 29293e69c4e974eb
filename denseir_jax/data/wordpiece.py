"""Training a WordPiece vocabulary on a corpus, so that the same corpus always gives the same vocabulary."""

from collections import Counter
from collections.abc import Iterable, Iterator

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from denseir_jax.core.errors import InputError
from denseir_jax.data.tokenizer import SPECIALS, Tokenizer, wordpiece

_LONGEST = 100  # characters of a word; BERT's tokenizer makes longer ones [UNK]
_ALPHABET = 1000  # characters kept, most frequent first, as in BERT
_MOST_WORDS = 20_000_000  # distinct words held; beyond it those seen once are dropped, so memory stays bounded
_LINE = 1000  # copies of a word on one line of the trainer's input


def train_wordpiece(texts: Iterable[str], vocab_size: int, lowercase: bool = True, min_frequency: int = 2) -> Tokenizer:
    """Train BERT's tokenizer. The special tokens have ids 0 to 4: [PAD] [UNK] [CLS] [SEP] [MASK].

    The library's trainer numbers pieces in the order of a hash table and breaks ties by these numbers, so it gives another
    vocabulary at every run. Here words are counted first, and every piece of one character gets its number in sorted
    order; nothing is left to chance then.

    Args:
        texts: read once, in constant memory but for the counts of distinct words.
        vocab_size: at most; a small corpus gives fewer. min_frequency: of a pair of pieces to be merged.
    Raises:
        InputError: the texts hold no word, or the vocabulary size leaves no room for the characters.
    """
    words = _count_words(texts, lowercase)
    if not words:
        raise InputError("the tokenizer cannot be trained: the corpus holds no word")
    room = (vocab_size - len(SPECIALS)) // 3
    if room < 1:
        raise InputError(f"vocab_size is {vocab_size}; expected at least {len(SPECIALS) + 3}")
    alphabet = _alphabet(words, min(_ALPHABET, room))
    inside = {char for word in words for char in word[1:]} & set(alphabet)
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        show_progress=False,
        special_tokens=[*SPECIALS, *("##" + char for char in sorted(inside))],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
    )
    inner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.train_from_iterator(_lines(words), trainer)
    return wordpiece(inner.get_vocab(), lowercase)


def _count_words(texts: Iterable[str], lowercase: bool) -> Counter[str]:
    normalize = normalizers.BertNormalizer(lowercase=lowercase).normalize_str
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    words: Counter[str] = Counter()
    for text in texts:
        clean = text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
        words.update(word for word, _ in split(normalize(clean)) if len(word) <= _LONGEST)
        if len(words) > _MOST_WORDS:
            words = Counter({word: count for word, count in words.items() if count > 1})
    return words


def _alphabet(words: Counter[str], most: int) -> list[str]:
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for char in word:
            counts[char] += count
    return sorted(sorted(counts, key=lambda char: (-counts[char], char))[:most])


def _lines(words: Counter[str]) -> Iterator[str]:
    for word in sorted(words):
        for start in range(0, words[word], _LINE):
            yield " ".join([word] * min(_LINE, words[word] - start))

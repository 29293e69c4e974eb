"""From text to token ids, and where words start: one wrapper round `tokenizers`, whatever file the tokenizer came from."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from jaxtyping import Bool, Int
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError

FOLDER = "tokenizer"  # its place in a run folder
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ROLES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
_SURROGATE = re.compile("[\ud800-\udfff]")  # half a character: JSON escapes can hold one, UTF-8 cannot


@dataclass(frozen=True)
class SpecialIds:
    """Token ids with a role: padding, unknown, the first and last token of a row, and the mask."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


@dataclass(frozen=True)
class Encoded:
    """One text as tokens, without [CLS] and [SEP].

    Attributes:
        ids: int32. word_start: whether a word starts at this token. offsets: [start, end) in characters of the text.
    """

    ids: Int[np.ndarray, " t"]
    word_start: Bool[np.ndarray, " t"]
    offsets: Int[np.ndarray, "t 2"]


class Tokenizer:
    """A trained tokenizer with the five special tokens that an encoder needs.

    The name of a special token that stands in a text ("[SEP]") becomes that special id, as in `transformers`: a model
    that starts from published weights sees what its own tokenizer would have given. It counts as a word of its own.

    Attributes:
        vocab_size: one more than the largest id. special_ids, pad_id, unk_id, cls_id, sep_id, mask_id.

    Args:
        inner: taken over; truncation and padding are switched off, and [CLS] text [SEP] becomes its template if it had none.
        origin: named in errors.
    Raises:
        InputError: a special token is missing (known names: [CLS] or <s>, [SEP] or </s>, [PAD], [MASK], [UNK] and <...>).
    """

    def __init__(self, inner: tokenizers.Tokenizer, origin: str = "tokenizer"):
        inner.no_truncation()
        inner.no_padding()
        self.special_ids = ids = SpecialIds(**{role: _find(inner, names, origin) for role, names in _ROLES.items()})
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = ids.pad, ids.unk, ids.cls, ids.sep, ids.mask
        self.vocab_size = 1 + max(inner.get_vocab(with_added_tokens=True).values())
        self._inner = inner
        self._frame()

    def _frame(self) -> None:
        framed = self._inner.encode("a").ids
        if framed[:1] == [self.cls_id] and framed[-1:] == [self.sep_id]:
            return
        cls, sep = self._inner.id_to_token(self.cls_id), self._inner.id_to_token(self.sep_id)
        self._inner.post_processor = processors.TemplateProcessing(
            single=f"{cls} $A {sep}", pair=f"{cls} $A {sep} $B:1 {sep}:1", special_tokens=[(cls, self.cls_id), (sep, self.sep_id)]
        )

    @cached_property
    def sha256(self) -> str:
        """Hash of all that decides the ids, whatever kind of file it was loaded from."""
        return artifacts.json_sha256(json.loads(self._inner.to_str()))

    def tokens(self, ids: Iterable[Any]) -> list[str]:
        """The tokens as they stand in the vocabulary."""
        return [self._inner.id_to_token(int(id)) or "" for id in ids]

    def encode_batch(self, texts: Sequence[str]) -> list[Encoded]:
        """Encode whole texts: nothing is cropped, no special token is added. Any string will do."""
        clean = [text if text.isascii() else _SURROGATE.sub("\ufffd", text) for text in texts]
        return [self._encoded(text, encoding) for text, encoding in zip(clean, self._inner.encode_batch(clean, False, False), strict=True)]

    def encode(self, text: str) -> Encoded:
        """As `encode_batch`, for one text."""
        return self.encode_batch([text])[0]

    def _encoded(self, text: str, encoding: Any) -> Encoded:
        ids = np.array(encoding.ids, np.int32)
        offsets = np.fromiter(chain.from_iterable(encoding.offsets), np.int64, 2 * len(ids)).reshape(-1, 2)
        if self._inner.pre_tokenizer is None:
            return Encoded(ids, _starts_by_space(text, offsets), offsets)
        words = np.fromiter((-1 if word is None else word for word in encoding.word_ids), np.int64, len(ids))
        starts = np.ones(len(ids), bool)
        starts[1:] = words[1:] != words[:-1]
        return Encoded(ids, starts, offsets)

    def save(self, folder: Path, max_length: int | None = None) -> None:
        """Write the files from which `load_tokenizer` and `transformers.AutoTokenizer` give the same ids again."""
        names = {f"{role}_token": self._inner.id_to_token(id) for role, id in vars(self.special_ids).items()}
        # The class that takes tokenizer.json as it is; BertTokenizer would rebuild the normaliser from options of its own.
        config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
        config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
        if max_length is not None:
            config["model_max_length"] = max_length
        artifacts.write_text(folder / "tokenizer.json", self._inner.to_str(pretty=True) + "\n")
        artifacts.write_json(folder / "tokenizer_config.json", config)
        artifacts.write_json(folder / "special_tokens_map.json", names)
        if isinstance(self._inner.model, models.WordPiece):
            artifacts.write_text(folder / "vocab.txt", "".join(f"{token}\n" for token in self.tokens(range(self.vocab_size))))


def _starts_by_space(text: str, offsets: Int[np.ndarray, "t 2"]) -> Bool[np.ndarray, " t"]:
    """Word starts where the tokenizer has no pre-tokenizer and so no words: a token that begins with, or follows, white space."""
    before = [start == 0 or text[start - 1].isspace() or text[start : start + 1].isspace() for start in offsets[:, 0].tolist()]
    starts = np.array(before, bool)
    starts[:1] = True
    return starts


def _find(inner: tokenizers.Tokenizer, names: Sequence[str], origin: str) -> int:
    for name in names:
        id = inner.token_to_id(name)
        if id is not None:
            return int(id)
    raise InputError(f"{origin} has no special token {names[0]}; expected {' or '.join(names)} in its vocabulary")


def wordpiece(
    vocab: dict[str, int], lowercase: bool, strip_accents: bool | None = None, chinese: bool = True, origin: str = "vocabulary"
) -> Tokenizer:
    """BERT's tokenizer over a vocabulary: its normaliser, its pre-tokeniser, greedy longest pieces marked by "##"."""
    inner = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    inner.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=chinese, strip_accents=strip_accents, lowercase=lowercase
    )
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece(prefix="##")
    inner.add_special_tokens([token for token in SPECIALS if token in vocab])
    return Tokenizer(inner, origin)


def load_tokenizer(path: str | Path, lowercase: bool = True) -> Tokenizer:
    """Load a ``vocab.txt``, a ``tokenizer.json``, a Hugging Face folder, or a run folder that holds ``tokenizer/``.

    The two folders may also be written ``hf:DIR`` and ``run:DIR``, as where a model is named.

    Args:
        path: of a folder, ``tokenizer.json`` is preferred to ``vocab.txt`` (BERT) or ``vocab.json`` and ``merges.txt`` (RoBERTa)
            with ``tokenizer_config.json``.
        lowercase: for a bare ``vocab.txt``, which does not say it.
    Raises:
        InputError: nothing of the kind is there, it cannot be read, or a special token is missing.
    """
    path = Path(re.sub("^(hf|run):", "", str(path)))
    if path.is_dir():
        if (path / "tokenizer.json").exists():
            return _load_json(path / "tokenizer.json")
        if (path / "vocab.txt").exists():
            return _load_vocab_folder(path, lowercase)
        if (path / "vocab.json").exists() and (path / "merges.txt").exists():
            return _load_bpe_folder(path)
        if (path / FOLDER).is_dir():
            return load_tokenizer(path / FOLDER, lowercase)
        raise InputError(f"{path} holds no tokenizer; expected tokenizer.json, vocab.txt, vocab.json with merges.txt, or {FOLDER}/ in it")
    if not path.exists():
        raise InputError(f"tokenizer {path} does not exist; expected vocab.txt, tokenizer.json, or a folder that holds one")
    return _load_json(path) if path.suffix == ".json" else wordpiece(_read_vocab(path), lowercase, origin=str(path))


def _load_json(path: Path) -> Tokenizer:
    try:
        inner = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower class
        raise InputError(f"{path} cannot be read as a tokenizer.json: {error}") from None
    return Tokenizer(inner, str(path))


def _load_vocab_folder(folder: Path, lowercase: bool) -> Tokenizer:
    config = _config_of(folder)
    return wordpiece(
        _read_vocab(folder / "vocab.txt"),
        config.get("do_lower_case", lowercase),
        config.get("strip_accents"),
        config.get("tokenize_chinese_chars", True),
        origin=str(folder),
    )


def _load_bpe_folder(folder: Path) -> Tokenizer:
    """RoBERTa's tokenizer: byte-level BPE, in which a word's first token holds the blank before it."""
    try:
        inner = tokenizers.Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    except Exception as error:  # the library raises no narrower class
        raise InputError(f"{folder}: vocab.json and merges.txt cannot be read as byte-level BPE: {error}") from None
    sep, cls = ((names[1], _find(inner, names[1:], str(folder))) for names in (_ROLES["sep"], _ROLES["cls"]))
    prefix = bool(_config_of(folder).get("add_prefix_space", False))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=prefix), decoders.ByteLevel()
    inner.post_processor = processors.RobertaProcessing(sep, cls, trim_offsets=True, add_prefix_space=prefix)
    specials = [name for _, name in _ROLES.values() if inner.token_to_id(name) is not None]
    inner.add_special_tokens([tokenizers.AddedToken(name, lstrip=name == "<mask>") for name in specials])
    return Tokenizer(inner, str(folder))


def _config_of(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    config: dict[str, Any] = artifacts.read_json(path) if path.exists() else {}
    return config


def _read_vocab(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (UnicodeDecodeError, OSError) as error:
        raise InputError(f"{path} cannot be read as a vocabulary: {error}") from None
    vocab: dict[str, int] = {}
    for number, line in enumerate(lines[:-1] if lines[-1] == "" else lines, start=1):
        token = line.removesuffix("\r")
        if token in vocab:
            raise InputError(f"{path}:{number}: token {token!r} was on line {vocab[token] + 1} already; expected one line a token")
        vocab[token] = number - 1
    return vocab

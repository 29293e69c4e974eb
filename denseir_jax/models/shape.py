"""The sizes of an encoder, and what a tree of parameters is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from denseir_jax.core.errors import InputError

Params = Mapping[str, Any]


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes and compute of the encoder.

    Attributes:
        vocab_size: tokens; the tables are padded inside to a multiple of 128. types: token types.
        eps: of every LayerNorm. dropout, attention_dropout: used only where row keys are given.
        dtype: of matrix product inputs; parameters, sums, LayerNorm, softmax and residuals stay in float32.
        scan: compile one layer and loop over it. remat: compute a layer again in the backward pass instead of keeping it.
        tied_output: the MLM head's output table is the word embedding table.
        position_offset: number of the first token's position; RoBERTa's is one more than the padding token's id, others' 0.
            The table has so many rows more than `max_length`.
        embedding: width of the embedding tables where it is stated, as in ELECTRA, whose embeddings are projected to `hidden`
            if theirs is another; 0: `hidden`.
    """

    vocab_size: int
    hidden: int = 256
    layers: int = 2
    heads: int = 4
    intermediate: int = 1024
    max_length: int = 512
    types: int = 2
    eps: float = 1e-12
    dropout: float = 0.1
    attention_dropout: float = 0.1
    dtype: Literal["float32", "bfloat16"] = "float32"
    scan: bool = False
    remat: bool = False
    init_std: float = 0.02
    tied_output: bool = True
    position_offset: int = 0
    embedding: int = 0

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden", "heads", "intermediate", "max_length", "types"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
        if self.layers < 0:
            raise ValueError(f"layers is {self.layers}; expected 0 (embeddings only) or more")
        if self.hidden % self.heads:
            raise ValueError(f"hidden {self.hidden} does not divide into {self.heads} heads")
        if self.eps <= 0 or self.init_std < 0:
            raise ValueError(f"eps={self.eps} must be positive, init_std={self.init_std} not negative")
        if self.position_offset < 0 or self.embedding < 0:
            raise ValueError(f"position_offset={self.position_offset}, embedding={self.embedding}; expected 0 or more")
        if self.position_offset and self.embedding:
            raise ValueError(
                f"position_offset={self.position_offset} is RoBERTa's, embedding={self.embedding} ELECTRA's; no architecture has both"
            )
        for name in ("dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected a rate in [0, 1)")

    @property
    def architecture(self) -> Literal["bert", "roberta", "electra"]:
        """Whose encoder this is, as Hugging Face calls it."""
        return "roberta" if self.position_offset else "electra" if self.embedding else "bert"

    @property
    def width(self) -> int:
        """Columns of the embedding tables."""
        return self.embedding or self.hidden

    def check_pad_id(self, pad_id: int) -> None:
        """See that positions are numbered as RoBERTa numbers them with this padding token.

        Raises:
            InputError: they are not; a folder written so would give other vectors elsewhere.
        """
        if self.position_offset not in (0, pad_id + 1):
            raise InputError(
                f"the tokenizer's padding token has the id {pad_id}, the encoder numbers positions from {self.position_offset}; "
                "expected the id + 1 (RoBERTa), or 0 (BERT)"
            )


def padded_vocab(vocab_size: int) -> int:
    """Rows of the vocabulary tables: the next multiple of 128. No loss and no draw may see the rows beyond the vocabulary."""
    return -(-vocab_size // 128) * 128

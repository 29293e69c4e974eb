"""How a query or a passage becomes the text that is encoded. Kept with every checkpoint and enforced wherever it is used."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from denseir_jax.core.config import later
from denseir_jax.data.records import Passage

_MOST_BLOCKS = 1 << 10


@dataclass(frozen=True)
class TextTemplate:
    """Prefixes, title and lengths.

    Attributes:
        query_prefix, passage_prefix: put before every text, with their own trailing space if one is wanted.
        use_title: whether a passage's title is part of its text. title_join: what stands between title and text.
        query_length, passage_length: most tokens, [CLS] and [SEP] included; of a passage those of one block.
        blocks: of a passage, at most: its score is that of its best block (MaxP; Dai & Callan 2019), each block with a [CLS] and
            a [SEP] of its own. 1: the first `passage_length` tokens alone (FirstP).
        stride: tokens of text from one block's start to the next one's; 0: a block begins where the last one ended. More than a
            block holds leaves the text between two blocks unread.
    """

    query_prefix: str = ""
    passage_prefix: str = ""
    title_join: str = " "
    use_title: bool = True
    query_length: int = 32
    passage_length: int = 128
    blocks: int = later(1)
    stride: int = later(0)

    def __post_init__(self) -> None:
        for name in ("query_length", "passage_length"):
            if not 3 <= getattr(self, name) <= 1 << 20:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 3 ([CLS], one token, [SEP]) to {1 << 20}")
        if not 1 <= self.blocks <= _MOST_BLOCKS:
            raise ValueError(f"blocks is {self.blocks}; expected 1 to {_MOST_BLOCKS}")
        if not 0 <= self.stride <= 1 << 20 or (self.stride and self.blocks == 1):
            raise ValueError(f"stride is {self.stride}, blocks {self.blocks}; expected 0, or 1 to {1 << 20} and more than one block")

    def passage(self, passage: Passage) -> str:
        """The text of a passage: prefix, then title (if used and there is one) and text joined."""
        parts = (passage.title if self.use_title else "", passage.text)
        return self.passage_prefix + self.title_join.join(part for part in parts if part)

    def query(self, text: str) -> str:
        """The text of a query."""
        return self.query_prefix + text

    @property
    def facts(self) -> dict[str, Any]:
        """The template for manifests; blocks are named only where there may be several, so that older files stay what they are."""
        found = dataclasses.asdict(self)
        return found if self.blocks > 1 else {name: value for name, value in found.items() if name not in ("blocks", "stride")}

    @property
    def room(self) -> int:
        """Tokens of text in a block."""
        return self.passage_length - 2

    @property
    def reach(self) -> int:
        """Tokens of a passage that its blocks come to at most; what lies behind them is not read."""
        return (self.blocks - 1) * (self.stride or self.room) + self.room

    def blocks_in(self, lengths: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """How many blocks passages of so many tokens have: 1 to `blocks`.

        None begins behind the passage's end, and none holds only tokens that an earlier one has. An empty passage has an empty one.
        """
        step = self.stride or self.room
        return np.minimum(1 - np.minimum(max(self.room, step) - lengths, 0) // step, self.blocks)

    def windows(self, lengths: Int[np.ndarray, " n"]) -> tuple[Int[np.ndarray, "n b"], Int[np.ndarray, "n b"]]:
        """Where the blocks of passages of so many tokens begin, and how many tokens they hold, -1 where there is none: [n, blocks]."""
        number = np.arange(self.blocks)
        starts = np.broadcast_to(number * (self.stride or self.room), (len(lengths), self.blocks))
        held = np.minimum(lengths[:, None] - starts, self.room)
        return starts, np.where(number < self.blocks_in(lengths)[:, None], held, -1)

    def cut(self, texts: Sequence[Int[np.ndarray, " _"]]) -> tuple[list[Int[np.ndarray, " _"]], Int[np.ndarray, " n"]]:
        """Blocks of tokenised passages, without special tokens: all of the first passage, then all of the second; how many of each."""
        step, number = self.stride or self.room, self.blocks_in(np.array([len(text) for text in texts], np.int64))
        cuts = zip(texts, number.tolist(), strict=True)
        return [text[i * step : i * step + self.room] for text, blocks in cuts for i in range(blocks)], number

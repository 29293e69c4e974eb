"""Cutting a document into training pieces made of whole sentences: blocks for masked language models, spans for pairs.

Both rules see only the sentences' lengths in tokens. A piece is a range of sentences; pieces follow one another and leave
nothing out. A single sentence longer than its piece's target is not cut here: it is cropped, once, when a batch is made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from denseir_jax.data import hashing


def pack_sentences(
    lengths: Sequence[int], target: int, short_share: float, seed: int, document: int, minimum: int = 1, overshoot: bool = False
) -> list[tuple[int, int]]:
    """Pack sentences greedily: a piece is closed BEFORE the sentence that would carry it over its target (Condenser).

    With probability `short_share` a piece's own target is uniform in [minimum, target]. That draw is a function of (seed,
    document, number of the piece), so it depends neither on the other documents nor on who packs them.

    Args:
        lengths: tokens of each sentence, in order. target: tokens a piece is filled up to.
        document: row of the document in the corpus.
        minimum: tokens below which a piece is not closed, even if the next sentence carries it over the target; a last
            piece with fewer joins the one before it. 1 leaves the plain rule.
        overshoot: close a piece only AFTER the sentence that carries it to its target or beyond (RetroMAE), whose end the
            crop then cuts.
    Returns:
        (first sentence, one after the last) of each piece.
    """
    goals = _goals(len(lengths), target, short_share, minimum, seed, document)
    pieces: list[tuple[int, int]] = []
    first = filled = 0
    for number, length in enumerate(lengths):
        full = filled >= goals[len(pieces)] if overshoot else filled + length > goals[len(pieces)]
        if number > first and filled >= minimum and full:
            pieces.append((first, number))
            first, filled = number, 0
        filled += length
    if first < len(lengths):
        if filled < minimum and pieces:
            first = pieces.pop()[0]
        pieces.append((first, len(lengths)))
    return pieces


@dataclass(frozen=True)
class SplitRule:
    """How documents become pieces.

    Attributes:
        split: "none": a document is one piece, empty or not. "blocks": Condenser's blocks, `pack_sentences` filled up to
            block length - 2, the room that [CLS] and [SEP] leave. "spans": coCondenser's spans of about `target` tokens,
            none below `minimum` unless the document is; a document with fewer than two makes no pair.
        target, minimum, short_share, seed, overshoot: see `pack_sentences`.
    """

    split: Literal["none", "blocks", "spans"]
    target: int = 0
    minimum: int = 1
    short_share: float = 0.1
    seed: int = 0
    overshoot: bool = False

    def cut(self, lengths: Sequence[int], document: int) -> list[tuple[int, int]]:
        """(first sentence, one after the last) of each piece of a document whose sentences have these lengths."""
        if self.split == "none":
            return [(0, len(lengths))]
        return pack_sentences(lengths, self.target, self.short_share, self.seed, document, self.minimum, self.overshoot)


def _goals(pieces: int, target: int, short_share: float, minimum: int, seed: int, document: int) -> list[int]:
    """The targets of a document's first pieces."""
    if not short_share or pieces == 1:  # a single sentence is a piece whatever its target
        return [target] * pieces
    draws = hashing.uniform(seed, "pieces", document, np.arange(pieces)[:, None], np.arange(2))
    short = minimum + hashing.below(draws[:, 1], max(1, target - minimum + 1))
    goals: list[int] = np.where(draws[:, 0] < short_share, short, target).tolist()
    return goals

"""Rows of training batches. A row is a function of its stream index alone, so any process can make any row at any time."""

from typing import Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

from denseir_jax.core.errors import InputError
from denseir_jax.data import hashing
from denseir_jax.data.order import SeededOrder
from denseir_jax.data.tokens import TokenStore

Crop = Literal["random", "head"]


@runtime_checkable
class RowSource(Protocol):
    """Where a training run's rows come from.

    Attributes:
        n_items: rows of one epoch. counts: what was left out or filled, by cause; for the manifest.
    """

    n_items: int
    counts: dict[str, int]

    def rows(self, stream: Int[np.ndarray, " k"]) -> dict[str, np.ndarray]:
        """The rows at these (global) stream indices: int32 arrays with leading dimension k."""
        ...

    def names(self, stream: Int[np.ndarray, " k"]) -> list[str]:
        """What a person calls the rows at these stream indices: ids of documents or queries, for messages."""
        ...


@runtime_checkable
class ChangingRows(RowSource, Protocol):
    """Rows that change while training goes on. They are asked in between how long they stay as they are; every process asks."""

    def settle(self, step: int) -> int:
        """Fix the rows of the steps from `step` (0-based) on; returns the first step at which this must be asked again."""
        ...

    def facts(self, step: int) -> dict[str, float]:
        """For the log line after `step` steps; ``pace`` among them is what the learning rate was multiplied by."""
        ...


def frame(
    ids: Int[np.ndarray, "k w"], lengths: Int[np.ndarray, " k"], cls_id: int, sep_id: int, pad_id: int
) -> tuple[Int[np.ndarray, "k w+2"], Int[np.ndarray, " k"]]:
    """[CLS] ids [SEP] and padding: int32 [k, w + 2], and real tokens int32 [k]. Of row i the first `lengths[i]` ids count."""
    k, width = ids.shape
    rows = np.full((k, width + 2), pad_id, np.int32)
    rows[:, 1:-1] = np.where(np.arange(width) < lengths[:, None], ids, pad_id)
    rows[:, 0] = cls_id
    rows[np.arange(k), lengths + 1] = sep_id
    return rows, (lengths + 2).astype(np.int32)


def cropped(
    store: TokenStore, pieces: Int[np.ndarray, " k"], length: int, crop: Crop, seed: int, draw: Int[np.ndarray, " k"]
) -> dict[str, np.ndarray]:
    """Pieces of the store as rows of `length` tokens: int32 ``input_ids`` [k, L], ``length`` [k], ``word_start`` [k, L].

    A piece longer than `length` - 2 tokens is cropped once: to a window at a random offset, drawn by (seed, `draw`), or at
    its head. ``length`` counts [CLS] and [SEP]; ``word_start`` is 1 where a maskable word starts.
    """
    starts, ends = store.pieces[pieces].T
    room, lengths = length - 2, ends - starts
    if crop == "random":
        over = np.maximum(lengths - room, 0)
        starts = starts + hashing.below(hashing.uniform(seed, "crop", draw), over + 1)
    lengths = np.minimum(lengths, room)
    window = store.window(starts, lengths, room)
    ids = store.special_ids
    rows, real = frame(window.ids, lengths, ids.cls, ids.sep, ids.pad)
    words = np.zeros_like(rows)
    words[:, 1:-1] = window.word_start
    words[:, 1] = 1
    return {"input_ids": rows, "length": real, "word_start": words}


class MaskedTextRows:
    """Pieces of the store as rows for objectives over masked text (the masks are drawn on the device).

    Empty pieces are left out of the order and counted.

    Args:
        length: tokens of a row, [CLS] and [SEP] included. crop: see `cropped`.
    Raises:
        InputError: the store holds no token.
    """

    def __init__(self, store: TokenStore, length: int, seed: int, crop: Crop = "random"):
        self.store, self.length, self.seed, self.crop = store, length, seed, crop
        self._pieces = np.flatnonzero(store.pieces[:, 1] > store.pieces[:, 0])
        self.n_items = len(self._pieces)
        self.counts = {"rows": self.n_items, "empty_pieces": store.n_pieces - self.n_items}
        if not self.n_items:
            raise InputError(f"{store.folder} holds no text to train on: all {store.n_documents} documents are empty")
        self._order = SeededOrder(self.n_items, seed)

    def rows(self, stream: Int[np.ndarray, " k"]) -> dict[str, np.ndarray]:
        """The fields of `cropped`, and int32 ``index`` [k], the stream index; ``document`` [k], the row in the corpus."""
        pieces = self._pieces[self._order.items(stream)]
        rows = cropped(self.store, pieces, self.length, self.crop, self.seed, stream)
        return rows | {"index": stream.astype(np.int32), "document": self.store.piece_document[pieces].astype(np.int32)}

    def names(self, stream: Int[np.ndarray, " k"]) -> list[str]:
        """Ids of the documents that the rows at these stream indices come from."""
        return self.store.names_of(self._pieces[self._order.items(stream)])

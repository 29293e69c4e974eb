"""Two spans of one document a row: what span-contrastive objectives learn from."""

from typing import Literal

import numpy as np
from jaxtyping import Int

from denseir_jax.core.errors import InputError
from denseir_jax.data import hashing
from denseir_jax.data.batches import Crop, cropped
from denseir_jax.data.order import SeededOrder
from denseir_jax.data.tokens import TokenStore

Pairing = Literal["random", "nearby"]


class SpanPairRows:
    """Pairs of spans (pieces of the store, prepared with split="spans") of one document; a new pair every epoch.

    Documents with fewer than two spans that hold text are left out and counted. Each span is cropped as `MaskedTextRows` does.

    Attributes:
        n_items, counts: see `batches.RowSource`.
    Args:
        length: tokens of a span, [CLS] and [SEP] included. pairing: "random": two different spans, uniformly, in either order
            (coCondenser); "nearby": two that follow one another, in either order (one of CoT-MAE's kinds).
    Raises:
        InputError: no document has two spans.
    """

    def __init__(self, store: TokenStore, length: int, seed: int, crop: Crop = "random", pairing: Pairing = "random"):
        self.store, self.length, self.seed, self.crop, self.pairing = store, length, seed, crop, pairing
        pieces = np.flatnonzero(store.pieces[:, 1] > store.pieces[:, 0])
        document = store.piece_document[pieces]
        first = np.flatnonzero(np.r_[True, document[1:] != document[:-1]])[: len(pieces)]  # pieces follow their documents' order
        size = np.diff(np.r_[first, len(pieces)])
        several = size >= 2
        self._pieces, self._first, self._size = pieces, first[several], size[several]
        self.n_items = len(self._first)
        self.counts = {"rows": self.n_items, "documents_without_a_pair": store.n_documents - self.n_items}
        if not self.n_items:
            raise InputError(
                f"{store.folder}: none of {store.n_documents} documents has two spans; prepare with split=spans and "
                "span_tokens well below a document's length"
            )
        self._order = SeededOrder(self.n_items, seed)

    @property
    def distinct_documents(self) -> int:
        """Documents with different texts."""
        return len(np.unique(self.store.texts_of(self._pieces[self._first])))

    def rows(self, stream: Int[np.ndarray, " k"]) -> dict[str, np.ndarray]:
        """Fields, all int32: ``input_ids`` and ``word_start`` [k, 2, L], ``length`` [k, 2], ``index`` [k], the stream index,
        ``document`` [k], the row of the first document with the same text, so that duplicates can be told."""
        items = self._order.items(stream)
        draws = hashing.uniform(self.seed, "pair", stream[:, None], np.arange(3))
        size = self._size[items]
        if self.pairing == "random":
            one = hashing.below(draws[:, 0], size)
            other = (one + 1 + hashing.below(draws[:, 1], size - 1)) % size
        else:
            one = hashing.below(draws[:, 0], size - 1)
            other = one + 1
            one, other = np.where(draws[:, 1] < 0.5, one, other), np.where(draws[:, 1] < 0.5, other, one)
        pieces = self._pieces[self._first[items][:, None] + np.stack([one, other], axis=1)]
        texts = cropped(self.store, pieces.reshape(-1), self.length, self.crop, self.seed, (stream[:, None] * 2 + np.arange(2)).reshape(-1))
        rows = {name: value.reshape(len(stream), 2, *value.shape[1:]) for name, value in texts.items()}
        return rows | {"index": stream.astype(np.int32), "document": self.store.texts_of(pieces[:, 0])}

    def names(self, stream: Int[np.ndarray, " k"]) -> list[str]:
        """Ids of the documents that the rows at these stream indices come from."""
        return self.store.names_of(self._pieces[self._first[self._order.items(stream)]])

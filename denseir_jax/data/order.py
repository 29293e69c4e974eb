"""The order of training: one endless stream of positions over shuffled epochs, read at random, the same for everybody."""

import numpy as np
from jaxtyping import Int

from denseir_jax.data import hashing

_KEPT = 2  # epochs whose permutation stays in memory: a batch can lie across the border of two


class SeededOrder:
    """Position p of the stream is item (p mod n) of epoch (p div n)'s own permutation.

    Args:
        n: number of items. seed: decides every permutation, epoch by epoch, independently of one another.
    Raises:
        ValueError: no items.
    """

    def __init__(self, n: int, seed: int):
        if n < 1:
            raise ValueError(f"an order needs at least one item, not {n}")
        self.n, self.seed = n, seed
        self._permutations: dict[int, np.ndarray] = {}

    def item(self, position: int) -> int:
        """The item at one position of the stream."""
        return int(self.items(np.array([position], np.int64))[0])

    def items(self, positions: Int[np.ndarray, " k"]) -> Int[np.ndarray, " k"]:
        """int64: the items at these positions, whatever their order and epochs."""
        epochs, places = np.divmod(positions, self.n)
        out = np.empty(len(positions), np.int64)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            out[here] = self._permutation(epoch)[places[here]]
        return out

    def _permutation(self, epoch: int) -> np.ndarray:
        known = self._permutations  # replaced, never changed: threads that read the old one keep what they hold
        if epoch not in known:
            dtype = np.int32 if self.n < 1 << 31 else np.int64
            new = hashing.generator(self.seed, "order", epoch).permutation(np.arange(self.n, dtype=dtype))
            recent = dict(sorted(known.items())[-(_KEPT - 1) :])
            self._permutations = known = {**recent, epoch: new}
        return known[epoch]

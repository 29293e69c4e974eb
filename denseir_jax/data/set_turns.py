"""Batches of several data sets, one set a batch: whose turn each step is, and a set's own rows in its own order.

The order is a quota, not a draw. In a period of 2^20 steps set k has m_k turns, its share; its j-th turn is due at (j + c_k) / m_k
of the period, c_k in [0, 1) drawn by the seed, and steps are the turns in the order in which they are due. So in any n steps
in a row, of K sets, set k has n * share_k turns but for less than 1 + share_k * (K - 2); independent draws would be off by
the root of n. Whose turn a step is, and which of its turns it is, are functions of the seed and the step alone.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Int

from denseir_jax.core.errors import InputError
from denseir_jax.core.metrics import Pair
from denseir_jax.data import hashing
from denseir_jax.data.batches import RowSource

PERIOD = 1 << 20
_PADDING = {"known": -1}  # fields of which only the data knows the width, and what they are filled up with


def shares_of(weights: Mapping[str, float], sizes: Mapping[str, int], size_power: float) -> dict[str, float]:
    """Each set's share of the steps, in proportion to weight x rows^size_power; they add up to 1.

    A power of 0 leaves the weights as they are, 1 takes every row equally often where weights are equal; 1 / power is the
    temperature of Raffel et al. (2020, section 3.5.2).
    """
    parts = {name: weight * sizes[name] ** size_power for name, weight in weights.items()}
    total = sum(parts.values())
    return {name: part / total for name, part in parts.items()}


class Turns:
    """Whose turn each step is.

    Args:
        shares: of each set, adding up to 1. Rounded to whole turns of a period; at least one. seed: of the phases.
    """

    def __init__(self, shares: Mapping[str, float], seed: int):
        self.names = tuple(sorted(shares))
        self._quota = _quota([shares[name] for name in self.names])
        phases = hashing.uniform(seed, "set turn", np.arange(len(self.names)))
        due = np.concatenate([(np.arange(m) + phase) / m for m, phase in zip(self._quota, phases, strict=True)])
        order = np.argsort(due, kind="stable")
        self._set = np.repeat(np.arange(len(self.names), dtype=np.int32), self._quota)[order]
        self._turn = np.concatenate([np.arange(m, dtype=np.int32) for m in self._quota])[order]

    def of(self, steps: Int[np.ndarray, " k"]) -> tuple[Int[np.ndarray, " k"], Int[np.ndarray, " k"]]:
        """(number of the set in `names`, how many turns it had before), both int64, of these steps, counted from 0."""
        periods, places = np.divmod(steps, PERIOD)
        sets = self._set[places].astype(np.int64)
        return sets, self._turn[places] + periods * self._quota[sets]

    def counts(self, steps: int) -> dict[str, int]:
        """How many of the first `steps` steps each set has."""
        periods, rest = divmod(steps, PERIOD)
        last = np.bincount(self._set[:rest], minlength=len(self.names))
        return dict(zip(self.names, (periods * self._quota + last).tolist(), strict=True))


def _quota(shares: list[float]) -> Int[np.ndarray, " sets"]:
    """Whole numbers in proportion to `shares` that add up to the period: the largest remainders are rounded up."""
    exact = np.asarray(shares) * PERIOD
    quota = np.maximum(np.floor(exact).astype(np.int64), 1)
    for _ in range(abs(missing := PERIOD - int(quota.sum()))):
        at = np.argmax(exact - quota) if missing > 0 else np.argmin(np.where(quota > 1, exact - quota, np.inf))
        quota[at] += np.sign(missing)
    return quota


class SetRows:
    """Rows of several sources, every batch from one of them. A `batches.RowSource`.

    Step s takes the batch of its set's own stream that follows the one it took last, so rows of a set come in that set's order,
    epoch by epoch, without gap or repetition. Numbers of passages (``passage_row``, ``known``) are those of the set's own
    corpus: as rows of two sets never meet in a batch, they cannot be confused.

    Args:
        sources: by name of the set. shares: see `Turns`. batch_size: rows of a step. seed: of the turns.
    Attributes:
        n_items: rows of all sets. counts: those of the sources, as set/cause. turns: whose turn each step is.
    Raises:
        InputError: rows of two sets differ in a field's shape or type (`known` is filled up to the widest).
    """

    def __init__(self, sources: Mapping[str, RowSource], shares: Mapping[str, float], batch_size: int, seed: int):
        self.turns, self.batch_size = Turns(shares, seed), batch_size
        self.sources = [sources[name] for name in self.turns.names]
        self.n_items = sum(source.n_items for source in self.sources)
        self.counts = {f"{name}/{cause}": n for name, source in sources.items() for cause, n in source.counts.items()}
        self._widths = self._common([source.rows(np.zeros(1, np.int64)) for source in self.sources])

    def _common(self, first: list[dict[str, np.ndarray]]) -> dict[str, int]:
        names = self.turns.names
        for name, rows in zip(names[1:], first[1:], strict=True):
            shapes = [
                {field: (str(a.dtype), a.shape[1:-1] if field in _PADDING else a.shape[1:]) for field, a in found.items()}
                for found in (first[0], rows)
            ]
            differing = sorted(field for field in {*shapes[0], *shapes[1]} if shapes[0].get(field) != shapes[1].get(field))
            if differing:
                had, has = (shape.get(differing[0], "missing") for shape in shapes)
                raise InputError(
                    f"rows of the data sets {names[0]!r} and {name!r} differ in {differing[0]!r}: {had} and {has}; expected one shape"
                )
        return {field: max(rows[field].shape[-1] for rows in first) for field in _PADDING if field in first[0]}

    def rows(self, stream: Int[np.ndarray, " k"]) -> dict[str, np.ndarray]:
        """The fields of the sources; ``index`` is the stream index of the mixture, not that of the set."""
        sets, own = self._own(stream)
        out: dict[str, np.ndarray] = {}
        for number in np.unique(sets).tolist():
            here = sets == number
            for field, values in self.sources[number].rows(own[here]).items():
                if field in self._widths:
                    room = [(0, 0)] * (values.ndim - 1) + [(0, self._widths[field] - values.shape[-1])]
                    values = np.pad(values, room, constant_values=_PADDING[field])
                whole = out.setdefault(field, np.empty((len(stream), *values.shape[1:]), values.dtype))
                whole[here] = values
        return out | {"index": stream.astype(np.int32)}

    def names(self, stream: Int[np.ndarray, " k"]) -> list[str]:
        """What the sets call these rows, as set/name."""
        return [
            f"{self.turns.names[number]}/{self.sources[number].names(np.array([place]))[0]}"
            for number, place in zip(*(found.tolist() for found in self._own(stream)), strict=True)
        ]

    def _own(self, stream: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(set, stream index within the set)."""
        steps, places = np.divmod(stream.astype(np.int64), self.batch_size)
        sets, turns = self.turns.of(steps)
        return sets, turns * self.batch_size + places

    def by_set(self, step: int, loss: Pair) -> dict[str, Pair]:
        """For the log: the (sum, count) of a step's loss under its set's name, and 1 step of its set, 0 of the others."""
        number = int(self.turns.of(np.array([step], np.int64))[0][0])
        shares = {f"steps/{name}": (float(i == number), 1.0) for i, name in enumerate(self.turns.names)}
        return {f"loss/{self.turns.names[number]}": loss, **shares}

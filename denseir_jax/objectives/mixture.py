"""A weighted sum of objectives that train one encoder together.

Parts over masked text that read the same way (mask, crop, pairs) share rows, masks and one encoder pass; every other part
has rows of its own.
"""

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from denseir_jax.core.config import chosen_by_name
from denseir_jax.core.errors import ConfigError
from denseir_jax.core.metrics import add
from denseir_jax.data.batches import RowSource
from denseir_jax.data.template import TextTemplate
from denseir_jax.data.tokenizer import Tokenizer
from denseir_jax.data.tokens import TokenStore
from denseir_jax.objectives.base import (
    Batch,
    Context,
    Embeds,
    Exported,
    Field,
    Objective,
    Pair,
    Params,
    Similarity,
    first_memory,
    side_keys,
)
from denseir_jax.objectives.masked_text import Encoded, MaskedText
from denseir_jax.objectives.registry import register, registry

_SHARED = ("index",)  # fields that mean the same to every part
_BACKBONE = ("encoder", "projection", "mlm_head")  # parameters that all parts train; heads and decoders are a part's own
_COUNTS = ("tokens", "cells")  # metrics that add up over parts


@register
@dataclasses.dataclass(frozen=True, kw_only=True)
class MixtureConfig:
    """parts: objectives by a name of one's own. weights: of each part's loss; a part of weight 0 is left out altogether."""

    name: str = "mixture"
    parts: dict[str, Any] = chosen_by_name(registry)
    weights: dict[str, float]

    def __post_init__(self) -> None:
        if set(self.parts) != set(self.weights):
            raise ValueError(f"weights are given for {sorted(self.weights)}, parts are {sorted(self.parts)}: expected the same names")
        if any(weight < 0 for weight in self.weights.values()) or not any(self.weights.values()):
            raise ValueError(f"weights {self.weights} must not be negative, nor all 0")
        if bad := [name for name in self.parts if "/" in name or name in _BACKBONE]:
            raise ValueError(f"part name {bad[0]!r}: expected none with '/', and none of {', '.join(_BACKBONE)}")

    def build(self, context: Context) -> Objective:
        """The objective for a model and its data.

        Raises:
            ConfigError: two parts differ in how they compare vectors, or one has no encoder to share or a memory.
        """
        parts = {name: self.parts[name].build(context) for name in sorted(self.parts) if self.weights[name]}
        if odd := [name for name, part in parts.items() if not isinstance(part, Embeds)]:
            raise ConfigError(f"part {odd[0]!r} of the mixture gives no vectors: it has no encoder that the others could share")
        similarities = {part.similarity for part in parts.values()}
        if len(similarities) > 1:
            raise ConfigError(f"the parts of a mixture compare vectors in different ways: {', '.join(sorted(similarities))}")
        for name, part in parts.items():
            if first_memory(part):
                raise ConfigError(
                    f"part {name!r} of the mixture has a memory of earlier batches, which no mixture keeps: expected memory=0"
                )
            if len(parts) > 1 and "encoder" not in jax.eval_shape(part.init, jax.random.key(0)):
                raise ConfigError(f"part {name!r} of the mixture has no encoder that the others could share (two towers, tied=False?)")
        return Mixture(parts, {name: self.weights[name] for name in parts})


@dataclasses.dataclass(frozen=True, eq=False)
class Mixture:
    """L = sum of weight x part; encoder, projection and MLM head are one, a part's heads and decoders are ``{part: {...}}``."""

    parts: dict[str, Embeds]
    weights: dict[str, float]

    @cached_property
    def _any(self) -> Embeds:
        """All parts give the same encoder the same way; one speaks for it."""
        return next(iter(self.parts.values()))

    @cached_property
    def _readers(self) -> dict[str, str]:
        """Part -> the first part that reads as it does, whose rows and encoder pass it shares; itself, if it is the first."""
        first: dict[Any, str] = {}
        return {name: first.setdefault(part.reading if isinstance(part, MaskedText) else name, name) for name, part in self.parts.items()}

    @property
    def similarity(self) -> Similarity:
        """That of the parts, which agree."""
        return self._any.similarity

    def towers(self, params: Params) -> dict[str, Params]:
        """The shared encoder."""
        return self._any.towers(params)

    def export(self, folder: Path, params: Params, tokenizer: Tokenizer, template: TextTemplate) -> Exported:
        """The shared encoder as a retriever."""
        return self._any.export(folder, params, tokenizer, template)

    def embed_query(self, params: Params, ids: Int[Array, "b l"], length: Int[Array, " b"]) -> Float[Array, "b d"]:
        """Vectors of queries."""
        return self._any.embed_query(params, ids, length)

    def embed_passage(self, params: Params, ids: Int[Array, "b l"], length: Int[Array, " b"]) -> Float[Array, "b d"]:
        """Vectors of passages."""
        return self._any.embed_passage(params, ids, length)

    def derived(self, leaves: Mapping[str, Any]) -> dict[str, Any]:
        """Those of all parts."""
        found: dict[str, Any] = {}
        for part, objective in self.parts.items():
            own = {name.removeprefix(f"{part}/"): leaf for name, leaf in leaves.items() if name.split("/")[0] in (part, *_BACKBONE)}
            found |= {f"{part}/{name}": leaf for name, leaf in objective.derived(own).items()}
        return found

    @property
    def least_rows(self) -> int:
        """What every part can learn from."""
        return max(part.least_rows for part in self.parts.values())

    def fields(self) -> dict[str, Field]:
        """Every reader's fields as part/field, with whatever the parts that share its rows need; the stream index once."""
        return {
            _name(self._readers[part], name): field for part, objective in self.parts.items() for name, field in objective.fields().items()
        }

    def rows(self, store: TokenStore, groups: Path | None = None, tokenizer: Tokenizer | None = None) -> RowSource:
        """Row i of the mixture is row i of every reader."""
        return MixedRows({name: self.parts[name].rows(store, groups, tokenizer) for name in dict.fromkeys(self._readers.values())})

    def init(self, key: Key[Array, ""]) -> Params:
        """The backbone of the first part that has it, and every part's own parameters under its name."""
        params: Params = {}
        for number, (name, part) in enumerate(self.parts.items()):
            made = part.init(jax.random.fold_in(key, number) if number else key)
            backbone = _backbone(made)
            own = {key: leaves for key, leaves in made.items() if key not in backbone}
            params = backbone | params | ({name: own} if own else {})
        return params

    def per_row(
        self, params: Params, rows: Batch, keys: Key[Array, " b"] | None, train: bool
    ) -> tuple[dict[str, jax.Array], dict[str, Pair]]:
        """Every part's vectors and sums as part/name."""
        vectors: dict[str, jax.Array] = {}
        sums: dict[str, Pair] = {}
        passes: dict[str, Encoded] = {}
        for number, (name, part) in enumerate(self.parts.items()):
            own, reader = side_keys(keys, number), self._readers[name]
            if isinstance(part, MaskedText):
                if reader == name:
                    passes[name] = part.read(_params(name, params), _of(name, rows), own if train else None, self._collects(name))
                found, added = part.scored(_params(name, params), passes[reader])
            else:
                found, added = part.per_row(_params(name, params), _of(name, rows), own, train)
            vectors |= {f"{name}/{key}": value for key, value in found.items()}
            sums |= {f"{name}/{key}": pair for key, pair in added.items()}
        return vectors, sums

    def _collects(self, reader: str) -> bool:
        shared = (part for name, part in self.parts.items() if self._readers[name] == reader)
        return any(isinstance(part, MaskedText) and part.reads_layers for part in shared)

    def over_batch(
        self, params: Params, vectors: Mapping[str, jax.Array], sums: Mapping[str, Pair], batch: Batch
    ) -> tuple[jax.Array, dict[str, Pair]]:
        """The weighted sum; every part's own loss as part/loss."""
        total: Any = 0.0
        metrics: dict[str, Pair] = {}
        for name, part in self.parts.items():
            reader = self._readers[name]
            loss, found = part.over_batch(_params(name, params), _of(name, vectors), _of(name, sums), _of(reader, batch))
            total = total + self.weights[name] * loss
            counts = {key: found.pop(key) for key in _COUNTS}
            metrics = (add(metrics, counts) if reader == name else metrics) | {f"{name}/{key}": pair for key, pair in found.items()}
            metrics[f"{name}/loss"] = (loss, jnp.ones((), loss.dtype))
        return total, metrics


class MixedRows:
    """Rows of several sources side by side. A `batches.RowSource`; an epoch is the longest of theirs."""

    def __init__(self, sources: Mapping[str, RowSource]):
        self.sources = dict(sources)
        self.n_items = max(source.n_items for source in self.sources.values())
        self.counts = {_name(part, name): n for part, source in self.sources.items() for name, n in source.counts.items()}

    def rows(self, stream: Int[np.ndarray, " k"]) -> dict[str, np.ndarray]:
        """Every source's fields as part/field; the stream index once."""
        return {_name(part, name): values for part, source in self.sources.items() for name, values in source.rows(stream).items()}

    def names(self, stream: Int[np.ndarray, " k"]) -> list[str]:
        """What every source calls these rows, joined."""
        return [" + ".join(dict.fromkeys(names)) for names in zip(*(s.names(stream) for s in self.sources.values()), strict=True)]


def _backbone(params: Params) -> Params:
    return {name: params[name] for name in _BACKBONE if name in params}


def _params(part: str, params: Params) -> Params:
    """What one part sees: the backbone, and its own heads and decoders."""
    return _backbone(params) | params.get(part, {})


def _name(part: str, field: str) -> str:
    return field if field in _SHARED else f"{part}/{field}"


def _of(part: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """What belongs to one part, under its own names."""
    shared = {name: values[name] for name in _SHARED if name in values}
    return shared | {name.removeprefix(f"{part}/"): value for name, value in values.items() if name.startswith(f"{part}/")}

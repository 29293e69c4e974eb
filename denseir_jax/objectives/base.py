"""What an objective is: how rows are made, and two pure functions that turn them into a loss.

``per_row`` sees rows one by one: nothing of its result for a row may depend on another. ``over_batch`` is where rows meet.
The train step calls ``per_row`` on the whole batch or on parts of it (vectors concatenated, sums added) and then
``over_batch`` once, so micro-batches change neither loss nor gradients.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from denseir_jax.core.errors import ConfigError
from denseir_jax.data.batches import RowSource
from denseir_jax.data.template import TextTemplate
from denseir_jax.data.tokenizer import Tokenizer
from denseir_jax.data.tokens import TokenStore
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.shape import EncoderConfig

Params = dict[str, Any]
Batch = Mapping[str, jax.Array]
Memory = dict[str, jax.Array]
Pair = tuple[jax.Array, jax.Array]  # (sum, count)
Similarity = Literal["dot", "cosine", "l2"]


@dataclass(frozen=True)
class Field:
    """A batch field: its dimensions after the batch, numbers, or a name where only the data knows the size; and its type."""

    tail: tuple[int | str, ...] = ()
    dtype: str = "int32"


@dataclass(frozen=True)
class Context:
    """What an objective is built from, beside its own config.

    Attributes:
        encoder, embedder: the model. cls_id, sep_id, pad_id, mask_id, unk_id: tokens that are never masked or predicted.
        vocab_size: true size, without padding. query_length, passage_length: tokens of a row with [CLS] and [SEP].
        seed: of masks and of the order of rows. blocks: rows of a passage, of `passage_length` tokens each, where judged passages are
        learnt from (MaxP).
    """

    encoder: EncoderConfig
    embedder: EmbedderConfig
    cls_id: int
    sep_id: int
    pad_id: int
    mask_id: int
    vocab_size: int
    query_length: int
    passage_length: int
    seed: int
    unk_id: int | None = None
    blocks: int = 1

    @property
    def special_ids(self) -> tuple[int, ...]:
        """Ids that are never masked."""
        known = (self.cls_id, self.sep_id, self.pad_id, self.mask_id)
        return known if self.unk_id is None else (*known, self.unk_id)

    def need_one_width(self, objective: str) -> None:
        """For what puts vectors where words are embedded, or the other way round.

        Raises:
            ConfigError: the encoder's embedding tables are not as wide as its states.
        """
        width, hidden = self.encoder.width, self.encoder.hidden
        if width != hidden:
            raise ConfigError(f"{objective} needs word embeddings as wide as states; this encoder's have {width} and {hidden} dimensions")


class Exported(NamedTuple):
    """What an objective left in a run folder: figures for its metrics, hashes above all, and the names of the folders."""

    metrics: dict[str, str]
    folders: tuple[str, ...]


@runtime_checkable
class Objective(Protocol):
    """One objective, built from its config and a context."""

    @property
    def least_rows(self) -> int:
        """The smallest batch that there is something to learn from."""
        ...

    def fields(self) -> dict[str, Field]:
        """The batch fields that the two functions read; checked before anything compiles."""
        ...

    def rows(self, store: TokenStore, groups: Path | None = None, tokenizer: Tokenizer | None = None) -> RowSource:
        """Where rows come from.

        Args:
            store: the corpus. groups: a training set on disk, tokenizer: for its queries; where there are judged queries.
        Raises:
            InputError: the data cannot serve this objective.
        """
        ...

    def init(self, key: Key[Array, ""]) -> Params:
        """Fresh parameters, heads and decoders included."""
        ...

    def derived(self, leaves: Mapping[str, Any]) -> dict[str, Any]:
        """After a warm start: leaves, by path name, that begin as copies of the given ones and are not among them."""
        ...

    def per_row(
        self, params: Params, rows: Batch, keys: Key[Array, " b"] | None, train: bool
    ) -> tuple[dict[str, jax.Array], dict[str, Pair]]:
        """Vectors [b, ...] for `over_batch`, and (sum, count) pairs that add up over rows.

        Args:
            keys: one dropout key a row, or None. train: whether dropout is on.
        """
        ...

    def over_batch(
        self, params: Params, vectors: Mapping[str, jax.Array], sums: Mapping[str, Pair], batch: Batch
    ) -> tuple[jax.Array, dict[str, Pair]]:
        """The loss over the global batch, and metrics as (sum, count); ``tokens`` and ``cells`` count real and all tokens."""
        ...

    def export(self, folder: Path, params: Params, tokenizer: Tokenizer, template: TextTemplate) -> Exported:
        """Write into a run folder what the training was for, without what only training needs.

        Args:
            params: numpy arrays. template: how the texts of the training were written.
        """
        ...


@runtime_checkable
class Embeds(Objective, Protocol):
    """An objective whose vectors are compared: what it exports is a retriever."""

    @property
    def similarity(self) -> Similarity:
        """How the vectors that come out are to be compared."""
        ...

    def towers(self, params: Params) -> dict[str, Params]:
        """The retriever inside `params`: one tower for both sides, or "query" and "passage"."""
        ...

    def embed_query(self, params: Params, ids: Int[Array, "b l"], length: Int[Array, " b"]) -> Float[Array, "b d"]:
        """Vectors of queries, as `similarity` compares them."""
        ...

    def embed_passage(self, params: Params, ids: Int[Array, "b l"], length: Int[Array, " b"]) -> Float[Array, "b d"]:
        """Vectors of passages."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """What an objective has besides, if it carries something from step to step that is no parameter: a third pure function.

    The memory is a part of the state and of every checkpoint, whole on each device. In `over_batch` and in `remember` its
    arrays stand in the batch under their names, which are none of the fields'; `per_row` does not see them.
    """

    def init_memory(self) -> Memory:
        """What the first step finds; empty: nothing is remembered."""
        ...

    def remember(self, vectors: Mapping[str, jax.Array], batch: Batch) -> Memory:
        """What the next step finds, the same arrays by name and shape, after this one with its vectors and its batch."""
        ...


def first_memory(objective: Objective) -> Memory:
    """What the first step of this objective finds: nothing, for most."""
    return objective.init_memory() if isinstance(objective, Remembering) else {}


@runtime_checkable
class ScoresPairs(Objective, Protocol):
    """An objective that scores a query together with a passage: what it exports is a cross-encoder."""

    def score(
        self,
        params: Params,
        query_ids: Int[Array, "b q"],
        query_length: Int[Array, " b"],
        passage_ids: Int[Array, "b p"],
        passage_length: Int[Array, " b"],
    ) -> Float[Array, " b"]:
        """The score of each pair; larger is more relevant."""
        ...


def token_counts(*texts: tuple[jax.Array, int]) -> dict[str, Pair]:
    """The metrics ``tokens`` and ``cells`` of texts given as (lengths of any shape, padded width)."""
    one = jnp.ones((), jnp.float32)
    tokens = sum((jnp.sum(length, dtype=jnp.float32) for length, _ in texts), jnp.zeros((), jnp.float32))
    return {"tokens": (tokens, one), "cells": (one * sum(length.size * width for length, width in texts), one)}


def side_keys(keys: Key[Array, " b"] | None, side: int) -> Key[Array, " b"] | None:
    """Dropout keys for one of several texts of a row, so that no two share their bits."""
    return None if keys is None else jax.vmap(jax.random.fold_in, (0, None))(keys, side)

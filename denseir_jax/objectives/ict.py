"""The Inverse Cloze Task (Lee, Chang & Toutanova 2019, section 4): a sentence must find the passage that it was taken from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from denseir_jax.core.errors import ConfigError, InputError
from denseir_jax.data.batches import RowSource
from denseir_jax.data.ict import IctRows
from denseir_jax.data.tokenizer import Tokenizer
from denseir_jax.data.tokens import TokenStore
from denseir_jax.objectives.base import Batch, Context, Field, Objective, Pair, Params, side_keys, token_counts
from denseir_jax.objectives.registry import register
from denseir_jax.objectives.towers import OneTower
from denseir_jax.parallel import contrastive


@register
@dataclass(frozen=True)
class IctConfig:
    """ICT.

    Attributes:
        temperature: scores are divided by it (1 as published; about 0.05 for vectors of length 1). symmetric: passages
        must find their queries too, the two losses averaged. unit, chunk_min, chunk_max: a query is a sentence, or a
        stretch of so many tokens. keep_rate: how often the query's text stays in its passage.
    """

    name: str = "ict"
    temperature: float = 1.0
    symmetric: bool = False
    unit: Literal["sentence", "chunk"] = "sentence"
    chunk_min: int = 4
    chunk_max: int = 16
    keep_rate: float = 0.1

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f"temperature={self.temperature} must be positive")
        if not 0.0 <= self.keep_rate <= 1.0:
            raise ValueError(f"keep_rate={self.keep_rate} is outside [0, 1]")
        if not 1 <= self.chunk_min <= self.chunk_max:
            raise ValueError(f"chunk_min={self.chunk_min}, chunk_max={self.chunk_max}: expected 1 <= chunk_min <= chunk_max")

    def build(self, context: Context) -> Objective:
        """The objective for a model and its data.

        Raises:
            ConfigError: not even the shortest chunk fits a query.
        """
        if self.unit == "chunk" and self.chunk_min > context.query_length - 2:
            raise ConfigError(f"chunk_min={self.chunk_min} does not fit queries of {context.query_length} tokens with [CLS] and [SEP]")
        return Ict(context, self)


@dataclass(frozen=True)
class Ict(OneTower):
    """L = mean_i [ logsumexp_j(q_i . p_j / t) - q_i . p_i / t ] over the global batch; equal documents of other rows masked."""

    config: IctConfig

    @property
    def least_rows(self) -> int:
        """A passage is told from those of other rows."""
        return 2

    def fields(self) -> dict[str, Field]:
        """Query, passage, whether the query's text was removed, and which document it is."""
        return {
            "query_ids": Field((self.context.query_length,)),
            "query_length": Field(),
            "passage_ids": Field((self.context.passage_length,)),
            "passage_length": Field(),
            "removed": Field(),
            "document": Field(),
            "index": Field(),
        }

    def rows(self, store: TokenStore, groups: Path | None = None, tokenizer: Tokenizer | None = None) -> RowSource:
        """Query and passage cut from one piece of the corpus; a training set adds nothing.

        Raises:
            InputError: no piece has enough text, or all are of one text.
        """
        c, context = self.config, self.context
        cut = {"unit": c.unit, "chunk_min": c.chunk_min, "chunk_max": c.chunk_max, "keep_rate": c.keep_rate}
        source = IctRows(store, context.query_length, context.passage_length, context.seed, **cut)  # type: ignore[arg-type]
        if source.distinct_documents < 2:
            raise InputError(f"{store.folder}: all pieces are of one text; ICT tells passages of different texts apart")
        return source

    def init(self, key: Key[Array, ""]) -> Params:
        """The embedder's parameters: encoder, and projection if it has one."""
        return self.embedder.init(key)

    def per_row(
        self, params: Params, rows: Batch, keys: Key[Array, " b"] | None, train: bool
    ) -> tuple[dict[str, jax.Array], dict[str, Pair]]:
        """Vectors ``query`` and ``passage`` [b, d]; no sums."""
        keys = keys if train else None
        query = self.embedder.embed(params, rows["query_ids"], rows["query_length"], side_keys(keys, 0))
        passage = self.embedder.embed(params, rows["passage_ids"], rows["passage_length"], side_keys(keys, 1))
        return {"query": query, "passage": passage}, {}

    def over_batch(
        self, params: Params, vectors: Mapping[str, jax.Array], sums: Mapping[str, Pair], batch: Batch
    ) -> tuple[jax.Array, dict[str, Pair]]:
        """Metrics of all pairs, and apart for pairs with the query's text removed and kept."""
        query, passage, temperature = vectors["query"], vectors["passage"], self.config.temperature
        own = jnp.arange(query.shape[0])
        document = batch["document"][:, None]
        found = contrastive.in_batch_nll(query, passage, own, document, document, temperature)
        loss = found.nll.mean()
        if self.config.symmetric:
            loss = (loss + contrastive.in_batch_nll(passage, query, own, document, document, temperature).nll.mean()) / 2
        metrics = _by_removal(found, batch["removed"]) | contrastive.rank_metrics(found) | contrastive.mask_metrics(found, query.shape[0])
        counts = token_counts((batch["query_length"], self.context.query_length), (batch["passage_length"], self.context.passage_length))
        return loss, metrics | counts


def _by_removal(found: contrastive.Ranked, removed: jax.Array) -> dict[str, Pair]:
    metrics: dict[str, Pair] = {}
    first = (found.rank == 1).astype(found.nll.dtype)
    for name, chosen in (("removed", removed == 1), ("kept", removed == 0)):
        count = chosen.sum(dtype=jnp.float32)
        metrics[f"nll_{name}"] = (jnp.where(chosen, found.nll, 0).sum(), count)
        metrics[f"accuracy_{name}"] = (jnp.where(chosen, first, 0).sum(), count)
    return metrics

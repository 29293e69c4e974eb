"""coCondenser (Gao & Callan 2022, section 3.2): two spans of a document must find each other among the spans of the batch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp

from denseir_jax.core.errors import InputError
from denseir_jax.data.batches import RowSource
from denseir_jax.data.span_pairs import Pairing, SpanPairRows
from denseir_jax.data.tokenizer import Tokenizer
from denseir_jax.data.tokens import TokenStore
from denseir_jax.models.dense import unit
from denseir_jax.objectives.base import Batch, Context, Field, Objective, Pair, Params
from denseir_jax.objectives.bottleneck import Bottleneck, BottleneckConfig
from denseir_jax.objectives.masked_text import Reading
from denseir_jax.objectives.registry import register
from denseir_jax.parallel import contrastive


@register
@dataclass(frozen=True)
class CoCondenserConfig(BottleneckConfig):
    """Condenser on span pairs, with a contrastive loss between the spans' vectors.

    Attributes:
        mlm_weight, contrastive_weight: of the Condenser loss and of the contrastive one; 1 each as in the paper. (The authors'
        gradient-cached code trains with mlm_weight=2.) temperature: scores are divided by it. (With embedder.normalize the
        vectors have length 1, here as at search. Neither is published.) mask_duplicates: spans of other rows with the same
        document's text are no negatives (a document can come twice in a batch where two epochs meet); the authors keep them.
    """

    name: str = "cocondenser"
    pairs: Pairing | None = "random"
    mlm_weight: float = 1.0
    contrastive_weight: float = 1.0
    temperature: float = 1.0
    mask_duplicates: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pairs is None:
            raise ValueError("pairs=None: coCondenser contrasts two spans of a document; expected 'random' or 'nearby'")
        if self.temperature <= 0:
            raise ValueError(f"temperature={self.temperature} must be positive")
        if min(self.mlm_weight, self.contrastive_weight) < 0 or not self.mlm_weight + self.contrastive_weight:
            raise ValueError(
                f"mlm_weight={self.mlm_weight}, contrastive_weight={self.contrastive_weight}: expected 0 or more, and not both 0"
            )

    def build(self, context: Context) -> Objective:
        """The objective for a model and its data.

        Raises:
            ConfigError: the encoder lacks layers that this config names.
        """
        return CoCondenser(context, Reading(self.mask, self.crop, self.pairs), self, self.skip_layer(context))


@dataclass(frozen=True)
class CoCondenser(Bottleneck):
    """L = Condenser + mean over all 2n spans of [ logsumexp_{j != i}(h_i . h_j) - h_i . h_partner(i) ], over the global batch."""

    config: CoCondenserConfig

    @property
    def least_rows(self) -> int:
        """A span is told from those of other rows."""
        return 2 if self.config.contrastive_weight else 1

    def fields(self) -> dict[str, Field]:
        """Those of Condenser on pairs, and which document a row is."""
        return super().fields() | {"document": Field()}

    def rows(self, store: TokenStore, groups: Path | None = None, tokenizer: Tokenizer | None = None) -> RowSource:
        """Two spans of a document a row.

        Raises:
            InputError: no document has two spans, or there is one text only and nothing to tell its spans from.
        """
        source = super().rows(store, groups, tokenizer)
        assert isinstance(source, SpanPairRows)
        if self.config.contrastive_weight and source.distinct_documents < 2:
            raise InputError(f"{store.folder}: all spans are of one text; coCondenser tells spans of different texts apart")
        return source

    def over_batch(
        self, params: Params, vectors: Mapping[str, jax.Array], sums: Mapping[str, Pair], batch: Batch
    ) -> tuple[jax.Array, dict[str, Pair]]:
        """Metrics of Condenser, and ``contrastive``, accuracy, rank and share of masked candidates of the spans."""
        c = self.config
        mlm, metrics = super().over_batch(params, vectors, sums, batch)
        document = batch["document"] if c.mask_duplicates else None
        found = span_nll(vectors["cls"], document, c.temperature, self.context.embedder.normalize)
        spans = found.nll.shape[0]
        loss = c.mlm_weight * mlm + c.contrastive_weight * found.nll.mean()
        metrics |= {"contrastive": (found.nll.sum(), jnp.asarray(spans, found.nll.dtype))} | contrastive.rank_metrics(found)
        return loss, metrics | contrastive.mask_metrics(found._replace(masked=found.masked - 1), spans - 1)  # itself is no candidate


def span_nll(vectors: jax.Array, document: jax.Array | None, temperature: float = 1.0, normalize: bool = False) -> contrastive.Ranked:
    """Each of the 2n spans against all others; its partner is the target, itself no candidate.

    Args:
        vectors: [n, 2, d]. document: [n]; spans of other rows with an equal number are no candidates either. None: all are.
    """
    n, _, d = vectors.shape
    spans = vectors.reshape(2 * n, d)
    if normalize:
        spans = unit(spans)
    # A span knows its own document, which leaves out itself; the target takes part all the same.
    own = jnp.repeat(jnp.arange(n) if document is None else document, 2)[:, None]
    return contrastive.in_batch_nll(spans, spans, jnp.arange(2 * n) ^ 1, own, own, temperature)

"""What scores a query together with a passage: a cross-encoder, seen by those who denoise, teach and rerank."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from denseir_jax.core.console import Meter
from denseir_jax.data.records import Passage


@runtime_checkable
class PairScorer(Protocol):
    """What is needed of a cross-encoder.

    Attributes:
        sha256: of its parameters: scores of two models are told apart by it.
    """

    sha256: str

    def score(self, pairs: Sequence[tuple[str, Passage]], meter: Meter | None = None) -> Float[np.ndarray, " n"]:
        """float32 logits of (query text, passage), in their order; larger is more relevant."""
        ...

    def probability(self, scores: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Scores as probabilities of relevance, in [0, 1]."""
        ...

"""How much a decoder takes from the encoder's vector: its loss with the true vector against that with another text's.

The papers of SEED-Encoder and RetroMAE argue that a weak decoder must rely on the vector. The difference of the two losses, in
nats a token, is what the vector carries; a decoder that can do without it shows none.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from denseir_jax.analyses.spread import cosine_spread
from denseir_jax.models import bert
from denseir_jax.models.shape import EncoderConfig, Params


@runtime_checkable
class Decodes(Protocol):
    """An objective over masked text with a decoder (objectives/masked_text.py)."""

    @property
    def reads_layers(self) -> bool:
        """Whether the decoder reads layers in between."""
        ...

    @property
    def decoder_term(self) -> str:
        """The name of the decoder's sum."""
        ...

    @property
    def reading(self) -> Any:
        """What is read; ``texts`` of it a row."""
        ...

    def vector(self, params: Any, encoded: Any) -> jax.Array:
        """What each text is decoded from."""
        ...

    def read(self, params: Any, rows: Mapping[str, jax.Array], keys: None, collect: bool) -> Any:
        """One encoder pass."""
        ...

    def score(self, params: Any, encoded: Any) -> tuple[dict[str, jax.Array], dict[str, tuple[jax.Array, jax.Array]]]:
        """Vectors and sums of it."""
        ...


class Carried(NamedTuple):
    """Decoder cross entropy in nats a token (a text, where a bag of words is predicted), by batch: with the true vectors, with
    those of other rows, and with zeros."""

    true: Float[np.ndarray, " batches"]
    shuffled: Float[np.ndarray, " batches"]
    zero: Float[np.ndarray, " batches"]

    @property
    def nats(self) -> Float[np.ndarray, " batches"]:
        """What the vector carries: shuffled - true."""
        return self.shuffled - self.true


def nats_carried(objective: Decodes, params: Any, batches: Iterable[Mapping[str, Any]]) -> Carried:
    """Measure a trained objective without dropout; in each batch a row gets the vector of the row before it.

    Args:
        batches: of at least two rows each, with the objective's fields.
    Raises:
        ValueError: nothing is decoded from a vector, or a batch has one row only.
    """
    if not objective.decoder_term:
        raise ValueError(f"{type(objective).__name__} decodes nothing from a vector")

    def loss(params: Any, encoded: Any, vectors: Float[Array, "n d"]) -> Float[Array, ""]:
        total, count = objective.score(params, encoded._replace(instead=vectors))[1][objective.decoder_term]
        return total / jnp.maximum(count, 1)

    @jax.jit
    def losses(params: Any, rows: Mapping[str, jax.Array]) -> Float[Array, " 3"]:
        encoded = objective.read(params, rows, None, objective.reads_layers)
        vectors, texts = objective.vector(params, encoded), objective.reading.texts
        if len(vectors) < 2 * texts:
            raise ValueError("a batch has one row: there is no other text whose vector it could get")
        return jnp.stack([loss(params, encoded, v) for v in (vectors, jnp.roll(vectors, texts, axis=0), jnp.zeros_like(vectors))])

    found = np.array([losses(params, {name: jnp.asarray(value) for name, value in rows.items()}) for rows in batches], np.float64)
    return Carried(*found.T)


def cls_cosine(encoder: EncoderConfig, params: Params, ids: np.ndarray, length: np.ndarray, rows: int = 32) -> float:
    """Mean cosine between the [CLS] states of different texts (1: they have all become one).

    Args:
        params: the encoder's. ids [n, l], length [n]: texts with their special tokens. rows: encoded at a time.
    """

    @jax.jit
    def states(params: Any, ids: jax.Array, length: jax.Array) -> Float[Array, "b d"]:
        return bert.encode(encoder, params, ids, length).last[:, 0]

    parts = [np.asarray(states(params, ids[i : i + rows], length[i : i + rows])) for i in range(0, len(ids), rows)]
    return cosine_spread(np.concatenate(parts).astype(np.float64))[0]

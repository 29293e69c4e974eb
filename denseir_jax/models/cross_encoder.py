"""A cross-encoder: one encoder pass over a query and a passage together, and a classifier on the first state (Nogueira & Cho 2019).

The row is ``[CLS] query [SEP] passage [SEP]`` with token types 0 and 1, for RoBERTa ``<s> query </s></s> passage </s>`` without
types. What does not fit is cut at the passage's end; the query keeps what its own length allows.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from denseir_jax.models import bert
from denseir_jax.models.dense import Linear, apply, gelu, init_params
from denseir_jax.models.dropout import keyed_dropout
from denseir_jax.models.shape import EncoderConfig, Params


class Pairs(NamedTuple):
    """Rows of a query and a passage. types: 1 from the passage on, 0 before it and in the padding."""

    ids: Int[Array, "b l"]
    length: Int[Array, " b"]
    types: Int[Array, "b l"]


class Classifier(nn.Module):
    """dense, tanh, out, as Hugging Face has it after BERT (its "pooler" first) and RoBERTa; with GELU after ELECTRA."""

    config: EncoderConfig
    outputs: int

    @nn.compact
    def __call__(self, first: Float[Array, "b d"], keys: Key[Array, " b"] | None) -> Float[Array, "b o"]:
        c = self.config
        if c.architecture != "bert":  # whose pooler is part of the body, before the head's dropout
            first = keyed_dropout(first, c.dropout, keys, bert.HEAD_SITE)
        activation = gelu if c.architecture == "electra" else jnp.tanh
        inner = activation(Linear(c.hidden, c.init_std, c.dtype, name="dense")(first))
        return Linear(self.outputs, c.init_std, name="out")(keyed_dropout(inner, c.dropout, keys, bert.HEAD_SITE + 1))


def init_classifier(config: EncoderConfig, outputs: int, key: Key[Array, ""]) -> dict[str, Any]:
    """Fresh parameters: ``{"dense", "out"}``."""
    return init_params(Classifier(config, outputs), key, jnp.zeros((1, config.hidden)), None)


@dataclass(frozen=True)
class CrossEncoder:
    """Scores pairs; holds no parameters.

    Attributes:
        encoder: the body. outputs: 1, a logit, or 2, "not relevant" and "relevant".
    """

    encoder: EncoderConfig
    sep_id: int
    pad_id: int
    outputs: int = 1

    def __post_init__(self) -> None:
        if self.outputs not in (1, 2):
            raise ValueError(f"outputs={self.outputs}; expected 1 (a logit) or 2 (not relevant, relevant)")

    @property
    def _gap(self) -> int:
        """Separators between query and passage beside the one that ends the query."""
        return 1 if self.encoder.architecture == "roberta" else 0

    def room(self, query_length: Any, passage_length: Any) -> Any:
        """Tokens of a pair whose texts have these lengths (numbers or arrays), each with its own [CLS] and [SEP] counted."""
        return query_length + self._gap + passage_length - 1

    def init(self, key: Key[Array, ""]) -> dict[str, Any]:
        """Fresh parameters: ``{"encoder", "classifier": {"dense", "out"}}``."""
        body, head = jax.random.split(key)
        return {"encoder": bert.init_encoder(self.encoder, body), "classifier": init_classifier(self.encoder, self.outputs, head)}

    def join(
        self,
        query_ids: Int[Array, "b q"],
        query_length: Int[Array, " b"],
        passage_ids: Int[Array, "b p"],
        passage_length: Int[Array, " b"],
        width: int,
    ) -> Pairs:
        """Rows of at most `width` tokens out of texts that are framed by [CLS] and [SEP]; `length` counts both."""
        begins = query_length[:, None] + self._gap
        length = jnp.minimum(self.room(query_length, passage_length), width)
        at = jnp.arange(width)[None]
        query = jnp.take_along_axis(query_ids, jnp.minimum(at, query_ids.shape[1] - 1), axis=1)
        passage = jnp.take_along_axis(passage_ids, jnp.clip(at - begins + 1, 0, passage_ids.shape[1] - 1), axis=1)
        ids = jnp.where(at < query_length[:, None], query, jnp.where(at < begins, self.sep_id, passage))
        ids = jnp.where(at < length[:, None] - 1, ids, jnp.where(at < length[:, None], self.sep_id, self.pad_id))
        return Pairs(ids, length, ((at >= begins) & (at < length[:, None])).astype(jnp.int32))

    def logits(self, params: Params, pairs: Pairs, keys: Key[Array, " b"] | None = None) -> Float[Array, "b o"]:
        """What the classifier says of each row. `keys`: dropout keys, one a row; None: no dropout."""
        types = pairs.types if self.encoder.types > 1 else None
        hidden = bert.encode(self.encoder, params["encoder"], pairs.ids, pairs.length, keys, types)
        out: Array = apply(Classifier(self.encoder, self.outputs), params["classifier"], hidden.last[:, 0], keys)
        return out

    def score(self, params: Params, pairs: Pairs, keys: Key[Array, " b"] | None = None) -> Float[Array, " b"]:
        """The logit of relevance: with two outputs their difference, of which the sigmoid is the softmax of the second."""
        logits = self.logits(params, pairs, keys)
        return logits[:, 0] if self.outputs == 1 else logits[:, 1] - logits[:, 0]

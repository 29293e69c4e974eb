"""The masked language model head: dense + GELU + LayerNorm, then a vocabulary table, tied or its own, and a free bias.
The states that it gives have the width of the word table, e.

The product with the table is left to the loss, which never holds all logits at once.
"""

from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from denseir_jax.models.dense import LayerNorm, Linear, apply, gelu, init_params
from denseir_jax.models.shape import EncoderConfig, Params, padded_vocab


class MlmHead(nn.Module):
    """Gives the transformed states; owns the output bias and, untied, the output table."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, h: Float[Array, "*s d"]) -> Float[Array, "*s e"]:
        c, rows = self.config, padded_vocab(self.config.vocab_size)
        self.param("bias", nn.initializers.zeros, (rows,))
        if not c.tied_output:
            self.param("table", nn.initializers.normal(c.init_std), (rows, c.width))
        return LayerNorm(c.eps, name="norm")(gelu(Linear(c.width, c.init_std, c.dtype, name="dense")(h)))


def init_mlm_head(config: EncoderConfig, key: Key[Array, ""], own_table: bool | None = None) -> dict[str, Any]:
    """Fresh parameters: ``{"dense", "norm", "bias" [vocab padded]}`` and, with a table of its own, ``"table" [vocab padded, e]``.

    `own_table`: None: as the config says (untied).
    """
    return init_params(MlmHead(_with_table(config, own_table)), key, jnp.zeros((1, config.hidden)))


def mlm_transform(config: EncoderConfig, params: Params, h: Float[Array, "*s d"]) -> Float[Array, "*s e"]:
    """The states that are compared with the vocabulary table. `params` are the head's."""
    out: Array = apply(MlmHead(_with_table(config, "table" in params)), params, h)
    return out


def _with_table(config: EncoderConfig, own_table: bool | None) -> EncoderConfig:
    return config if own_table is None else replace(config, tied_output=not own_table)


def mlm_table(encoder: Params, head: Params) -> tuple[Float[Array, "v e"], Float[Array, " v"]]:
    """Output table and bias over the padded vocabulary: logits = transformed @ table.T + bias.

    Rows at or beyond ``vocab_size`` are padding: the loss masks them.
    """
    table = head["table"] if "table" in head else encoder["embeddings"]["word"]
    return jnp.asarray(table), jnp.asarray(head["bias"])

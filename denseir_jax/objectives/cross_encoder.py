"""Fine-tuning of a cross-encoder: a query's passages are scored together with it, and its positive must stand out of its group."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from denseir_jax.core.errors import ConfigError, InputError
from denseir_jax.data.batches import RowSource
from denseir_jax.data.examples import TRAINING_SET
from denseir_jax.data.group_cells import need_places
from denseir_jax.data.lines import BadRows
from denseir_jax.data.template import TextTemplate
from denseir_jax.data.tokenizer import Tokenizer
from denseir_jax.data.tokens import TokenStore
from denseir_jax.data.training_set import GroupRows, read_training_set
from denseir_jax.models.cross_encoder import CrossEncoder, Pairs
from denseir_jax.objectives import group_losses
from denseir_jax.objectives.base import Batch, Context, Exported, Field, Objective, Pair, Params, token_counts
from denseir_jax.objectives.losses import mean
from denseir_jax.objectives.registry import register
from denseir_jax.parallel import contrastive
from denseir_jax.search.reranker import FOLDER, check_pair_length, save_reranker


@register
@dataclass(frozen=True)
class CrossEncoderConfig:
    """What the cross-encoder is and learns from.

    Attributes:
        loss: lce: softmax over the query's own group (Gao et al. 2021, arXiv 2101.08751, "localized contrastive estimation").
            pointwise: -log p(positive) - sum of log (1 - p(negative)), each pair by itself.
        outputs: of the classifier: 1, a logit, or 2, not relevant and relevant; the score is their difference then, so that
            pointwise is the cross entropy of two classes (RocketQA, Qu et al. 2021).
        group_size: passages of a group, the positive included. sources: pools of negatives to draw from; all if empty. One may be
            "random", as in `ContrastiveConfig`.
        fill: what to do where a query has too few negatives.
        pair_length: most tokens of a pair, what is longer loses the end of its passage; 0: as many as both texts may have.
    """

    name: str = "cross_encoder"
    loss: Literal["lce", "pointwise"] = "lce"
    outputs: int = 1
    group_size: int = 8
    sources: tuple[str, ...] = ()
    fill: Literal["random", "error"] = "random"
    pair_length: int = 0

    def __post_init__(self) -> None:
        if self.group_size < 2:
            raise ValueError(f"group_size={self.group_size}: a positive and nothing to tell it from; expected 2 or more")
        need_places(self.sources, self.group_size)
        if self.outputs not in (1, 2):
            raise ValueError(f"outputs={self.outputs}; expected 1 (a logit) or 2 (not relevant, relevant)")
        if self.pair_length < 0:
            raise ValueError(f"pair_length={self.pair_length}; expected a number of tokens, or 0")

    def build(self, context: Context) -> Objective:
        """The objective for a model and its data.

        Raises:
            ConfigError: pairs do not fit the encoder, or passages are in several blocks.
        """
        if context.blocks > 1:
            raise ConfigError(f"template.blocks={context.blocks}: a cross-encoder reads a passage as one text; expected template.blocks=1")
        model = CrossEncoder(context.encoder, context.sep_id, context.pad_id, self.outputs)
        template = TextTemplate(query_length=context.query_length, passage_length=context.passage_length)
        try:
            return CrossEncoderObjective(context, self, model, check_pair_length(model, template, self.pair_length))
        except InputError as error:
            raise ConfigError(str(error)) from None


@dataclass(frozen=True)
class CrossEncoderObjective:
    """L = mean over queries of the loss of a group's scores; members that are known to answer take no part. A `ScoresPairs`."""

    context: Context
    config: CrossEncoderConfig
    model: CrossEncoder
    pair_length: int

    @property
    def least_rows(self) -> int:
        """Queries are learnt from one by one."""
        return 1

    def fields(self) -> dict[str, Field]:
        """Those of `GroupRows`: a query and its group; pairs are made of them on the device."""
        n = self.config.group_size
        return {
            "query_ids": Field((self.context.query_length,)),
            "query_length": Field(),
            "passage_ids": Field((n, self.context.passage_length)),
            "passage_length": Field((n,)),
            "passage_row": Field((n,)),
            "known": Field(("known",)),
            "index": Field(),
        }

    def rows(self, store: TokenStore, groups: Path | None = None, tokenizer: Tokenizer | None = None) -> RowSource:
        """Groups from a training set on disk (a folder that holds ``training_set.jsonl``, or the file)."""
        if groups is None:
            raise InputError("a cross-encoder learns from judged queries: it needs a training set, not a corpus alone")
        examples = read_training_set(groups / TRAINING_SET if groups.is_dir() else groups, store.row_of, BadRows("error"))
        c, own = self.config, store.tokenizer() if tokenizer is None else tokenizer
        return GroupRows(examples, store, own, store.template, c.group_size, self.context.seed, c.sources, c.fill)

    def init(self, key: Key[Array, ""]) -> Params:
        """The body and a fresh classifier."""
        return self.model.init(key)

    def derived(self, leaves: Mapping[str, Any]) -> dict[str, Any]:
        """Nothing."""
        return {}

    def score(
        self,
        params: Params,
        query_ids: Int[Array, "b q"],
        query_length: Int[Array, " b"],
        passage_ids: Int[Array, "b p"],
        passage_length: Int[Array, " b"],
    ) -> Float[Array, " b"]:
        """The score of each pair, without dropout."""
        return self.model.score(params, self.model.join(query_ids, query_length, passage_ids, passage_length, self.pair_length))

    def per_row(
        self, params: Params, rows: Batch, keys: Key[Array, " b"] | None, train: bool
    ) -> tuple[dict[str, jax.Array], dict[str, Pair]]:
        """``score`` [b, n], the positive first; no sums."""
        b, n = rows["passage_length"].shape
        places = None
        if train and keys is not None:  # no two pairs of a row share their dropout
            places = jax.vmap(jax.random.fold_in)(jnp.repeat(keys, n), jnp.tile(jnp.arange(n), b))
        return {"score": self.model.score(params, self._pairs(rows), places).reshape(b, n)}, {}

    def _pairs(self, rows: Batch) -> Pairs:
        b, n, width = rows["passage_ids"].shape
        query = jnp.repeat(rows["query_ids"], n, axis=0), jnp.repeat(rows["query_length"], n)
        return self.model.join(*query, rows["passage_ids"].reshape(b * n, width), rows["passage_length"].reshape(-1), self.pair_length)

    def over_batch(
        self, params: Params, vectors: Mapping[str, jax.Array], sums: Mapping[str, Pair], batch: Batch
    ) -> tuple[jax.Array, dict[str, Pair]]:
        """Metrics: accuracy and reciprocal rank within the group, share of masked members, negatives a query."""
        scores, rows, known = vectors["score"], batch["passage_row"], batch["known"]
        blocked = contrastive.in_group(known, rows).at[:, 0].set(False)
        ones = jnp.ones((len(scores), 1), scores.dtype)  # a query of one dimension, by which the passages' are the scores
        ranked = contrastive.own_group_nll(ones, scores[..., None], blocked)
        loss = ranked.nll.mean() if self.config.loss == "lce" else mean(group_losses.bce(scores, ~blocked))
        lengths = jnp.minimum(self.model.room(batch["query_length"][:, None], batch["passage_length"]), self.pair_length)
        metrics = contrastive.rank_metrics(ranked) | contrastive.mask_metrics(ranked, scores.shape[1])
        return loss, metrics | token_counts((lengths, self.pair_length))

    def export(self, folder: Path, params: Params, tokenizer: Tokenizer, template: TextTemplate) -> Exported:
        """``cross_encoder/``."""
        return Exported({"reranker_sha256": save_reranker(folder, self.model, params, tokenizer, template, self.pair_length)}, (FOLDER,))

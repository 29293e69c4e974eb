"""Contrastive fine-tuning: softmax NLL over the passages of all groups of the global batch (Karpukhin et al. 2020, section 3.2)."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from denseir_jax.core.errors import ConfigError, InputError
from denseir_jax.data.batches import RowSource
from denseir_jax.data.examples import TRAINING_SET
from denseir_jax.data.group_cells import need_places
from denseir_jax.data.lines import BadRows
from denseir_jax.data.pairs import PAIRS, PairRows
from denseir_jax.data.teacher_scores import Teacher
from denseir_jax.data.tokenizer import Tokenizer
from denseir_jax.data.tokens import TokenStore
from denseir_jax.data.training_set import GroupRows, TrainingSet, read_training_set
from denseir_jax.models.dense import l2_passages, l2_queries
from denseir_jax.objectives import group_losses, memory_queue
from denseir_jax.objectives.base import (
    Batch,
    Context,
    Field,
    Memory,
    Objective,
    Pair,
    Params,
    Similarity,
    side_keys,
    token_counts,
)
from denseir_jax.objectives.losses import mean
from denseir_jax.objectives.registry import register
from denseir_jax.objectives.towers import Towers
from denseir_jax.parallel import contrastive


@register
@dataclass(frozen=True)
class ContrastiveConfig:
    """Fine-tuning on groups of one query, one positive or several, and hard negatives.

    Attributes:
        group_size: passages of a group, positives included. sources: pools of negatives to draw from; all if empty. One may be
        "random": passages of the corpus, fresh in every epoch; of m names it gets an m-th of the places, rounded down.
        fill: what to do where a query has too few negatives. similarity: dot, cosine, or l2: -||q - p||^2. temperature: scores
        are divided by it. tied: one encoder for both sides. in_batch: passages of other groups are candidates too.
        symmetric: positives must find their query too, the two losses averaged.
        loss: nll, a softmax over all candidates; or of the own group alone (in_batch=False) one of `group_losses`: pairwise
        (ANCE), hinge and soft_margin with their `margin`, bce.
        memory: how many passages of earlier batches are candidates too, as `memory_queue` says (0: none). memory_start: steps
        before they are: they enter from the first on, while vectors still change much from step to step.
        positives: of a query with several. "sampled": one, drawn anew in every epoch. "all": a group begins with up to
        `max_positives` of them, and the loss is -log of the share that they have together of the softmax over all candidates.
        "each": the same groups, and the mean over them of -log softmax of that one against all but the others.
    """

    name: str = "contrastive"
    group_size: int = 8
    sources: tuple[str, ...] = ()
    fill: Literal["random", "error"] = "random"
    temperature: float = 1.0
    similarity: Similarity = "dot"
    tied: bool = True
    in_batch: bool = True
    symmetric: bool = False
    loss: Literal["nll", "pairwise", "hinge", "soft_margin", "bce"] = "nll"
    margin: float = 1.0
    memory: int = 0
    memory_start: int = 0
    positives: Literal["sampled", "all", "each"] = "sampled"
    max_positives: int = 4

    def __post_init__(self) -> None:
        if self.memory < 0 or self.memory_start < 0:
            raise ValueError(f"memory={self.memory} and memory_start={self.memory_start} must be at least 0")
        if self.memory_start and not self.memory:
            raise ValueError(f"memory_start={self.memory_start} says when a memory takes part, but memory=0: there is none")
        if self.memory and not self.in_batch:
            raise ValueError(f"memory={self.memory} adds candidates to those of the batch: it needs in_batch=True")
        if self.loss != "nll" and self.in_batch:
            raise ValueError(f"loss={self.loss!r} compares a query with its own group: it needs in_batch=False")
        if self.group_size < 1:
            raise ValueError(f"group_size={self.group_size} must be at least 1: the positive")
        if self.temperature <= 0:
            raise ValueError(f"temperature={self.temperature} must be positive")
        if not self.in_batch and (self.symmetric or self.group_size < 2):
            raise ValueError("in_batch=False leaves nothing to compare with: it needs group_size >= 2 and symmetric=False")
        if self.margin != ContrastiveConfig.margin and self.loss not in ("hinge", "soft_margin"):
            raise ValueError(f"margin={self.margin} is of loss='hinge' and 'soft_margin'; loss={self.loss!r} has none")
        need_places(self.sources, self.group_size)
        if self.positives != "sampled":
            self._check_several()
        elif self.max_positives != ContrastiveConfig.max_positives:
            raise ValueError(f"max_positives={self.max_positives} needs positives='all' or 'each': with 'sampled' a group has one")

    @property
    def several(self) -> int | None:
        """Most positives of a group, or None: one, drawn."""
        return None if self.positives == "sampled" else self.max_positives

    def _check_several(self) -> None:
        if self.loss != "nll":
            raise ValueError(f"loss={self.loss!r} compares one positive with each negative: it needs positives='sampled'")
        most = self.group_size if self.in_batch else self.group_size - 1
        if not 1 <= self.max_positives <= most:
            raise ValueError(
                f"max_positives={self.max_positives} with positives={self.positives!r}, group_size={self.group_size} and"
                f" in_batch={self.in_batch}: expected 1 to {most}"
            )

    def build(self, context: Context) -> Objective:
        """The objective for a model and its data.

        Raises:
            ConfigError: similarity and embedder do not go together, or a memory and passages of several blocks.
        """
        self.check(context)
        return Contrastive(context, self)

    def check(self, context: Context) -> None:
        """See that similarity and embedder go together; raises as `build`."""
        if self.similarity == "l2" and context.embedder.normalize:
            raise ConfigError("objective.similarity=l2 goes with embedder.normalize=false: between vectors of length 1 it orders as cosine")
        if self.similarity != "dot" and context.embedder.lexical:
            raise ConfigError(f"embedder.lexical={context.embedder.lexical} goes with objective.similarity=dot: the two scores are added")
        if self.memory and context.blocks > 1:
            raise ConfigError(f"objective.memory={self.memory} keeps one vector a passage: it goes with template.blocks=1")


class Compared(NamedTuple):
    """What the scores of a batch say.

    loss: contrastive. ranked: each query's positives among its candidates. own: scores [b, n] of the own group, not divided
    by the temperature. keep: [b, n] members that take part: the positives of the group, and what is not known to answer.
    metrics: (sum, count).
    """

    loss: Float[Array, ""]
    ranked: contrastive.Ranked
    own: Float[Array, "b n"]
    keep: Bool[Array, "b n"]
    metrics: dict[str, Pair]


@dataclass(frozen=True)
class Contrastive(Towers):
    """L = mean_i [ logsumexp_c(s_ic / t) - s_i,positive / t ]; candidates that answer query i by their id are masked.

    With several positives the others of a query's group are no negatives of it, see `ContrastiveConfig.positives`.
    Where a passage has several blocks (`Context.blocks`), its score is that of its best one; only that one has a gradient.
    """

    config: ContrastiveConfig

    @property
    def least_rows(self) -> int:
        """Without hard negatives a passage is told from those of other rows alone."""
        return 1 if self.config.group_size > 1 else 2

    def fields(self) -> dict[str, Field]:
        """A query and its group, which begins with `positives` of them where there are several (else with one); `known` lists
        everything that answers the query, by the ids of `passage_row`."""
        n, several = self.config.group_size, self.config.several
        group = (n,) if self.context.blocks == 1 else (n, self.context.blocks)
        return {
            "query_ids": Field((self.context.query_length,)),
            "query_length": Field(),
            "passage_ids": Field((*group, self.context.passage_length)),
            "passage_length": Field(group),
            "passage_row": Field((n,)),
            "known": Field(("known",)),
            "index": Field(),
            **({"positives": Field()} if several else {}),
        }

    def rows(self, store: TokenStore, groups: Path | None = None, tokenizer: Tokenizer | None = None) -> RowSource:
        """Groups from a training set on disk (a folder that holds ``training_set.jsonl``, the file, or a folder of pairs)."""
        if groups is None:
            raise InputError("the contrastive objective learns from judged queries: it needs a training set, not a corpus alone")
        if (groups / PAIRS).is_file():
            return PairRows(groups, store, self.context.seed)
        file = groups / TRAINING_SET if groups.is_dir() else groups
        examples = read_training_set(file, store.row_of, BadRows("error"))
        c = self.config
        own = store.tokenizer() if tokenizer is None else tokenizer
        teacher = self.teacher(file, examples, store)
        template, seed = store.template, self.context.seed
        return GroupRows(examples, store, own, template, c.group_size, seed, c.sources, c.fill, teacher, c.several)

    def teacher(self, file: Path, examples: TrainingSet, store: TokenStore) -> Teacher | None:
        """What goes with the training set in `file`: nothing here."""
        return None

    def per_row(
        self, params: Params, rows: Batch, keys: Key[Array, " b"] | None, train: bool
    ) -> tuple[dict[str, jax.Array], dict[str, Pair]]:
        """Vectors ``query`` [b, d] and ``passage`` [b, n, d] or [b, n, blocks, d], positives first; no sums."""
        keys = keys if train else None
        b, *group, width = rows["passage_ids"].shape
        n = math.prod(group)
        query = self.embed(params, "query", rows["query_ids"], rows["query_length"], side_keys(keys, 0))
        sides = None if keys is None else jax.vmap(jax.random.fold_in)(jnp.repeat(keys, n), jnp.tile(1 + jnp.arange(n), b))
        ids, length = rows["passage_ids"].reshape(b * n, width), rows["passage_length"].reshape(-1)
        if len(group) > 1:  # where there is no block, a row of one token stands for it
            length = jnp.maximum(length, 1)
        passage = self.embed(params, "passage", ids, length, sides)
        return {"query": query, "passage": passage.reshape(b, *group, -1)}, {}

    def init_memory(self) -> Memory:
        """See `memory_queue.empty`."""
        return memory_queue.empty(self.config.memory, self.embedder.size) if self.config.memory else {}

    def remember(self, vectors: Mapping[str, jax.Array], batch: Batch) -> Memory:
        """See `memory_queue.entered`."""
        return memory_queue.entered(batch, vectors["passage"])

    def over_batch(
        self, params: Params, vectors: Mapping[str, jax.Array], sums: Mapping[str, Pair], batch: Batch
    ) -> tuple[jax.Array, dict[str, Pair]]:
        """Metrics: accuracy, reciprocal rank, share of masked candidates, negatives a query; of a memory how full and how stale."""
        found = self.compared(vectors, batch)
        return found.loss, found.metrics

    def compared(self, vectors: Mapping[str, jax.Array], batch: Batch, teacher: contrastive.Teacher | None = None) -> Compared:
        """The contrastive loss, and what it is made of.

        Args:
            teacher: of all pairs of the batch; needs in_batch.
        """
        query, passage, c = vectors["query"], vectors["passage"], self.config
        queue = memory_queue.candidates(batch, c.memory_start) if c.memory else None
        of_memory = memory_queue.metrics(batch, passage) if c.memory else {}
        if c.similarity == "l2":
            query, passage = l2_queries(query), l2_passages(passage)
            queue = None if queue is None else queue._replace(vectors=l2_passages(queue.vectors))
        b, n, *block_d = passage.shape
        blocks = (batch["passage_length"] > 0).sum(-1) if len(block_d) > 1 else None
        several = contrastive.Targets(batch["positives"], c.positives == "each") if c.several else None
        positive = jnp.arange(n) < (several.number[:, None] if several else jnp.ones((b, 1), jnp.int32))
        # A row's own positives count as known whether or not the data lists them.
        own_positives = jnp.where(positive, batch["passage_row"], -1)[:, : c.several or 1]
        known = jnp.concatenate([batch["known"], own_positives], axis=1)
        blocked, own = contrastive.in_group(known, batch["passage_row"]), contrastive.own_scores(query, passage, blocks)
        if c.in_batch:
            ids, flat, first = batch["passage_row"].reshape(-1, 1), passage.reshape(b * n, *block_d), jnp.arange(b) * n
            more = contrastive.SCORES, several, teacher, queue, blocks
            ranked = contrastive.in_batch_nll(query, flat, first, known, ids, c.temperature, *more)
        else:
            ranked = contrastive.own_group_nll(query, passage, blocked, c.temperature, several, blocks)
        keep = ~blocked | positive
        loss = ranked.nll.mean() if c.loss == "nll" else self._of_group(own / c.temperature, keep)
        if c.symmetric:
            loss = (loss + contrastive.back_nll(query, passage, own_positives, known, c.temperature, blocks)) / 2
        counts = token_counts((batch["query_length"], self.context.query_length), (batch["passage_length"], self.context.passage_length))
        candidates = b * n if c.in_batch else n
        among = candidates if queue is None else candidates + memory_queue.filled(queue.ids)
        metrics = contrastive.rank_metrics(ranked) | contrastive.mask_metrics(ranked, among) | of_memory | counts
        if several:
            metrics["positives"] = ranked.targets.sum(dtype=jnp.float32), jnp.float32(b)
        return Compared(loss, ranked, own, keep, metrics)

    def _of_group(self, scores: Float[Array, "b n"], keep: Bool[Array, "b n"]) -> Float[Array, ""]:
        c = self.config
        formulas: dict[str, Callable[..., Pair]] = {
            "pairwise": group_losses.pairwise_nll,
            "hinge": partial(group_losses.hinge, margin=c.margin),
            "soft_margin": partial(group_losses.soft_margin, margin=c.margin),
            "bce": group_losses.bce,
        }
        return mean(formulas[c.loss](scores, keep))

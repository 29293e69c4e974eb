"""Distillation: a retriever learns from a teacher's scores of each query's group, beside the contrastive loss.

Four formulas, of which papers and codes mean different ones by "KL": see `DistillConfig.teach`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from denseir_jax.core.errors import InputError
from denseir_jax.data.batches import RowSource
from denseir_jax.data.lines import BadRows
from denseir_jax.data.teacher_scores import TeacherScores, read_teacher_scores
from denseir_jax.data.tokenizer import Tokenizer
from denseir_jax.data.tokens import TokenStore
from denseir_jax.data.training_set import TrainingSet
from denseir_jax.objectives import group_losses
from denseir_jax.objectives.base import Batch, Context, Field, Objective, Pair, Params
from denseir_jax.objectives.contrastive import Contrastive, ContrastiveConfig
from denseir_jax.objectives.losses import mean
from denseir_jax.objectives.registry import register
from denseir_jax.parallel import contrastive

SCORES = "teacher_scores.jsonl"  # beside the training set


@register
@dataclass(frozen=True)
class DistillConfig(ContrastiveConfig):
    """L = teacher_weight x teach + nll_weight x the contrastive loss (of which `ContrastiveConfig` says the rest).

    Attributes:
        teach: local_kl: KL(softmax(t / tt) || softmax(s / temperature)) over the own group, mean over queries.
            local_kl_element: the same, mean over cells (RetroMAE's reduction).
            global_kl: the student's softmax is over all passages of the batch (coCondenser, section 5.1; needs in_batch), and
            over those of a memory.
            margin_mse: ((s+ - s-) - (t+ - t-))^2 of undivided scores, mean over negatives (Hofstätter et al. 2020).
        teacher_temperature: tt. square_temperature: the KL times temperature^2 (Hinton et al. 2015), so that its gradient
            does not shrink with it.
    """

    name: str = "distill"
    teach: Literal["local_kl", "local_kl_element", "global_kl", "margin_mse"] = "global_kl"
    teacher_temperature: float = 1.0
    square_temperature: bool = False
    teacher_weight: float = 1.0
    nll_weight: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group_size < 2:
            raise ValueError(f"group_size={self.group_size}: a teacher compares passages of a group; expected 2 or more")
        if self.teacher_temperature <= 0:
            raise ValueError(f"teacher_temperature={self.teacher_temperature} must be positive")
        if self.teacher_weight <= 0 or self.nll_weight < 0:
            raise ValueError(f"teacher_weight={self.teacher_weight} must be positive, nll_weight={self.nll_weight} not negative")
        if self.memory and self.teach != "global_kl" and not self.nll_weight:
            raise ValueError(f"memory={self.memory}: with teach={self.teach!r} and nll_weight=0 no loss compares with it")
        if self.teach == "global_kl" and not self.in_batch:
            raise ValueError("teach='global_kl' compares with all passages of the batch: it needs in_batch=True (local_kl does not)")

    def build(self, context: Context) -> Objective:
        """The objective for a model and its data; see `ContrastiveConfig.build`."""
        self.check(context)
        return Distill(context, self)


@dataclass(frozen=True)
class Distill(Contrastive):
    """Groups with a teacher's scores."""

    config: DistillConfig

    def fields(self) -> dict[str, Field]:
        """Those of contrastive fine-tuning, and ``teacher``, a score for each passage of the group."""
        return super().fields() | {"teacher": Field((self.config.group_size,), "float32")}

    def rows(self, store: TokenStore, groups: Path | None = None, tokenizer: Tokenizer | None = None) -> RowSource:
        """Groups from a training set on disk, with ``teacher_scores.jsonl`` beside it.

        Raises:
            InputError: no training set, no scores, or none that belong to it.
        """
        if groups is None:
            raise InputError("distillation learns from judged queries: it needs a training set, not a corpus alone")
        scores = groups / SCORES if groups.is_dir() else groups.with_name(SCORES)
        if not scores.is_file():
            raise InputError(f"{scores} does not exist: distillation needs a teacher's scores of this training set")
        return super().rows(store, groups, tokenizer)

    def teacher(self, file: Path, examples: TrainingSet, store: TokenStore) -> TeacherScores:
        """The scores beside the training set."""
        query_of = {id: n for n, id in enumerate(examples.query_ids)}
        return read_teacher_scores(file.with_name(SCORES), query_of, store.row_of, store.content_ids, BadRows("error"))

    def over_batch(
        self, params: Params, vectors: Mapping[str, jax.Array], sums: Mapping[str, Pair], batch: Batch
    ) -> tuple[jax.Array, dict[str, Pair]]:
        """Metrics: those of contrastive fine-tuning, ``nll``, ``teach``, and ``agreement``: how often both put the same passage first."""
        c = self.config
        found = self.compared(vectors, batch)
        keep = (~found.blocked).at[:, 0].set(True)
        teach = self._teach(found.own, found.ranked, batch["teacher"], keep)
        factor = c.temperature**2 if c.square_temperature and c.teach != "margin_mse" else 1.0
        first = [jnp.argmax(jnp.where(keep, scores, -jnp.inf), axis=1) for scores in (found.own, batch["teacher"])]
        agreed = (first[0] == first[1]).sum(dtype=jnp.float32), jnp.float32(len(keep))
        metrics = found.metrics | {"teach": teach, "agreement": agreed, "nll": (found.loss, jnp.ones((), found.loss.dtype))}
        loss = c.teacher_weight * factor * mean(teach)
        return loss + c.nll_weight * found.loss if c.nll_weight else loss, metrics

    def _teach(self, own: Float[Array, "b n"], ranked: contrastive.Ranked, teacher: Float[Array, "b n"], keep: Bool[Array, "b n"]) -> Pair:
        c = self.config
        if c.teach == "margin_mse":
            return group_losses.margin_mse(own, teacher, keep)
        if c.teach == "global_kl":
            log_total = ranked.nll + own[:, 0] / c.temperature
            return group_losses.global_kl(own, log_total, teacher, keep, c.temperature, c.teacher_temperature)
        return group_losses.local_kl(own, teacher, keep, c.temperature, c.teacher_temperature, by_element=c.teach == "local_kl_element")

"""Distillation: a retriever learns from a teacher's scores of each query's group, or of the whole batch, beside the contrastive loss.

Five formulas, of which papers and codes mean different ones by "KL": see `DistillConfig.teach`.
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
from denseir_jax.data.facts import need_as_left
from denseir_jax.data.group_cells import RANDOM
from denseir_jax.data.lines import BadRows
from denseir_jax.data.teacher_scores import TEACHER_SCORES, Teacher, read_teacher_scores
from denseir_jax.data.tokenizer import Tokenizer
from denseir_jax.data.tokens import TokenStore
from denseir_jax.data.training_set import TrainingSet
from denseir_jax.objectives import group_losses
from denseir_jax.objectives.base import Batch, Context, Field, Objective, Pair, Params
from denseir_jax.objectives.contrastive import Contrastive, ContrastiveConfig
from denseir_jax.objectives.losses import mean
from denseir_jax.objectives.registry import register
from denseir_jax.parallel import contrastive
from denseir_jax.search.teacher_vectors import VECTORS, open_teacher_vectors


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
            in_batch_kl: KL(softmax(t / tt) || softmax(s / temperature)), both over all passages of the batch that take part
            (Lin et al. 2021: TCT). The teacher is a dense retriever, and its vectors take the place of scores: none has scores of
            all pairs.
        teacher_temperature: tt. square_temperature: the KL times temperature^2 (Hinton et al. 2015), so that its gradient
            does not shrink with it.
    """

    name: str = "distill"
    teach: Literal["local_kl", "local_kl_element", "global_kl", "margin_mse", "in_batch_kl"] = "global_kl"
    teacher_temperature: float = 1.0
    square_temperature: bool = False
    teacher_weight: float = 1.0
    nll_weight: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group_size < 2 and self.teach != "in_batch_kl":
            raise ValueError(f"group_size={self.group_size}: a teacher compares passages of a group; expected 2 or more")
        if self.teacher_temperature <= 0:
            raise ValueError(f"teacher_temperature={self.teacher_temperature} must be positive")
        if self.teacher_weight <= 0 or self.nll_weight < 0:
            raise ValueError(f"teacher_weight={self.teacher_weight} must be positive, nll_weight={self.nll_weight} not negative")
        if self.memory and self.teach == "in_batch_kl":
            raise ValueError(
                f"memory={self.memory}: a teacher of all pairs of the batch (teach='in_batch_kl') knows none of earlier batches"
            )
        if self.memory and self.teach != "global_kl" and not self.nll_weight:
            raise ValueError(f"memory={self.memory}: with teach={self.teach!r} and nll_weight=0 no loss compares with it")
        if self.teach in ("global_kl", "in_batch_kl") and not self.in_batch:
            raise ValueError(f"teach={self.teach!r} compares with all passages of the batch: it needs in_batch=True (local_kl does not)")
        if self.teach == "margin_mse" and self.positives != "sampled":
            raise ValueError("teach='margin_mse' compares one positive with each negative: it needs positives='sampled'")
        if RANDOM in self.sources:
            raise ValueError(f"sources={self.sources}: a teacher has not seen what is drawn at random; expected pools alone")
        self._check_read()

    def _check_read(self) -> None:
        """Refuse what no loss would read."""
        if self.fill != "random":
            raise ValueError(f"fill={self.fill!r}: a query with too few passages that the teacher knows is left out; expected the default")
        if not self.nll_weight and (self.symmetric or self.loss != "nll"):
            raise ValueError(f"symmetric={self.symmetric}, loss={self.loss!r} are of the contrastive loss, which nll_weight=0 leaves out")
        if self.teach == "margin_mse" and (self.teacher_temperature != 1 or self.square_temperature):
            raise ValueError(
                f"teacher_temperature={self.teacher_temperature}, square_temperature={self.square_temperature}: teach='margin_mse'"
                " compares undivided scores; expected the defaults"
            )
        if self.teach == "margin_mse" and self.temperature != 1 and not self.nll_weight:
            raise ValueError(
                f"temperature={self.temperature}: teach='margin_mse' compares undivided scores, and nll_weight=0 leaves no other loss;"
                " expected 1"
            )

    def need_teacher(self, folder: Path) -> None:
        """See that what a teacher gave lies in the folder of a training set.

        Raises:
            InputError: it does not; what makes it is named.
        """
        vectors = self.teach == "in_batch_kl"
        place, made = (folder / VECTORS, "vectors") if vectors else (folder / TEACHER_SCORES, "scores")
        if not place.exists():
            how = "launch/teach.py --config.write=vectors" if vectors else "launch/teach.py"
            raise InputError(
                f"{place} does not exist: teach={self.teach!r} needs a teacher's {made} of this training set, which {how} writes"
            )

    def build(self, context: Context) -> Objective:
        """The objective for a model and its data; see `ContrastiveConfig.build`."""
        self.check(context)
        return Distill(context, self)


@dataclass(frozen=True)
class Distill(Contrastive):
    """Groups with a teacher's scores or vectors."""

    config: DistillConfig

    def fields(self) -> dict[str, Field]:
        """Those of contrastive fine-tuning, and ``teacher``, a score for each passage of the group; or, for all pairs of the batch,
        ``teacher_query`` and ``teacher_passage``, whose dot products are the scores."""
        n = self.config.group_size
        if self.config.teach == "in_batch_kl":
            width = "width of the teacher"
            return super().fields() | {"teacher_query": Field((width,), "float32"), "teacher_passage": Field((n, width), "float32")}
        return super().fields() | {"teacher": Field((n,), "float32")}

    def rows(self, store: TokenStore, groups: Path | None = None, tokenizer: Tokenizer | None = None) -> RowSource:
        """Groups from a training set on disk, with ``teacher_scores.jsonl`` or a teacher's vectors beside it.

        Raises:
            InputError: no training set, no scores or vectors, or none that belong to it.
        """
        if groups is None:
            raise InputError("distillation learns from judged queries: it needs a training set, not a corpus alone")
        self.config.need_teacher(groups if groups.is_dir() else groups.parent)
        return super().rows(store, groups, tokenizer)

    def teacher(self, file: Path, examples: TrainingSet, store: TokenStore) -> Teacher:
        """The scores or vectors beside the training set."""
        if self.config.teach == "in_batch_kl":
            run = (file.parent / VECTORS).resolve().parent  # beside a share of the queries there is a link
            return open_teacher_vectors(run, examples, store.row_of, store.content_ids)
        scores = file.with_name(TEACHER_SCORES)
        need_as_left(scores)
        query_of = {id: n for n, id in enumerate(examples.query_ids)}
        return read_teacher_scores(scores, query_of, store.row_of, store.content_ids, BadRows("error"))

    def over_batch(
        self, params: Params, vectors: Mapping[str, jax.Array], sums: Mapping[str, Pair], batch: Batch
    ) -> tuple[jax.Array, dict[str, Pair]]:
        """Metrics: those of contrastive fine-tuning, ``nll``, ``teach``, and ``agreement``: how often both put the same passage first
        (of the group; of the batch with in_batch_kl)."""
        c = self.config
        if c.teach == "in_batch_kl":
            b, n, width = batch["teacher_passage"].shape
            theirs = batch["teacher_passage"].reshape(b * n, width)
            found = self.compared(vectors, batch, contrastive.Teacher(batch["teacher_query"], theirs, c.teacher_temperature))
            assert found.ranked.kl is not None and found.ranked.agreed is not None
            teach, agreed = (found.ranked.kl.sum(), jnp.asarray(b, found.ranked.kl.dtype)), found.ranked.agreed
        else:
            found = self.compared(vectors, batch)
            teach = self._teach(found.own, found.ranked, batch["teacher"], found.keep)
            first = [jnp.argmax(jnp.where(found.keep, scores, -jnp.inf), axis=1) for scores in (found.own, batch["teacher"])]
            agreed = first[0] == first[1]
        factor = c.temperature**2 if c.square_temperature else 1.0
        agreement = agreed.sum(dtype=jnp.float32), jnp.float32(len(agreed))
        metrics = found.metrics | {"teach": teach, "agreement": agreement, "nll": (found.loss, jnp.ones((), found.loss.dtype))}
        loss = c.teacher_weight * factor * mean(teach)
        return loss + c.nll_weight * found.loss if c.nll_weight else loss, metrics

    def _teach(self, own: Float[Array, "b n"], ranked: contrastive.Ranked, teacher: Float[Array, "b n"], keep: Bool[Array, "b n"]) -> Pair:
        c = self.config
        if c.teach == "margin_mse":
            return group_losses.margin_mse(own, teacher, keep)
        if c.teach == "global_kl":
            return group_losses.global_kl(own, ranked.log_total, teacher, keep, c.temperature, c.teacher_temperature)
        return group_losses.local_kl(own, teacher, keep, c.temperature, c.teacher_temperature, by_element=c.teach == "local_kl_element")

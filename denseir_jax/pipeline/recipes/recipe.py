"""What every recipe is put together with: links that know what they read, a table that begins with BM25, a report."""

import dataclasses
from typing import Any

from denseir_jax.data.template import TextTemplate
from denseir_jax.objectives.cross_encoder import CrossEncoderConfig
from denseir_jax.pipeline.chain import PipelineConfig
from denseir_jax.pipeline.stages.encode import EncodeConfig
from denseir_jax.pipeline.stages.evaluate import EvaluateConfig
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.pipeline.stages.pretrain import PretrainConfig
from denseir_jax.pipeline.stages.report import ReportConfig
from denseir_jax.pipeline.stages.rerank import RerankConfig
from denseir_jax.pipeline.stages.teach import TeachConfig
from denseir_jax.pipeline.stages.unite import UniteConfig

START = "@init_from"  # a published encoder or a run of one's own, or random weights where none is given
BM25_NEGATIVES = "@bm25_negatives"
STAGE_2 = "stage 2: + mined negatives"  # label of its row


class Recipe:
    """Links in the order in which they run; who reads what and starts where is filled in here, the numbers come from cards.

    Models are spoken of as ``run:@link``, folders as ``@link``, as in a config (`chain`).

    Args:
        dataset: format:path, or "" to be given on the command line. prepare: of the passages as they are retrieved.
        rerank_depth: passages a query that a cross-encoder puts in order for the table.
    """

    def __init__(self, dataset: str, prepare: PrepareConfig, rerank_depth: int = 100):
        self._dataset, self._prepare, self._depth = dataset, prepare, rerank_depth
        self.links: dict[str, Any] = {"prepare": dataclasses.replace(prepare, corpus="@dataset", tokenizer=START)}
        self._vectors: dict[str, str] = {}
        self._measured: dict[str, EvaluateConfig | RerankConfig] = {}
        self._rows: dict[str, str] = {}
        self.row("BM25", "bm25", "bm25")

    def pretrain(self, name: str, config: PretrainConfig, start: str | None, own_tokens: bool = True) -> str:
        """Pre-train on the corpus, cut as the config's `prepare` says (`own_tokens`) or as it is retrieved; the model."""
        tokens = "@prepare"
        if own_tokens:
            tokens = f"@{name}_tokens"
            self.links[tokens[1:]] = dataclasses.replace(config.prepare, corpus="@dataset", tokenizer="@prepare")
        self.links[name] = dataclasses.replace(config, tokens=tokens, init_from=start)
        return f"run:@{name}"

    def bm25_negatives(self, config: MineConfig) -> str:
        """Negatives of BM25; the training set."""
        self.links["bm25_negatives"] = dataclasses.replace(config, dataset="@dataset", retriever="bm25")
        return BM25_NEGATIVES

    def finetune(self, name: str, config: FinetuneConfig, start: str | None, training_set: str) -> str:
        """Fine-tune from `start`; the model."""
        prepare = dataclasses.replace(self._prepare, corpus="", tokenizer=None)  # else the run says that its card would cut otherwise
        self.links[name] = dataclasses.replace(
            config, dataset="@dataset", tokens="@prepare", init_from=start, training_set=training_set, prepare=prepare
        )
        return f"run:@{name}"

    def encode(self, name: str, model: str) -> None:
        """The corpus as this model's vectors, which whatever follows uses."""
        self.links[name] = EncodeConfig(retriever=model, tokens="@prepare")
        self._vectors[model] = f"@{name}"

    def mine(self, name: str, config: MineConfig, model: str, training_set: str | None) -> str:
        """Add the model's negatives to a training set, if one is given; the training set."""
        self.links[name] = dataclasses.replace(
            config, dataset="@dataset", retriever=model, embeddings=self._vectors.get(model), training_set=training_set
        )
        return f"@{name}"

    def unite(self, name: str, *training_sets: str) -> str:
        """Several training sets as one; the training set."""
        self.links[name] = UniteConfig(training_sets=",".join(training_sets))
        return f"@{name}"

    def teacher(self, name: str, config: FinetuneConfig, start: str | None, training_set: str) -> str:
        """Fine-tune a teacher, a retriever or a cross-encoder, which scores passages afterwards; a row of the table is its own."""
        model = self.finetune(name, config, start, training_set)
        if isinstance(config.objective, CrossEncoderConfig):
            self.reranked(f"BM25 reranked by {name.replace('_', ' ')}", name, model)
        else:
            self.encode(f"encode_{name}", model)
            self.row(name.replace("_", " "), name, model)
        return model

    def reranked(self, label: str, name: str, reranker: str, ranked: str = "bm25") -> None:
        """A row of what a cross-encoder makes of the first passages of another row, ``evaluate_<ranked>``."""
        self._measured[f"rerank_{name}"] = RerankConfig(dataset="@dataset", run=f"@evaluate_{ranked}", reranker=reranker, depth=self._depth)
        self._measured[f"evaluate_{name}"] = EvaluateConfig(dataset="@dataset", run=f"@rerank_{name}")
        self._rows[label] = f"evaluate_{name}"

    def teach(self, name: str, teacher: str, training_set: str) -> str:
        """A teacher's scores of a training set; the training set with them."""
        self.links[name] = TeachConfig(
            dataset="@dataset", training_set=training_set, teacher=teacher, embeddings=self._vectors.get(teacher)
        )
        return f"@{name}"

    def two_stages(
        self, start: str, stage1: FinetuneConfig, stage2: FinetuneConfig, negatives: MineConfig, training_set: str = BM25_NEGATIVES
    ) -> str:
        """Fine-tune, mine with what came out, fine-tune again from where the first began, on both kinds; the last training set."""
        first = self.finetune("stage1", stage1, start, training_set)
        self.encode("encode1", first)
        mined = self.mine("mined_negatives", negatives, first, training_set)
        self.encode("encode2", self.finetune("stage2", stage2, start, mined))
        return mined

    def row(self, label: str, name: str, model: str, hybrid: bool = False, template: TextTemplate | None = None) -> None:
        """A row of the final table: what is measured, under which label, by the link ``evaluate_<name>``."""
        settings = EvaluateConfig(dataset="@dataset", retriever=model, embeddings=self._vectors.get(model), hybrid=hybrid)
        self._measured[f"evaluate_{name}"] = dataclasses.replace(settings, template=template or settings.template)
        self._rows[label] = f"evaluate_{name}"

    def stage_rows(self, hybrid: bool = False) -> None:
        """Rows of both stages, and with `hybrid` of BM25 and the last together."""
        self.row("stage 1: + BM25 negatives", "stage1", "run:@stage1")
        self.row(STAGE_2, "stage2", "run:@stage2")
        if hybrid:
            self.row("BM25 + stage 2 (tuned on dev)", "hybrid", "run:@stage2", hybrid=True)

    def finished(self, report: ReportConfig, worst: str) -> PipelineConfig:
        """The whole recipe: everything is made, then measured, with BM25 first, then reported.

        Args:
            worst: the label of the row whose worst queries are shown.
        """
        trained = [name for name, link in self.links.items() if isinstance(link, (PretrainConfig, FinetuneConfig))]
        links = self.links | self._measured
        links["report"] = dataclasses.replace(
            report,
            dataset="@dataset",
            rows=tuple(f"{label}=@{name}" for label, name in self._rows.items()),
            baseline="BM25",
            curves=tuple(f"{name}=@{name}" for name in trained),
            lineage=tuple(f"{name}=@{name}" for name in self.links),
            worst=worst,
        )
        return PipelineConfig(dataset=self._dataset, order=tuple(links), links=links)

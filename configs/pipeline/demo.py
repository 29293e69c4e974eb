"""The whole pipeline on 10,033 Wikipedia extracts: description -> extract, from scratch, in minutes on two cores.

    python launch/pipeline.py --config configs/pipeline/demo.py --workdir runs/demo
    python launch/pipeline.py --config configs/pipeline/demo.py:warm --config.init_from=hf:DIR --workdir runs/warm

The second starts from a Hugging Face folder (MiniLM, say) instead of pre-training. `:smoke` is a run of seconds.
"""

import dataclasses

from denseir_jax.core.config import card
from denseir_jax.data.demo import ATTRIBUTION
from denseir_jax.data.template import TextTemplate
from denseir_jax.models.bert import EncoderConfig
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.objectives.bottleneck import CondenserConfig
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.objectives.ict import IctConfig
from denseir_jax.objectives.mixture import MixtureConfig
from denseir_jax.pipeline.chain import PipelineConfig
from denseir_jax.pipeline.stages.encode import EncodeConfig
from denseir_jax.pipeline.stages.evaluate import EvaluateConfig
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.pipeline.stages.pretrain import PretrainConfig
from denseir_jax.pipeline.stages.report import ReportConfig
from denseir_jax.train.loop import Cadence
from denseir_jax.train.optimizer import OptimizerConfig

# Titles are left out: prepended they changed nothing for BM25 and hurt the dense model (docs say it of a prototype).
TEMPLATE = TextTemplate(query_length=20, passage_length=40, use_title=False)
EMBEDDER = EmbedderConfig(pooling="mean", normalize=True)
# The weight of Condenser's two losses beside ICT's: chosen on dev by benchmarks/condenser_weight.py (its result is kept).
CONDENSER_WEIGHT = 0.0


def encoder(layers: int) -> EncoderConfig:
    return EncoderConfig(8192, hidden=256, layers=layers, heads=4, intermediate=512, max_length=64, dropout=0.0, attention_dropout=0.0)


def pretrain(layers: int, steps: int, condenser_weight: float) -> PretrainConfig:
    """ICT with chunks of 4-12 tokens, kept in the passage in 3 of 10 pairs, and Condenser's losses by a constant weight."""
    ict = IctConfig(unit="chunk", chunk_min=4, chunk_max=12, keep_rate=0.3, temperature=0.05, symmetric=True)
    mixed = MixtureConfig(parts={"ict": ict, "condenser": CondenserConfig()}, weights={"ict": 1.0, "condenser": condenser_weight})
    return PretrainConfig(
        tokens="@prepare",
        steps=steps,
        batch_size=128,
        objective=mixed,
        encoder=encoder(layers),
        embedder=EMBEDDER,
        optimizer=OptimizerConfig(lr=1.5e-3, b2=0.98),
        cadence=Cadence(log=10, save=200, probe=100),
    )


def finetune(layers: int, steps: int, lr: float, **more: object) -> FinetuneConfig:
    return FinetuneConfig(
        dataset="@dataset",
        tokens="@prepare",
        training_set="@bm25_negatives",
        steps=steps,
        batch_size=128,
        objective=ContrastiveConfig(group_size=2, temperature=0.05, similarity="cosine", symmetric=True),
        encoder=encoder(layers),
        embedder=EMBEDDER,
        optimizer=OptimizerConfig(lr=lr, b2=0.98),
        cadence=Cadence(log=5, save=100, probe=50),
        **more,
    )


def evaluate(retriever: str, **more: object) -> EvaluateConfig:
    return EvaluateConfig(dataset="@dataset", retriever=retriever, **more)


def get_config(variant: str = "scratch"):
    if variant not in ("scratch", "smoke", "warm"):
        raise ValueError(f"unknown variant {variant!r}; expected scratch, smoke or warm")
    return card(warm() if variant == "warm" else scratch(smoke=variant == "smoke"))


def scratch(smoke: bool) -> PipelineConfig:
    def steps(n: int) -> int:
        return 10 if smoke else n

    layers = 2 if CONDENSER_WEIGHT else 1
    start = {"init_from": "run:@pretrain"}
    links = {
        "prepare": PrepareConfig(corpus="@dataset", vocab_size=8192, train_queries=True, template=TEMPLATE),
        "bm25_negatives": MineConfig(dataset="@dataset", retriever="bm25", depth=50, hi=50, n=10),
        "control_pretrain": pretrain(0, steps(600), 0.0),
        "control": finetune(0, steps(200), 1e-3, init_from="run:@control_pretrain"),
        "no_pretrain": finetune(layers, steps(200), 1e-3),
        "pretrain": pretrain(layers, steps(700), CONDENSER_WEIGHT),
        "stage1": finetune(layers, steps(140), 1e-3, **start),
        "encode": EncodeConfig(retriever="run:@stage1", tokens="@prepare"),
        "mined_negatives": MineConfig(
            dataset="@dataset", retriever="run:@stage1", embeddings="@encode", training_set="@bm25_negatives", depth=50, hi=20, n=10
        ),
        "stage2": dataclasses.replace(finetune(layers, steps(140), 1e-3, **start), training_set="@mined_negatives"),
        "evaluate_bm25": evaluate("bm25"),
        "evaluate_control": evaluate("run:@control"),
        "evaluate_no_pretrain": evaluate("run:@no_pretrain"),
        "evaluate_pretrain": evaluate("run:@pretrain"),
        "evaluate_stage1": evaluate("run:@stage1", embeddings="@encode"),
        "encode2": EncodeConfig(retriever="run:@stage2", tokens="@prepare"),
        "evaluate_stage2": evaluate("run:@stage2", embeddings="@encode2"),
        "evaluate_hybrid": evaluate("run:@stage2", embeddings="@encode2", hybrid=True),
        "report": ReportConfig(
            title="Dense retrieval from scratch on Wikipedia extracts",
            summary=(
                "A short description of an article must find the article's extract among 10,033. All was trained here, from nothing.",
            ),
            attribution=ATTRIBUTION,
            dataset="@dataset",
            rows=(
                "BM25=@evaluate_bm25",
                "embeddings only (control)=@evaluate_control",
                "dense without pre-training=@evaluate_no_pretrain",
                "pre-training alone (no labels)=@evaluate_pretrain",
                "stage 1: + BM25 negatives=@evaluate_stage1",
                "stage 2: + mined negatives=@evaluate_stage2",
                "BM25 + stage 2 (tuned on dev)=@evaluate_hybrid",
            ),
            baseline="BM25",
            curves=("pre-training=@pretrain", "no pre-training=@no_pretrain", "stage 1=@stage1", "stage 2=@stage2"),
            lineage=("tokens=@prepare", "pre-training=@pretrain", "stage 1=@stage1", "mined negatives=@mined_negatives", "stage 2=@stage2"),
            worst="stage 2: + mined negatives",
        ),
    }
    return PipelineConfig(dataset="demo:", order=tuple(links), links=links)


def warm() -> PipelineConfig:
    """From a published encoder: no pre-training, its own tokenizer and shape, longer texts."""
    longer = dataclasses.replace(TEMPLATE, query_length=32, passage_length=64)

    def tune(**more: object) -> FinetuneConfig:
        tuned = finetune(6, 60, 5e-5, init_from="@init_from", **more)
        return dataclasses.replace(tuned, batch_size=64, cadence=Cadence(log=5, save=20, probe=0))

    links = {
        "prepare": PrepareConfig(corpus="@dataset", tokenizer="@init_from", template=longer),
        "bm25_negatives": MineConfig(dataset="@dataset", retriever="bm25", depth=50, hi=50, n=10),
        "stage1": tune(),
        "encode": EncodeConfig(retriever="run:@stage1", tokens="@prepare"),
        "mined_negatives": MineConfig(
            dataset="@dataset", retriever="run:@stage1", embeddings="@encode", training_set="@bm25_negatives", depth=50, hi=20, n=10
        ),
        "stage2": dataclasses.replace(tune(), training_set="@mined_negatives"),
        "encode2": EncodeConfig(retriever="run:@stage2", tokens="@prepare"),
        "evaluate_bm25": evaluate("bm25"),
        "evaluate_start": evaluate("@init_from", template=longer),
        "evaluate_stage1": evaluate("run:@stage1", embeddings="@encode"),
        "evaluate_stage2": evaluate("run:@stage2", embeddings="@encode2"),
        "evaluate_hybrid": evaluate("run:@stage2", embeddings="@encode2", hybrid=True),
        "report": ReportConfig(
            title="Dense retrieval from a published encoder on Wikipedia extracts",
            attribution=ATTRIBUTION,
            dataset="@dataset",
            rows=(
                "BM25=@evaluate_bm25",
                "start (no labels)=@evaluate_start",
                "stage 1: + BM25 negatives=@evaluate_stage1",
                "stage 2: + mined negatives=@evaluate_stage2",
                "BM25 + stage 2 (tuned on dev)=@evaluate_hybrid",
            ),
            baseline="BM25",
            curves=("stage 1=@stage1", "stage 2=@stage2"),
            lineage=("tokens=@prepare", "stage 1=@stage1", "mined negatives=@mined_negatives", "stage 2=@stage2"),
            worst="stage 2: + mined negatives",
        ),
    }
    return PipelineConfig(dataset="demo:", order=tuple(links), links=links)

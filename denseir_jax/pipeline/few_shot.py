"""The few-shot recipe, as a config: the same fine-tuning on nested shares of the training queries, each evaluated, one curve a start."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from denseir_jax.data.template import TextTemplate
from denseir_jax.pipeline.chain import PipelineConfig
from denseir_jax.pipeline.stages.evaluate import EvaluateConfig
from denseir_jax.pipeline.stages.few_shot import FewShotConfig
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.pipeline.stages.pretrain import PretrainConfig

SHARES = (0.001, 0.01, 0.05, 0.1, 0.5, 1.0)


def few_shot(
    prepare: PrepareConfig,
    negatives: MineConfig,
    finetune: FinetuneConfig,
    report: FewShotConfig,
    shares: Sequence[float] = SHARES,
    pretrain: PretrainConfig | None = None,
    scratch: FinetuneConfig | None = None,
) -> PipelineConfig:
    """Prepare, mine BM25 negatives once, perhaps pre-train, then fine-tune and evaluate by share, and draw the curve.

    All shares start alike and have the same seed, so the queries of a smaller share are among those of a larger one.

    Args:
        prepare, negatives, finetune, report: configs of the links; what they read and where they start is filled in here.
        shares: of the training queries. pretrain: None starts from ``init_from`` and its tokenizer. scratch: how to fine-tune
        from random weights, for a second curve, or None.
    """
    start = "run:@pretrain" if pretrain else "@init_from"
    links: dict[str, Any] = {"prepare": dataclasses.replace(prepare, corpus="@dataset", tokenizer="@init_from")}
    links["negatives"] = dataclasses.replace(negatives, dataset="@dataset", retriever="bm25")
    if pretrain:
        links["pretrain"] = dataclasses.replace(pretrain, tokens="@prepare", init_from="@init_from")
    label = "pre-trained" if pretrain else "started from a trained encoder"
    curves: list[tuple[str, str, FinetuneConfig, str | None]] = [("tuned", label, finetune, start)]
    if scratch:
        curves.append(("scratch", "from random weights", scratch, None))
    tuned, evaluated = [], []
    for name, curve, config, init_from in curves:
        for share in shares:
            link = f"{name}_{100 * share:g}".replace(".", "_")
            own = dataclasses.replace(config, dataset="@dataset", tokens="@prepare", init_from=init_from)
            links[link] = dataclasses.replace(own, training_set="@negatives", query_share=share)
            links[f"evaluate_{link}"] = EvaluateConfig(dataset="@dataset", retriever=f"run:@{link}")
            tuned.append(f"{curve}=@{link}")
            evaluated.append(f"@evaluate_{link}")
    links["evaluate_bm25"] = EvaluateConfig(dataset="@dataset", retriever="bm25")
    template = TextTemplate() if pretrain else prepare.template  # a run brings its own
    links["evaluate_start"] = EvaluateConfig(dataset="@dataset", retriever=start, template=template)
    links["few_shot"] = dataclasses.replace(
        report,
        tuned=tuple(tuned),
        evaluated=tuple(evaluated),
        levels=("BM25=@evaluate_bm25", "no training query=@evaluate_start"),
        baseline="BM25",
    )
    return PipelineConfig(dataset="", order=tuple(links), links=links)

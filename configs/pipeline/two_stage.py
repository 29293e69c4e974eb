"""Your own data in two stages: pre-train, fine-tune on BM25 negatives, mine, fine-tune again, evaluate beside BM25.

    python launch/pipeline.py --config configs/pipeline/two_stage.py:tiny --config.dataset=beir:FOLDER --workdir DIR

The dataset needs the splits train, dev and test. The argument is a size (smoke, tiny, small, base), or `warm`: no
pre-training, start from --config.init_from=hf:DIR or run:DIR. tiny takes minutes on two cores and learns from scratch; base
wants an accelerator. The protocol is coCondenser's (stage 2 starts again from the pre-trained weights, on BM25 and mined
negatives together); objective, pooling and rates are ours, chosen for models that start from little.
"""

from denseir_jax.core.config import card, choose
from denseir_jax.data.template import TextTemplate
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.models.sizes import encoder
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.objectives.ict import IctConfig
from denseir_jax.pipeline.recipes.two_stage import two_stage
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.pipeline.stages.pretrain import PretrainConfig
from denseir_jax.pipeline.stages.report import ReportConfig
from denseir_jax.train.loop import Cadence
from denseir_jax.train.optimizer import OptimizerConfig

# size: pre-training steps, pairs a step; fine-tuning steps, queries a step, passages a query; vocabulary; tokens of a
# query, of a passage.
SIZES = {
    "smoke": (10, 16, 10, 16, 2, 1000, 16, 32),
    "tiny": (400, 128, 120, 64, 2, 8192, 32, 96),
    "small": (20_000, 256, 2000, 64, 4, 16_000, 32, 128),
    "base": (100_000, 1024, 23_500, 64, 8, 30_522, 32, 128),
    "warm": (0, 0, 200, 32, 2, 30_522, 32, 128),
}


def get_config(size: str = "tiny"):
    pretrain_steps, pairs, steps, queries, group, vocabulary, query, passage = choose(SIZES, size)
    shape = tiny(vocabulary) if size == "tiny" else encoder("small" if size == "warm" else size, vocabulary)
    embedder = EmbedderConfig(pooling="mean", normalize=True)
    learning_rate = {"smoke": 1e-3, "tiny": 1e-3, "small": 3e-4, "base": 2e-5, "warm": 5e-5}[size]
    pretrain = PretrainConfig(
        steps=max(pretrain_steps, 1),
        batch_size=max(pairs, 1),
        objective=IctConfig(unit="chunk", chunk_min=4, chunk_max=12, keep_rate=0.3, temperature=0.05, symmetric=True),
        encoder=shape,
        embedder=embedder,
        optimizer=OptimizerConfig(lr=1e-4 if size == "base" else 1.5e-3 if size == "tiny" else 5e-4, b2=0.98),
        cadence=Cadence(log=10, save=200, probe=200),
    )
    finetune = FinetuneConfig(
        steps=steps,
        batch_size=queries,
        objective=ContrastiveConfig(group_size=group, temperature=0.05, similarity="cosine", symmetric=True),
        encoder=shape,
        embedder=embedder,
        optimizer=OptimizerConfig(lr=learning_rate, b2=0.98),
        cadence=Cadence(log=5, save=50, probe=50),
    )
    recipe = two_stage(
        "",
        PrepareConfig(vocab_size=vocabulary, train_queries=True, template=TextTemplate(query_length=query, passage_length=passage)),
        finetune,
        MineConfig(depth=200, hi=200, n=30),
        MineConfig(depth=200, hi=200, n=30),
        ReportConfig(title="Two-stage dense retrieval"),
        pretrain=None if size == "warm" else pretrain,
        no_pretrain=None if size == "warm" else finetune,
    )
    return card(recipe)


def tiny(vocabulary: int) -> EncoderConfig:
    """One layer: what pays from scratch in minutes on two cores."""
    return EncoderConfig(vocabulary, hidden=256, layers=1, heads=4, intermediate=512, max_length=128, dropout=0.0, attention_dropout=0.0)

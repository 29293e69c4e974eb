"""How many labelled queries does it take? The same fine-tuning on 0.1, 1, 5, 10, 50 and 100% of the training queries.

    python launch/pipeline.py --config configs/pipeline/few_shot.py:tiny --config.dataset=beir:FOLDER --workdir DIR

The argument is a size (smoke, tiny, small, base), or `warm`: no pre-training, start from --config.init_from=hf:DIR or run:DIR.
SIZE alone gives every share the same number of steps; SIZE+epochs the same number of passes over its queries (3). One curve
starts pre-trained, one from random weights (at tiny and small); beside them stand BM25 and the start without labels.
The curve is DIR/few_shot/few_shot.png. The dataset needs the splits train, dev and test.
"""

from denseir_jax.core.config import card, choose
from denseir_jax.data.template import TextTemplate
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.models.sizes import encoder
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.objectives.ict import IctConfig
from denseir_jax.pipeline.few_shot import SHARES, few_shot
from denseir_jax.pipeline.stages.few_shot import FewShotConfig
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.pipeline.stages.pretrain import PretrainConfig
from denseir_jax.train.loop import Cadence
from denseir_jax.train.optimizer import OptimizerConfig

# size: pre-training steps, pairs a step; fine-tuning steps, queries a step, passages a query; vocabulary; tokens of a
# query, of a passage; learning rates of pre-training and fine-tuning. As in two_stage.py; ours.
SIZES = {
    "smoke": (10, 16, 10, 8, 2, 1000, 16, 32, 5e-4, 1e-3),
    "tiny": (400, 128, 120, 64, 2, 8192, 32, 96, 1.5e-3, 1e-3),
    "small": (20_000, 256, 2000, 64, 4, 16_000, 32, 128, 5e-4, 3e-4),
    "base": (100_000, 1024, 23_500, 64, 8, 30_522, 32, 128, 1e-4, 2e-5),
    "warm": (0, 0, 200, 32, 2, 30_522, 32, 128, 0.0, 5e-5),
}
BUDGETS = {"": 0.0, "epochs": 3.0}


def get_config(argument: str = "tiny"):
    size, _, budget = argument.partition("+")
    pretrain_steps, pairs, steps, queries, group, vocabulary, query, passage, pretrain_lr, lr = choose(SIZES, size)
    shape = tiny(vocabulary) if size == "tiny" else encoder("small" if size == "warm" else size, vocabulary)
    embedder = EmbedderConfig(pooling="mean", normalize=True)
    finetune = FinetuneConfig(
        steps=steps,
        epochs=choose(BUDGETS, budget, "budget"),
        batch_size=queries,
        objective=ContrastiveConfig(group_size=group, temperature=0.05, similarity="cosine", symmetric=True),
        encoder=shape,
        embedder=embedder,
        optimizer=OptimizerConfig(lr=lr, b2=0.98),
        cadence=Cadence(log=5, save=50, probe=0),  # the last step is what is evaluated: a share has no dev set of its own
    )
    pretrain = PretrainConfig(
        steps=max(pretrain_steps, 1),
        batch_size=max(pairs, 1),
        objective=IctConfig(unit="chunk", chunk_min=4, chunk_max=12, keep_rate=0.3, temperature=0.05, symmetric=True),
        encoder=shape,
        embedder=embedder,
        optimizer=OptimizerConfig(lr=pretrain_lr or 5e-4, b2=0.98),
        cadence=Cadence(log=10, save=200, probe=0 if size == "smoke" else 200),
    )
    recipe = few_shot(
        # The tokenizer sees no training query: a small share would know the words of the others by it.
        PrepareConfig(vocab_size=vocabulary, template=TextTemplate(query_length=query, passage_length=passage)),
        MineConfig(depth=200, hi=200, n=30),
        finetune,
        FewShotConfig(title="Fine-tuning on a share of the training queries"),
        shares=(0.02, 1.0) if size == "smoke" else SHARES,
        pretrain=None if size == "warm" else pretrain,
        scratch=None if size in ("smoke", "warm", "base") else finetune,
    )
    return card(recipe)


def tiny(vocabulary: int) -> EncoderConfig:
    """One layer: what pays from scratch in minutes on two cores."""
    return EncoderConfig(vocabulary, hidden=256, layers=1, heads=4, intermediate=512, max_length=128, dropout=0.0, attention_dropout=0.0)

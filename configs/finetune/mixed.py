"""Fine-tuning on several data sets at once, every batch from one of them.

The argument is a size (smoke, tiny, small or base) and the sets' names: tiny+nq+trivia. Each set is then told its source:

    python launch/finetune.py --config configs/finetune/mixed.py:tiny+nq+trivia --workdir runs/mixed \\
        --config.datasets.nq.dataset=beir:NQ --config.datasets.nq.tokens=runs/nq_tokens --config.datasets.nq.weight=2 \\
        --config.datasets.trivia.dataset=beir:TRIVIA

Negatives are mined for each unless --config.datasets.NAME.training_set names them (a mine or teach run, or "given"). Sets without
tokens are prepared with the tokenizer of --config.init_from, --config.prepare.tokenizer, or of a set that has some.
--config.size_power=1 gives every query of every set the same number of turns, 0.5 lies between that and 0, the weights alone.
A passage is known to answer a query by the corpus of its set; sets never meet in a batch, so equal texts of two corpora are no
false negatives of each other. The mean of the sets' probes chooses the best checkpoint.
Numbers are those of contrastive.py; distillation over several sets is the same with distill.py's objective in a card of one's own.
"""

from denseir_jax.core.config import card, choose
from denseir_jax.data.template import TextTemplate
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.sizes import encoder
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.pipeline.stages.data_sets import SetConfig
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.train.loop import Cadence
from denseir_jax.train.optimizer import OptimizerConfig

# size: steps, queries a step, vocabulary, tokens of a query, of a passage, learning rate.
SIZES = {
    "smoke": (20, 8, 1000, 16, 32, 5e-4),
    "tiny": (500, 32, 8000, 32, 96, 5e-4),
    "small": (2000, 64, 16_000, 32, 128, 1e-4),
    "base": (23_500, 64, 30_522, 32, 128, 5e-6),
}


def get_config(argument: str = "base"):
    size, *names = argument.split("+")
    steps, batch_size, vocabulary, query, passage, lr = choose(SIZES, size)
    return card(
        FinetuneConfig(
            datasets={name: SetConfig() for name in names or ("first", "second")},
            steps=steps,
            batch_size=batch_size,
            objective=ContrastiveConfig(group_size=8, temperature=1.0, similarity="dot", tied=True),
            encoder=encoder(size, vocabulary),
            embedder=EmbedderConfig(pooling="cls"),
            prepare=PrepareConfig(
                vocab_size=vocabulary, train_queries=True, template=TextTemplate(query_length=query, passage_length=passage)
            ),
            mine=MineConfig(depth=200, lo=0, hi=200, n=30),
            optimizer=OptimizerConfig(lr=lr, warmup=0.1, weight_decay=0.0),
            cadence=Cadence(log=5 if size == "smoke" else 20, save=10 if size == "smoke" else 500, probe=0 if size == "smoke" else 250),
        )
    )

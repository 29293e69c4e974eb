"""Look at data before training on it: --config.dataset=format:path, and what else would be used with it.

Negatives:  --config.training_set=DIR|FILE   (a mine run, or its .jsonl)
Tokens:     --config.tokens=DIR, or --config.tokenizer=PATH: lengths in tokens, and the share that is cut
Texts only: --config.corpus=format:path      (for pre-training)
Time:       --config.plan.rows_per_second=N  (steps_per_second of a run's log x its batch_size)

The argument is the size of the fine-tuning that the estimates are for.
"""

from denseir_jax.core.config import card, choose
from denseir_jax.data.template import TextTemplate
from denseir_jax.models.sizes import encoder
from denseir_jax.pipeline.checks.plan import PlanConfig
from denseir_jax.pipeline.stages.check_data import CheckConfig

# size: steps, queries a step, vocabulary, tokens of a query, of a passage: those of configs/finetune/contrastive.py.
SIZES = {
    "smoke": (20, 8, 1000, 16, 32),
    "tiny": (500, 32, 8000, 32, 96),
    "small": (2000, 64, 16_000, 32, 128),
    "base": (23_500, 64, 30_522, 32, 128),
}


def get_config(size: str = "base"):
    steps, batch_size, vocabulary, query, passage = choose(SIZES, size)
    return card(
        CheckConfig(
            split="train",
            template=TextTemplate(query_length=query, passage_length=passage),
            encoder=encoder(size, vocabulary),
            plan=PlanConfig(steps=steps, batch_size=batch_size, group_size=8, tied=True, dtype="float16"),
        )
    )

"""A corpus as tokens, with a tokenizer trained on it (or any other: --config.tokenizer=PATH).

The argument is a size. It decides the vocabulary and the lengths in tokens, which the models of the same size expect.
"""

from denseir_jax.core.config import card, choose
from denseir_jax.data.template import TextTemplate
from denseir_jax.pipeline.stages.prepare import PrepareConfig

# size: vocabulary, tokens of a query, tokens of a passage and of a block. base is BERT's vocabulary size and Condenser's length.
SIZES = {"smoke": (2000, 16, 64), "tiny": (8000, 32, 128), "small": (16000, 32, 128), "base": (30522, 32, 128)}


def get_config(size: str = "small"):
    vocabulary, query, passage = choose(SIZES, size)
    return card(
        PrepareConfig(
            vocab_size=vocabulary,
            template=TextTemplate(query_length=query, passage_length=passage),
            split="blocks",
            block_length=passage,
            short_share=0.1,  # Condenser
        )
    )

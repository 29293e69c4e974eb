"""Pre-training on given pairs of a question and a passage, with the other passages of the batch as negatives (Oğuz et al. 2021,
"Domain-matched Pre-training Tasks for Dense Retrieval", arXiv 2107.13602: DPR-PAQ). Afterwards fine-tune from run:DIR.

The argument is a size: smoke, tiny, small or base. base: two BERT towers, [CLS], lr 2.5e-5 (their appendix A.1), up to 10 epochs
(section 3.3) of PAQ's 65 million pairs, triangular learning rate; 2048 pairs a step: 32 (A.1) on each of 64 GPUs, as we read it.
Not told there and ours: warm-up, lengths. Unlike theirs, PAQ's questions have no mined negatives here (as their Reddit pairs).

Passages by id, PAQ's way: prepare the corpus once, and give the pairs as Tevatron's JSON lines, one a pair:
    {"query_id": "7", "query_text": "who ...", "positive_document_ids": ["8012"], "negative_document_ids": []}
    python launch/prepare.py --config configs/prepare/corpus.py:base --config.corpus=dpr_wiki:psgs_w100.tsv --workdir runs/tokens
    python launch/finetune.py --config configs/finetune/pairs.py:base --config.dataset=tevatron:pairs.jsonl \\
        --config.tokens=runs/tokens --config.init_from=hf:DIR --workdir runs/paq
Passages as texts: --config.dataset=columns:pairs.jsonl, with {"question": "...", "passage": "..."}; any other dataset does too.
The tokens must be of the tokenizer of --config.init_from (--config.tokenizer=DIR of the prepare run).
"""

from denseir_jax.core.config import card, choose
from denseir_jax.data.template import TextTemplate
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.sizes import encoder
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.pipeline.stages.finetune import PAIRS, FinetuneConfig
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.train.loop import Cadence
from denseir_jax.train.optimizer import OptimizerConfig

# size: steps, pairs a step, vocabulary, tokens of a question, of a passage, learning rate.
SIZES = {
    "smoke": (20, 8, 1000, 16, 32, 5e-4),
    "tiny": (2000, 128, 8000, 32, 96, 5e-4),
    "small": (20_000, 256, 16_000, 32, 128, 5e-4),
    "base": (317_000, 2048, 30_522, 32, 256, 2.5e-5),
}


def get_config(size: str = "base"):
    steps, batch_size, vocabulary, query, passage, lr = choose(SIZES, size)
    return card(
        FinetuneConfig(
            training_set=PAIRS,
            steps=steps,
            batch_size=batch_size,
            objective=ContrastiveConfig(group_size=1, temperature=1.0, similarity="dot", tied=False),
            encoder=encoder(size, vocabulary),
            embedder=EmbedderConfig(pooling="cls"),
            prepare=PrepareConfig(
                vocab_size=vocabulary, train_queries=False, template=TextTemplate(query_length=query, passage_length=passage)
            ),
            optimizer=OptimizerConfig(lr=lr, warmup=0.1, weight_decay=0.0),
            probe_split="",  # pairs have no judged split of their own: passages' own halves are probed
            cadence=Cadence(log=5 if size == "smoke" else 50, save=10 if size == "smoke" else 1000, probe=0 if size == "smoke" else 1000),
        )
    )

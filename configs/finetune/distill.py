"""Distillation: fine-tuning after a teacher's scores, which launch/teach.py writes beside a training set.

The argument is a size: smoke, tiny, small or base. base: the student's softmax over the whole batch against the teacher's over the
group (Gao & Callan 2022, arXiv 2108.05540, section 5.1: the loss); how long, at which rate and temperature is not told there:
64 queries x 8 passages, lr 5e-6, 3 epochs of about 500,000 queries are its fine-tuning's, the rest is ours. Other losses:
--config.objective.teach=local_kl (sentence-transformers, Tevatron), local_kl_element (RetroMAE), margin_mse.

    python launch/finetune.py --config configs/finetune/distill.py:tiny --config.dataset=beir:FOLDER --config.tokens=runs/tokens \\
        --config.training_set=runs/taught --workdir runs/student

TCT (Lin et al. 2021), at any size: the teacher scores all pairs of the batch, from its vectors (launch/teach.py with
--config.write=vectors). L = g NLL + (1 - g) KL with g = 0.1 and a teacher temperature of 0.25, which we have not checked in the paper:

    --config.objective.teach=in_batch_kl --config.objective.teacher_temperature=0.25 \\
        --config.objective.nll_weight=0.1 --config.objective.teacher_weight=0.9
"""

from denseir_jax.core.config import card, choose
from denseir_jax.data.template import TextTemplate
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.sizes import encoder
from denseir_jax.objectives.distill import DistillConfig
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
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


def get_config(size: str = "base"):
    steps, batch_size, vocabulary, query, passage, lr = choose(SIZES, size)
    return card(
        FinetuneConfig(
            steps=steps,
            batch_size=batch_size,
            objective=DistillConfig(group_size=8, teach="global_kl", temperature=1.0, teacher_temperature=1.0, nll_weight=0.0),
            encoder=encoder(size, vocabulary),
            embedder=EmbedderConfig(pooling="cls"),
            prepare=PrepareConfig(
                vocab_size=vocabulary, train_queries=True, template=TextTemplate(query_length=query, passage_length=passage)
            ),
            optimizer=OptimizerConfig(lr=lr, warmup=0.1, weight_decay=0.0),
            cadence=Cadence(log=5 if size == "smoke" else 20, save=10 if size == "smoke" else 500, probe=0 if size == "smoke" else 250),
        )
    )

"""A tiny retriever with random weights, written as a training run leaves it."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from denseir_jax.core.artifacts import Run
from denseir_jax.data.records import Passage
from denseir_jax.data.template import TextTemplate
from denseir_jax.data.tokenizer import Tokenizer
from denseir_jax.data.wordpiece import train_wordpiece
from denseir_jax.models.embedder import Embedder, EmbedderConfig
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.search.retriever import save_retriever

WORDS = [f"{a}{b}" for a in ("ba", "ce", "di", "fo", "gu", "ha", "ki", "lo") for b in ("rn", "st", "mp", "ll", "nk", "sh")]


def passages(n: int, seed: int = 0) -> list[Passage]:
    """Passages of 0 to 60 words."""
    rng = np.random.default_rng(seed)
    return [Passage(f"d{i}", " ".join(rng.choice(WORDS, size=0 if i == 5 else rng.integers(1, 60)))) for i in range(n)]


def tokenizer() -> Tokenizer:
    """Trained on the words above."""
    return train_wordpiece([" ".join(WORDS)] * 3, 400, True)


TEMPLATE = TextTemplate(query_prefix="q: ", query_length=16, passage_length=40)


def weights(shapes: Any, seed: int) -> Any:
    """Random numbers in the places of parameters: vectors that differ by text, without compiling an initialiser."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: rng.normal(scale=0.3, size=leaf.shape).astype(np.float32), shapes)


def write_run(folder: Path, seed: int = 0, untied: bool = False, lexical: int = 0, similarity: str = "") -> Path:
    """A finished run folder with a retriever in it."""
    words = tokenizer()
    encoder = EncoderConfig(words.vocab_size, hidden=32, layers=1, heads=2, intermediate=48, max_length=64)
    embedder = EmbedderConfig(pooling="mean", normalize=not lexical and similarity in ("", "cosine"), lexical=lexical)
    shapes = jax.eval_shape(Embedder(encoder, embedder).init, jax.random.key(0))
    seeds = {"query": seed, "passage": seed + 100} if untied else {"encoder": seed}
    towers = {name: weights(shapes, number) for name, number in seeds.items()}
    run = Run(folder, "finetune", embedder).open({})
    save_retriever(folder, towers, encoder, embedder, words, TEMPLATE, similarity or ("dot" if lexical else "cosine"))
    run.finish({}, outputs=["encoder"])
    return folder

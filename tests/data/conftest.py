import json
from collections.abc import Callable
from pathlib import Path

import pytest

from denseir_jax.core.command import execute
from denseir_jax.data.tokens import TokenStore
from denseir_jax.pipeline.stages.prepare import PrepareConfig, stage


@pytest.fixture(scope="session")
def make_store(tmp_path_factory) -> Callable[..., TokenStore]:
    """Prepare a corpus of these texts in a new run folder and open its token store."""

    def make(texts: list[str], **settings) -> TokenStore:
        folder: Path = tmp_path_factory.mktemp("store")
        corpus = folder / "corpus.jsonl"
        corpus.write_text("".join(json.dumps({"id": f"d{i}", "text": text}) + "\n" for i, text in enumerate(texts)))
        config = PrepareConfig(**{"corpus": f"jsonl:{corpus}", "workers": 1, "vocab_size": 300, **settings})
        execute(stage, config, folder / "run")
        return TokenStore.open(folder / "run")

    return make


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Documents of 1 to 9 sentences of 2 to 12 words, one of them empty, one a duplicate."""
    import numpy as np

    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefgh"), rng.integers(1, 9))) for _ in range(80)]

    def sentence() -> str:
        return " ".join(rng.choice(words, rng.integers(2, 13))).capitalize() + ". "

    documents = ["".join(sentence() for _ in range(rng.integers(1, 10))).strip() for _ in range(60)]
    documents[7], documents[20] = "", documents[3]
    return documents

"""Made once for all tests of stages and all test workers: a corpus, its tokens, judged pairs, compiled programs."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from launching import once

from denseir_jax.core.command import execute
from denseir_jax.data.template import TextTemplate
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.pipeline.stages.prepare import stage as prepare

WORDS = ["".join(np.random.default_rng(i).choice(list("abcdefghijklmnop"), 5)) for i in range(120)]


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """A folder that all test workers share."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "made"
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / "compiled")  # read by processes that tests launch
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    return folder


def write_texts(path: Path) -> None:
    """60 texts of one to three sentences."""
    rng = np.random.default_rng(0)
    sentences = [[" ".join(rng.choice(WORDS, rng.integers(4, 9))).capitalize() + "." for _ in range(rng.integers(1, 4))] for _ in range(60)]
    path.write_text("".join(json.dumps({"id": f"d{i}", "text": " ".join(found)}) + "\n" for i, found in enumerate(sentences)))


def write_beir(folder: Path, train: int = 240, dev: int = 40) -> None:
    """A BEIR folder in which passages are made of odd words and queries of even ones: word 2i means word 2i + 1.

    Without learning, no query shares a word with any passage.
    """
    rng = np.random.default_rng(1)
    meanings = [sorted(rng.choice(len(WORDS) // 2, 6, replace=False)) for _ in range(60)]
    (folder / "qrels").mkdir(parents=True)
    passages = [{"_id": f"p{i}", "title": "", "text": " ".join(WORDS[2 * m + 1] for m in found)} for i, found in enumerate(meanings)]
    queries, split = [], {"train": range(train), "dev": range(train, train + dev)}
    for number in range(train + dev):
        said = rng.permutation(meanings[number % len(meanings)])[:4]
        queries.append({"_id": f"q{number}", "text": " ".join(WORDS[2 * m] for m in said)})
    for name, rows in (("corpus", passages), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, numbers in (*split.items(), ("test", split["dev"])):
        lines = [f"q{n}\tp{n % len(meanings)}\t1" for n in numbers]
        (folder / "qrels" / f"{name}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(lines) + "\n")


@pytest.fixture(scope="session")
def texts(made) -> Path:
    """The file ``texts``: 60 documents as JSON lines."""
    return once(made, "texts.jsonl", write_texts)


@pytest.fixture(scope="session")
def tokens(made, texts) -> Path:
    """A prepare run of `texts`: 60 rows an epoch."""
    template = TextTemplate(query_length=8, passage_length=16)
    config = PrepareConfig(corpus=f"jsonl:{texts}", vocab_size=200, workers=1, template=template)
    return once(made, "tokens", lambda folder: execute(prepare, config, folder))


@pytest.fixture(scope="session")
def beir(made) -> Path:
    """The folder of `write_beir`."""
    return once(made, "beir", write_beir)


@pytest.fixture(scope="session")
def beir_tokens(made, beir) -> Path:
    """A prepare run of `beir`, its queries known to the tokenizer."""
    template = TextTemplate(query_length=24, passage_length=32)
    config = PrepareConfig(corpus=f"beir:{beir}", vocab_size=300, train_queries=True, workers=1, template=template)
    return once(made, "beir_tokens", lambda folder: execute(prepare, config, folder))

"""The files of a folder of embeddings, read one by one; `denseir_jax.search.embeddings` says what they are."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError
from denseir_jax.data.facts import need_keys, read_facts
from denseir_jax.search.lexical import word_type

FACTS, IDS, BLOCKS = "embeddings.json", "ids.txt", "blocks.npy"
DENSE, WORDS, WEIGHTS = ".npy", ".words.npy", ".weights.npy"
HASHES = {DENSE: "sha256", WORDS: "words_sha256", WEIGHTS: "weights_sha256"}  # of a shard's files, in its record


def read_record(path: Path) -> dict[str, Any]:
    """What is written beside a finished shard.

    Raises:
        InputError: it is not such a record.
    """
    record = read_facts(path, model=dict, source=str, rows=int, dimension=int, sha256=str)
    need_keys(record["model"], path, dtype=str)
    if "blocks" in record:
        need_keys(record, path, blocks=list)
    return need_keys(record, path, words=int, vocab_size=int, words_sha256=str, weights_sha256=str) if "words" in record else record


def documents_in(record: Mapping[str, Any]) -> int:
    """How many a shard holds."""
    return len(record["blocks"]) if "blocks" in record else int(record["rows"])


def mapped_shard(folder: Path, number: int, rows: int, facts: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The files of one shard by their endings, memory-mapped.

    Args:
        facts: of the shard or of all of them.
    Raises:
        InputError: one is missing, or has another shape or type than they say.
    """
    dtype = facts["model"]["dtype"]
    files = {DENSE: ((rows, facts["dimension"]), dtype)}
    if "words" in facts:
        shape = rows, facts["words"]
        files |= {WORDS: (shape, word_type(facts["vocab_size"])), WEIGHTS: (shape, dtype)}
    return {ending: _mapped(folder / f"{number:05d}{ending}", *wanted) for ending, wanted in files.items()}


def _mapped(path: Path, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    try:
        part = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} cannot be read: {error}; remove it and encode again") from None
    if part.shape != shape or part.dtype != dtype:
        raise InputError(f"{path} has shape {part.shape} and type {part.dtype}; expected {shape} and {dtype}; remove it and encode again")
    return np.asarray(part)


def read_blocks(folder: Path, facts: Mapping[str, Any]) -> np.ndarray | None:
    """Rows of each document, uint16 [documents]; None where a document is a row.

    Raises:
        InputError: the file is missing or was changed.
    """
    if "documents" not in facts:
        return None
    need_keys(facts, folder / FACTS, documents=int, blocks_sha256=str)
    blocks = _mapped(folder / BLOCKS, (facts["documents"],), "uint16")
    if artifacts.file_sha256(folder / BLOCKS) != facts["blocks_sha256"]:
        raise InputError(f"{folder / BLOCKS} was changed after the vectors had been made; remove it and encode again")
    return blocks

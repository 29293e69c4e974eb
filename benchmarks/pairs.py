"""Memory and time of many (question, passage) pairs: written as arrays, opened, and read as batches; beside the same as a training set.

    python benchmarks/pairs.py --pairs 100000

Prints one JSON line for each way: seconds, peak memory beyond what was there before (MiB), bytes a pair on disk.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

PASSAGES = 5000


def peak() -> float:
    """Most memory that this process has had, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def write_source(folder: Path, pairs: int) -> None:
    """Synthetic texts: passages of 60 words, questions of 9, the i-th about passage i mod PASSAGES, by id."""
    rng = np.random.default_rng(0)
    words = np.array(["".join(rng.choice(list("abcdefghijklmnop"), 6)) for _ in range(3000)])
    passages = words[rng.integers(0, len(words), (PASSAGES, 60))]
    with open(folder / "corpus.jsonl", "w") as stream:
        stream.writelines(json.dumps({"docid": f"p{i}", "text": " ".join(text)}) + "\n" for i, text in enumerate(passages))
    with open(folder / "train.jsonl", "w") as stream:
        for i in range(pairs):
            question = " ".join(rng.choice(passages[i % PASSAGES], 9))
            row = {"query_id": str(i), "query_text": question, "positive_document_ids": [f"p{i % PASSAGES}"], "negative_document_ids": []}
            stream.write(json.dumps(row) + "\n")


def measure(way: str, folder: Path) -> None:
    """One way, in a process of its own."""
    from denseir_jax.data.examples import write_examples
    from denseir_jax.data.lines import BadRows
    from denseir_jax.data.pairs import PairRows, write_pairs
    from denseir_jax.data.sources import read_dataset
    from denseir_jax.data.tokens import TokenStore
    from denseir_jax.data.training_set import GroupRows, read_training_set

    store = TokenStore.open(folder / "tokens")
    tokenizer, bad = store.tokenizer(), BadRows()
    dataset = read_dataset(f"tevatron:{folder}", bad)

    def write() -> object:
        if way == "pairs":
            return write_pairs(folder / "pairs", dataset, "train", store, tokenizer, bad)
        return write_examples(folder / "given.jsonl", dataset.examples("train"))  # type: ignore[attr-defined]

    def read() -> object:
        if way == "pairs":
            return PairRows(folder / "pairs", store, 0)
        return GroupRows(read_training_set(folder / "given.jsonl", store.row_of, bad), store, tokenizer, store.template, 1, 0)

    tokenizer.encode_batch(["warm"] * 64)
    result: dict[str, object] = {"way": way}
    phases: list[tuple[str, Callable[[], object]]] = [("write", write), ("open", read)]
    for name, work in phases:
        before, start = peak(), time.monotonic()
        rows = work()
        result |= {f"{name}_seconds": round(time.monotonic() - start, 1), f"{name}_peak_mib": round(peak() - before, 1)}
    start = time.monotonic()
    for step in range(20):
        rows.rows(np.arange(step * 512, (step + 1) * 512))  # type: ignore[attr-defined]
    result["rows_per_second"] = round(20 * 512 / (time.monotonic() - start))
    files = [*(folder / "pairs").glob("*.bin")] if way == "pairs" else [folder / "given.jsonl"]
    result["disk_bytes_a_pair"] = round(sum(file.stat().st_size for file in files) / rows.n_items, 1)  # type: ignore[attr-defined]
    print(json.dumps(result))


def main() -> None:
    """Make the data once, then measure each way in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--measure", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, default=None, help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.measure:
        measure(told.measure, told.folder)
        return
    from denseir_jax.core.command import execute
    from denseir_jax.pipeline.stages.prepare import PrepareConfig, stage

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_source(folder, told.pairs)
        execute(stage, PrepareConfig(corpus=f"tevatron:{folder}", vocab_size=4000, workers=1), folder / "tokens")
        for way in ("pairs", "training set"):
            subprocess.run([sys.executable, __file__, "--measure", way, "--folder", str(folder)], check=True)


if __name__ == "__main__":
    main()

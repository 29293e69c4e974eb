"""A million passages on one machine: prepared, encoded, indexed by ScaNN and mined by the stages themselves, with their peak memory.

    python benchmarks/scale.py --workdir runs/scale [--passages 1000000] [--queries 10000]

Every stage is its own command, so that its peak is its own: resident memory of its largest process (prepare has a worker a core), as
the kernel counts it, pages of memory-mapped files included. prepare runs on a tenth of the corpus too: constant memory shows in
equal peaks. The texts are made up (words by topic, Zipf's law), the encoder is one layer with random weights: this measures
sizes and speeds, not quality. Goes on where it stopped; writes benchmarks/results/scale.json.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from links import RESULTS, ROOT, at_least, run

from denseir_jax.core import artifacts
from denseir_jax.core.console import progress
from denseir_jax.core.errors import InputError

WIDTH, DEPTH, LENGTH = 256, 200, 48
WORDS, TOPICS = 50_000, 5_000
GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Measured:
    """One command: wall seconds, peak resident memory of its largest process in GiB, its metrics."""

    stage: str
    seconds: float
    peak: float
    metrics: dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--passages", type=at_least(5000), default=1_000_000)
    parser.add_argument("--queries", type=at_least(100), default=10_000)
    options = parser.parse_args()
    folder = options.workdir.absolute()
    whole, tenth = (collection(folder / f"corpus_{n}", n, options.queries) for n in (options.passages, options.passages // 10))
    lengths = (f"--config.template.passage_length={LENGTH}", "--config.vocab_size=16000")
    found = [
        measure(folder, "prepare_tenth", "prepare", f"--config.corpus=tsv:{tenth}/collection.tsv", *lengths),
        measure(folder, "prepare", "prepare", f"--config.corpus=tsv:{whole}/collection.tsv", *lengths),
        measure(
            folder,
            "pretrain",
            "pretrain",
            "--config.steps=1",
            "--config.batch_size=8",
            f"--config.tokens={folder}/prepare",
            *(
                f"--config.encoder.{name}={value}"
                for name, value in (("hidden", WIDTH), ("layers", 1), ("intermediate", 512), ("heads", 4))
            ),
            "--config.embedder.pooling=mean",
            card="pretrain/mlm.py:smoke",
        ),
        measure(folder, "encode", "encode", f"--config.retriever=run:{folder}/pretrain", f"--config.tokens={folder}/prepare"),
        measure(
            folder,
            "mine",
            "mine",
            f"--config.dataset=tsv:{whole}",
            f"--config.retriever=run:{folder}/pretrain",
            f"--config.embeddings={folder}/encode",
            f"--config.depth={DEPTH}",
            f"--config.hi={DEPTH}",
        ),
    ]
    report(found, options.passages, options.queries)


def collection(folder: Path, passages: int, queries: int) -> Path:
    """An MS MARCO folder of made-up passages; each query has two words of its one relevant passage and one of its topic."""
    if folder.exists():
        return folder
    with artifacts.new_folder(folder) as temporary:
        rng = np.random.default_rng(0)
        wanted = set(rng.choice(passages, queries, replace=False).tolist())
        asked = []
        with open(temporary / "collection.tsv", "w", encoding="utf-8") as stream:
            for number, words in enumerate(progress(texts(passages), "scale: making texts", passages, "passages")):
                stream.write(f"{number}\t{' '.join(words)}\n")
                if number in wanted:
                    asked.append((number, " ".join([words[3], words[17], words[9]])))
        artifacts.write_text(temporary / "queries.train.tsv", "".join(f"q{number}\t{text}\n" for number, text in asked))
        artifacts.write_text(temporary / "qrels.train.tsv", "".join(f"q{number}\t0\t{number}\t1\n" for number, _ in asked))
    return folder


def texts(n: int) -> Iterator[list[str]]:
    """Thirty words each: half of a topic, half of the language, both by Zipf's law."""
    rng = np.random.default_rng(1)
    for start in range(0, n, 10_000):
        rows = min(10_000, n - start)
        topic = rng.integers(0, TOPICS, (rows, 1))
        general = np.minimum(rng.zipf(1.3, (rows, 15)), WORDS)
        special = (topic * 9973 + 31 * np.minimum(rng.zipf(1.5, (rows, 15)), 40)) % WORDS
        for line in np.concatenate([general, special], axis=1).tolist():
            yield [f"w{word}" for word in line]


def measure(folder: Path, name: str, stage: str, *flags: str, card: str = "") -> Measured:
    """Run one launch command in its run folder and look at what it took; a finished one is read from its record."""
    record = folder / f"{name}.json"
    if record.exists():
        return Measured(**artifacts.read_json(record))
    config = ROOT / "configs" / (card or {"prepare": "prepare/corpus.py:small"}.get(stage, f"{stage}.py"))
    command = [sys.executable, str(ROOT / "launch" / f"{stage}.py"), f"--config={config}", *flags, f"--workdir={folder / name}"]
    before = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise InputError(f"{name} ended with {os.waitstatus_to_exitcode(status)}: {' '.join(command)}")
    told = json.loads(output.splitlines()[-1])["metrics"]
    found = Measured(name, time.monotonic() - before, usage.ru_maxrss * 1024 / GIB, told)
    artifacts.write_json(record, dataclasses.asdict(found))
    return found


def report(found: list[Measured], passages: int, queries: int) -> None:
    """Print the table and keep it."""
    vectors = passages * WIDTH * 4 / GIB
    print(f"{passages:,} passages, {queries:,} queries, {os.cpu_count()} cores; vectors in float32: {vectors:.2f} GiB")
    for line in found:
        print(f"{line.stage:14} {line.seconds:8.0f} s   peak {line.peak:5.2f} GiB  ({line.peak / vectors:.2f} x the float32 vectors)")
    result = {
        "what": __doc__.splitlines()[0],
        "passages": passages,
        "queries": queries,
        "dimensions": WIDTH,
        "depth": DEPTH,
        "float32_vectors_gib": vectors,
        "cores": os.cpu_count(),
        "versions": artifacts.versions(),
        "stages": [dataclasses.asdict(line) for line in found],
    }
    artifacts.write_json(RESULTS / "scale.json", result)


if __name__ == "__main__":
    run(main)

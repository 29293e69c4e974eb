"""The stage `prepare`: a corpus becomes a token store. Parallel over processes, resumable by part, in constant memory.

The corpus is read by this process and cut into numbered chunks; each becomes one part file under ``parts/``, written whole
or not at all by whichever process encodes it. A restart reads the corpus again but encodes only what is missing. Then the
parts are joined. What is written depends on neither the number of processes, the size of a chunk, nor an interruption.
"""

import dataclasses
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from denseir_jax.core import artifacts, failpoints, signals
from denseir_jax.core.artifacts import Run
from denseir_jax.core.command import Stage
from denseir_jax.core.config import located, operational
from denseir_jax.core.console import Meter, progress, say
from denseir_jax.core.errors import InputError
from denseir_jax.data import sources
from denseir_jax.data.lines import BadRows
from denseir_jax.data.pieces import SplitRule
from denseir_jax.data.template import TextTemplate
from denseir_jax.data.token_merge import describe, merge_parts
from denseir_jax.data.token_parts import Chunk
from denseir_jax.data.tokenizer import FOLDER as TOKENIZER
from denseir_jax.data.tokenizer import Tokenizer, load_tokenizer
from denseir_jax.data.tokens import FILES
from denseir_jax.data.tokens import FOLDER as TOKENS
from denseir_jax.data.wordpiece import train_wordpiece
from denseir_jax.pipeline.stages import standard_input
from denseir_jax.pipeline.stages.part_workers import Task, write_parts

_PARTS = "parts"
_MOST_VOCABULARY, _MOST_WORKERS = 1 << 24, 1024
_MANY_UNKNOWN = 0.1
_CHARACTERS = 1 << 24  # a chunk is closed here too, so that a corpus of books does not fill the memory


@dataclass(frozen=True)
class PrepareConfig:
    """What to prepare, and how.

    Attributes:
        corpus: "format:path". tokenizer: a vocab.txt, tokenizer.json, Hugging Face or run folder; None trains one.
        vocab_size: of a trained tokenizer, at most. lowercase: for a trained one and for a bare vocab.txt.
        train_queries: let the queries of the train split join the training of the tokenizer (sources with queries only).
        template: how a passage becomes text. split: how documents are cut into training pieces (`SplitRule`).
        block_length: of split "blocks", [CLS] and [SEP] included. short_share: of pieces with a shorter target.
        span_tokens, span_minimum: of split "spans". overshoot: pieces end after the sentence that fills them, not before it.
        seed: of the short targets.
        on_bad_row: "error" refuses the corpus at its first bad row, "skip" leaves bad rows out and counts them.
        workers: processes; 0 is one a core, 1 works in this process. chunk: documents a part.
    """

    stage: str = "prepare"
    corpus: str = located("")
    tokenizer: str | None = located(None)
    vocab_size: int = 30522
    lowercase: bool = True
    train_queries: bool = False
    template: TextTemplate = field(default_factory=TextTemplate)
    split: Literal["none", "blocks", "spans"] = "none"
    block_length: int = 128
    short_share: float = 0.1
    span_tokens: int = 80
    span_minimum: int = 10
    overshoot: bool = False
    seed: int = 0
    on_bad_row: Literal["error", "skip"] = "error"
    workers: int = operational(0)
    chunk: int = operational(2000)

    def __post_init__(self) -> None:
        for name, least in (("vocab_size", 8), ("block_length", 3), ("span_minimum", 1), ("workers", 0), ("chunk", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least {least}")
        for name, most in (("vocab_size", _MOST_VOCABULARY), ("workers", _MOST_WORKERS)):
            if getattr(self, name) > most:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at most {most}")
        if not 0.0 <= self.short_share <= 1.0:
            raise ValueError(f"short_share is {self.short_share}; expected 0 to 1")
        if self.span_minimum > self.span_tokens:
            raise ValueError(f"span_minimum {self.span_minimum} is above span_tokens {self.span_tokens}")

    def rule(self) -> SplitRule:
        """The rule that cuts documents into pieces."""
        target, minimum = (self.span_tokens, self.span_minimum) if self.split == "spans" else (self.block_length - 2, 1)
        return SplitRule(self.split, target, minimum, self.short_share, self.seed, self.overshoot)


def _inputs(config: PrepareConfig) -> Mapping[str, str]:
    if not config.corpus:
        raise InputError("config.corpus is not set; expected format:path, for example --config.corpus=jsonl:passages.jsonl")
    found = {"corpus": sources.identity(config.corpus)}
    if config.tokenizer is not None:
        found["tokenizer"] = "sha256:" + load_tokenizer(config.tokenizer, config.lowercase).sha256
    return found


def _prepare(run: Run) -> Mapping[str, Any]:
    config: PrepareConfig = run.config
    bad = BadRows(config.on_bad_row)
    with standard_input.readable_twice(config.corpus, run.path / _PARTS) as corpus:
        tokenizer = _tokenizer(run, corpus)
        paths = _encode(run, sources.read_corpus(corpus, bad))
    say(f"prepare: joining {len(paths):,} parts")
    counts: dict[str, Any] = merge_parts(paths, run.path / TOKENS, tokenizer.vocab_size)
    offsets, owner, content = (
        np.load(run.path / TOKENS / f"{name}.npy", mmap_mode="r") for name in ("offsets", "piece_document", "content")
    )
    facts = describe(offsets, owner, content, config.template.reach)
    counts.update(facts.pop("counts"), skipped_rows=bad.counts)
    facts["share_unknown"] = counts["unknown_tokens"] / max(counts["tokens"], 1)
    shares = {name: facts[name] for name in ("share_truncated", "share_unknown")}
    metrics = {**counts, "vocab_size": tokenizer.vocab_size, **shares}
    _warn(shares["share_unknown"])
    run.finish(
        metrics,
        outputs=[*(f"{TOKENS}/{name}" for name in FILES), TOKENIZER],
        template=config.template.facts,
        tokenizer_sha256=tokenizer.sha256,
        special_ids=dataclasses.asdict(tokenizer.special_ids),
        vocab_size=tokenizer.vocab_size,
        counts=counts,
        **facts,
    )
    shutil.rmtree(run.path / _PARTS, ignore_errors=True)
    return metrics


def _warn(share_unknown: float) -> None:
    if share_unknown > _MANY_UNKNOWN:
        say(
            f"warning: {share_unknown:.0%} of the tokens are [UNK]: the tokenizer does not know these texts; "
            "expected a larger vocab_size, or a tokenizer made for their language"
        )


def _tokenizer(run: Run, corpus: str) -> Tokenizer:
    """Load the tokenizer, or train it, and keep it in the run folder; a restart finds it there."""
    config: PrepareConfig = run.config
    folder = run.path / TOKENIZER
    if not folder.exists():
        if config.tokenizer is not None:
            tokenizer = load_tokenizer(config.tokenizer, config.lowercase)
        else:
            tokenizer = train_wordpiece(_training_texts(config, corpus), config.vocab_size, config.lowercase)
        with artifacts.new_folder(folder) as temporary:
            tokenizer.save(temporary)
    return load_tokenizer(folder)


def _training_texts(config: PrepareConfig, corpus: str) -> Iterator[str]:
    bad = BadRows(config.on_bad_row)
    texts: Iterable[str] = (config.template.passage(passage) for passage in sources.read_corpus(corpus, bad))
    if config.train_queries:
        queries = sources.read_dataset(corpus, bad).queries("train").values()
        texts = chain(texts, (config.template.query(text) for text in queries))
    for text in progress(texts, "prepare: counting words for the tokenizer", None, "texts"):
        signals.check("nothing is kept yet")
        yield text


def _encode(run: Run, corpus: Iterable[Any]) -> list[Path]:
    """Write the parts that are missing; return all, in the order of the corpus."""
    config: PrepareConfig = run.config
    folder = run.path / _PARTS / f"of_{config.chunk}"
    for other in folder.parent.glob("of_*"):
        if other != folder:  # cut in chunks of another size
            shutil.rmtree(other)
    paths: list[Path] = []
    workers = config.workers or len(os.sched_getaffinity(0))
    with Meter("prepare: encoding", None, "documents") as meter:

        def missing() -> Iterator[Task]:
            for chunk in _chunks(corpus, config.template, config.chunk):
                paths.append(folder / f"{len(paths):06d}.npz")
                signals.check()
                if paths[-1].exists():
                    meter.advance(len(chunk.ids))
                else:
                    yield Task(paths[-1], chunk, run.path / TOKENIZER, config.rule())

        for documents in write_parts(missing(), workers):
            meter.advance(documents)
            failpoints.reach("prepare_part")
    return paths


def _chunks(corpus: Iterable[Any], template: TextTemplate, size: int) -> Iterator[Chunk]:
    first = characters = 0
    ids: list[str] = []
    texts: list[str] = []
    for passage in corpus:
        ids.append(passage.id)
        texts.append(template.passage(passage))
        characters += len(texts[-1])
        if len(ids) == size or characters >= _CHARACTERS:
            yield Chunk(first, ids, texts)
            first, characters, ids, texts = first + len(ids), 0, [], []
    if ids:
        yield Chunk(first, ids, texts)


stage = Stage(
    name="prepare",
    config=PrepareConfig,
    run=_prepare,
    inputs=_inputs,
    summary="Turn a corpus into a token store: tokens, word and sentence starts, training pieces.",
    complete=standard_input.say_kept,
)

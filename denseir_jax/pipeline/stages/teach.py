"""The stage `teach`: what a teacher thinks of a training set's passages, written beside it, by ids. For distillation.

Scores of every query's own passages; or the teacher's vectors, from which it scores all pairs of a batch (teach="in_batch_kl").
"""

import dataclasses
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from denseir_jax.core import console
from denseir_jax.core.artifacts import Run
from denseir_jax.core.command import Stage
from denseir_jax.core.config import located, operational
from denseir_jax.core.errors import ConfigError, InputError
from denseir_jax.data import sources
from denseir_jax.data.examples import TRAINING_SET, Example, file_of, read_examples, write_examples
from denseir_jax.data.lines import BadRows
from denseir_jax.data.records import Dataset, Passage
from denseir_jax.data.teacher_scores import TEACHER_SCORES, write_teacher_scores
from denseir_jax.data.template import TextTemplate
from denseir_jax.pipeline.stages.encode import given
from denseir_jax.pipeline.stages.mine import encoded_passages
from denseir_jax.pipeline.stages.rerank import SCORES as KEPT
from denseir_jax.pipeline.stages.rerank import PairTexts
from denseir_jax.search import shards, teacher_vectors
from denseir_jax.search.encode import encode_queries
from denseir_jax.search.index import row_scorer
from denseir_jax.search.lexical import Vectors, dense_of
from denseir_jax.search.pair_scores import score_pairs
from denseir_jax.search.reranker import is_reranker, load_reranker
from denseir_jax.search.retriever import Retriever, folder_of, load_retriever


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeachConfig:
    """What to score, and who scores.

    Attributes:
        dataset: source as format:path. training_set: a finished mine run. teacher: a retriever or a cross-encoder, run:DIR
        or hf:DIR: its folder says which.
        write: scores by (query id, passage id), or vectors of the queries and passages, by a retriever. embeddings: a finished encode
        run of the teacher; without it the corpus is encoded here, or for vectors what the training set names. pools: of negatives; all if
        empty. template: how texts are written for a published teacher.
    """

    stage: str = "teach"
    dataset: str = located("")
    training_set: str = located("")
    teacher: str = located("")
    write: Literal["scores", "vectors"] = "scores"
    embeddings: str | None = located(None)
    pools: tuple[str, ...] = ()
    template: TextTemplate = TextTemplate()
    batch_tokens: int = operational(0)
    on_bad_row: Literal["error", "skip"] = "error"

    def __post_init__(self) -> None:
        if self.batch_tokens < 0:
            raise ValueError(f"batch_tokens={self.batch_tokens} must not be negative")


def run_teach(run: Run) -> Mapping[str, Any]:
    """Training set, teacher -> the same training set and scores by (query id, passage id), or vectors by id."""
    config: TeachConfig = run.config
    examples = list(read_examples(file_of(config.training_set), BadRows(config.on_bad_row)))
    if not examples:
        raise InputError(f"{config.training_set} holds no query, so that there is nothing to score; expected a training set with some")
    examples = [dataclasses.replace(example, negatives=_pools(example, config.pools)) for example in examples]
    dataset = sources.read_dataset(config.dataset, BadRows(config.on_bad_row))
    if is_reranker(config.teacher):
        return _teach_by_pairs(run, config, examples, dataset)
    teacher = load_retriever(config.teacher, given(config.template))
    write, outputs = (_write_scores, [TEACHER_SCORES]) if config.write == "scores" else (_write_vectors, list(teacher_vectors.OUTPUTS))
    written = write(run, examples, dataset, teacher)
    metrics = {**write_examples(run.path / TRAINING_SET, examples), **written}
    run.finish(metrics, outputs=[TRAINING_SET, *outputs], teacher_sha256=teacher.params_sha256)
    return metrics


def _write_scores(run: Run, examples: Sequence[Example], dataset: Dataset, teacher: Retriever) -> dict[str, int]:
    passages = encoded_passages(run, dataset, teacher)
    vectors = _of_queries(run, examples, teacher)
    row_of, score = {item: row for row, item in enumerate(passages.ids)}, row_scorer(passages, vectors, teacher.similarity)

    def scores() -> Iterator[tuple[str, str, float]]:
        for number, example in enumerate(console.progress(examples, "teach: scoring", len(examples), "queries")):
            ids = example.passage_ids
            _need_there(run, example, row_of)
            found = score(number, np.array([row_of[item] for item in ids], np.int64))
            yield from ((example.query_id, item, float(value)) for item, value in zip(ids, found, strict=True))

    return {"scores": write_teacher_scores(run.path / TEACHER_SCORES, scores())}


def _write_vectors(run: Run, examples: Sequence[Example], dataset: Dataset, teacher: Retriever) -> dict[str, int]:
    """Vectors of what the training set names and of nothing else; what is there already is kept."""
    teacher_vectors.need_vectors(teacher)
    needed = dict.fromkeys(item for example in examples for item in example.passage_ids)
    if run.config.embeddings:
        passages = encoded_passages(run, dataset, teacher)
        row_of = {item: row for row, item in enumerate(passages.ids) if item in needed}
        for example in examples:
            _need_there(run, example, row_of)
        teacher_vectors.copy_passages(run.path, list(row_of), np.array(list(row_of.values()), np.int64), passages)
    else:
        chunks = shards.chunks_of_passages(_chosen(run, examples, dataset, needed), teacher, 16384)
        shards.encode_corpus(run.path / teacher_vectors.PASSAGES, teacher, chunks, len(needed), "float16", run.config.batch_tokens)
    found = _of_queries(run, examples, teacher)
    teacher_vectors.write_queries(run.path, [example.query_id for example in examples], dense_of(found), teacher)
    return {"query_vectors": len(examples), "passage_vectors": len(needed)}


def _chosen(run: Run, examples: Sequence[Example], dataset: Dataset, needed: Container[str]) -> Iterator[Passage]:
    """The passages that are needed, in the order of the corpus.

    Raises:
        InputError: at the end of the corpus, if one of them is not in it.
    """
    there: set[str] = set()
    for passage in dataset.corpus():
        if passage.id in needed:
            there.add(passage.id)
            yield passage
    for example in examples:
        _need_there(run, example, there)


def _of_queries(run: Run, examples: Sequence[Example], teacher: Retriever) -> Vectors:
    return encode_queries(teacher, {example.query_id: example.query for example in examples}, run.config.batch_tokens)


def _need_there(run: Run, example: Example, there: Container[str]) -> None:
    if lost := next((item for item in example.passage_ids if item not in there), None):
        config = run.config
        raise InputError(f"{config.training_set}: query {example.query_id!r} names {lost!r}, which {config.dataset} lacks")


def _teach_by_pairs(run: Run, config: TeachConfig, examples: Sequence[Example], dataset: Dataset) -> Mapping[str, Any]:
    """The same by a cross-encoder, whose scores are kept as they come: a run that was killed goes on."""
    if config.embeddings:
        raise ConfigError(f"config.embeddings are vectors of a retriever; {config.teacher} is a cross-encoder, which has none")
    if config.write != "scores":
        raise ConfigError(f"config.write={config.write!r}: {config.teacher} is a cross-encoder, which has no vectors; expected 'scores'")
    teacher = load_reranker(config.teacher, given(config.template), batch_tokens=config.batch_tokens)
    queries = {example.query_id: example.query for example in examples}
    pairs = [(example.query_id, item) for example in examples for item in example.passage_ids]
    texts = PairTexts(dataset, queries, pairs, f"{config.training_set} and {config.dataset}")
    scored = score_pairs(run.path / KEPT, teacher, teacher.facts, pairs, texts, "teach")
    counts = write_examples(run.path / TRAINING_SET, examples)
    written = write_teacher_scores(run.path / TEACHER_SCORES, ((*pair, scored.scores[pair]) for pair in pairs))
    metrics = {**counts, "scores": written, "scored": scored.new}
    run.finish(metrics, outputs=[TRAINING_SET, TEACHER_SCORES], teacher_sha256=teacher.sha256)
    return metrics


def _pools(example: Example, names: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """The pools that are asked for.

    Raises:
        InputError: the example has no such pool.
    """
    lost = next((name for name in names if name not in example.negatives), None)
    if lost is not None:
        there = ", ".join(example.negatives) or "(it has none)"
        raise InputError(f"query {example.query_id!r} has no pool {lost!r}; expected some of {there}")
    return {name: example.negatives[name] for name in names or example.negatives}


def inputs(config: TeachConfig) -> Mapping[str, str | Path]:
    """The dataset, the training set, the teacher, and an encode run where one is named."""
    for name, form in (("dataset", "format:path"), ("training_set", "a finished mine run"), ("teacher", "run:DIR or hf:DIR")):
        if not getattr(config, name):
            raise ConfigError(f"config.{name} is empty; expected {form}")
    found: dict[str, str | Path] = {"dataset": sources.identity(config.dataset), "training_set": config.training_set}
    found["teacher"] = folder_of(config.teacher)
    return {**found, "embeddings": config.embeddings} if config.embeddings else found


stage = Stage(
    name="teach",
    config=TeachConfig,
    run=run_teach,
    inputs=inputs,
    summary="Score the passages of a training set with a teacher, or keep its vectors of them, for distillation.",
)

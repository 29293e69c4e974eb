"""A dense teacher's vectors of a training set's queries and passages, beside it: ``teacher_vectors/queries``, ``.../passages``.

Both are folders of `embeddings`. They are read by id, memory-mapped, a few rows a batch; two passages of one text share a vector.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

import numpy as np
from jaxtyping import Bool, Float, Int

from denseir_jax.core import artifacts
from denseir_jax.core.console import Meter
from denseir_jax.core.errors import InputError
from denseir_jax.data.facts import output_of
from denseir_jax.data.training_set import TrainingSet
from denseir_jax.search import embeddings
from denseir_jax.search.embeddings import Embeddings
from denseir_jax.search.index import Similarity, passage_side, query_side
from denseir_jax.search.retriever import Retriever

VECTORS = "teacher_vectors"
QUERIES, PASSAGES = f"{VECTORS}/queries", f"{VECTORS}/passages"
OUTPUTS = tuple(f"{side}/{embeddings.FACTS}" for side in (QUERIES, PASSAGES))  # each holds the hashes of its folder's files
_SHARD = 16384  # rows


def need_vectors(teacher: Retriever) -> None:
    """See that a teacher's scores are dot products of vectors that can be kept.

    Raises:
        InputError: they have a lexical part, or several are of one passage.
    """
    if teacher.template.blocks > 1:
        raise InputError("the teacher reads passages in several blocks, of which write=vectors keeps one vector; expected write=scores")
    if teacher.lexical:
        raise InputError("the teacher's vectors have a lexical part, which write=vectors does not keep; expected write=scores")


def write_queries(folder: Path, ids: Sequence[str], vectors: Float[np.ndarray, "q d"], teacher: Retriever) -> None:
    """Write float32 vectors of queries below `folder`."""
    blocks = (vectors[start : start + _SHARD] for start in range(0, len(ids), _SHARD))
    _write(folder / QUERIES, ids, blocks, {**teacher.model, "dtype": "float32"})


def copy_passages(folder: Path, ids: Sequence[str], rows: Int[np.ndarray, " m"], passages: Embeddings) -> None:
    """Write these `rows` of a corpus below `folder`, in the type that they have."""
    with Meter("teach: vectors", len(rows), "passages") as meter:

        def blocks() -> Iterable[np.ndarray]:
            for start in range(0, len(rows), _SHARD):
                yield passages.take(rows[start : start + _SHARD])
                meter.advance(len(rows[start : start + _SHARD]))

        _write(folder / PASSAGES, ids, blocks(), passages.facts["model"])


def _write(folder: Path, ids: Sequence[str], blocks: Iterable[np.ndarray], model: Mapping[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, block in enumerate(blocks):
        mine = ids[number * _SHARD : (number + 1) * _SHARD]
        embeddings.write_shard(folder, number, mine, block, str(model["dtype"]), model, artifacts.json_sha256(list(mine)))
    embeddings.finish(folder, ids, artifacts.json_sha256(list(ids)))


@dataclass(frozen=True)
class TeacherVectors:
    """Vectors by query number and by the number of a passage's text. A `teacher_scores.Teacher`.

    Attributes:
        queries, passages: as on disk. row_of_query: query number -> row. row_of_text: number of a text -> row, -1: none.
        similarity: the teacher's.
    """

    queries: Embeddings
    passages: Embeddings
    row_of_query: Int[np.ndarray, " n"]
    row_of_text: Int[np.ndarray, " documents"]
    similarity: Similarity

    def knows(self, queries: Int[np.ndarray, " m"], texts: Int[np.ndarray, " m"]) -> Bool[np.ndarray, " m"]:
        """Pairs of which both have a vector."""
        return (self.row_of_query[queries] >= 0) & (self.row_of_text[texts] >= 0)

    def fields(self, queries: Int[np.ndarray, " k"], texts: Int[np.ndarray, "k n"]) -> dict[str, np.ndarray]:
        """``teacher_query`` [k, e] and ``teacher_passage`` [k, n, e]: their dot product is the teacher's similarity."""
        asked = query_side(self.queries.take(self.row_of_query[queries]), self.similarity)
        answers = passage_side(self.passages.take(self.row_of_text[texts.reshape(-1)]), self.similarity)
        return {"teacher_query": asked, "teacher_passage": answers.reshape(*texts.shape, -1)}


def open_teacher_vectors(
    run_folder: Path, examples: TrainingSet, row_of: Mapping[str, int], text_of: Int[np.ndarray, " documents"]
) -> TeacherVectors:
    """Open the vectors in a finished teach run against its training set and the corpus.

    Args:
        row_of: passage id -> row of the store. text_of: row -> number of its text (`TokenStore.content_ids`).
    Raises:
        InputError: the run has not finished or its files were changed since; the two folders are of two teachers; a query or a
            passage of the training set has no vector.
    """
    queries, passages = (Embeddings.open(output_of(run_folder, name, ("teach",)).parent) for name in OUTPUTS)
    for found in (queries, passages):  # read every shard once, so that a changed one is found now and not by a step
        found.take(np.cumsum([shard["rows"] for shard in found.facts["shards"]]) - 1)
    made = [{key: value for key, value in found.facts["model"].items() if key != "dtype"} for found in (queries, passages)]
    similarity = made[0].get("similarity")
    if made[0] != made[1] or similarity not in get_args(Similarity):
        raise InputError(f"{run_folder / VECTORS} holds vectors of two teachers, or of one that this library does not know")
    number = {item: row for row, item in enumerate(queries.ids)}
    row_of_query = np.array([number.get(item, -1) for item in examples.query_ids], np.int64)
    row_of_text = np.full(len(text_of), -1, np.int64)
    known = [(row_of[item], row) for row, item in enumerate(passages.ids) if item in row_of]
    if known:
        documents, rows = np.array(known, np.int64).T
        row_of_text[text_of[documents]] = rows
    _need_all(run_folder, examples, row_of, row_of_query, row_of_text[text_of])
    return TeacherVectors(queries, passages, row_of_query, row_of_text, cast(Similarity, similarity))


def _need_all(run_folder: Path, examples: TrainingSet, row_of: Mapping[str, int], of_query: np.ndarray, of_row: np.ndarray) -> None:
    """See that every query and passage has a vector."""
    lost = np.flatnonzero(of_query < 0)
    if len(lost):
        raise InputError(f"{run_folder / QUERIES} has no vector of query {examples.query_ids[lost[0]]!r}, one of {len(lost)} such")
    needed = np.unique(np.concatenate([lists.values for lists in (examples.positives, *examples.negatives.values())]))
    lost = needed[of_row[needed] < 0]
    if len(lost):
        name = next(item for item, row in row_of.items() if row == lost[0])
        raise InputError(f"{run_folder / PASSAGES} has no vector of passage {name!r}, one of {len(lost)} such")

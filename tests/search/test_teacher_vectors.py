"""A teacher's vectors beside a training set: found by id and by text, compared as the teacher does, refused where something is amiss."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_retriever import write_run

from denseir_jax.core import artifacts
from denseir_jax.core.artifacts import Run
from denseir_jax.core.errors import InputError
from denseir_jax.data.ragged import Ragged
from denseir_jax.data.training_set import TrainingSet
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.search import teacher_vectors
from denseir_jax.search.embeddings import Embeddings
from denseir_jax.search.retriever import load_retriever
from denseir_jax.search.teacher_vectors import OUTPUTS, TeacherVectors, open_teacher_vectors

CORPUS = [f"p{i}" for i in range(12)]
ROW_OF = {item: row for row, item in enumerate(CORPUS)}
TEXT_OF = np.array([*range(10), 2, 3], np.int32)  # p10 has the text of p2, p11 that of p3
KEPT = ["p4", "p1", "p10", "p9", "p3", "p7"]  # as they lie on disk: in no order; of the text of p2 only the other passage
RNG = np.random.default_rng(0)
QUERIES, PASSAGES = RNG.normal(size=(3, 6)).astype(np.float32), RNG.normal(size=(12, 6)).astype(np.float16).astype(np.float32)


def examples(
    ids: tuple[str, ...] = ("q2", "q0"), positives: tuple[int, ...] = (4, 2), negatives: tuple[int, ...] = (1, 9, 7)
) -> TrainingSet:
    return TrainingSet(list(ids), ["text"] * len(ids), Ragged.of([[row] for row in positives]), {"bm25": Ragged.of([list(negatives), [3]])})


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def write(similarity: str) -> Path:
        if similarity not in made:
            folder = tmp_path_factory.mktemp(similarity)
            teacher = load_retriever(f"run:{write_run(folder / 'teacher', similarity=similarity)}")
            run = Run(folder / "taught", "teach", EmbedderConfig()).open({})
            corpus = Embeddings(CORPUS, [PASSAGES.astype(np.float16)], {"model": {**teacher.model, "dtype": "float16"}})
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(teacher_vectors, "_SHARD", 2)
                teacher_vectors.write_queries(run.path, ["q0", "q1", "q2"], QUERIES, teacher)
                teacher_vectors.copy_passages(run.path, KEPT, np.array([ROW_OF[item] for item in KEPT]), corpus)
            run.finish({}, outputs=OUTPUTS)
            made[similarity] = run.path
        return made[similarity]

    return write


def open_(folder: Path, found: TrainingSet | None = None) -> TeacherVectors:
    return open_teacher_vectors(folder, found or examples(), ROW_OF, TEXT_OF)


@pytest.mark.parametrize("similarity", ["dot", "cosine", "l2"])
def test_products_are_the_teachers_similarity(written: Callable[[str], Path], similarity: str) -> None:
    teacher = open_(written(similarity))
    rows = np.array([[2, 4], [9, 7], [3, 1]])
    fields = teacher.fields(np.array([1, 0, 1]), TEXT_OF[rows])
    assert {name: (value.dtype, value.ndim) for name, value in fields.items()} == {
        "teacher_query": (np.dtype(np.float32), 2),
        "teacher_passage": (np.dtype(np.float32), 3),
    }
    q, p = QUERIES[[0, 2, 0]].astype(np.float64), PASSAGES[[[10, 4], [9, 7], [3, 1]]].astype(np.float64)
    dot = np.einsum("kd,knd->kn", q, p)
    expected = {
        "dot": dot,
        "cosine": dot / np.linalg.norm(q, axis=1)[:, None] / np.linalg.norm(p, axis=2),
        "l2": -np.square(q[:, None] - p).sum(2),
    }[similarity]
    np.testing.assert_allclose(np.einsum("ke,kne->kn", *fields.values()), expected, rtol=1e-5, atol=1e-5)
    assert teacher.knows(np.array([0, 1]), np.array([2, 5])).tolist() == [True, False], "the text of p2 is there under another id"


def test_every_query_and_passage_must_be_there(written: Callable[[str], Path]) -> None:
    with pytest.raises(InputError, match=r"queries has no vector of query 'q7', one of 1 such"):
        open_(written("dot"), examples(ids=("q0", "q7")))
    with pytest.raises(InputError, match=r"passages has no vector of passage 'p5', one of 2 such"):
        open_(written("dot"), examples(positives=(5, 2), negatives=(8, 1)))


def other_query_file(folder: Path) -> None:
    np.save(folder / "teacher_vectors/queries/00001.npy", np.zeros((1, 6), np.float32))


def other_facts(folder: Path) -> None:
    facts = artifacts.read_json(folder / OUTPUTS[0])
    artifacts.write_json(folder / OUTPUTS[0], {**facts, "model": {**facts["model"], "params_sha256": "another"}})


def two_teachers(folder: Path) -> None:
    other_facts(folder)
    manifest = artifacts.read_json(folder / artifacts.MANIFEST)
    manifest["outputs"][OUTPUTS[0]] = artifacts.file_sha256(folder / OUTPUTS[0])
    artifacts.write_json(folder / artifacts.MANIFEST, manifest)


DAMAGE: dict[str, Any] = {
    "was changed after the vectors had been made": other_query_file,
    "was changed after its run had finished": other_facts,
    "holds vectors of two teachers": two_teachers,
    "its stage has not finished": lambda folder: (folder / artifacts.MANIFEST).unlink(),
    "does not exist, though its run had finished": lambda folder: (folder / OUTPUTS[1]).unlink(),
}


@pytest.mark.parametrize("words", DAMAGE)
def test_damage_is_found_before_anything_is_learnt(written: Callable[[str], Path], tmp_path: Path, words: str) -> None:
    shutil.copytree(written("dot"), tmp_path / "taught")
    DAMAGE[words](tmp_path / "taught")
    with pytest.raises(InputError, match=words):
        open_(tmp_path / "taught")


def test_a_teacher_with_a_lexical_part_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="have a lexical part, which write=vectors does not keep; expected write=scores"):
        teacher_vectors.need_vectors(load_retriever(f"run:{write_run(tmp_path / 'lexical', lexical=4)}"))

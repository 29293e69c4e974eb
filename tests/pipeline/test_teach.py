"""Distillation as a user gets it: mine, let a teacher score what was mined, learn from the scores."""

import dataclasses
import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from test_finetune import condenser, settings  # noqa: F401  # the fixture

from denseir_jax.core.artifacts import finished_run
from denseir_jax.core.command import execute
from denseir_jax.core.config import parse
from denseir_jax.core.errors import InputError
from denseir_jax.core.events import read
from denseir_jax.data.teacher_scores import TEACHER_SCORES, write_teacher_scores
from denseir_jax.objectives import distill
from denseir_jax.objectives.distill import DistillConfig
from denseir_jax.pipeline.stages.encode import EncodeConfig
from denseir_jax.pipeline.stages.encode import stage as encode
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
from denseir_jax.pipeline.stages.finetune import stage as finetune
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.mine import stage as mine
from denseir_jax.pipeline.stages.teach import TeachConfig
from denseir_jax.pipeline.stages.teach import stage as teach
from denseir_jax.search.embeddings import Embeddings
from denseir_jax.search.encode import encode_queries
from denseir_jax.search.retriever import load_retriever
from denseir_jax.search.teacher_vectors import OUTPUTS, open_teacher_vectors

pytestmark = pytest.mark.usefixtures("module_on_one_device")


@pytest.fixture(scope="module")
def taught(beir, condenser, module_on_one_device, tmp_path_factory):  # noqa: F811
    """Seven negatives a query, mined and scored by the same retriever."""
    folder, teacher = tmp_path_factory.mktemp("taught"), f"run:{condenser}"
    mining = MineConfig(dataset=f"beir:{beir}", retriever=teacher, index="exact", depth=10, hi=10, n=7)
    execute(mine, mining, folder / "mined")
    config = TeachConfig(dataset=f"beir:{beir}", training_set=str(folder / "mined"), teacher=teacher)
    metrics = execute(teach, config, folder / "taught")
    assert metrics["scores"] == metrics["positives"] + sum(metrics["negatives"].values()) == 240 * 8
    return folder / "taught"


def texts(beir, name: str) -> dict[str, str]:
    return {row["_id"]: row["text"] for row in map(json.loads, (beir / f"{name}.jsonl").read_text().splitlines())}


def test_scores_are_the_teachers_own(taught, beir, condenser):  # noqa: F811
    teacher = load_retriever(f"run:{condenser}")
    queries, passages = texts(beir, "queries"), texts(beir, "corpus")
    some = [json.loads(line) for line in (taught / TEACHER_SCORES).read_text().splitlines()][::97]
    assert len({row["query_id"] for row in some}) == len(some) == 20
    q = encode_queries(teacher, {row["query_id"]: queries[row["query_id"]] for row in some})
    sides = dataclasses.replace(teacher, query=teacher.passage, template=dataclasses.replace(teacher.template, query_length=32))
    p = encode_queries(sides, {row["query_id"]: passages[row["passage_id"]] for row in some})
    np.testing.assert_allclose([row["score"] for row in some], (q * p).sum(1), atol=2e-3)  # passages are kept in float16


def test_a_student_learns_the_order(taught, beir, beir_tokens, tmp_path):
    objective = DistillConfig(group_size=8, teach="local_kl", teacher_temperature=0.01, temperature=0.05, similarity="cosine")
    config = settings(beir, beir_tokens, taught, objective=objective, steps=60, batch_size=48)
    metrics = execute(finetune, config, tmp_path / "student")
    first = next(line for line in read(tmp_path / "student" / "events.jsonl") if line["kind"] == "train")
    assert metrics["teach"] < 0.5 * first["teach"] and metrics["agreement"] > max(2 * first["agreement"], 0.5)


def test_what_is_missing_is_one_line(taught, beir, beir_tokens, tmp_path):
    objective = DistillConfig(group_size=8)
    shutil.copytree(taught, tmp_path / "other")
    write_teacher_scores(tmp_path / "other" / TEACHER_SCORES, [("nobody", "p1", 1.0)])
    for folder, words in (
        (taught.parent / "mined", "does not exist"),
        (tmp_path / "other", "scores.jsonl was changed after its run had finished"),
    ):
        with pytest.raises(InputError, match=words):
            execute(finetune, settings(beir, beir_tokens, folder, objective=objective), tmp_path / "run")
    share = settings(beir, beir_tokens, tmp_path / "other", objective=objective, query_share=0.5)
    with pytest.raises(InputError, match="was changed after its run had finished"):
        execute(finetune, share, tmp_path / "share")
    config = TeachConfig(dataset=f"beir:{beir}", training_set=str(taught), teacher="run:nowhere")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(InputError, match="holds no query, so that there is nothing to score"):
        execute(teach, dataclasses.replace(config, training_set=str(tmp_path / "empty.jsonl"), teacher=f"hf:{beir}"), tmp_path / "empty")
    assert not (tmp_path / "empty" / "training_set.jsonl").exists()
    with pytest.raises(ValueError, match="batch_tokens=-5 must not be negative"):
        dataclasses.replace(config, batch_tokens=-5)
    with pytest.raises(InputError, match="nowhere"):
        execute(teach, config, tmp_path / "again")
    with pytest.raises(InputError, match="has no pool 'bm25'; expected some of mined"):
        execute(teach, dataclasses.replace(config, teacher=f"hf:{beir}", pools=("bm25",)), tmp_path / "pools")


@pytest.fixture(scope="module")
def with_vectors(taught, beir, condenser):  # noqa: F811
    """The same training set with the teacher's vectors, encoded for it, and copied out of an encode run of the corpus."""
    folder, teacher = taught.parent, f"run:{condenser}"
    config = TeachConfig(dataset=f"beir:{beir}", training_set=str(folder / "mined"), teacher=teacher, write="vectors")
    metrics = execute(teach, config, folder / "vectors")
    assert metrics["query_vectors"] == 240 and 30 < metrics["passage_vectors"] <= 60
    execute(encode, EncodeConfig(retriever=teacher, corpus=f"beir:{beir}"), folder / "encoded")
    execute(teach, dataclasses.replace(config, embeddings=str(folder / "encoded")), folder / "copied")
    return folder / "vectors"


def vectors_of(folder) -> dict[str, np.ndarray]:
    found = [Embeddings.open((folder / name).parent) for name in OUTPUTS]
    return {item: row for part in found for item, row in zip(part.ids, part.whole(), strict=True)}


def test_vectors_give_the_scores(taught, with_vectors):
    made, copied = vectors_of(with_vectors), vectors_of(with_vectors.parent / "copied")
    assert made.keys() == copied.keys()
    np.testing.assert_allclose(np.stack(list(made.values())), [copied[item] for item in made], atol=2e-3)
    rows = [json.loads(line) for line in (taught / TEACHER_SCORES).read_text().splitlines()]
    products = [made[row["query_id"]] @ made[row["passage_id"]] for row in rows]  # of vectors of length 1
    np.testing.assert_allclose([row["score"] for row in rows], products, atol=2e-3)
    manifest = finished_run(with_vectors)
    assert set(manifest["outputs"]) == {"training_set.jsonl", *OUTPUTS}


def test_vectors_of_another_corpus_are_asked_for_in_vain(taught, beir, condenser, tmp_path):  # noqa: F811
    shutil.copytree(beir, tmp_path / "beir")
    lines = (beir / "corpus.jsonl").read_text().splitlines()
    (tmp_path / "beir" / "corpus.jsonl").write_text(lines[0].replace(json.loads(lines[0])["_id"], "other") + "\n")
    config = TeachConfig(dataset=f"beir:{tmp_path / 'beir'}", training_set=str(taught), teacher=f"run:{condenser}", write="vectors")
    with pytest.raises(InputError, match=r"query '\w+' names '\w+', which beir:.* lacks"):
        execute(teach, config, tmp_path / "run")


def smoke(**objective: object) -> FinetuneConfig:
    spec = importlib.util.spec_from_file_location("card", Path(__file__).resolve().parents[2] / "configs" / "finetune" / "distill.py")
    card = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(card)
    values = card.get_config("smoke")
    values["objective"].update(objective)
    return parse(FinetuneConfig, values)


def test_a_student_learns_from_all_pairs_of_the_batch(with_vectors, beir, beir_tokens, tmp_path):
    """The card at `smoke` with TCT's settings; then long enough to learn, with several positives to a group beside."""
    tct = {"teach": "in_batch_kl", "teacher_temperature": 0.25, "nll_weight": 0.1, "teacher_weight": 0.9}
    places = {"dataset": f"beir:{beir}", "tokens": str(beir_tokens), "training_set": str(with_vectors)}
    metrics = execute(finetune, dataclasses.replace(smoke(**tct), **places), tmp_path / "smoke")
    assert np.isfinite(metrics["teach"]) and 0 < metrics["masked_candidates"] < 1
    np.testing.assert_allclose(metrics["loss"], 0.1 * metrics["nll"] + 0.9 * metrics["teach"], rtol=1e-4)
    more = {"group_size": 4, "temperature": 0.05, "similarity": "cosine", "positives": "each", "max_positives": 2}
    objective = DistillConfig(**{**tct, **more, "teacher_temperature": 0.01, "nll_weight": 0.0})
    config = settings(beir, beir_tokens, with_vectors, objective=objective, steps=60, batch_size=48)
    metrics = execute(finetune, config, tmp_path / "student")
    first = next(line for line in read(tmp_path / "student" / "events.jsonl") if line["kind"] == "train")
    assert metrics["teach"] < 0.5 * first["teach"] and metrics["agreement"] > max(2 * first["agreement"], 0.3)
    assert metrics["positives"] == 1, "no query of this data set has a second one"


def test_a_share_of_the_queries_is_taught_by_the_same_vectors(with_vectors, beir, beir_tokens, tmp_path, monkeypatch):
    """Read where they are, though a run that goes on finds its training set elsewhere."""
    read = []

    def seen(folder, examples, *rest):
        read.append((folder, len(examples)))
        return open_teacher_vectors(folder, examples, *rest)

    monkeypatch.setattr(distill, "open_teacher_vectors", seen)
    objective = DistillConfig(group_size=2, teach="in_batch_kl")
    config = settings(beir, beir_tokens, with_vectors, objective=objective, query_share=0.1, steps=1)
    assert np.isfinite(execute(finetune, config, tmp_path / "run")["teach"])
    shutil.copytree(with_vectors, tmp_path / "moved")
    execute(finetune, dataclasses.replace(config, training_set=str(tmp_path / "moved"), steps=2), tmp_path / "run")
    assert read == [(with_vectors.resolve(), 24), ((tmp_path / "moved").resolve(), 24)]


def test_scores_are_no_vectors(taught, beir, beir_tokens, tmp_path):
    with pytest.raises(InputError, match=r"teacher_vectors does not exist: teach='in_batch_kl' needs a teacher's vectors"):
        execute(finetune, settings(beir, beir_tokens, taught, objective=DistillConfig(teach="in_batch_kl")), tmp_path / "run")

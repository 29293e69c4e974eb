"""Distillation as a user gets it: mine, let a teacher score what was mined, learn from the scores."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from test_finetune import condenser, settings  # noqa: F401  # the fixture

from denseir_jax.core.command import execute
from denseir_jax.core.errors import InputError
from denseir_jax.core.events import read
from denseir_jax.data.teacher_scores import write_teacher_scores
from denseir_jax.objectives.distill import SCORES, DistillConfig
from denseir_jax.pipeline.stages.finetune import stage as finetune
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.mine import stage as mine
from denseir_jax.pipeline.stages.teach import TeachConfig
from denseir_jax.pipeline.stages.teach import stage as teach
from denseir_jax.search.encode import encode_queries
from denseir_jax.search.retriever import load_retriever

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
    some = [json.loads(line) for line in (taught / SCORES).read_text().splitlines()][::97]
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
    write_teacher_scores(tmp_path / "other" / SCORES, [("nobody", "p1", 1.0)])
    for folder, words in ((taught.parent / "mined", "does not exist"), (tmp_path / "other", "has no score for any query")):
        with pytest.raises(InputError, match=words):
            execute(finetune, settings(beir, beir_tokens, folder, objective=objective), tmp_path / "run")
    config = TeachConfig(dataset=f"beir:{beir}", training_set=str(taught), teacher="run:nowhere")
    with pytest.raises(InputError, match="nowhere"):
        execute(teach, config, tmp_path / "again")
    with pytest.raises(InputError, match="has no pool 'bm25'; expected some of mined"):
        execute(teach, dataclasses.replace(config, teacher=f"hf:{beir}", pools=("bm25",)), tmp_path / "pools")

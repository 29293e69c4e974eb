"""Several data sets at once, shares of the queries, and pairs, through the finetune stage."""

import dataclasses
import importlib.util
import json
import signal
from pathlib import Path

import numpy as np
import pytest
from launching import ROOT, launch, metrics, once

from denseir_jax.core.artifacts import finished_run, read_json
from denseir_jax.core.command import execute
from denseir_jax.core.config import parse
from denseir_jax.core.errors import ConfigError, InputError
from denseir_jax.core.events import read
from denseir_jax.data.teacher_scores import TEACHER_SCORES
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.objectives.distill import DistillConfig
from denseir_jax.pipeline.stages.data_sets import SetConfig
from denseir_jax.pipeline.stages.finetune import FinetuneConfig, inputs
from denseir_jax.pipeline.stages.finetune import stage as finetune
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.mine import stage as mine
from denseir_jax.search.retriever import load_retriever
from denseir_jax.train.loop import Cadence
from denseir_jax.train.optimizer import OptimizerConfig

ENCODER = EncoderConfig(300, hidden=16, layers=0, heads=2, intermediate=16, max_length=32, dropout=0.0, attention_dropout=0.0)


@pytest.fixture(scope="session")
def negatives(made, beir) -> Path:
    return once(made, "negatives", lambda folder: execute(mine, MineConfig(dataset=f"beir:{beir}", depth=5, hi=5, n=3), folder))


@pytest.fixture(scope="session")
def other(made, beir) -> Path:
    """A second data set: the first one's passages and queries under other ids, some with two answers."""

    def write(folder: Path) -> None:
        (folder / "qrels").mkdir(parents=True)
        for name in ("corpus", "queries"):
            rows = [json.loads(line) for line in (beir / f"{name}.jsonl").read_text().splitlines()]
            (folder / f"{name}.jsonl").write_text("".join(json.dumps({**row, "_id": f"x{row['_id']}"}) + "\n" for row in rows))
        for split, numbers in (("train", range(90)), ("dev", range(240, 260))):
            lines = [f"xq{n}\txp{n % 60}\t1" for n in numbers] + (
                [f"xq{n}\txp{n % 60 + 1}\t1" for n in range(5)] if split == "train" else []
            )
            (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(lines) + "\n")

    return once(made, "other", write)


def card(name: str, argument: str) -> FinetuneConfig:
    spec = importlib.util.spec_from_file_location("card", ROOT / "configs" / "finetune" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return parse(FinetuneConfig, module.get_config(argument))


def settings(**changes) -> FinetuneConfig:
    config = FinetuneConfig(
        steps=4,
        batch_size=16,
        objective=ContrastiveConfig(group_size=2, temperature=0.05, similarity="cosine"),
        encoder=ENCODER,
        embedder=EmbedderConfig(pooling="mean", normalize=True),
        optimizer=OptimizerConfig(lr=3e-3),
        cadence=Cadence(log=2, save=0, keep=1),
    )
    return dataclasses.replace(config, **changes)


def test_a_mixed_run_that_was_killed_ends_in_the_same_parameters(beir, beir_tokens, other, negatives, tmp_path):
    """The card at smoke size; the second set is prepared with the first's tokenizer, and its negatives are mined here."""
    keys = {"datasets.one.dataset": f"beir:{beir}", "datasets.one.tokens": beir_tokens, "datasets.one.training_set": negatives}
    keys |= {"datasets.two.dataset": f"beir:{other}", "datasets.two.weight": 0.5, "prepare.template.query_length": 24, "prepare.workers": 1}
    keys |= {"encoder.layers": 0, "encoder.intermediate": 16, "cadence.save": 4, "objective.group_size": 2, "mine.depth": 5, "mine.hi": 5}
    keys |= {"steps": 12, "batch_size": 14, "cadence.probe": 12}
    words = ["finetune", "--config", "configs/finetune/mixed.py:smoke+one+two", *(f"--config.{key}={value}" for key, value in keys.items())]
    want = metrics(launch(*words, "--workdir", tmp_path / "whole"))
    launch(*words, "--workdir", tmp_path / "run", code=-signal.SIGKILL, DENSEIR_FAILPOINT="step:7")
    assert metrics(launch(*words, "--workdir", tmp_path / "run"))["params_sha256"] == want["params_sha256"]
    manifest = finished_run(tmp_path / "run", ["finetune"])
    assert manifest["sets"]["one"] == {"steps": 8, "share": pytest.approx(2 / 3), "epochs": pytest.approx(8 * 14 / 240), "queries": 240}
    assert manifest["sets"]["two"]["steps"] == 4 and manifest["sets"]["two"]["queries"] == 90
    assert {"source:one", "tokens:one", "training_set:one", "source:two"} == set(manifest["inputs"])
    lines = [line for line in read(tmp_path / "whole" / "events.jsonl") if line["kind"] == "train"]
    assert sum(line["steps/one"] * n for line, n in zip(lines, (5, 5, 2), strict=True)) == pytest.approx(8)
    both = [line for line in lines if 0 < line["steps/two"] < 1]
    by_set = [sum(line[f"steps/{name}"] * line[f"loss/{name}"] for name in ("one", "two")) for line in both]
    assert both and by_set == pytest.approx([line["loss"] for line in both], rel=1e-5)
    (probe,) = [line for line in read(tmp_path / "run" / "events.jsonl") if line["kind"] == "probe"]
    assert probe["RR@10"] == pytest.approx((probe["RR@10/one"] + probe["RR@10/two"]) / 2)


def test_sets_that_do_not_go_together_are_refused(beir, beir_tokens, tokens, other, tmp_path):
    one = SetConfig(dataset=f"beir:{beir}", tokens=str(beir_tokens))
    for message, sets in (
        ("were prepared with different tokenizers", {"one": one, "two": SetConfig(dataset=f"beir:{beir}", tokens=str(tokens))}),
        (r"config\.datasets\.two\.dataset is empty", {"one": one, "two": SetConfig()}),
        ("several data sets need one tokenizer", {"two": SetConfig(dataset=f"beir:{other}")}),
    ):
        with pytest.raises(InputError, match=message):
            execute(finetune, settings(datasets=sets), tmp_path / "run")
    for changes, message in (
        ({"datasets": {"one": one}, "dataset": "beir:x"}, "are given for each of datasets"),
        ({"datasets": {"a/b": one}}, "a data set may not be called 'a/b'"),
        ({"datasets": {"one": one}, "objective": ContrastiveConfig(memory=8)}, "whose numbers are those of another set's corpus"),
        ({"size_power": -1.0}, "size_power=-1.0 must not be negative"),
        ({"query_share": 0.0}, "query_share=0.0 must be above 0"),
        ({"training_set": "pairs"}, "brings no negatives: it needs the contrastive objective with group_size=1"),
    ):
        with pytest.raises(ValueError, match=message):
            settings(**changes)
    with pytest.raises(ConfigError, match=r"weight=0\.0 must be positive"):
        parse(SetConfig, {"weight": 0.0})


def test_a_share_of_the_queries_is_used_and_epochs_are_counted_from_it(beir, beir_tokens, negatives, one_device, tmp_path, capsys):
    where = {"dataset": f"beir:{beir}", "tokens": str(beir_tokens), "training_set": str(negatives)}
    config = settings(**where, query_share=0.1, epochs=2.0)
    execute(finetune, config, tmp_path / "tenth")
    told = capsys.readouterr().err
    assert "24 of 240 training queries (query_share 0.1)" in told and "fewer than" not in told
    manifest = finished_run(tmp_path / "tenth", ["finetune"])
    assert manifest["counts"]["queries"] == 24 and read_json(tmp_path / "tenth" / "metrics.json")["step"] == 3  # 2 x 24 / 16
    execute(finetune, config, tmp_path / "tenth")
    assert "already finished" in capsys.readouterr().err
    execute(finetune, dataclasses.replace(config, epochs=3.0), tmp_path / "tenth")
    assert "goes on from step 3" in capsys.readouterr().err and read_json(tmp_path / "tenth" / "metrics.json")["step"] == 5  # 4.5, whole
    with pytest.raises(InputError, match=r"was made by another config .*query_share: 0\.1 there, 0\.2 here"):
        execute(finetune, dataclasses.replace(config, query_share=0.2), tmp_path / "tenth")

    lines = (negatives / "training_set.jsonl").read_text().splitlines()
    taught = tmp_path / "taught"
    taught.mkdir()
    rows = [json.loads(line) | {"negatives": {"bm25": [f"p{(n + 7) % 60}"]}} for n, line in enumerate(lines)]
    (taught / "training_set.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    scores = [(r["query_id"], p, float(s)) for r in rows for s, p in enumerate((r["negatives"]["bm25"][0], r["positives"][0]))]
    (taught / TEACHER_SCORES).write_text("".join(json.dumps({"query_id": q, "passage_id": p, "score": s}) + "\n" for q, p, s in scores))
    where["training_set"] = str(taught / "training_set.jsonl")
    execute(finetune, settings(**where, objective=DistillConfig(group_size=2), query_share=0.001, steps=1), tmp_path / "one")
    told = capsys.readouterr().err
    assert "1 of 240 training queries" in told and "1 queries are fewer than the 16 rows of a batch" in told
    assert len((tmp_path / "one" / "share" / TEACHER_SCORES).read_text().splitlines()) == 2


def test_the_card_for_pairs_trains_on_arrays(beir, beir_tokens, one_device, tmp_path, capsys):
    queries = {row["_id"]: row["text"] for row in map(json.loads, (beir / "queries.jsonl").read_text().splitlines())}
    rows = [
        {"query_id": str(n), "query_text": queries[f"q{n}"], "positive_document_ids": [f"p{n % 60}"], "negative_document_ids": []}
        for n in range(240)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = card("pairs", "smoke")
    where = {"dataset": f"tevatron:{tmp_path / 'pairs.jsonl'}", "tokens": str(beir_tokens)}
    small = {"encoder": ENCODER, "embedder": EmbedderConfig(pooling="mean", normalize=True), "optimizer": OptimizerConfig(lr=1e-2)}
    small |= {"objective": dataclasses.replace(config.objective, temperature=0.05), "batch_size": 32, "steps": 40}
    run = tmp_path / "run"
    execute(finetune, dataclasses.replace(config, **where, **small), run)
    assert "240 pairs" in capsys.readouterr().err
    manifest = finished_run(run, ["finetune"])
    assert manifest["counts"] == {"pairs": 240, "without_tokens": 0, "without_positives": 0, "repeated": 0}
    lines = [line for line in read(run / "events.jsonl") if line["kind"] == "train"]
    assert lines[-1]["loss"] < 0.8 * lines[0]["loss"] and lines[-1]["masked_candidates"] > 0
    assert load_retriever(f"run:{run}").params_sha256 == read_json(run / "metrics.json")["retriever_sha256"]
    assert not list(run.glob("*.jsonl.tmp")) and not (run / "given.jsonl").exists()
    config = dataclasses.replace(config, **where)
    assert inputs(config)["training_set"] != inputs(dataclasses.replace(config, training_set="given"))["training_set"]
    assert np.fromfile(run / "pairs" / "passage.bin", "<i4").tolist() == [n % 60 for n in range(240)]

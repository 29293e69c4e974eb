"""A recipe as a chain: what is finished is skipped, what changed is made again, what was killed goes on."""

import dataclasses
import json
import runpy
import shutil
import signal
from pathlib import Path

import pytest
from launching import launch, metrics

from denseir_jax.core.command import execute
from denseir_jax.core.config import parse
from denseir_jax.core.errors import InputError
from denseir_jax.pipeline.chain import PipelineConfig, stage
from denseir_jax.pipeline.stages.encode import EncodeConfig

LINKS = ["prepare", "negatives", "tune", "vectors", "found"]
CARD = """
from denseir_jax.core.config import card
from denseir_jax.data.template import TextTemplate
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.pipeline.chain import PipelineConfig
from denseir_jax.pipeline.stages.encode import EncodeConfig
from denseir_jax.pipeline.stages.evaluate import EvaluateConfig
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
from denseir_jax.pipeline.stages.mine import MineConfig
from denseir_jax.pipeline.stages.prepare import PrepareConfig
from denseir_jax.train.loop import Cadence


def get_config():
    tune = FinetuneConfig(
        dataset="@dataset", tokens="@prepare", training_set="@negatives", steps=6, batch_size=8,
        objective=ContrastiveConfig(group_size=2, temperature=0.05, similarity="cosine"),
        encoder=EncoderConfig(300, hidden=16, layers=0, heads=2, intermediate=16, max_length=32),
        embedder=EmbedderConfig(pooling="mean", normalize=True), cadence=Cadence(log=2, save=2),
    )
    template = TextTemplate(query_length=24, passage_length=32)
    links = {
        "prepare": PrepareConfig(corpus="@dataset", vocab_size=300, train_queries=True, workers=1, template=template),
        "negatives": MineConfig(dataset="@dataset", depth=5, hi=5, n=3),
        "tune": tune,
        "vectors": EncodeConfig(retriever="run:@tune", tokens="@prepare"),
        "found": EvaluateConfig(dataset="@dataset", retriever="run:@tune", embeddings="@vectors"),
    }
    return card(PipelineConfig(dataset="", order=tuple(links), links=links))
"""


@pytest.fixture
def recipe(tmp_path) -> Path:
    (tmp_path / "recipe.py").write_text(CARD)
    return tmp_path / "recipe.py"


@pytest.fixture
def data(beir, tmp_path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(beir, tmp_path / "data"))


def hashes(run: Path) -> dict[str, str]:
    return {name: json.loads((run / name / "manifest.json").read_text())["sha256"] for name in LINKS}


def test_finished_links_are_skipped_and_changed_data_is_not(recipe, data, tmp_path, capsys):
    config = parse(PipelineConfig, runpy.run_path(str(recipe))["get_config"]())
    config, run = dataclasses.replace(config, dataset=f"beir:{data}"), tmp_path / "run"
    first = execute(stage, config, run)
    assert first["links"] == LINKS and 0 <= first["RR@10"] <= 1
    made = hashes(run)
    assert "skipped" not in capsys.readouterr().err

    again = execute(stage, config, run)
    told = capsys.readouterr().err
    assert told.count("already finished") == len(LINKS) and "finished, parameters" not in told
    assert hashes(run) == made and again["RR@10"] == first["RR@10"]

    rows = (data / "corpus.jsonl").read_text().splitlines()
    changed = {**json.loads(rows[0]), "text": "a wholly other text about nothing"}
    (data / "corpus.jsonl").write_text("\n".join([json.dumps(changed), *rows[1:]]) + "\n")
    execute(stage, config, run)
    assert "already finished" not in capsys.readouterr().err
    assert not set(hashes(run).values()) & set(made.values())


def test_what_is_changed_late_makes_only_later_links_again(recipe, data, tmp_path, capsys):
    config = parse(PipelineConfig, runpy.run_path(str(recipe))["get_config"]())
    config, run = dataclasses.replace(config, dataset=f"beir:{data}"), tmp_path / "run"
    execute(stage, config, run)
    made = hashes(run)
    (run / "notes.txt").write_text("not a run")
    changed = dataclasses.replace(config, links={**config.links, "vectors": dataclasses.replace(config.links["vectors"], dtype="float32")})
    with pytest.raises(InputError, match=r"made by another config \(links.vectors.dtype: .*or pass --overwrite"):
        execute(stage, changed, run)
    assert hashes(run) == made
    capsys.readouterr()
    execute(stage, changed, run, overwrite=True)
    assert capsys.readouterr().err.count("already finished") == 3
    assert [name for name, sha in hashes(run).items() if made[name] != sha] == ["vectors", "found"]
    assert not (run / "notes.txt").exists(), "what no link made goes, as it does for every other stage"


def test_killed_in_the_middle_it_goes_on(recipe, data, tmp_path):
    words = ["pipeline", "--config", recipe, f"--config.dataset=beir:{data}", "--workdir", tmp_path / "run"]
    launch(*words, code=-signal.SIGKILL, DENSEIR_FAILPOINT="step:5")
    assert (tmp_path / "run/negatives/manifest.json").exists() and not (tmp_path / "run/tune/manifest.json").exists()
    done = launch(*words)
    assert done.stderr.count("already finished") == 2 and "goes on from step" in done.stderr
    assert metrics(done)["links"] == LINKS and (tmp_path / "run/manifest.json").exists()


@pytest.mark.parametrize(
    "order, links, message",
    [
        (("a", "b"), ("a",), "order names the link 'b', which is not among a"),
        (("b", "a"), ("a", "b"), "link 'b' uses @a, which is not an earlier link"),
        (("b",), ("b",), "link 'b' uses @a, which is not an earlier link"),
        (("dataset",), ("dataset",), "a link may not be called 'dataset'"),
    ],
)
def test_links_that_cannot_follow_one_another_are_refused(order, links, message):
    known = {"a": EncodeConfig(retriever="hf:x"), "b": EncodeConfig(retriever="run:@a"), "dataset": EncodeConfig(retriever="hf:x")}
    with pytest.raises(ValueError, match=message):
        PipelineConfig(dataset="beir:x", order=order, links={name: known[name] for name in links})

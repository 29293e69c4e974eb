"""The few-shot recipe from end to end, and what its table and curve say."""

import dataclasses
import importlib.util
import json

import matplotlib.image
import numpy as np
import pytest
from launching import ROOT

from denseir_jax.core.artifacts import finished_run
from denseir_jax.core.command import execute
from denseir_jax.core.config import parse
from denseir_jax.core.errors import ConfigError, InputError
from denseir_jax.data.template import TextTemplate
from denseir_jax.evals import few_shot as drawing
from denseir_jax.evals.table import Cell
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.pipeline.chain import PipelineConfig
from denseir_jax.pipeline.chain import stage as pipeline
from denseir_jax.pipeline.stages.few_shot import FewShotConfig, budget
from denseir_jax.pipeline.stages.few_shot import stage as few_shot

ENCODER = EncoderConfig(300, hidden=16, layers=0, heads=2, intermediate=16, max_length=32, dropout=0.0, attention_dropout=0.0)


@pytest.fixture(scope="module")
def made_run(beir, tmp_path_factory, module_on_one_device):
    """The card at smoke size, on a smaller encoder."""
    spec = importlib.util.spec_from_file_location("card", ROOT / "configs" / "pipeline" / "few_shot.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = parse(PipelineConfig, module.get_config("smoke"))
    links = {name: dataclasses.replace(link, encoder=ENCODER) if hasattr(link, "encoder") else link for name, link in config.links.items()}
    template = TextTemplate(query_length=24, passage_length=32)
    links["prepare"] = dataclasses.replace(links["prepare"], vocab_size=300, workers=1, train_queries=True, template=template)
    folder = tmp_path_factory.mktemp("few_shot") / "run"
    metrics = execute(pipeline, dataclasses.replace(config, dataset=f"beir:{beir}", links=links), folder)
    return folder, metrics


def test_the_card_gives_nested_queries_a_table_and_a_curve(made_run):
    folder, metrics = made_run
    found = json.loads((folder / "few_shot" / "few_shot.json").read_text())
    small, whole = found["curves"]["pre-trained"]
    assert (small["share"], small["queries"], small["steps"], small["epochs"]) == (0.02, 5, 10, 16.0)
    assert (whole["share"], whole["queries"], whole["steps"]) == (1.0, 240, 10) and found["levels"].keys() == {"BM25", "no training query"}
    used = [json.loads(line)["query_id"] for line in (folder / "tuned_2" / "share" / "training_set.jsonl").read_text().splitlines()]
    assert len(used) == 5 and not (folder / "tuned_100" / "share").exists()
    assert found["budget"] == "The same number of steps at every share, 10: the fewer queries, the more often each is seen."
    table = (folder / "few_shot" / "table.txt").read_text()
    assert "pre-trained, 2% (5 queries)" in table and "BM25" in table and found["budget"] in table
    evaluated = json.loads((folder / "evaluate_tuned_2" / "metrics.json").read_text())
    assert small["cells"]["nDCG@10"]["value"] == pytest.approx(evaluated["nDCG@10"])
    assert metrics["nDCG@10"]["pre-trained"]["100%"] == whole["cells"]["nDCG@10"]["value"]
    picture = matplotlib.image.imread(folder / "few_shot" / "few_shot.png")
    assert picture.shape[1] > 800 and picture[..., :3].std() > 0.05


def test_a_model_that_was_not_measured_is_refused(made_run, tmp_path):
    folder, _ = made_run
    config = FewShotConfig(tuned=(f"a={folder}/tuned_2",), evaluated=(f"{folder}/evaluate_tuned_100",))
    with pytest.raises(InputError, match=r"none of config\.evaluated measured what .*tuned_2 made"):
        execute(few_shot, config, tmp_path / "run")
    both = tuple(f"{folder}/evaluate_tuned_{n}" for n in (2, 100))
    with pytest.raises(InputError, match=r"two of config\.tuned are 'a, 2% \(5 queries\)'"):
        execute(few_shot, dataclasses.replace(config, tuned=config.tuned * 2, evaluated=both), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"config\.baseline='b' is none of config\.levels"):
        execute(few_shot, dataclasses.replace(config, baseline="b"), tmp_path / "run")
    with pytest.raises(ConfigError, match="expected finetune runs as curve=DIR"):
        execute(few_shot, FewShotConfig(), tmp_path / "run")
    assert finished_run(folder)["stage"] == "pipeline"


def test_what_is_alike_is_stated():
    assert budget([(10, 0.0), (10, 0.0)]).startswith("The same number of steps at every share, 10")
    assert budget([(2, 3.0), (20, 3.0)]) == "The same number of epochs at every share, 3: 2 to 20 steps."
    assert budget([(2, 0.0), (20, 0.0)]) == "Shares differ in steps (2 to 20) as well as in queries."


def test_curves_can_be_told_apart_without_colour(tmp_path, monkeypatch):
    """All in black, two curves that change places give another picture: they differ by marker and dashes."""
    monkeypatch.setattr(drawing, "_COLOURS", ("#000000",))

    def draw(order: tuple[str, ...], name: str) -> np.ndarray:
        def points(base: float) -> list[drawing.Point]:
            cells = {share: {"m": Cell(base + share / 5, base - 0.05, base + 0.25)} for share in (0.001, 0.01, 1.0)}
            return [drawing.Point(share, 10, 5, 1.0, found) for share, found in cells.items()]

        curves = {label: points({"a": 0.2, "b": 0.6}[label]) for label in order}
        drawing.draw(tmp_path / name, "m", curves, {"BM25": Cell(0.4, 0.35, 0.45)}, "title", "note")
        return matplotlib.image.imread(tmp_path / name)[..., :3].mean(-1)

    first, turned, again = draw(("a", "b"), "1.png"), draw(("b", "a"), "2.png"), draw(("a", "b"), "3.png")
    assert np.array_equal(first, again) and (tmp_path / "1.png").read_bytes() == (tmp_path / "3.png").read_bytes()
    assert first.shape == turned.shape and (np.abs(first - turned) > 0.3).mean() > 0.001

"""Every recipe card at every size: it parses, says its numbers, and `smoke` keeps the objective's own settings."""

import dataclasses
import importlib.util
from pathlib import Path

import pytest

from denseir_jax.core.config import parse
from denseir_jax.core.errors import ConfigError
from denseir_jax.pipeline import stages
from denseir_jax.pipeline.chain import PipelineConfig

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
CARDS = sorted(str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*.py"))
SIZES = ("smoke", "tiny", "small", "base")
ARGUMENTS = {
    "pipeline/demo.py": ("scratch", "smoke", "warm"),
    "pipeline/few_shot.py": (*SIZES, "warm", "tiny+epochs"),
    "pipeline/two_stage.py": (*SIZES, "warm"),
    "pipeline/retromae.py": (*SIZES, *(f"{size}_distilled" for size in SIZES)),
    "pipeline/rocketqa.py": tuple(f"{size}{task}{end}" for size in SIZES for task in ("", "_nq") for end in ("", "_labelled")),
    "pipeline/distill.py": (*SIZES, *(f"{size}_given" for size in SIZES)),
}


def load(card: str):
    spec = importlib.util.spec_from_file_location("card", CONFIGS / card)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config


def parsed(card: str, argument: str):
    values = load(card)(argument)
    return parse(PipelineConfig if "links" in values else stages.config_registry()[values["stage"]], values)


@pytest.mark.parametrize(("card", "argument"), [(card, a) for card in CARDS for a in ARGUMENTS.get(card, SIZES)])
def test_card_parses(card, argument):
    parsed(card, argument)


@pytest.mark.parametrize("card", CARDS)
def test_card_has_a_default_and_refuses_an_unknown_argument(card):
    load(card)()
    with pytest.raises(ConfigError, match="'huge'"):
        load(card)("huge")


@pytest.mark.parametrize("card", [card for card in CARDS if card.startswith(("pretrain", "finetune"))])
def test_every_size_trains_the_same_objective(card):
    smoke, *others = (parsed(card, size) for size in SIZES)
    assert all((other.objective, head(other)) == (smoke.objective, head(smoke)) for other in others)


def head(run):
    """A projection is told in multiples of the encoder's width, which is the size's."""
    return dataclasses.replace(run.embedder, projection=run.embedder.projection // run.encoder.hidden)

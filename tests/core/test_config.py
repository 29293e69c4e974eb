"""Configs: what is typed is what is got, and every mistake names the key and the nearest that exists."""

import dataclasses
from typing import Literal

import pytest

from denseir_jax.core import config
from denseir_jax.core.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Inner:
    lr: float = 1e-4
    cadence: int = config.operational(5)


@dataclasses.dataclass(frozen=True)
class Sheep:
    name: str = "sheep"
    legs: int = 4


@dataclasses.dataclass(frozen=True)
class Hen:
    name: str = "hen"
    eggs: float = 1.5

    def __post_init__(self) -> None:
        if self.eggs < 0:
            raise ValueError(f"eggs={self.eggs} must not be negative")


def animals():
    return {"sheep": Sheep, "hen": Hen}


@dataclasses.dataclass(frozen=True)
class Outer:
    path: str
    inner: Inner = Inner()
    kind: Literal["a", "b"] = "a"
    start: str | None = None
    measures: tuple[str, ...] = ("RR@10",)
    animal: Sheep | Hen = config.chosen_by_name(animals, default=Sheep())
    farm: dict[str, Sheep | Hen] = config.chosen_by_name(animals, default=None)


def test_card_and_parse_are_inverse():
    whole = Outer("x", Inner(2.0, 7), "b", None, ("P@1", "nDCG@10"), Hen(eggs=2.0), {"one": Sheep(), "two": Hen()})
    assert config.parse(Outer, config.card(whole)) == whole
    assert config.parse(Outer, config.plain(whole)) == whole


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"path": "x", "iner": {}}, ("config.iner", "did you mean 'inner'")),
        ({"path": "x", "inner": {"rl": 1}}, ("config.inner.rl", "did you mean 'lr'")),
        ({"path": 3}, ("config.path=3", "expected str")),
        ({"path": "x", "inner": {"lr": "fast"}}, ("config.inner.lr='fast'", "expected float")),
        ({"path": "x", "inner": {"cadence": True}}, ("config.inner.cadence=True", "expected int")),
        ({"path": "x", "kind": "c"}, ("config.kind='c'", "'a', 'b'")),
        ({}, ("config.path is missing",)),
        ({"path": "x", "animal": {"name": "sheeep"}}, ("config.animal.name='sheeep'", "did you mean 'sheep'")),
        ({"path": "x", "animal": {"name": "hen", "eggs": -1.0}}, ("config.animal: eggs=-1.0",)),
        ({"path": "x", "farm": {"a": {"name": "hen", "legs": 2}}}, ("config.farm.a.legs",)),
    ],
)
def test_mistakes_name_the_key(values, words):
    with pytest.raises(ConfigError) as error:
        config.parse(Outer, values)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_typed_lists_split_at_commas_outside_brackets():
    assert config.parse(Outer, {"path": "x", "measures": "RR@10,nDCG(a='b,c')@5"}).measures == ("RR@10", "nDCG(a='b,c')@5")
    assert config.parse(Outer, {"path": "x", "measures": ("a,b",)}).measures == ("a", "b")
    assert config.parse(Outer, {"path": "x", "measures": ("a,b", "c")}).measures == ("a,b", "c")


def test_identity_leaves_operational_keys_out():
    keys = config.identity(Outer("x", farm={"one": Sheep()}))
    assert "inner.lr" in keys and "inner.cadence" not in keys and keys["farm.one.legs"] == 4

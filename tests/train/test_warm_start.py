"""What a model takes from parameters that exist, by name and shape."""

import numpy as np
import pytest

from denseir_jax.core.errors import InputError
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.train.warm_start import WarmStart


def start(*leaves: str) -> WarmStart:
    """Leaf number n is of shape [2] and full of n."""
    return WarmStart("run:x", EncoderConfig(100), EmbedderConfig(), "", {name: np.full(2, n) for n, name in enumerate(leaves)})


def taken(given: WarmStart, *names: str) -> dict[str, int]:
    return {name: int(leaf[0]) for name, leaf in given.for_model(dict.fromkeys(names, (2,))).items()}


def test_a_part_of_a_mixture_takes_the_head_of_a_run_of_its_own_and_the_other_way_round(capsys):
    own = ("encoder/table", "mlm_head/bias", "head/up", "head/down")
    mixed = ("encoder/table", "mlm_head/bias", "condenser/head/up", "condenser/head/down")
    assert taken(start(*own), *mixed) == dict(zip(mixed, range(4), strict=True))
    assert capsys.readouterr().err == "warm start from run:x: takes condenser, encoder, mlm_head\n"
    assert taken(start(*mixed), *own) == dict(zip(own, range(4), strict=True))
    assert capsys.readouterr().err == "warm start from run:x: takes encoder, head, mlm_head\n"


def test_of_two_parts_with_such_a_head_neither_is_guessed(capsys):
    assert taken(start("encoder/table", "a/head/up", "b/head/up"), "encoder/table", "head/up") == {"encoder/table": 0}
    assert "takes encoder; fresh: head; left out: a, b" in capsys.readouterr().err


def test_towers_take_the_encoder_of_one_and_one_encoder_is_not_a_tower():
    assert taken(start("encoder/table"), "query/encoder/table", "passage/encoder/table") == {
        "query/encoder/table": 0,
        "passage/encoder/table": 0,
    }
    with pytest.raises(InputError, match=r"run:x lacks 'encoder/table' \(and 0 more\) of the encoder"):
        taken(start("query/encoder/table", "head/up"), "encoder/table")

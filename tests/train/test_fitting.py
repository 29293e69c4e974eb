"""The number of micro-batches that fits a budget, against a model of memory: a fixed part and one that shrinks."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from denseir_jax.core.errors import ConfigError
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.objectives.base import Context
from denseir_jax.objectives.ict import IctConfig
from denseir_jax.parallel import mesh as meshes
from denseir_jax.train import fitting, step

ROWS, FIXED, SHRINKING = 48, 100, 960


def compiler(tried: list[int]) -> Any:
    def compiled(n: int) -> Any:
        tried.append(n)
        return SimpleNamespace(memory_analysis=lambda: SimpleNamespace(temp_size_in_bytes=FIXED + SHRINKING // n), parts=n)

    return compiled


@pytest.mark.parametrize("budget", [1060, 1059, 600, 340, 260, 200, 161, 140, 120])
def test_the_fewest_parts_that_fit(budget: int) -> None:
    tried: list[int] = []
    found = fitting.fit(compiler(tried), 1, ROWS, float(budget))
    fits = [n for n in range(1, ROWS + 1) if ROWS % n == 0 and FIXED + SHRINKING // n <= budget]
    assert found.micro_batches == fits[0] == found.step.parts
    assert found.temporary == FIXED + SHRINKING // found.micro_batches <= budget
    assert len(tried) <= 6, "measurements rule candidates out"


def test_without_a_budget_nothing_is_raised() -> None:
    tried: list[int] = []
    assert fitting.fit(compiler(tried), 6, ROWS, 0.0).micro_batches == 6 and tried == [6]
    assert fitting.fit(compiler(tried), 6, ROWS, 1e6).micro_batches == 6


def test_a_back_end_that_tells_nothing_fits_no_budget() -> None:
    silent = SimpleNamespace(memory_analysis=lambda: None)
    assert fitting.fit(lambda n: silent, 2, ROWS, 0.0).temporary == 0
    with pytest.raises(ConfigError, match="does not tell how much memory a step needs; set micro_batches instead"):
        fitting.fit(lambda n: silent, 2, ROWS, 1e6)


def test_a_budget_that_nothing_fits_names_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"memory_budget=9\.31323e-08 GiB: the step needs 0\.0 MiB .* 48 rows one by one"):
        fitting.fit(compiler([]), 1, ROWS, 100.0)


def test_a_batch_that_would_take_gigabytes_fits_700_megabytes() -> None:
    """512 texts of 64 tokens through 4 layers of width 512: loss and gradients, in parts."""
    encoder = EncoderConfig(30522, hidden=512, layers=4, heads=8, intermediate=2048, scan=True)
    objective = IctConfig().build(Context(encoder, EmbedderConfig(), 2, 3, 0, 4, 30522, 64, 64, seed=0))
    mesh = meshes.make(meshes.MeshConfig(), jax.devices()[:1])
    rows = {name: jax.ShapeDtypeStruct((256, *field.tail), jnp.int32) for name, field in objective.fields().items()}
    params = jax.eval_shape(objective.init, jax.random.key(0))

    def compiled(n: int) -> Any:
        with jax.set_mesh(mesh):
            loss = jax.value_and_grad(step.make_loss(objective, mesh, n), has_aux=True)
            return jax.jit(loss).lower(params, rows, jax.random.key(0)).compile()

    found = fitting.fit(compiled, 32, 256, 700e6)
    assert found.temporary <= 700e6 and found.micro_batches <= 64

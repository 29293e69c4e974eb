"""Eight CPU devices for every test, decided before anything touches a backend."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from launching import QUICK_XLA

os.environ.setdefault("XLA_FLAGS", QUICK_XLA)

import jax
import pytest

jax.config.update("jax_disable_most_optimizations", True)  # tests compile much and compute little
jax.config.update("jax_num_cpu_devices", 8)


@contextmanager
def on_one_device() -> Iterator[None]:
    from denseir_jax.parallel import mesh  # here: the hook that checks shapes is not yet in place where this file is read

    make = mesh.make
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mesh, "make", lambda config: make(config, jax.devices()[:1]))
        yield


@pytest.fixture
def one_device() -> Iterator[None]:
    """What runs here is compiled for one device: that several give the same is shown elsewhere, and costs twice the time."""
    with on_one_device():
        yield


@pytest.fixture(scope="module")
def module_on_one_device() -> Iterator[None]:
    """As `one_device`, for all tests of a module and what it makes once."""
    with on_one_device():
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real test collections beside the checkout; tests that want it are skipped where it is absent."""
    folder = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no test collections beside the checkout")
    return folder

"""Eight CPU devices for every test, decided before anything touches a backend."""

import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from launching import QUICK_XLA

os.environ.setdefault("XLA_FLAGS", QUICK_XLA)

import jax
import pytest

jax.config.update("jax_disable_most_optimizations", True)  # tests compile much and compute little
jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real test collections beside the checkout; tests that want it are skipped where it is absent."""
    folder = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no test collections beside the checkout")
    return folder

from pathlib import Path

import pytest
from tiny_retriever import write_run


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a tied retriever in it."""
    return write_run(tmp_path_factory.mktemp("finetune"))


@pytest.fixture(scope="session")
def other_run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with other weights."""
    return write_run(tmp_path_factory.mktemp("other"), seed=1)


@pytest.fixture(scope="session")
def untied_run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tower for each side; the query side has the weights of `run_folder`."""
    return write_run(tmp_path_factory.mktemp("untied"), untied=True)

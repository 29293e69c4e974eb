"""Running stages one after another in a benchmark's folder, each skipped where it is finished."""

import argparse
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from denseir_jax.core import signals
from denseir_jax.core.command import execute
from denseir_jax.core.config import parse
from denseir_jax.core.errors import EXIT_BAD_INPUT, EXIT_STOPPED, InputError, Stopped
from denseir_jax.pipeline import chain, stages

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def card_module(name: str) -> ModuleType:
    """A recipe card as a module: "pipeline/demo"."""
    spec = importlib.util.spec_from_file_location(name.replace("/", "_"), ROOT / "configs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def card_config(name: str, size: str) -> Any:
    """The typed config of a recipe card."""
    values = card_module(name).get_config(size)
    return parse(stages.config_registry()[values["stage"]], values)


def run(main: Callable[[], None]) -> None:
    """Run a benchmark; bad input is one line and exit code 2, a signal after saving exit code 75, as for the stages."""
    signals.listen()
    try:
        main()
    except (InputError, ValueError, OSError) as fault:
        print(f"error: {fault}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(EXIT_STOPPED)


def at_least(least: int) -> Callable[[str], int]:
    """The type of a flag: a whole number that is not smaller."""

    def number(word: str) -> int:
        if int(word) < least:
            raise argparse.ArgumentTypeError(f"{word} is less than {least}")
        return int(word)

    return number


class Links:
    """Named run folders under one; a config may refer to an earlier one as @name."""

    def __init__(self, folder: Path, names: dict[str, str | None]):
        self.folder, self.names = folder.absolute(), dict(names)

    def run(self, name: str, config: Any, seed: int = 0) -> Path:
        """Run a stage under `name`, or find it finished there; returns its folder."""
        path = self.folder / name
        self.names[name] = str(path)
        execute(stages.by_config(config), chain.resolved(config, self.names, {"seed": seed}), path)
        return path

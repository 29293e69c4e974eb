"""One module a stage, each with its config dataclass and a ``stage`` object. Found by looking, not by a list."""

import functools
import importlib
import pkgutil
from typing import Any

from denseir_jax.core.command import Stage


@functools.cache
def registry() -> dict[str, Stage]:
    """Every stage by name."""
    modules = (importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__))
    return {module.stage.name: module.stage for module in modules if hasattr(module, "stage")}


def config_registry() -> dict[str, type]:
    """Every stage's config class by the stage's name."""
    return {name: stage.config for name, stage in registry().items()}


def by_config(config: Any) -> Stage:
    """The stage whose config class this is an instance of."""
    return next(stage for stage in registry().values() if stage.config is type(config))

"""Objectives by name. A module of this package that registers a config is found by itself: a new objective is a new file."""

import dataclasses
import importlib
import pkgutil
from functools import cache
from typing import Any, TypeVar

from denseir_jax import objectives

T = TypeVar("T", bound=type)
_CONFIGS: dict[str, type] = {}


def register(config: T) -> T:
    """Class decorator: file an objective's config dataclass under the default of its field ``name``.

    Raises:
        ValueError: the name is taken.
    """
    name: Any = next(field.default for field in dataclasses.fields(config) if field.name == "name")
    if name in _CONFIGS:
        raise ValueError(f"two objectives are named {name!r}")
    _CONFIGS[name] = config
    return config


@cache
def registry() -> dict[str, type]:
    """Config class by objective name, over all modules of the package."""
    for module in pkgutil.iter_modules(objectives.__path__):
        importlib.import_module(f"{objectives.__name__}.{module.name}")
    return dict(sorted(_CONFIGS.items()))

"""One config scheme: every room owns a frozen dataclass; recipe cards and the command line fill it.

A recipe card builds the dataclass and returns ``card(it)``, an ml_collections ConfigDict that holds every key, so each
can be overridden by ``--config.key=value``. ``parse`` turns it back into the dataclass and checks each key and type.
"""

import dataclasses
import difflib
import math
import re
import runpy
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from ml_collections import config_dict

from denseir_jax.core.errors import ConfigError

T = TypeVar("T")
_UNIONS = (Union, types.UnionType)


def operational(default: Any) -> Any:
    """A field that may differ when a run goes on: mesh, cadence, number of steps. Not part of a run's identity."""
    return dataclasses.field(default=default, metadata={"operational": True})


def located(default: Any) -> Any:
    """A field that names where an input lies. The input itself is compared, by hash: the same data may lie elsewhere."""
    return operational(default)


def operational_group(factory: Callable[[], Any]) -> Any:
    """As `operational`, for a nested dataclass: every key under it may differ."""
    return dataclasses.field(default_factory=factory, metadata={"operational": True})


def later(default: Any) -> Any:
    """A field that older runs do not have: part of a run's identity only where it differs from this, so that theirs still holds."""
    return dataclasses.field(default=default, metadata={"later": True})


def chosen_by_name(registry: Callable[[], Mapping[str, type]], default: Any = dataclasses.MISSING, key: str = "name") -> Any:
    """A field holding one (or a dict) of several dataclasses, told apart by their `key`; `registry` maps names to classes."""
    metadata = {"registry": registry, "key": key}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def parse(cls: type[T], values: Mapping[str, Any] | config_dict.ConfigDict, path: str = "config", hint: str = "") -> T:
    """Build the frozen dataclass `cls` from a mapping (ConfigDict, dict from JSON). `hint` ends the message on an unknown key.

    Raises:
        ConfigError: an unknown key (with the nearest known one), a wrong type, a missing key, or what the dataclass's
            own ``__post_init__`` refuses (as ValueError).
    """
    if isinstance(values, config_dict.ConfigDict):
        values = values.to_dict()
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    for key in values:
        if key not in fields:
            raise ConfigError(unknown_key(f"{path}.{key}", key, list(fields)) + hint)
    arguments = {}
    for name, field in fields.items():
        if name in values:
            arguments[name] = _field(field, hints[name], values[name], f"{path}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{path}.{name} is missing")
    try:
        return cls(**arguments)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def choose(table: Mapping[str, T], name: str, what: str = "size") -> T:
    """An entry of a recipe card's table of sizes or variants.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in table:
        raise ConfigError(f"the recipe card has no {what} {name!r}; it has {', '.join(table)}")
    return table[name]


def from_card(cls: type[T], file: Path, argument: str) -> T:
    """The config that another recipe card gives: the card of a recipe takes its stages' numbers from their own cards.

    Raises:
        ConfigError: as `parse`, or the card has no such size or variant.
    """
    return parse(cls, runpy.run_path(str(file))["get_config"](argument))


def unknown_key(path: str, key: str, known: list[str]) -> str:
    """The message for a key that does not exist, naming the nearest that does."""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"
    return f"unknown config key {path!r}: {hint}"


def _field(field: Any, hint: Any, value: Any, path: str) -> Any:
    registry = field.metadata.get("registry")
    if registry is None:
        return _value(hint, value, path)
    classes, key = registry(), field.metadata["key"]
    if typing.get_origin(hint) is dict:
        return {name: _registered(classes, key, item, f"{path}.{name}") for name, item in value.items()}
    return _registered(classes, key, value, path)


def _value(hint: Any, value: Any, path: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNIONS:
        if value is None and type(None) in args:
            return None
        inner = [a for a in args if a is not type(None)]
        return _value(inner[0], value, path)
    if origin is Literal:
        if value not in args:
            near = difflib.get_close_matches(str(value), [str(a) for a in args], n=1, cutoff=0.4)
            hint_text = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{path}={value!r} is not one of {', '.join(map(repr, args))}{hint_text}")
        return value
    if origin is tuple:
        items = _items(value) if isinstance(value, (str, tuple, list)) else [value]
        return tuple(_value(args[0], item, f"{path}[{i}]") for i, item in enumerate(items))
    if origin is dict:
        return {key: _value(args[1], item, f"{path}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, hint) else parse(hint, value, path)  # type: ignore[arg-type]
    return _scalar(hint, value, path)


def _items(value: Any) -> list[Any]:
    """A sequence from a tuple, or from "a,b" as typed on a command line, which arrives as a string or a tuple of one.

    Commas inside brackets do not separate.
    """
    items = [value] if isinstance(value, str) else list(value)
    if len(items) == 1 and isinstance(items[0], str):
        return [part for part in re.split(r",(?![^()\[\]]*[)\]])", items[0]) if part]
    return items


def _registered(classes: Mapping[str, type], key: str, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(value):
        return value
    name = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(name, str) or name not in classes:
        near = difflib.get_close_matches(str(name), list(classes), n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        cards = "; a system that is a setting of one of these has a recipe card, under configs/"
        raise ConfigError(f"{path}.{key}={name!r} is not one of {', '.join(sorted(classes))}{hint}{cards}")
    other = f"; {path}.{key} is {name!r}: for another one take its own recipe card, since each has its own keys"
    return parse(classes[name], value, path, other)


def _scalar(hint: Any, value: Any, path: str) -> Any:
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise ConfigError(f"{path}={value!r} is not a finite number")
        if abs(value) > 3.4e38:
            raise ConfigError(f"{path}={value} is out of range: no float32 holds it")
        return float(value)
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        if not -(2**53) < value < 2**53 or (path.endswith(".seed") and not 0 <= value < 2**32):
            raise ConfigError(f"{path}={value} is out of range: expected {'0 to 2^32 - 1' if path.endswith('.seed') else 'less than 2^53'}")
        return value
    if hint in (str, bool) and isinstance(value, hint):
        return value
    raise ConfigError(f"{path}={value!r} has the wrong type: expected {getattr(hint, '__name__', hint)}")


def plain(config: Any) -> Any:
    """The config as dicts, lists and scalars, ready for JSON."""
    if dataclasses.is_dataclass(config):
        return {f.name: plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, Mapping):
        return {key: plain(value) for key, value in config.items()}
    if isinstance(config, (tuple, list)):
        return [plain(value) for value in config]
    return config


def card(config: Any) -> config_dict.ConfigDict:
    """The dataclass as a ConfigDict with every key present, so that each can be overridden on the command line."""
    out = config_dict.ConfigDict()
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        out[field.name] = _cell(hints[field.name], getattr(config, field.name))
    return out


def clear(values: config_dict.ConfigDict, path: str) -> None:
    """Set a key of a card to None, whatever type it is held to; `parse` says whether it may be.

    Raises:
        ConfigError: there is no such key.
    """
    node: Any = values
    *parents, last = path.split(".")
    for part in [*parents, last]:
        if not isinstance(node, config_dict.ConfigDict) or part not in node:
            known = list(node.keys()) if isinstance(node, config_dict.ConfigDict) else []
            raise ConfigError(unknown_key(f"config.{path}", part, known))
        if part is not last:
            node = node[part]
    with node.unlocked(), node.ignore_type():
        node[last] = None


def _cell(hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return card(value)
    if isinstance(value, Mapping):
        return config_dict.ConfigDict({key: _cell(None, item) for key, item in value.items()})
    if typing.get_origin(hint) in _UNIONS:  # an optional scalar: typed, so that an override can fill and check it
        inner = next(a for a in typing.get_args(hint) if a is not type(None))
        if inner in (int, float, str, bool):
            cell = config_dict.placeholder(inner)
            cell.set(value)
            return cell
    return value


def identity(config: Any) -> dict[str, Any]:
    """The flat keys that make a run what it is: ``{"optimizer.lr": 1e-4, ...}`` without the operational ones."""
    return dict(_flat(config, ""))


def _flat(config: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(config):
        if field.metadata.get("operational"):
            continue
        value = getattr(config, field.name)
        if field.metadata.get("later") and value == field.default:
            continue
        name = f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, Mapping) and any(dataclasses.is_dataclass(v) for v in value.values()):
            for key, item in value.items():
                yield from _flat(item, f"{name}.{key}.")
        else:
            yield name, plain(value)

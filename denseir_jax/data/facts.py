"""Reading back what a run left, with an eye to files that were changed or lost since."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError

T = TypeVar("T")


def read_facts(path: Path, **kinds: type) -> dict[str, Any]:
    """A JSON object with at least these keys, of these types.

    Raises:
        InputError: the file is absent or no JSON, or `need_keys` refuses it.
    """
    return need_keys(artifacts.read_json(path), path, **kinds)


def need_keys(content: Any, path: Path, **kinds: type) -> dict[str, Any]:
    """`content` as it is, if it is an object with these keys, of these types.

    Raises:
        InputError: it is not; `path` and the key are named.
    """
    if not isinstance(content, dict):
        raise InputError(f"{path} is no JSON object; expected one with {', '.join(kinds)}")
    for key, kind in kinds.items():
        if not isinstance(content.get(key), kind):
            raise InputError(f"{path} holds no usable {key!r}; expected {_KINDS[kind]}: it is not as its stage wrote it")
    return content


_KINDS = {dict: "an object", list: "a list", str: "a text", int: "a whole number"}


def build(cls: type[T], values: Mapping[str, Any], path: Path) -> T:
    """The dataclass whose fields the object at `path` holds.

    Raises:
        InputError: other fields, or values that it refuses.
    """
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise InputError(f"{path} holds no usable {cls.__name__}: {error}; it is not as its stage wrote it") from None


def output_of(folder: str | Path, name: str, stages: Collection[str]) -> Path:
    """A file among the outputs of a finished run, read once to see that it is as the run left it.

    Raises:
        InputError: the run has not finished or is of another stage; the file is absent, changed, or not among its outputs.
    """
    manifest = artifacts.finished_run(folder, stages)
    path = Path(folder) / name
    need_output(manifest, path, name)
    return path


def need_as_left(path: Path) -> None:
    """See that a file that is an output of a finished run is as the run left it; any other file is taken as it is.

    Raises:
        InputError: it was changed.
    """
    if (path.parent / artifacts.MANIFEST).is_file():
        manifest = artifacts.finished_run(path.parent)
        if path.name in manifest["outputs"]:
            need_output(manifest, path, path.name)


def need_output(manifest: Mapping[str, Any], path: Path, name: str) -> None:
    """See that the file at `path` has the hash that the manifest gives for the output `name`.

    Raises:
        InputError: it has not, or is absent, or the manifest does not name it.
    """
    expected = manifest["outputs"].get(name)
    if expected is None:
        raise InputError(f"the manifest of the run that holds {path} has no hash of {name}; remove that folder and run the stage again")
    if not path.is_file():
        raise InputError(f"{path} does not exist, though its run had finished; run the stage again")
    if artifacts.file_sha256(path) != expected:
        raise InputError(f"{path} was changed after its run had finished; remove it and run the stage again")

"""Files that appear whole or not at all, and hashes of what is in them."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from denseir_jax.core.errors import InputError

_MODE = 0o644  # some libraries write files that only their owner can read


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: temporary name, fsync, rename."""
    with new_file(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, content: str) -> None:
    """As `write_bytes`, in UTF-8."""
    write_bytes(path, content.encode("utf-8"))


def write_json(path: Path, content: Any) -> None:
    """As `write_bytes`, for JSON with sorted keys, so that equal content gives equal bytes. NaN becomes null."""
    write_text(path, json.dumps(finite(content), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def write_array(path: Path, array: np.ndarray) -> None:
    """As `write_bytes`, for one .npy file."""
    with new_file(path) as temporary, open(temporary, "wb") as stream:
        np.save(stream, array)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it is synced and renamed to `path`, on failure removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.chmod(_MODE)
        with open(temporary, "rb") as stream:
            os.fsync(stream.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder beside `path`; on success it takes the place of `path`, on failure it is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                file.chmod(_MODE)
                with open(file, "rb") as stream:
                    os.fsync(stream.fileno())
        if path.exists():
            shutil.rmtree(path)
        os.replace(temporary, path)
        sync_folder(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        InputError: it does not exist or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (ValueError, OSError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}") from None


def text_sha256(content: str) -> str:
    """Hash of a text's UTF-8 bytes."""
    return hashlib.sha256(content.encode("utf-8")).hexdigest()


def json_sha256(content: Any) -> str:
    """Hash of JSON-like content, keys in a fixed order."""
    return text_sha256(json.dumps(finite(content), sort_keys=True, ensure_ascii=False))


def file_sha256(path: Path) -> str:
    """Hash of a file's bytes."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def arrays_sha256(arrays: Mapping[str, np.ndarray]) -> str:
    """Hash over names, shapes, dtypes and bytes of arrays, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}\0{array.shape}\0{array.dtype}\0".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()

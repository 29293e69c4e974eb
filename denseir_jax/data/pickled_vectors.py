"""Vectors from the pickles that DPR and Tevatron write: the only pickles that are read here, and as data alone.

A pickle is a program: whatever it names is imported and called. So no name is looked up. The few that numpy's arrays, numbers and
data types need stand for classes of this file, which keep what they are given; afterwards arrays are made of it.
"""

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from denseir_jax.core.errors import InputError

_EXPECTED = "expected numpy arrays, lists, tuples, strings and numbers"


class _Dtype:
    """A data type of numbers or characters: its name, and its byte order once that is told."""

    def __init__(self, name: Any, *_: Any):
        if not isinstance(name, str) or np.dtype(name).kind not in "fiuUO":
            raise pickle.UnpicklingError(f"it holds an array of {name!r}; {_EXPECTED}")
        self.dtype = np.dtype(name)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1]
        if order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"a data type with the byte order {order!r}; {_EXPECTED}")
        self.dtype = self.dtype.newbyteorder(order)


class _Array:
    """An array: shape, data type, order and bytes, or a list where the data type is that of objects."""

    def __init__(self, *_: Any):
        self.value: Any = np.zeros(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, by_column, content = state
        self.value = list(content) if dtype.dtype.hasobject else _from_bytes(content, dtype, shape, "F" if by_column else "C")


def _from_bytes(content: Any, dtype: _Dtype, shape: tuple[int, ...], order: str) -> np.ndarray:
    content = content.encode("latin-1") if isinstance(content, str) else content
    return np.frombuffer(content, dtype.dtype).reshape(shape, order="F" if order == "F" else "C")


def _scalar(dtype: _Dtype, content: Any) -> Any:
    return _from_bytes(content, dtype, (), "C").item()


def _frombuffer(content: Any, dtype: _Dtype, shape: tuple[int, ...], order: str) -> _Array:
    array = _Array()
    array.value = _from_bytes(content, dtype, shape, order)
    return array


def _bytes(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"bytes in the encoding {encoding!r}; {_EXPECTED}")
    return text.encode("latin-1")


class _Function:
    """A function that a pickle may call but not change, which it can try with any object that takes no state of its own."""

    def __init__(self, function: Callable[..., Any]):
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError(f"it would change a function; {_EXPECTED}")


_KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Function(_bytes),
}
for _core in ("numpy.core", "numpy._core"):  # of numpy 1 and numpy 2
    _KNOWN[_core + ".multiarray", "_reconstruct"] = _Array
    _KNOWN[_core + ".multiarray", "scalar"] = _Function(_scalar)
    _KNOWN[_core + ".numeric", "_frombuffer"] = _Function(_frombuffer)


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}; {_EXPECTED}")
        return _KNOWN[module, name]


def read(path: str) -> tuple[list[str], Float[np.ndarray, "n d"]]:
    """Ids and vectors of a pickle: a list of (id, vector), as DPR writes, or (array, ids), as Tevatron does. Whole numbers become strings.

    Args:
        path: a file, not compressed.
    Returns:
        Ids, and float16, float32 or float64 vectors [n, d] as stored.
    Raises:
        InputError: the file cannot be read, is no pickle, holds anything else, or not one id and one finite vector a row.
    """
    try:
        with open(path, "rb") as stream:
            content = _Reader(stream).load()
        ids, vectors = _tevatron(content) if isinstance(content, tuple) else _dpr(content)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # a damaged pickle raises almost anything
        raise InputError(f"{path} holds no pickled vectors: {error or type(error).__name__}") from None
    if not len(ids) or len(set(ids)) < len(ids):
        raise InputError(f"{path} holds {len(ids):,} ids, {len(set(ids)):,} of them different; expected one or more, each once")
    if not np.isfinite(vectors).all():
        raise InputError(f"{path}: the vector of {ids[int(np.argmin(np.isfinite(vectors).all(axis=1)))]!r} is not finite")
    return ids, vectors


def _tevatron(content: tuple[Any, ...]) -> tuple[list[str], np.ndarray]:
    if len(content) != 2 or not isinstance(content[0], _Array):
        raise ValueError("a tuple of something else; expected (array, ids)")
    vectors, ids = content[0].value, content[1].value if isinstance(content[1], _Array) else content[1]
    vectors = _vectors(vectors, 2)
    ids = [_id(id) for id in (ids.tolist() if isinstance(ids, np.ndarray) else ids)]
    if len(ids) != len(vectors):
        raise ValueError(f"{len(ids):,} ids and {len(vectors):,} vectors; expected as many")
    return ids, vectors


def _dpr(content: Any) -> tuple[list[str], np.ndarray]:
    if not isinstance(content, list) or not all(isinstance(row, tuple) and len(row) == 2 and isinstance(row[1], _Array) for row in content):
        raise ValueError("something else; expected a list of (id, vector), or (array, ids)")
    rows: Sequence[np.ndarray] = [_vectors(row[1].value, 1) for row in content]
    return [_id(row[0]) for row in content], np.stack(rows) if rows else np.zeros((0, 1), np.float32)


def _vectors(value: Any, axes: int) -> np.ndarray:
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or value.ndim != axes:
        found = f"{value.ndim} axes of {value.dtype}" if isinstance(value, np.ndarray) else "objects"
        raise ValueError(f"an array with {found}; expected {axes} of floats")
    return value.astype(value.dtype.newbyteorder("="), copy=False)


def _id(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value or value.split() != [value]:
        raise ValueError(f"the id {value!r}; expected a string without whitespace, or a whole number")
    return value

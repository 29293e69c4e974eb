"""Joining part files into the token store: one pass, one part in memory at a time."""

import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Bool, Int

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError

HISTOGRAM = (0, 1, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 4096)  # lower edges of document lengths, in tokens


def token_dtype(vocab_size: int) -> np.dtype:
    """uint16 when every id fits, else uint32."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


class _Bits:
    """Appends booleans to a file of packed bits (little-endian within a byte), over the borders of parts."""

    def __init__(self, path: Path):
        self._stream: BinaryIO = open(path, "wb")  # noqa: SIM115
        self._rest = np.empty(0, bool)

    def append(self, values: Bool[np.ndarray, " t"]) -> None:
        values = np.concatenate([self._rest, values])
        whole = len(values) // 8 * 8
        self._stream.write(np.packbits(values[:whole], bitorder="little").tobytes())
        self._rest = values[whole:]

    def close(self) -> None:
        self._stream.write(np.packbits(self._rest, bitorder="little").tobytes())
        self._stream.close()


def _parts(paths: Iterable[Path]) -> Iterator[dict[str, np.ndarray]]:
    for path in paths:
        yield _read(path, None)


def _sizes(paths: Iterable[Path]) -> Int[np.ndarray, "4"]:
    total = np.zeros(4, np.int64)
    for path in paths:
        total += _read(path, ("sizes",))["sizes"]
    return total


def _read(path: Path, names: Sequence[str] | None) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as part:
            return {name: part[name] for name in names or part.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"the part {path} cannot be read: {error}; remove it and run prepare again") from None


def merge_parts(paths: Sequence[Path], folder: Path, vocab_size: int) -> dict[str, int]:
    """Write the files of the token store to `folder` (see `denseir_jax.data.tokens`), which appears whole or not at all.

    Returns:
        counts: documents, tokens, pieces, unknown_tokens.
    Raises:
        InputError: a part is missing or damaged.
    """
    documents, tokens, pieces, unknown = map(int, _sizes(paths))
    with artifacts.new_folder(folder) as store:
        offsets, cuts, owner, content = _tables(store, documents, pieces)
        words, sentences = _Bits(store / "word_start.bin"), _Bits(store / "sentence_start.bin")
        row = token = piece = 0
        with open(store / "tokens.bin", "wb") as stream, open(store / "ids.txt", "wb") as names:
            for part in _parts(paths):
                stream.write(part["tokens"].astype(token_dtype(vocab_size)).tobytes())
                names.write(part["ids"].tobytes())
                words.append(part["word_start"])
                sentences.append(part["sentence_start"])
                n, m = len(part["lengths"]), len(part["pieces"])
                offsets[row + 1 : row + n + 1] = token + np.cumsum(part["lengths"])
                content[row : row + n] = part["content"]
                cuts[piece : piece + m] = token + part["pieces"]
                owner[piece : piece + m] = row + part["piece_document"]
                row, token, piece = row + n, token + len(part["tokens"]), piece + m
        words.close()
        sentences.close()
        for table in (offsets, cuts, owner, content):
            if isinstance(table, np.memmap):
                table.flush()
    return {"documents": documents, "tokens": tokens, "pieces": pieces, "unknown_tokens": unknown}


def _tables(store: Path, documents: int, pieces: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    def table(name: str, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        if 0 in shape:  # nothing to map; the file still says shape and dtype
            np.save(store / name, np.zeros(shape, dtype))
            return np.zeros(shape, dtype)
        return np.lib.format.open_memmap(store / name, mode="w+", dtype=dtype, shape=shape)

    return (
        table("offsets.npy", (documents + 1,), np.int64),
        table("pieces.npy", (pieces, 2), np.int64),
        table("piece_document.npy", (pieces,), np.int64),
        table("content.npy", (documents,), np.uint64),
    )


def describe(offsets: Int[np.ndarray, " n_1"], piece_document: Int[np.ndarray, " m"], content: np.ndarray, reach: int) -> dict[str, Any]:
    """What the manifest tells about lengths and duplicates.

    Returns:
        ``length_histogram``: lower edges and documents; ``share_truncated``: share of the documents with more tokens than
        `reach`, those that the encoder comes to; ``counts``: empty documents, documents whose tokens an earlier
        one has already, documents with fewer than two pieces.
    """
    lengths = np.diff(offsets)
    edges = np.array([*HISTOGRAM, np.iinfo(np.int64).max])
    per_document = np.bincount(piece_document, minlength=len(lengths))
    return {
        "length_histogram": {"from": list(HISTOGRAM), "documents": np.histogram(lengths, edges)[0].tolist()},
        "share_truncated": float(np.mean(lengths > reach)) if len(lengths) else 0.0,
        "counts": {
            "empty_documents": int(np.count_nonzero(lengths == 0)),
            "duplicate_documents": len(content) - len(np.unique(content)),
            "documents_with_one_piece": int(np.count_nonzero(per_document < 2)),
        },
    }

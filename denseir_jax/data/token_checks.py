"""Is a token store what its run wrote? What can be known without reading all of it.

Tables are checked as a whole, tokens by a sample of documents: each one's tokens must have the hash that content.npy holds.
"""

import hashlib

import numpy as np
from jaxtyping import Int

_BLOCK = 1 << 20  # rows of a table looked at together
_SAMPLE = 256  # documents; damage to one in a hundred is missed with probability 0.08


def content_hash(ids: Int[np.ndarray, " t"]) -> int:
    """64 bits that tell documents with other tokens apart (by chance two of ten million agree with probability 3e-6)."""
    return int.from_bytes(hashlib.blake2b(ids.astype("<i4").tobytes(), digest_size=8).digest(), "little")


def fault_of_offsets(offsets: np.ndarray, documents: int, tokens: int) -> str:
    """What is wrong with ``offsets.npy``, or "": int64 [documents + 1], from 0 up to the number of tokens."""
    if offsets.shape != (documents + 1,) or offsets.dtype != np.int64:
        return f"has shape {offsets.shape} and type {offsets.dtype}; expected ({documents + 1},) and int64"
    if offsets[0] != 0 or offsets[-1] != tokens:
        return f"goes from {offsets[0]} to {offsets[-1]}; expected 0 to {tokens}"
    for start in range(0, documents, _BLOCK):
        if (np.diff(offsets[start : start + _BLOCK + 1]) < 0).any():
            return "is not ascending"
    return ""


def fault_of_pieces(pieces: np.ndarray, owner: np.ndarray, offsets: Int[np.ndarray, " n_1"], number: int) -> str:
    """What is wrong with ``pieces.npy`` or ``piece_document.npy``, or "": every piece lies within its document."""
    if pieces.shape != (number, 2) or owner.shape != (number,) or pieces.dtype != np.int64 or owner.dtype != np.int64:
        return (
            f"has shape {pieces.shape} and type {pieces.dtype}, its documents {owner.shape} and {owner.dtype}; expected {number} of int64"
        )
    for start in range(0, number, _BLOCK):
        (begins, ends), rows = pieces[start : start + _BLOCK].T, owner[start : start + _BLOCK]
        if rows.min() < 0 or rows.max() >= len(offsets) - 1:
            return f"holds a piece of document {rows.max()}; expected 0 to {len(offsets) - 2}"
        if (begins > ends).any() or (begins < offsets[rows]).any() or (ends > offsets[rows + 1]).any():
            return "holds a piece that reaches out of its document"
    return ""


def sampled_rows(documents: int) -> Int[np.ndarray, " k"]:
    """Rows to look at: all of a small store, else the first, the last, and others that are always the same."""
    if documents <= _SAMPLE:
        return np.arange(documents)
    drawn = np.random.default_rng(0).integers(0, documents, _SAMPLE - 2)
    return np.unique(np.concatenate([[0, documents - 1], drawn]))

"""Pairs to pre-train on: a question and a passage that answers it, tens of millions of them, as arrays on disk.

No Python object stands for a pair, neither on disk nor in memory. The folder ``pairs/``:

=============  ==============================================================================================
tokens.bin     uint16 (uint32 beyond 65,536 ids): the questions' tokens, one after the other, cut, no specials
start.bin      int64 [n]: where pair i's question starts in it
length.bin     uint16 [n] (uint32 where questions may be longer): its tokens
question.bin   uint64 [n]: hash of its tokens; equal questions share it
passage.bin    int32 [n]: row of the passage in the token store
pairs.json     counts, and the sha256 of that token store
=============  ==============================================================================================
"""

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import Int

from denseir_jax.core import artifacts
from denseir_jax.core.console import Meter
from denseir_jax.core.errors import InputError
from denseir_jax.data.batches import frame
from denseir_jax.data.facts import read_facts
from denseir_jax.data.lines import BadRows
from denseir_jax.data.order import SeededOrder
from denseir_jax.data.ragged import Ragged
from denseir_jax.data.records import Dataset
from denseir_jax.data.supervised import RowDataset
from denseir_jax.data.token_checks import content_hash
from denseir_jax.data.token_merge import token_dtype
from denseir_jax.data.tokenizer import Tokenizer
from denseir_jax.data.tokens import TokenStore

PAIRS = "pairs.json"
_CHUNK = 4096  # questions tokenised at a time


def write_pairs(folder: Path, dataset: Dataset, split: str, store: TokenStore, tokenizer: Tokenizer, bad: BadRows) -> dict[str, int]:
    """Tokenise the questions of a split once and write its pairs, whole or not at all, in memory that does not grow with them.

    A question with two positives makes two pairs. Pairs whose question or passage has no token are left out.

    Returns:
        ``pairs``, ``without_tokens`` (pairs left out), ``without_positives`` (questions).
    Raises:
        InputError: no pair, a bad row, or under the policy "error" a passage that is not in the store.
    """
    counts = {"pairs": 0, "without_tokens": 0, "without_positives": 0}
    given = _rows_of_passages(dataset, split, store, bad, counts)
    lengths = np.diff(store.offsets)
    with artifacts.new_folder(folder) as temporary, contextlib.ExitStack() as stack, Meter("pairs", None, "questions") as meter:
        files = {name: stack.enter_context(open(temporary / f"{name}.bin", "wb")) for name in _dtypes(store)}
        written = 0
        while chunk := list(itertools.islice(given, _CHUNK)):
            written = _append(files, chunk, store, tokenizer, lengths, counts, written)
            meter.advance(len(chunk))
        if not counts["pairs"]:
            skipped = ", ".join(f"{n:,} x {reason}" for reason, n in {**counts, **bad.counts}.items() if n)
            raise InputError(f"the split {split!r} holds no pair of a question and a passage{f' ({skipped})' if skipped else ''}")
        artifacts.write_json(temporary / PAIRS, {"counts": counts, "store": store.sha256})
    return counts


def _rows_of_passages(
    dataset: Dataset, split: str, store: TokenStore, bad: BadRows, counts: dict[str, int]
) -> Iterator[tuple[str, list[int]]]:
    """(question, rows of its positives)."""
    row_of = TokenStore.open(store.folder).row_of  # of a store of our own, so that the table goes when we are done
    streamed = isinstance(dataset, RowDataset)
    for question, ids in dataset.pairs(split) if isinstance(dataset, RowDataset) else _judged(dataset, split):
        known = []
        for id in ids:
            if id in row_of:
                known.append(row_of[id])
            elif bad.policy == "skip" or not (streamed and bad.place):
                if bad.policy == "error":
                    raise InputError(f"unknown passage {id!r}, judged in {split!r}; expected an id of the corpus in {store.folder}")
                bad.count(split, "unknown passage")
            else:
                bad.bad(*bad.place, "unknown passage", f" {id!r}; expected an id of the corpus in {store.folder}")
        if not ids:
            counts["without_positives"] += 1
        yield question, known


def _judged(dataset: Dataset, split: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    qrels = dataset.qrels(split)
    for id, text in dataset.queries(split).items():
        yield text, tuple(passage for passage, relevance in qrels.get(id, {}).items() if relevance > 0)


def _dtypes(store: TokenStore) -> dict[str, np.dtype]:
    return {
        "tokens": token_dtype(store.vocab_size),
        "start": np.dtype("<i8"),
        "length": token_dtype(store.template.query_length),
        "question": np.dtype("<u8"),
        "passage": np.dtype("<i4"),
    }


def _append(
    files: Mapping[str, BinaryIO],
    chunk: list[tuple[str, list[int]]],
    store: TokenStore,
    tokenizer: Tokenizer,
    lengths: np.ndarray,
    counts: dict[str, int],
    written: int,
) -> int:
    """Append a chunk's pairs; returns how many tokens there are now."""
    dtypes, room = _dtypes(store), store.template.query_length - 2
    encoded = [found.ids[:room] for found in tokenizer.encode_batch([store.template.query(question) for question, _ in chunk])]
    sizes = np.array([len(ids) for ids in encoded], np.int64)
    number = np.repeat(np.arange(len(chunk)), [len(rows) for _, rows in chunk])
    passages = np.fromiter((row for _, rows in chunk for row in rows), np.int64, len(number))
    keep = (sizes[number] > 0) & (lengths[passages] > 0)
    number, passages = number[keep], passages[keep]
    columns = {
        "tokens": np.concatenate(encoded),
        "start": (written + np.cumsum(sizes) - sizes)[number],
        "length": sizes[number],
        "question": np.array([content_hash(ids) for ids in encoded], np.uint64)[number],
        "passage": passages,
    }
    for name, values in columns.items():
        values.astype(dtypes[name]).tofile(files[name])
    counts["pairs"] += len(number)
    counts["without_tokens"] += int((~keep).sum())
    return written + int(sizes.sum())


class PairRows:
    """Pairs as groups of one passage, for a loss over the other passages of the batch. A `batches.RowSource`.

    ``known`` holds the passages of every pair with the same question, so that none of them is a negative for it.

    Args:
        folder: what `write_pairs` wrote. store: that it was written for. seed: of the order.
    Attributes:
        n_items: pairs. counts: those of `write_pairs`, and ``repeated``: pairs whose question another pair asks too.
    Raises:
        InputError: the folder is not whole, or was made from other tokens; no question has a negative.
    """

    def __init__(self, folder: Path, store: TokenStore, seed: int):
        facts = read_facts(folder / PAIRS, counts=dict, store=str)
        if facts["store"] != store.sha256:
            raise InputError(f"{folder} holds rows of other tokens than those in {store.folder}; remove it and run the stage again")
        self.store, self._folder, self.n_items = store, folder, int(facts["counts"]["pairs"])
        self._tokens, self._start, self._length, question, self._passage = (
            self._mapped(name, dtype) for name, dtype in _dtypes(store).items()
        )
        self._order = SeededOrder(self.n_items, seed)
        self._lengths = np.diff(store.offsets)
        self._repeated, self._group, self._known = _same_question(question, store.content_ids[self._passage])
        self.counts = {**facts["counts"], "repeated": len(self._repeated)}
        texts = len(np.unique(store.content_ids[np.asarray(self._passage)]))
        fewest = int(self._known.lengths.min()) if len(self._repeated) == self.n_items else 1
        if texts <= fewest:
            raise InputError(f"{folder}: every question knows all {texts} passages of the pairs: there is none to tell its own from")

    def _mapped(self, name: str, dtype: np.dtype) -> np.ndarray:
        path = self._folder / f"{name}.bin"
        size = path.stat().st_size if path.is_file() else -1
        if size < 0 or size % dtype.itemsize or (name != "tokens" and size != self.n_items * dtype.itemsize):
            raise InputError(f"{path} is missing or torn; remove {self._folder} and run the stage again")
        return np.asarray(np.memmap(path, dtype, mode="r"))

    def rows(self, stream: Int[np.ndarray, " k"]) -> dict[str, np.ndarray]:
        """The fields of `GroupRows` with one passage a row, int32."""
        pairs = self._order.items(stream)
        passages, special = self._passage[pairs].astype(np.int64), self.store.special_ids
        room = self.store.template.query_length - 2
        lengths = self._length[pairs].astype(np.int64)
        inside = np.arange(room) < lengths[:, None]
        at = np.where(inside, self._start[pairs][:, None] + np.arange(room), 0)
        query_ids, query_length = frame(self._tokens[at].astype(np.int32), lengths, special.cls, special.sep, special.pad)
        room = self.store.template.passage_length - 2
        lengths = np.minimum(self._lengths[passages], room)
        window = self.store.window(self.store.offsets[passages], lengths, room)
        passage_ids, passage_length = frame(window.ids, lengths, special.cls, special.sep, special.pad)
        return {
            "query_ids": query_ids,
            "query_length": query_length,
            "passage_ids": passage_ids[:, None],
            "passage_length": passage_length[:, None],
            "passage_row": self.store.content_ids[passages][:, None],
            "known": self._known_of(pairs, passages),
            "index": stream.astype(np.int32),
        }

    def _known_of(self, pairs: np.ndarray, passages: np.ndarray) -> np.ndarray:
        own = self.store.content_ids[passages][:, None]
        if not len(self._repeated):
            return own
        at = np.minimum(np.searchsorted(self._repeated, pairs), len(self._repeated) - 1)
        again = self._repeated[at] == pairs
        known = self._known.padded(self._group[at])
        known[~again] = -1
        known[~again, :1] = own[~again]
        return known

    def names(self, stream: Int[np.ndarray, " k"]) -> list[str]:
        """The pairs' numbers, from 0, and the ids of their passages."""
        pairs = self._order.items(stream)
        return [f"pair {n} ({self.store.ids[row]})" for n, row in zip(pairs.tolist(), self._passage[pairs].tolist(), strict=True)]


def _same_question(question: np.ndarray, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray, Ragged]:
    """Pairs that share their question: (their numbers, ascending; the group of each; the distinct texts by group)."""
    order = np.argsort(question, kind="stable")
    same = question[order[1:]] == question[order[:-1]]
    member = np.zeros(len(order), bool)
    member[1:] |= same
    member[:-1] |= same
    first = np.concatenate([[True], ~same])[member]
    pairs, group = order[member], np.cumsum(first) - 1
    keys = np.unique(group * (int(texts.max(initial=0)) + 1) + texts[pairs])
    groups, known = np.divmod(keys, int(texts.max(initial=0)) + 1)
    by_pair = np.argsort(pairs)
    return pairs[by_pair], group[by_pair].astype(np.int32), Ragged.of_pairs(groups, known, int(group.max(initial=-1)) + 1)

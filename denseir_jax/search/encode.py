"""Text -> vectors: rows of like length share a batch, so that few shapes are compiled and little padding is computed."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from denseir_jax.core.console import Meter
from denseir_jax.data.tokenizer import SpecialIds
from denseir_jax.models.embedder import Embedder
from denseir_jax.search.devices import rows_over_devices
from denseir_jax.search.lexical import Vectors
from denseir_jax.search.retriever import Retriever, Tower

_BUCKETS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
Tokens = Sequence[Int[np.ndarray, " _"]]


@dataclasses.dataclass(frozen=True)
class Batch:
    """Rows of one batch: `rows` numbers the texts, all fit in `length` tokens; the batch is padded to `size` rows."""

    rows: Int[np.ndarray, " k"]
    length: int
    size: int


def buckets(longest: int) -> list[int]:
    """The lengths that batches are padded to, none above `longest`, which is the last."""
    steps = [*_BUCKETS, *range(640, longest, 128)]
    return [length for length in steps if length < longest] + [longest]


def plan(lengths: Int[np.ndarray, " n"], longest: int, batch_tokens: int, multiple: int) -> list[Batch]:
    """Group texts by length into full batches.

    What does not fill the last batch of a bucket goes into the next longer one if that costs less than padding does.

    Args:
        lengths: real tokens of each text, [CLS] and [SEP] included, at most `longest`. batch_tokens: size x length of
            a batch, about. multiple: sizes are multiples of it (the number of devices).
    """
    order = np.argsort(lengths, kind="stable")
    lengths = lengths[order]
    bounds = buckets(longest)
    batches: list[Batch] = []
    waiting = np.zeros(0, np.int64)
    for place, bound in enumerate(bounds):
        previous = bounds[place - 1] if place else 0
        waiting = np.concatenate([waiting, order[np.searchsorted(lengths, previous, "right") : np.searchsorted(lengths, bound, "right")]])
        size = _batch_size(bound, len(order), batch_tokens, multiple)
        full = len(waiting) // size * size
        batches += [Batch(waiting[i : i + size], bound, size) for i in range(0, full, size)]
        waiting = waiting[full:]
        longer = np.searchsorted(lengths, bound, "right") < len(lengths)
        if len(waiting) and not (longer and len(waiting) * (bounds[place + 1] - bound) < (size - len(waiting)) * bound):
            batches.append(Batch(waiting, bound, size))
            waiting = waiting[:0]
    return batches


def _batch_size(length: int, texts: int, batch_tokens: int, multiple: int) -> int:
    """Rows of a batch; few texts take a smaller one, a power of two, so that one query does not cost a thousand."""
    rows = min(max(batch_tokens // length, 1), 1 << max(texts - 1, 0).bit_length())
    return -(-rows // multiple) * multiple


def tokens_at_once(batch_tokens: int, devices: int) -> int:
    """Tokens of a batch over all devices. 0: 2,048 a device on a CPU (measured: 16,384 take twice the time, they leave its
    caches), 65,536 on an accelerator, which smaller batches leave idle."""
    return devices * (batch_tokens or (2048 if jax.default_backend() == "cpu" else 65536))


@functools.cache
def _compiled(embedder: Embedder) -> Callable[..., Any]:
    """One compiled function an embedder, for all encoders of this process: (params, ids, length) -> vectors.

    Of a lexical part only the words that are kept leave the device.
    """
    embed = embedder.embed_words if embedder.config.lexical else embedder.embed
    return jax.jit(lambda params, ids, length: embed(params, ids, length))


class BatchEncoder:
    """Runs one embedder over texts of any length, in their own order again. Compiled once for each shape.

    The parameters are given with each call: those of another step need no new compilation.

    Args:
        embedder: makes the vectors. special: ids of [CLS], [SEP], [PAD].
        longest: most tokens of a text, [CLS] and [SEP] included; what is longer is cut at the end.
        batch_tokens: tokens computed at once on a device, about; 0: as `tokens_at_once` says.
    Attributes:
        shapes: the (rows, length) used so far, as many as were compiled.
    """

    def __init__(self, embedder: Embedder, special: SpecialIds, longest: int, batch_tokens: int = 0):
        self.special, self.longest = special, longest
        self.shapes: set[tuple[int, int]] = set()
        self._embed = _compiled(embedder)
        self._split, self._whole, self._devices = rows_over_devices()
        self.batch_tokens = tokens_at_once(batch_tokens, self._devices)

    def put(self, params: Any) -> Any:
        """Parameters on every local device, for `encode`."""
        return jax.device_put(params, self._whole)

    def encode(self, params: Any, texts: Tokens, meter: Meter | None = None) -> Vectors:
        """float32 vectors of tokenised texts (no special tokens in them); an empty text is [CLS] [SEP]."""
        lengths = np.array([min(len(text) + 2, self.longest) for text in texts], np.int64)
        batches = plan(lengths, self.longest, self.batch_tokens, self._devices)
        if not batches:
            return _room(jax.eval_shape(self._embed, params, *(np.zeros(shape, np.int32) for shape in ((1, self.longest), (1,)))), 0)
        out: Vectors | None = None
        for batch, vectors in self._computed(params, texts, batches):
            if out is None:
                out = _room(vectors, len(texts))
            for kept, found in zip(jax.tree.leaves(out), jax.tree.leaves(vectors), strict=True):
                kept[batch.rows] = np.asarray(found)[: len(batch.rows)]
            if meter is not None:
                meter.advance(len(batch.rows))
        assert out is not None
        return out

    def _computed(self, params: Any, texts: Tokens, batches: Sequence[Batch]) -> Iterator[tuple[Batch, Any]]:
        """Each batch with its vectors; the next one is already under way on the device while one is read."""
        pending: tuple[Batch, Any] | None = None
        for batch in batches:
            self.shapes.add((batch.size, batch.length))
            ids, length = self._fill(texts, batch)
            computing = self._embed(params, jax.device_put(ids, self._split), jax.device_put(length, self._split))
            if pending is not None:
                yield pending
            pending = batch, computing
        if pending is not None:
            yield pending

    def _fill(self, texts: Tokens, batch: Batch) -> tuple[Int[np.ndarray, "b l"], Int[np.ndarray, " b"]]:
        ids = np.full((batch.size, batch.length), self.special.pad, np.int32)
        length = np.full(batch.size, 2, np.int32)
        for place, row in enumerate(batch.rows):
            text = texts[row][: self.longest - 2]
            ids[place, 1 : len(text) + 1] = text
            length[place] = len(text) + 2
        ids[:, 0] = self.special.cls
        ids[np.arange(batch.size), length - 1] = self.special.sep
        return ids, length


def _room(shapes: Any, n: int) -> Any:
    """Arrays on the host for n rows of what is computed: whole numbers or float32."""
    return jax.tree.map(lambda part: np.empty((n, part.shape[1]), np.float32 if np.dtype(part.dtype).kind == "f" else np.int32), shapes)


def for_tower(tower: Tower, retriever: Retriever, longest: int, batch_tokens: int) -> tuple[BatchEncoder, Any]:
    """An encoder for one side of a retriever, and that side's parameters on the devices."""
    encoder = BatchEncoder(tower.embedder, retriever.tokenizer.special_ids, longest, batch_tokens)
    return encoder, encoder.put(tower.params)


def encode_queries(retriever: Retriever, queries: Mapping[str, str], batch_tokens: int = 0) -> Vectors:
    """float32 vectors of queries (id -> text), in their order, written as the retriever's template says."""
    encoder, params = for_tower(retriever.query, retriever, retriever.template.query_length, batch_tokens)
    texts = [retriever.template.query(text) for text in queries.values()]
    tokens = [encoded.ids for encoded in retriever.tokenizer.encode_batch(texts)]
    with Meter("encode: queries", len(tokens), "queries") as meter:
        return encoder.encode(params, tokens, meter)

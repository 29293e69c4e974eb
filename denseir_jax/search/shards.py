"""A whole corpus -> a folder of embeddings, shard by shard: resumable, in constant memory, by one process or several."""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from denseir_jax.core import artifacts, console, signals
from denseir_jax.core.errors import InputError
from denseir_jax.data.facts import output_of, read_facts
from denseir_jax.data.records import Passage
from denseir_jax.data.tokens import TokenStore
from denseir_jax.search import embeddings
from denseir_jax.search.embedding_files import read_record
from denseir_jax.search.embeddings import Embeddings
from denseir_jax.search.encode import Tokens, for_tower
from denseir_jax.search.retriever import Retriever


@dataclasses.dataclass(frozen=True)
class Chunk:
    """The texts of one shard: their ids, a hash that identifies them, and their tokens (as many as are read), made only when asked for."""

    ids: list[str]
    source: str
    tokens: Callable[[], Tokens]


def chunks_of_passages(passages: Iterable[Passage], retriever: Retriever, size: int) -> Iterator[Chunk]:
    """Chunks of `size` vectors at most, of passages read as they come and written as the retriever's template says."""
    stream, size = iter(passages), max(size // retriever.template.blocks, 1)
    while batch := list(itertools.islice(stream, size)):
        texts = [retriever.template.passage(passage) for passage in batch]
        digest = hashlib.sha256()
        for passage, text in zip(batch, texts, strict=True):
            digest.update(json.dumps([passage.id, text]).encode())
        yield Chunk(
            [passage.id for passage in batch],
            digest.hexdigest(),
            lambda texts=texts: [encoded.ids for encoded in retriever.tokenizer.encode_batch(texts)],  # type: ignore[misc]
        )


def chunks_of_store(store: TokenStore, retriever: Retriever, size: int) -> Iterator[Chunk]:
    """Chunks of `size` vectors at most, of documents of a token store.

    Raises:
        InputError: its tokens come from another tokenizer or text template than the retriever was trained with.
    """
    if store.tokenizer_sha256 != retriever.tokenizer.sha256:
        raise InputError(f"{store.folder} was prepared with another tokenizer than the retriever's; prepare it again with that one")
    if (theirs := store.template.passage(_PROBE)) != (ours := retriever.template.passage(_PROBE)):
        raise InputError(
            f"{store.folder} writes a passage as {theirs!r}, the retriever as {ours!r}; prepare it again with the same template"
        )
    starts, lengths = np.asarray(store.offsets[:-1]), np.diff(store.offsets)
    reach, size = retriever.template.reach, max(size // retriever.template.blocks, 1)

    def tokens(start: int, stop: int) -> Tokens:
        kept = np.minimum(lengths[start:stop], reach)
        window = store.window(starts[start:stop], kept, reach)
        return [row[:length] for row, length in zip(window.ids, kept, strict=True)]

    for start in range(0, store.n_documents, size):
        stop = min(start + size, store.n_documents)
        identity = artifacts.json_sha256([store.sha256, start, stop])
        yield Chunk(store.ids[start:stop], identity, lambda start=start, stop=stop: tokens(start, stop))  # type: ignore[misc]


_PROBE = Passage("", "text", "title")


def encode_corpus(
    folder: Path,
    retriever: Retriever,
    chunks: Iterable[Chunk],
    total: int | None,
    dtype: str,
    batch_tokens: int,
    process: int = 0,
    processes: int = 1,
) -> dict[str, Any]:
    """Encode what is not there yet, one file a chunk; process p of P takes every P-th. Returns what was done.

    Args:
        total: passages in all, if known, for the progress line. dtype: float16 or float32, of the stored vectors.
    Returns:
        ``n`` (vectors), ``documents`` where they are read in blocks, ``dimension``, ``shapes`` ([rows, length] compiled by this
        process), ``encoded`` (passages encoded now).
    Raises:
        InputError: a shard that is there was made by another model or from other texts, or a vector is not finite.
        Stopped: a signal came; finished shards are kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model, template = {**retriever.model, "dtype": dtype}, retriever.template
    encoder, params = for_tower(retriever.passage, retriever, template.passage_length, batch_tokens)
    several = template.blocks > 1
    ids: list[str] = []
    digest, encoded = hashlib.sha256(), 0
    before = sum(read_record(path)["rows"] for path in folder.glob("[0-9]*.json"))
    if before:
        console.say(f"encode: {before:,} vectors are already in {folder}")
    with console.Meter("encode", None if several else total, "blocks" if several else "passages", before) as meter:
        for number, chunk in enumerate(chunks):
            signals.check("finished shards are kept")
            ids += chunk.ids
            digest.update(chunk.source.encode())
            if embeddings.shard_finished(folder, number, model, chunk.source, len(chunk.ids)) or number % processes != process:
                continue
            blocks, number_of = template.cut(chunk.tokens())
            vectors = encoder.encode(params, blocks, meter)
            embeddings.write_shard(folder, number, chunk.ids, vectors, dtype, model, chunk.source, number_of if several else None)
            encoded += len(chunk.ids)
    _meet(processes, "encoded")
    if process == 0:
        embeddings.finish(folder, ids, digest.hexdigest())
    _meet(processes, "finished")
    facts = read_facts(folder / embeddings.FACTS, n=int, dimension=int)
    sizes: dict[str, Any] = {key: facts[key] for key in ("n", "documents", "dimension") if key in facts}
    return {**sizes, "shapes": sorted(map(list, encoder.shapes)), "encoded": encoded}


def open_encoded(run_folder: str | Path, name: str, retriever: Retriever) -> Embeddings:
    """Open the vectors of a finished encode run, in its folder `name`, as `open_for` does.

    Raises:
        InputError: the run has not finished, its files were changed since, or `open_for` refuses them.
    """
    facts = output_of(run_folder, f"{name}/{embeddings.FACTS}", ("encode",))  # it holds the hashes of all others
    return open_for(facts.parent, retriever)


def open_for(folder: Path, retriever: Retriever) -> Embeddings:
    """Open finished embeddings that are to be compared with vectors of `retriever`.

    Raises:
        InputError: another model, template or similarity made them.
    """
    found = Embeddings.open(folder)
    made, wanted = found.facts["model"], json.loads(json.dumps(retriever.model))
    differing = [key for key in wanted if made.get(key) != wanted[key]]
    if differing:
        key = differing[0]
        raise InputError(
            f"the vectors in {folder} were made by another model than this retriever ({key}: {made.get(key)!r} there, {wanted[key]!r} here)"
        )
    return found


def _meet(processes: int, place: str) -> None:
    if processes > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(f"encode_corpus {place}")


def this_process() -> tuple[int, int]:
    """(index of this process, number of processes)."""
    return jax.process_index(), jax.process_count()

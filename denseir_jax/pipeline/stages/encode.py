"""The stage `encode`: a corpus becomes vectors, shard by shard. A restart goes on after the last whole shard."""

import dataclasses
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from denseir_jax.core.artifacts import Run
from denseir_jax.core.command import Stage
from denseir_jax.core.config import located, operational
from denseir_jax.core.console import say
from denseir_jax.core.errors import ConfigError, InputError
from denseir_jax.data import sources
from denseir_jax.data.lines import BadRows
from denseir_jax.data.records import Passage
from denseir_jax.data.template import TextTemplate
from denseir_jax.data.tokens import TokenStore
from denseir_jax.parallel import mesh
from denseir_jax.pipeline.stages import standard_input
from denseir_jax.search import embeddings, shards
from denseir_jax.search.embeddings import Embeddings
from denseir_jax.search.retriever import Retriever, folder_of, load_retriever

VECTORS = "vectors"
_MOST_ROWS = 1 << 24


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodeConfig:
    """What to encode, and with what.

    Attributes:
        retriever: run:DIR (a training run) or hf:DIR (a published model). corpus: source as format:path.
        tokens: a finished prepare run, instead of corpus. template: for hf:DIR, which does not say how texts are
        written; a run brings its own. dtype: of the stored vectors. shard_rows: vectors a shard at most, the unit of resuming
        and the window within which passages are sorted by length. batch_tokens: tokens computed at once
        on a device, about; 0 chooses by the kind of device.
    """

    stage: str = "encode"
    retriever: str = located("")
    corpus: str | None = located(None)
    tokens: str | None = located(None)
    template: TextTemplate = TextTemplate()
    dtype: Literal["float16", "float32"] = "float16"
    shard_rows: int = 16384
    batch_tokens: int = operational(0)
    on_bad_row: Literal["error", "skip"] = "error"

    def __post_init__(self) -> None:
        if not 1 <= self.shard_rows <= _MOST_ROWS or self.batch_tokens < 0:
            raise ValueError(f"shard_rows={self.shard_rows} must be in [1, {_MOST_ROWS}], batch_tokens={self.batch_tokens} not negative")


def given(template: TextTemplate) -> TextTemplate | None:
    """A template that differs from the default was asked for; the default leaves it to the retriever."""
    return None if template == TextTemplate() else template


def passage_vectors(
    named: str | None, passages: Iterable[Passage], retriever: Retriever, folder: Path, batch_tokens: int = 0
) -> Embeddings:
    """The vectors of a corpus: those of the encode run that is named, or made in `folder` by the defaults of this stage.

    Raises:
        InputError: as `shards.open_encoded` and `shards.encode_corpus`.
    """
    if named:
        return shards.open_encoded(named, VECTORS, retriever)
    defaults = EncodeConfig()
    chunks = shards.chunks_of_passages(passages, retriever, defaults.shard_rows)
    shards.encode_corpus(folder, retriever, chunks, None, defaults.dtype, batch_tokens)
    return shards.open_for(folder, retriever)


def run_encode(run: Run) -> Mapping[str, Any]:
    """Retriever and texts -> shards of vectors."""
    config: EncodeConfig = run.config
    retriever = load_retriever(config.retriever, given(config.template))
    bad, total = BadRows(config.on_bad_row), None
    if config.tokens:
        store = TokenStore.open(config.tokens)
        chunks, total = shards.chunks_of_store(store, retriever, config.shard_rows), store.n_documents
    else:
        chunks = shards.chunks_of_passages(sources.read_corpus(str(config.corpus), bad), retriever, config.shard_rows)
    before = time.monotonic()
    done = shards.encode_corpus(run.path / VECTORS, retriever, chunks, total, config.dtype, config.batch_tokens, *shards.this_process())
    seconds = time.monotonic() - before
    metrics = {**done, "skipped_rows": bad.counts, "seconds": round(seconds, 2), "passages_per_second": round(done["encoded"] / seconds, 1)}
    # embeddings.json holds the hash of every shard and of the ids: one small file stands for all.
    run.finish(metrics, outputs=[f"{VECTORS}/{embeddings.FACTS}"], model=retriever.model, n=done["n"], dimension=done["dimension"])
    return metrics


def inputs(config: EncodeConfig) -> Mapping[str, str | Path]:
    """The retriever's folder, and the corpus or the prepare run."""
    if bool(config.corpus) == bool(config.tokens):
        raise ConfigError("set one of config.corpus (format:path) and config.tokens (a finished prepare run)")
    texts = {"tokens": config.tokens} if config.tokens else {"corpus": sources.identity(str(config.corpus))}
    return {"retriever": folder_of(config.retriever), **texts}


def complete(run: Run) -> bool:
    """Whether every file of the vectors is there; a shard that was lost or cut off is encoded again."""
    try:
        embeddings.Embeddings.open(run.path / VECTORS)
    except InputError as fault:
        say(f"encode: {fault}")
        return False
    return standard_input.say_kept(run)


stage = Stage(
    name="encode",
    config=EncodeConfig,
    run=run_encode,
    inputs=inputs,
    summary="Encode a corpus into vectors with a trained retriever or a published model.",
    start=mesh.initialize,
    complete=complete,
    collective=True,
)

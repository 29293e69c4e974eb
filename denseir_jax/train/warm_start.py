"""Starting from parameters that exist: a Hugging Face folder (``hf:DIR``) or an earlier run of ours (``run:DIR``)."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from denseir_jax.core import artifacts, console
from denseir_jax.core.config import parse
from denseir_jax.core.errors import InputError
from denseir_jax.data.facts import output_of
from denseir_jax.data.tokenizer import load_tokenizer
from denseir_jax.models import hf
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.search import retriever
from denseir_jax.train.state import named

PARAMS = "params.safetensors"
_TOWERS = ("query/", "passage/")
_STAGES = ("pretrain", "finetune", "ance")


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """What a folder gives: the encoder's shape, how it pools, which tokenizer it speaks, and leaves by path name."""

    origin: str
    encoder: EncoderConfig
    embedder: EmbedderConfig
    tokenizer_sha256: str
    leaves: Mapping[str, np.ndarray]

    def for_model(self, names: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        """The leaves that a model with these leaf names takes from here; both towers take the encoder of one, and a part of a
        mixture (``part/head/...``) the head of a run of its own, or the other way round.

        A head or decoder is taken whole or not at all: one of another shape starts fresh, which is said.

        Raises:
            InputError: some part of the encoder is not there.
        """
        sources = {name: source for name in names if (source := self._source(name)) is not None}
        found = {name: self.leaves[source] for name, source in sources.items()}
        lost = [name for name in names if "encoder/" in name and name not in found]
        if lost:
            raise InputError(f"{self.origin} lacks {lost[0]!r} (and {len(lost) - 1} more) of the encoder")
        other = {
            _part(name) for name, shape in names.items() if "encoder/" not in name and (name not in found or found[name].shape != shape)
        }
        taken = {name: leaf for name, leaf in found.items() if "encoder/" in name or _part(name) not in other}
        reshaped = sorted(other & {_part(name) for name in found})
        fresh = sorted(other - set(reshaped))
        unused = sorted({_part(name) for name in self.leaves} - {_part(sources[name]) for name in taken} - {"encoder"} - other)
        said = [f"takes {', '.join(sorted({_part(name) for name in taken}))}"]
        said += [f"fresh: {', '.join(fresh)}"] if fresh else []
        said += [f"fresh, since theirs has another shape: {', '.join(reshaped)}"] if reshaped else []
        said += [f"left out: {', '.join(unused)}"] if unused else []
        console.say(f"warm start from {self.origin}: {'; '.join(said)}")
        return taken

    def _source(self, name: str) -> str | None:
        """The leaf here that a model's leaf of this name takes."""
        if name in self.leaves:
            return name
        inner = name.partition("/")[2]
        if inner in self.leaves and (name.startswith(_TOWERS) or not inner.startswith("encoder/")):
            return inner  # a tower's, or a head's of one part of a mixture
        parts = [leaf for leaf in self.leaves if leaf.partition("/")[2] == name and not leaf.startswith(_TOWERS)]
        return parts[0] if len(parts) == 1 else None


def _part(name: str) -> str:
    """The head, decoder or tower that a leaf belongs to."""
    return name.split("/")[0]


def load(init_from: str | None) -> WarmStart | None:
    """Read a warm start, or None for None."""
    if not init_from:
        return None
    folder = retriever.folder_of(init_from)
    if init_from.startswith("hf:"):
        read = hf.read_folder(folder)
        leaves = {name: np.asarray(leaf) for name, leaf in named(read.params).items()}
        return WarmStart(init_from, read.encoder, read.embedder, load_tokenizer(folder).sha256, leaves)
    manifest = artifacts.finished_run(folder, _STAGES)
    encoder, embedder = parse(EncoderConfig, manifest["encoder"], "encoder"), parse(EmbedderConfig, manifest["embedder"], "embedder")
    leaves = load_file(output_of(folder, PARAMS, _STAGES))
    return WarmStart(init_from, encoder, embedder, manifest["tokenizer_sha256"], leaves)


def save_params(folder: Path, leaves: Mapping[str, np.ndarray]) -> None:
    """Write every leaf, heads and decoders included, so that later training can start from all of it."""
    with artifacts.new_file(folder / PARAMS) as temporary:
        save_file({name: np.ascontiguousarray(leaf) for name, leaf in leaves.items()}, temporary)

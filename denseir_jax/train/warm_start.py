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


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """What a folder gives: the encoder's shape, how it pools, which tokenizer it speaks, and leaves by path name."""

    origin: str
    encoder: EncoderConfig
    embedder: EmbedderConfig
    tokenizer_sha256: str
    leaves: Mapping[str, np.ndarray]

    def for_model(self, names: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        """The leaves that a model with these leaf names takes from here; both towers take the encoder of one.

        A head or decoder is taken whole or not at all: one of another shape starts fresh, which is said.

        Raises:
            InputError: some part of the encoder is not there.
        """
        found = {name: leaf for name in names if (leaf := self._find(name)) is not None}
        lost = [name for name in names if "encoder/" in name and name not in found]
        if lost:
            raise InputError(f"{self.origin} lacks {lost[0]!r} (and {len(lost) - 1} more) of the encoder")
        other = {
            _part(name) for name, shape in names.items() if "encoder/" not in name and (name not in found or found[name].shape != shape)
        }
        taken = {name: leaf for name, leaf in found.items() if "encoder/" in name or _part(name) not in other}
        reshaped = sorted(other & {_part(name) for name in found})
        fresh = sorted(other - set(reshaped))
        unused = sorted({_part(name) for name in self.leaves} - {_part(name) for name in taken} - {"encoder"} - other)
        said = [f"takes {', '.join(sorted({_part(name) for name in taken}))}"]
        said += [f"fresh: {', '.join(fresh)}"] if fresh else []
        said += [f"fresh, since theirs has another shape: {', '.join(reshaped)}"] if reshaped else []
        said += [f"left out: {', '.join(unused)}"] if unused else []
        console.say(f"warm start from {self.origin}: {'; '.join(said)}")
        return taken

    def _find(self, name: str) -> np.ndarray | None:
        if name in self.leaves:
            return self.leaves[name]
        for tower in _TOWERS:
            if name.startswith(tower):
                return self.leaves.get(name.removeprefix(tower))
        return None


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
    manifest = artifacts.finished_run(folder, ("pretrain", "finetune"))
    encoder, embedder = parse(EncoderConfig, manifest["encoder"], "encoder"), parse(EmbedderConfig, manifest["embedder"], "embedder")
    leaves = load_file(output_of(folder, PARAMS, ("pretrain", "finetune")))
    return WarmStart(init_from, encoder, embedder, manifest["tokenizer_sha256"], leaves)


def save_params(folder: Path, leaves: Mapping[str, np.ndarray]) -> None:
    """Write every leaf, heads and decoders included, so that later training can start from all of it."""
    with artifacts.new_file(folder / PARAMS) as temporary:
        save_file({name: np.ascontiguousarray(leaf) for name, leaf in leaves.items()}, temporary)

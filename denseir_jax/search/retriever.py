"""A retriever on disk and in hand: towers, tokenizer, text template, similarity. All that a vector depends on, kept together.

A training run holds ``encoder/`` (one tower for both sides), or ``encoder_query/`` and ``encoder_passage/``: folders that
transformers and sentence-transformers load. ``encoder/denseir.json`` adds what they do not say: template, similarity,
how many words a lexical part keeps, and the hash of the parameters, by which vectors of two models are told apart.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import jax
import numpy as np

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError
from denseir_jax.data.facts import build, need_keys, read_facts
from denseir_jax.data.template import TextTemplate
from denseir_jax.data.tokenizer import Tokenizer, load_tokenizer
from denseir_jax.models import hf
from denseir_jax.models.embedder import Embedder, EmbedderConfig
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.search.index import Similarity

FOLDER, FACTS = "encoder", "denseir.json"
_SIDES = ("query", "passage")


@dataclasses.dataclass(frozen=True)
class Tower:
    """One encoder, its parameters (`Embedder.parts`) as numpy arrays, the folder of its tokenizer."""

    embedder: Embedder
    params: Mapping[str, Any]
    tokenizer_folder: Path


@dataclasses.dataclass(frozen=True)
class Retriever:
    """What turns queries and passages into vectors to be compared.

    Attributes:
        query, passage: towers; the same object when tied. template, similarity: as trained. params_sha256: over both.
    """

    query: Tower
    passage: Tower
    tokenizer: Tokenizer
    template: TextTemplate
    similarity: Similarity
    params_sha256: str

    @property
    def model(self) -> dict[str, Any]:
        """What passage vectors depend on, for manifests: equal here means vectors can be compared."""
        embedder = dataclasses.asdict(self.passage.embedder.config)
        if not self.lexical:  # said only where there is one
            del embedder["lexical"]
        return {
            "params_sha256": self.params_sha256,
            "tokenizer_sha256": self.tokenizer.sha256,
            "template": self.template.facts,
            "embedder": embedder,
            "similarity": self.similarity,
        }

    @property
    def lexical(self) -> int:
        """Words kept of a text's lexical part; 0: vectors are dense alone."""
        return self.passage.embedder.config.lexical


def save_retriever(
    run_folder: Path,
    towers: Mapping[str, Mapping[str, Any]],
    encoder: EncoderConfig,
    embedder: EmbedderConfig,
    tokenizer: Tokenizer,
    template: TextTemplate,
    similarity: Similarity,
) -> str:
    """Write ``encoder/`` (or the two folders and ``encoder/denseir.json``) into a run folder; return the parameters' hash.

    Args:
        towers: one entry, of any name, for a tied retriever; else "query" and "passage". Each holds the parameters that
            the embedder needs; others (heads) are left out.
    Raises:
        ValueError: two towers of other names.
    """
    tied = len(towers) == 1
    embedder = _normalized(embedder, similarity)
    if not tied and set(towers) != set(_SIDES):
        raise ValueError(f"towers must be one, or 'query' and 'passage'; got {sorted(towers)}")
    hashes = {}
    for name, params in towers.items():
        folder = run_folder / (FOLDER if tied else f"{FOLDER}_{name}")
        kept = {part: params[part] for part in Embedder(encoder, embedder).parts}
        hf.write_folder(folder, encoder, embedder, kept, tokenizer, template, euclidean=similarity == "l2")
        hashes[name] = _tower_sha256(_read_tower(folder, embedder.lexical))  # of what a reader gets, not of what was meant
    facts = {
        "template": template.facts,
        "similarity": similarity,
        "towers": "tied" if tied else "untied",
        "params_sha256": _together(list(hashes.values()) if tied else [hashes[side] for side in _SIDES]),
        **({"lexical": embedder.lexical} if embedder.lexical else {}),
    }
    artifacts.write_json(run_folder / FOLDER / FACTS, facts)
    return str(facts["params_sha256"])


def _normalized(embedder: EmbedderConfig, similarity: Similarity) -> EmbedderConfig:
    """Cosine is said in the folders too, for whoever reads them without denseir.json."""
    return dataclasses.replace(embedder, normalize=True) if similarity == "cosine" else embedder


def assembled(
    towers: Mapping[str, Mapping[str, Any]],
    encoder: EncoderConfig,
    embedder: EmbedderConfig,
    tokenizer: Tokenizer,
    template: TextTemplate,
    similarity: Similarity,
) -> Retriever:
    """A retriever in memory, of parameters that are not on disk as one; arguments as of `save_retriever`."""
    made = Embedder(encoder, _normalized(embedder, similarity))
    found = {name: Tower(made, {part: params[part] for part in made.parts}, Path()) for name, params in towers.items()}
    first, last = (found[side] for side in _SIDES) if len(found) > 1 else list(found.values()) * 2
    hashes = [_tower_sha256(tower) for tower in ((first,) if first is last else (first, last))]
    return Retriever(first, last, tokenizer, template, similarity, _together(hashes))


def folder_of(origin: str) -> Path:
    """The folder that ``run:DIR`` or ``hf:DIR`` names, for hashing as an input.

    Raises:
        InputError: neither form, or no such folder.
    """
    kind, _, path = origin.partition(":")
    if kind not in ("run", "hf") or not path:
        raise InputError(f"{origin!r}: expected run:DIR (a training run) or hf:DIR (a Hugging Face folder)")
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise InputError(f"{origin!r}: {folder} is not a folder")
    return folder


def load_retriever(origin: str, template: TextTemplate | None = None) -> Retriever:
    """Load a retriever.

    Args:
        origin: ``run:DIR``, a finished training run, or ``hf:DIR``, a sentence-transformers or transformers folder.
        template: how texts are written for a published model, which does not say it; a run brings its own, and another
            one is refused.
    Raises:
        InputError: no retriever there, its parameters are not those that its ``denseir.json`` was written for, or the
            template is another than it was trained with.
    """
    folder = folder_of(origin)
    if origin.startswith("run:"):
        artifacts.finished_run(folder)
        if not (folder / FOLDER / FACTS).exists():
            raise InputError(
                f"run folder {folder} holds no {FOLDER}/{FACTS}: it has no retriever in it; expected a pretrain or finetune run"
            )
        return _load_own(folder, template)
    if (folder / FACTS).exists() and read_facts(folder / FACTS, towers=str)["towers"] == "tied":
        return _load_own(folder.parent, template, folder.name)
    tower = _read_tower(folder)
    template = template or TextTemplate()
    longest = max(template.query_length, template.passage_length)
    if longest > tower.embedder.encoder.max_length:
        raise InputError(f"the template asks for {longest} tokens; {folder} has {tower.embedder.encoder.max_length} positions")
    return Retriever(
        tower, tower, load_tokenizer(tower.tokenizer_folder), template, _similarity(folder, tower), _together([_tower_sha256(tower)])
    )


def _load_own(run_folder: Path, template: TextTemplate | None, name: str = FOLDER) -> Retriever:
    facts = read_facts(run_folder / name / FACTS, template=dict, similarity=str, towers=str, params_sha256=str)
    own = build(TextTemplate, facts["template"], run_folder / name / FACTS)
    if template is not None and template != own:
        raise InputError(f"{run_folder} was trained with the template {own}; another one was asked for: {template}")
    if facts["similarity"] not in get_args(Similarity):
        raise InputError(f"{run_folder / name / FACTS}: unknown similarity {facts['similarity']!r}")
    folders = [run_folder / name] if facts["towers"] == "tied" else [run_folder / f"{name}_{side}" for side in _SIDES]
    towers = [
        _read_tower(folder, need_keys({"lexical": 0, **facts}, run_folder / name / FACTS, lexical=int)["lexical"]) for folder in folders
    ]
    found = _together([_tower_sha256(tower) for tower in towers])
    need_params(run_folder / name, found, facts["params_sha256"])
    return Retriever(towers[0], towers[-1], load_tokenizer(towers[0].tokenizer_folder), own, facts["similarity"], found)


def need_params(folder: Path, found: str, written: str) -> None:
    """See that a folder's parameters have the hash that its facts were written with.

    Raises:
        InputError: they have another.
    """
    if found != written:
        raise InputError(
            f"{folder}: the parameters have the hash {found[:12]}, {FACTS} was written for {written[:12]}; the folder was changed or mixed"
        )


def _read_tower(folder: Path, lexical: int = 0) -> Tower:
    """`lexical`: what sentence-transformers' modules cannot say."""
    found = hf.read_folder(folder)
    try:
        embedder = Embedder(found.encoder, dataclasses.replace(found.embedder, lexical=lexical))
    except ValueError as error:
        raise InputError(f"{folder}: {error}") from None
    lost = [part for part in embedder.parts if part not in found.params]
    if lost:
        raise InputError(f"{folder} has a lexical part by its {FACTS}, but no {', '.join(lost)}")
    return Tower(embedder, {part: found.params[part] for part in embedder.parts}, found.tokenizer)


def _similarity(folder: Path, tower: Tower) -> Similarity:
    """What a published model says; cosine if its vectors have length 1, else l2 or dot."""
    path = folder / "config_sentence_transformers.json"
    said = artifacts.read_json(path).get("similarity_fn_name") if path.exists() else None
    return "cosine" if said == "cosine" or tower.embedder.config.normalize else "l2" if said == "euclidean" else "dot"


def _tower_sha256(tower: Tower) -> str:
    leaves = jax.tree_util.tree_leaves_with_path(tower.params)
    return artifacts.arrays_sha256({jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves})


def _together(hashes: list[str]) -> str:
    return hashes[0] if len(hashes) == 1 else artifacts.json_sha256(hashes)

"""Whose vectors are compared: objectives with one encoder for both sides, and those with one or two."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Float, Int, Key

from denseir_jax.data.template import TextTemplate
from denseir_jax.data.tokenizer import Tokenizer
from denseir_jax.models.dense import unit
from denseir_jax.models.embedder import Embedder
from denseir_jax.objectives.base import Context, Exported, Params, Similarity
from denseir_jax.search.retriever import save_retriever


def export_retriever(
    context: Context, folder: Path, towers: Mapping[str, Params], similarity: Similarity, tokenizer: Tokenizer, template: TextTemplate
) -> Exported:
    """What an `Embeds` exports: ``encoder/``, or a folder a side. ``retriever_sha256`` is what encode and evaluate call params_sha256."""
    sha256 = save_retriever(folder, towers, context.encoder, context.embedder, tokenizer, template, similarity)
    return Exported({"retriever_sha256": sha256}, tuple(sorted(found.name for found in folder.glob("encoder*") if found.is_dir())))


@dataclass(frozen=True)
class OneTower:
    """What objectives with one encoder for both sides share."""

    context: Context

    @cached_property
    def embedder(self) -> Embedder:
        """Pools, projects and normalises."""
        return Embedder(self.context.encoder, self.context.embedder)

    @property
    def similarity(self) -> Similarity:
        """Cosine where the vectors are normalised."""
        return "cosine" if self.context.embedder.normalize else "dot"

    @property
    def least_rows(self) -> int:
        """Rows are learnt from one by one."""
        return 1

    def derived(self, leaves: Mapping[str, Any]) -> dict[str, Any]:
        """Nothing."""
        return {}

    def towers(self, params: Params) -> dict[str, Params]:
        """What vectors are made with; other heads and decoders stay behind."""
        return {"encoder": {name: params[name] for name in self.embedder.parts}}

    def export(self, folder: Path, params: Params, tokenizer: Tokenizer, template: TextTemplate) -> Exported:
        """The retriever."""
        return export_retriever(self.context, folder, self.towers(params), self.similarity, tokenizer, template)

    def embed_query(self, params: Params, ids: Int[Array, "b l"], length: Int[Array, " b"]) -> Float[Array, "b d"]:
        """Vectors of queries."""
        return self.embedder.embed(params, ids, length)

    def embed_passage(self, params: Params, ids: Int[Array, "b l"], length: Int[Array, " b"]) -> Float[Array, "b d"]:
        """Vectors of passages."""
        return self.embedder.embed(params, ids, length)


@runtime_checkable
class TowersConfig(Protocol):
    """What `Towers` need to know."""

    @property
    def tied(self) -> bool:
        """One encoder for both sides."""
        ...

    @property
    def similarity(self) -> Similarity:
        """How vectors are compared."""
        ...


@dataclass(frozen=True)
class Towers:
    """What objectives share that train one encoder for both sides, or one for each, as the config says."""

    context: Context
    config: TowersConfig

    @cached_property
    def embedder(self) -> Embedder:
        """Pools, projects and normalises; one configuration for both towers."""
        return Embedder(self.context.encoder, self.context.embedder)

    @property
    def similarity(self) -> Similarity:
        """As configured; vectors that the embedder normalises already are compared by cosine either way."""
        return "cosine" if self.context.embedder.normalize else self.config.similarity

    def init(self, key: Key[Array, ""]) -> Params:
        """One tower, or ``{"query": tower, "passage": tower}``, which start equal."""
        if self.config.tied:
            return self.embedder.init(key)
        return {"query": self.embedder.init(key), "passage": self.embedder.init(key)}

    def derived(self, leaves: Mapping[str, Any]) -> dict[str, Any]:
        """Nothing: both towers of an untied model find the encoder that they start from by themselves."""
        return {}

    def towers(self, params: Params) -> dict[str, Params]:
        """The parameters by tower."""
        return {"encoder": params} if self.config.tied else {side: params[side] for side in ("query", "passage")}

    def export(self, folder: Path, params: Params, tokenizer: Tokenizer, template: TextTemplate) -> Exported:
        """The retriever."""
        return export_retriever(self.context, folder, self.towers(params), self.similarity, tokenizer, template)

    def embed_query(self, params: Params, ids: Int[Array, "b l"], length: Int[Array, " b"]) -> Float[Array, "b d"]:
        """Vectors of queries, of length 1 for cosine."""
        return self.embed(params, "query", ids, length, None)

    def embed_passage(self, params: Params, ids: Int[Array, "b l"], length: Int[Array, " b"]) -> Float[Array, "b d"]:
        """Vectors of passages, of length 1 for cosine."""
        return self.embed(params, "passage", ids, length, None)

    def embed(
        self, params: Params, side: str, ids: Int[Array, "b l"], length: Int[Array, " b"], keys: Key[Array, " b"] | None
    ) -> Float[Array, "b d"]:
        """Vectors of one side. `keys`: dropout keys, one a row; None: no dropout."""
        vectors = self.embedder.embed(params if self.config.tied else params[side], ids, length, keys)
        return unit(vectors) if self.config.similarity == "cosine" else vectors

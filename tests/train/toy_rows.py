"""Every objective on a model of a few numbers, and rows for it that are a function of their stream index alone."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from denseir_jax.models.decoders import DecoderConfig
from denseir_jax.models.dropout import keyed_dropout
from denseir_jax.models.embedder import EmbedderConfig
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.objectives.base import Context, Field, Objective, token_counts
from denseir_jax.objectives.bottleneck import BottleneckConfig
from denseir_jax.objectives.cocondenser import CoCondenserConfig
from denseir_jax.objectives.contrastive import ContrastiveConfig
from denseir_jax.objectives.cross_encoder import CrossEncoderConfig
from denseir_jax.objectives.ict import IctConfig
from denseir_jax.objectives.mixture import MixtureConfig
from denseir_jax.objectives.mlm import MlmConfig
from denseir_jax.objectives.seed import SeedConfig

PAD, UNK, CLS, SEP, MASK = range(5)
VOCAB, PASSAGE, QUERY, KNOWN = 90, 12, 8, 3
_WIDTHS = {"input_ids": PASSAGE, "word_start": PASSAGE, "query_ids": QUERY, "passage_ids": PASSAGE}

CONFIGS = {
    "mlm": MlmConfig(),
    "condenser": BottleneckConfig(n_head_layers=1),
    "cocondenser": CoCondenserConfig(n_head_layers=1),
    "seed": SeedConfig(decoder=DecoderConfig(layers=1, heads=2)),
    "ict": IctConfig(temperature=0.5, symmetric=True),
    "contrastive": ContrastiveConfig(group_size=2, temperature=0.5, tied=False),
    "memory": ContrastiveConfig(group_size=2, temperature=0.5, memory=40, memory_start=1),
    "cross_encoder": CrossEncoderConfig(group_size=2, pair_length=16),
    "mixture": MixtureConfig(
        parts={"pairs": IctConfig(), "masked": BottleneckConfig(n_head_layers=1)}, weights={"pairs": 1.0, "masked": 0.5}
    ),
}


def build(name: str, **encoder: Any) -> Objective:
    """One of `CONFIGS` on an encoder of one layer of width 16, with dropout."""
    sizes: dict[str, Any] = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32, "max_length": 16}
    model = EncoderConfig(VOCAB, **(sizes | encoder))
    context = Context(model, EmbedderConfig(pooling="mean"), CLS, SEP, PAD, MASK, VOCAB, QUERY, PASSAGE, seed=3, unk_id=UNK)
    return CONFIGS[name].build(context)


class ToyRows:
    """Rows for any objective: the fields that it declares, filled from each row's stream index. A `batches.RowSource`."""

    def __init__(self, objective: Objective, n_items: int = 1000):
        self.fields, self.n_items, self.counts = objective.fields(), n_items, {}

    def rows(self, stream: np.ndarray) -> dict[str, np.ndarray]:
        made = [self._row(int(index)) for index in stream]
        return {name: np.stack([row[name] for row in made]).astype(np.int32) for name in self.fields}

    def names(self, stream: np.ndarray) -> list[str]:
        return [f"row{index % self.n_items}" for index in stream]

    def _row(self, index: int) -> dict[str, np.ndarray]:
        return {name: self._field(name, index) for name in self.fields}

    def _field(self, name: str, index: int) -> np.ndarray:
        field = name.split("/")[-1]
        rng = np.random.default_rng([index % self.n_items, *name.removesuffix("_ids").removesuffix("_length").encode()])
        shape = tuple(KNOWN if size == "known" else size for size in self.fields[name].tail)
        if field == "index":
            return np.asarray(index)
        if field == "removed":
            return rng.integers(0, 2)
        if field in ("document", "passage_row", "known"):
            return rng.integers(0, 6, shape)
        width = _WIDTHS.get(field) or _WIDTHS[field.replace("length", "ids") if "_" in field else "input_ids"]
        lengths = np.random.default_rng([index % self.n_items, width]).integers(5, width + 1, 4)
        at = np.arange(width)
        if field.endswith("length"):
            return lengths[: int(np.prod(shape))].reshape(shape)
        count = int(np.prod(shape[:-1]))
        real = lengths[:count, None]
        if field == "word_start":
            return ((rng.random((count, width)) < 0.7) & (at > 0) & (at < real - 1)).reshape(shape)
        ids = np.where(at < real - 1, rng.integers(5, VOCAB, (count, width)), PAD)
        ids[:, 0] = CLS
        ids[at == real - 1] = SEP
        return ids.reshape(shape)


@dataclass(frozen=True)
class Line:
    """An objective that traces and compiles at once: guess a text's length class by one matrix, with dropout."""

    def fields(self) -> dict[str, Field]:
        return {"input_ids": Field((PASSAGE,)), "length": Field(), "index": Field()}

    def rows(self, store: Any, groups: Any = None, tokenizer: Any = None) -> ToyRows:
        return ToyRows(self)

    def init(self, key: jax.Array) -> dict[str, Any]:
        kernel = jax.random.normal(key, (PASSAGE, 8)) * 0.1
        return {"projection": {"dense": {"kernel": kernel, "bias": jnp.zeros(8)}}}

    @property
    def least_rows(self) -> int:
        return 1

    def derived(self, leaves: Any) -> dict[str, Any]:
        return {}

    def per_row(self, params: Any, rows: Any, keys: Any, train: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        x = rows["input_ids"] / jnp.float32(VOCAB)
        dense = params["projection"]["dense"]
        out = (x if keys is None else keyed_dropout(x, 0.1, keys, 0)) @ dense["kernel"] + dense["bias"]
        nll = jax.nn.logsumexp(out, axis=1) - jnp.take_along_axis(out, rows["length"][:, None] % 8, axis=1)[:, 0]
        return {"out": out}, {"nll": (nll.sum(), jnp.float32(len(x)))}

    def over_batch(self, params: Any, vectors: Any, sums: Any, batch: Any) -> tuple[jax.Array, dict[str, Any]]:
        return sums["nll"][0] / sums["nll"][1], {**sums, **token_counts((batch["length"], PASSAGE))}

    def export(self, *arguments: Any) -> Any:
        raise NotImplementedError

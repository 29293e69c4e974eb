"""What training and searching would take, by formulas that are written beside their results. Nothing here touches a device."""

import math
from dataclasses import dataclass
from typing import Literal

from denseir_jax.core.console import duration
from denseir_jax.models.shape import EncoderConfig, padded_vocab

_FLOAT32 = 4  # bytes
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_BYTES = {"float16": 2, "float32": 4}


@dataclass(frozen=True)
class PlanConfig:
    """The numbers of a recipe card that decide about sizes.

    Attributes:
        steps, batch_size: of fine-tuning; queries a step over all devices. group_size: passages a query. tied: one encoder for
        both sides. dimension: of a vector; 0: the encoder's hidden size. dtype: of stored vectors.
        rows_per_second: queries with their passages trained on in a second, as measured on the machine in question; 0: unknown.
    """

    steps: int = 23_500
    batch_size: int = 64
    group_size: int = 8
    tied: bool = True
    dimension: int = 0
    dtype: Literal["float16", "float32"] = "float16"
    rows_per_second: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("batch_size", 1), ("group_size", 1), ("dimension", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least {least}")
        if not 0 <= self.rows_per_second < math.inf:
            raise ValueError(f"rows_per_second is {self.rows_per_second}; expected 0 (unknown) or a rate")


@dataclass(frozen=True)
class Line:
    """One figure: its name, the number, how it is written, its formula, and whether it is counted or estimated."""

    name: str
    value: int | float
    shown: str
    formula: str
    exact: bool


def parameters(encoder: EncoderConfig) -> int:
    """Numbers in one encoder: word, position and type tables, and its layers; heads and projections come on top."""
    d, inner = encoder.hidden, encoder.intermediate
    tables = (padded_vocab(encoder.vocab_size) + encoder.max_length + encoder.types + 2) * d
    layer = 4 * (d * d + d) + (d * inner + inner) + (inner * d + d) + 4 * d
    return tables + encoder.layers * layer


def lines(plan: PlanConfig, encoder: EncoderConfig, n: int, rows: int | None, blocks: int = 1) -> list[Line]:
    """The figures for a corpus of n vectors and so many queries to learn from (None: no queries are given).

    Args:
        blocks: rows of a passage in training.
    """
    d, what = plan.dimension or encoder.hidden, "passages" if blocks == 1 else "blocks"
    vectors, exact = n * d * _BYTES[plan.dtype], n * d * _FLOAT32
    scann = exact + n * d // 4 + math.isqrt(n) * d * _FLOAT32
    towers = "one encoder" if plan.tied else "two encoders"
    numbers = parameters(encoder) * (1 if plan.tied else 2)
    found = [
        *(_steps(plan, rows, blocks) if rows is not None else ()),
        Line("parameters", numbers, f"{numbers / 1e6:,.1f} M", f"{towers}: tables and layers", True),
        _memory("training state", numbers * 16, "16 bytes a parameter: weight, gradient, Adam's two moments; activations not counted"),
        _memory("vectors on disk", vectors, f"{what} x {d} x {_BYTES[plan.dtype]} bytes ({plan.dtype})"),
        _memory("exact index", exact, f"{what} x {d} x 4 bytes"),
        _memory("ScaNN index", scann, f"exact + {what} x d / 4 (4 bits for two numbers) + leaves"),
    ]
    if plan.rows_per_second:
        seconds = plan.steps * plan.batch_size / plan.rows_per_second
        formula = f"steps x batch_size / rows_per_second={plan.rows_per_second:g} as given"
        found.append(Line("training time", seconds, duration(seconds), formula, False))
    return found


def _steps(plan: PlanConfig, rows: int, blocks: int) -> list[Line]:
    texts, each = plan.batch_size * (1 + plan.group_size * blocks), f"group_size={plan.group_size}"
    each += f" x blocks={blocks}" if blocks > 1 else ""
    epoch, wanted = rows / plan.batch_size, plan.steps * plan.batch_size
    epochs = f"{wanted / rows:,.1f}" if rows else "no"
    return [
        Line("rows", rows, f"{rows:,}", "queries with a text and a positive that is in the corpus", True),
        Line("steps an epoch", epoch, f"{epoch:,.1f}", f"rows / batch_size={plan.batch_size}", True),
        Line("texts a step", texts, f"{texts:,}",
             f"batch_size x (1 + {each}); {plan.steps:,} steps are {epochs} epochs", True),
    ]  # fmt: skip


def _memory(name: str, size: int, formula: str) -> Line:
    unit, factor = next(((unit, factor) for unit, factor in _UNITS if size >= factor), _UNITS[-1])
    return Line(name, size, f"{size / factor:,.1f} {unit}", formula, False)

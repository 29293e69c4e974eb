"""The stage `unite`: several training sets become one. Queries, positives and pools are united, each in the order of the sets.

So BM25's negatives and mined ones stand side by side (coCondenser's second stage), and queries with pseudo-positives come behind
judged ones (RocketQA's fourth step). Teachers' scores are not carried over: let the teacher score the united set.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from denseir_jax.core import console
from denseir_jax.core.artifacts import Run
from denseir_jax.core.command import Stage
from denseir_jax.core.config import located
from denseir_jax.core.errors import ConfigError, InputError
from denseir_jax.data.examples import TRAINING_SET, Example, file_of, read_examples, write_examples
from denseir_jax.data.lines import BadRows


@dataclasses.dataclass(frozen=True, kw_only=True)
class UniteConfig:
    """What to unite.

    Attributes:
        training_sets: finished mine, teach or unite runs, or .jsonl files, over one corpus; commas between them.
    """

    stage: str = "unite"
    training_sets: str = located("")
    on_bad_row: Literal["error", "skip"] = "error"

    @property
    def places(self) -> list[str]:
        """One folder or file each."""
        return [place for place in self.training_sets.split(",") if place]


def run_unite(run: Run) -> Mapping[str, Any]:
    """Training sets -> one."""
    config: UniteConfig = run.config
    found: dict[str, _Growing] = {}
    for place in config.places:
        for example in console.progress(read_examples(file_of(place), BadRows(config.on_bad_row)), f"unite: {place}", None, "queries"):
            found.setdefault(example.query_id, _Growing(example.query)).add(example, place)
    dropped: Counter[str] = Counter()
    counts = write_examples(run.path / TRAINING_SET, _examples(found, dropped))
    metrics = {**counts, "dropped": dict(dropped)}
    run.finish(metrics, outputs=[TRAINING_SET])
    return metrics


class _Growing:
    """One query as the sets bring it."""

    def __init__(self, text: str):
        self.text = text
        self.positives: dict[str, None] = {}
        self.pools: dict[str, dict[str, None]] = {}

    def add(self, example: Example, place: str) -> None:
        if example.query != self.text:
            texts = f"{example.query[:60]!r}, and {self.text[:60]!r} in a set before it"
            raise InputError(f"{place}: query {example.query_id!r} is {texts}; expected one text")
        self.positives.update(dict.fromkeys(example.positives))
        for name, ids in example.negatives.items():
            self.pools.setdefault(name, {}).update(dict.fromkeys(ids))


def _examples(found: Mapping[str, _Growing], dropped: Counter[str]) -> Iterator[Example]:
    for query, one in found.items():
        pools = {name: tuple(_negatives(ids, one.positives, dropped)) for name, ids in one.pools.items()}
        yield Example(query, one.text, tuple(one.positives), pools)


def _negatives(ids: Iterable[str], positives: Mapping[str, None], dropped: Counter[str]) -> Iterator[str]:
    for item in ids:
        if item in positives:
            dropped["negative that another set calls positive"] += 1
        else:
            yield item


def inputs(config: UniteConfig) -> Mapping[str, str | Path]:
    """The training sets, by their place in the order."""
    if len(config.places) < 2:
        raise ConfigError("config.training_sets names fewer than two; expected runs/one,runs/two")
    return {f"training_set_{number}": path for number, path in enumerate(config.places)}


stage = Stage(
    name="unite",
    config=UniteConfig,
    run=run_unite,
    inputs=inputs,
    summary="Unite the queries, positives and pools of negatives of several training sets.",
)

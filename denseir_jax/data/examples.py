"""What fine-tuning learns from: queries with positives and pools of negatives, by passage id. On disk one JSON object a line.

``{"negatives": {"bm25": [ids], "mined": [ids]}, "positives": [ids], "query": "text", "query_id": "id"}``
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from denseir_jax.core import artifacts
from denseir_jax.data import jsonl
from denseir_jax.data.facts import output_of
from denseir_jax.data.jsonl import BadField
from denseir_jax.data.lines import BadRows
from denseir_jax.data.records import Dataset, SeenIds, positives_of

TRAINING_SET = "training_set.jsonl"  # in the folder of whoever makes one
TRAINING_SETS = ("mine", "teach", "unite")  # the stages that make one
_KEYS = ("negatives", "positives", "query", "query_id")


@dataclass(frozen=True)
class Example:
    """One query to learn from.

    Attributes:
        positives: ids of all passages known to answer it. negatives: name of a pool -> ids, hardest first.
    """

    query_id: str
    query: str
    positives: tuple[str, ...]
    negatives: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def negative_ids(self) -> list[str]:
        """Every negative once, pool after pool."""
        return list(dict.fromkeys(id for pool in self.negatives.values() for id in pool))

    @property
    def passage_ids(self) -> list[str]:
        """Every passage once: positives, then negatives."""
        return list(dict.fromkeys([*self.positives, *self.negative_ids]))


def file_of(place: str | Path) -> Path:
    """The file of a training set: itself, or in the finished run of a stage that makes one.

    Raises:
        InputError: as `facts.output_of`.
    """
    return output_of(place, TRAINING_SET, TRAINING_SETS) if Path(place).is_dir() else Path(place)


def of_judgments(dataset: Dataset, split: str) -> Iterator[Example]:
    """Queries of a split with the passages judged relevant, and no negatives; those without one are left out."""
    known = positives_of(dataset.qrels(split))
    for query, text in dataset.queries(split).items():
        if known[query]:
            yield Example(query, text, tuple(known[query]))


def write_examples(path: Path, examples: Iterable[Example]) -> dict[str, Any]:
    """Write a training set whole or not at all. Equal examples give equal bytes.

    Returns:
        For the manifest: ``queries``, ``positives``, and ``negatives`` by pool.
    """
    queries, positives, negatives = 0, 0, dict[str, int]()
    with artifacts.new_file(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as stream:
        for example in examples:
            row = {
                "query_id": example.query_id,
                "query": example.query,
                "positives": list(example.positives),
                "negatives": {name: list(ids) for name, ids in example.negatives.items()},
            }
            stream.write(json.dumps(row, sort_keys=True, ensure_ascii=False) + "\n")
            queries, positives = queries + 1, positives + len(example.positives)
            for name, ids in example.negatives.items():
                negatives[name] = negatives.get(name, 0) + len(ids)
    return {"queries": queries, "positives": positives, "negatives": dict(sorted(negatives.items()))}


def read_examples(path: Path, bad: BadRows, known: Mapping[str, int] | None = None) -> Iterator[Example]:
    """Yield the examples of a file.

    Args:
        known: the corpus, passage id -> row; ids are not looked up if not given.
    Raises:
        InputError: the file cannot be read, or under the policy "error" a bad row: a key missing or unknown, a wrong
            type, a query twice or without positives, a passage twice in a list, unknown, or both positive and negative.
    """
    seen = SeenIds()
    for line, row in jsonl.objects(str(path), bad):
        try:
            example = _example(row)
            _check(example, known)
            if seen.again(example.query_id):
                raise BadField("duplicate query id", f" {example.query_id!r}; expected every query once")
        except BadField as fault:
            bad.bad(str(path), line, fault.reason, fault.detail)
        else:
            yield example


def _example(row: Mapping[str, Any]) -> Example:
    unknown = sorted(set(row).difference(_KEYS))
    if unknown:
        raise BadField("unknown key", f" {unknown[0]!r}; expected {', '.join(_KEYS)}")
    query_id = jsonl.id_of(row, ("query_id",))
    query = jsonl.text_of(row, ("query",))
    pools = row.get("negatives", {})
    if not isinstance(pools, dict):
        raise BadField("negatives is not an object", f" but {jsonl.kind(pools)}; expected pool name -> list of ids")
    negatives = {name: _ids(ids, f"negatives.{name}") for name, ids in sorted(pools.items())}
    return Example(query_id, query, _ids(row.get("positives"), "positives"), negatives)


def _ids(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(id, str) for id in value):
        found = "a list that holds something else" if isinstance(value, list) else jsonl.kind(value) if value is not None else "missing"
        raise BadField("not a list of ids", f": {where} is {found}; expected a list of strings")
    if len(set(value)) < len(value):
        twice = next(id for i, id in enumerate(value) if id in value[:i])
        raise BadField("passage twice in a list", f": {twice!r} in {where}; expected every id once")
    return tuple(value)


def _check(example: Example, known: Mapping[str, int] | None) -> None:
    if not example.query.strip():
        raise BadField("empty query", f" of {example.query_id!r}; expected text")
    if not example.positives:
        raise BadField("query without positives", f": {example.query_id!r}; expected at least one")
    for where, ids in (("positives", example.positives), *((f"negatives.{name}", ids) for name, ids in example.negatives.items())):
        unknown = next((id for id in ids if known is not None and id not in known), None)
        if unknown is not None:
            raise BadField("unknown passage", f" {unknown!r} in {where}; expected an id of the corpus")
        both = set(example.positives).intersection(ids) if where != "positives" else ()
        if both:
            raise BadField("positive among the negatives", f": {min(both)!r} in {where}; expected ids that are not in positives")

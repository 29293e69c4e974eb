"""Judged queries and training sets, looked up in the corpus that they are about."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from denseir_jax.core import console
from denseir_jax.data import lengths
from denseir_jax.data.examples import Example, read_examples
from denseir_jax.data.findings import Findings
from denseir_jax.data.records import Dataset, Qrels
from denseir_jax.data.template import TextTemplate
from denseir_jax.pipeline.checks.passages import NO_TEXT, Count, Table, note_characters, text_key

_MISSING = "add these passages to the corpus, or take the ids out; check that corpus and judgments are of the same edition"


@dataclass
class Queries:
    """The queries of a split, or of a training set.

    Attributes:
        name: as messages name it. learnt: whether they would be learnt from. judgments: how many. usable: queries with a text
        and a positive that the corpus has. texts: key of the text -> id of the first query that has it. ids: hashes of all ids.
        characters, tokens: of each text.
    """

    name: str
    learnt: bool
    judgments: int = 0
    usable: int = 0
    texts: dict[int, str] = field(default_factory=dict)
    ids: set[int] = field(default_factory=set)
    characters: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def facts(self, template: TextTemplate) -> dict[str, Any]:
        """Sizes and lengths, for the report."""
        found: dict[str, Any] = {"queries": len(self.characters), "usable": self.usable, "judgments": self.judgments}
        found["characters"] = lengths.summary(np.array(self.characters, np.int64))
        if self.tokens:
            found["tokens"] = lengths.summary(np.array(self.tokens, np.int64), template.query_length)
        return found


def read_split(
    findings: Findings,
    dataset: Dataset,
    split: str,
    table: Table,
    template: TextTemplate,
    count: Count | None,
    trains: bool,
    looked_at: set[int],
) -> tuple[Queries, Qrels]:
    """Judgments and query texts of a split, and what is wrong with them.

    Args:
        trains: it is what would be learnt from. looked_at: hashes of queries that are in other splits too; theirs are added.
    """
    queries, qrels, texts = Queries(split, trains), Qrels(), dict[str, str]()
    findings.place = None
    with findings.going_on():
        qrels = dataset.qrels(split)
        findings.place = None
        texts = dataset.queries(split)
        _note_without_text(findings, split, qrels, texts)
    findings.place = None  # both are in memory: the last line read is not the row in hand
    for id, text in texts.items():
        _add_text(findings, queries, id, text, looked_at)
    _add_tokens(queries, list(texts.values()), template, count)
    queries.judgments = sum(map(len, qrels.values()))
    queries.usable = _look_up(findings, split, qrels, texts, table, trains)
    return queries, qrels


def _add_text(findings: Findings, queries: Queries, id: str, text: str, looked_at: set[int]) -> None:
    name = f"{queries.name}: query {id!r}"
    queries.characters.append(len(text))
    queries.ids.add(hash(id))
    key, known = text_key(text), len(looked_at)
    looked_at.add(hash((id, text)))
    new = len(looked_at) > known
    if key == NO_TEXT and new:
        findings.note("query without text", findings.where(name), "give it a text, or take it out", fault=True)
    if key == NO_TEXT:
        return
    if queries.texts.setdefault(key, id) != id and queries.learnt:
        first = f"{findings.where(name)} has the text of {queries.texts[key]!r}"
        remedy = "join them: the positives of one are negatives for the other where batches are compared"
        findings.note(f"query in {queries.name} with the text of an earlier one", first, remedy, fault=False)
    if new:
        note_characters(findings, text, name)


def _add_tokens(queries: Queries, texts: Sequence[str], template: TextTemplate, count: Count | None) -> None:
    for first in range(0, len(texts) if count is not None else 0, 4096):
        assert count is not None
        queries.tokens.extend(count([template.query(text) for text in texts[first : first + 4096]]))


def _note_without_text(findings: Findings, split: str, qrels: Qrels, texts: Mapping[str, str]) -> None:
    lost = [query for query in qrels if query not in texts]
    if lost:
        remedy = "add their texts, or use the judgments that belong to these queries: without a text they count as not found"
        findings.note(f"query judged in {split} that has no text", f"query {lost[0]!r}", remedy, fault=True, count=len(lost))


def _look_up(findings: Findings, split: str, qrels: Qrels, texts: Mapping[str, str], table: Table, trains: bool) -> int:
    """Note judged passages that the corpus lacks and queries without a positive; the number of usable queries."""
    usable = 0
    lost: dict[bool, dict[str, str]] = {True: {}, False: {}}  # relevant or not -> passage -> first query
    for query, judged in qrels.items():
        there = table.rows(judged) >= 0
        relevant = [grade > 0 for grade in judged.values()]
        for (passage, grade), found in zip(judged.items(), there.tolist(), strict=True):
            if not found:
                lost[grade > 0].setdefault(passage, query)
        usable += bool(query in texts and text_key(texts[query]) != NO_TEXT and (there & relevant).any())
        if not any(relevant):
            effect = "nothing can be learnt from them" if trains else "they count as 0"
            remedy = f"judge a passage above 0 for them, or take them out: {effect}"
            findings.note(f"query in {split} without a relevant passage", f"query {query!r}", remedy, fault=trains)
    for passage, query in list(lost[True].items())[:1]:
        what = f"relevant passage of {split} that the corpus lacks"
        findings.note(what, f"passage {passage!r} of query {query!r}", _MISSING, fault=True, count=len(lost[True]))
    only_not = [(passage, query) for passage, query in lost[False].items() if passage not in lost[True]]
    for passage, query in only_not[:1]:
        what = f"passage judged not relevant in {split} that the corpus lacks"
        remedy = "nothing; these judgments have no effect"
        findings.note(what, f"passage {passage!r} of query {query!r}", remedy, fault=False, count=len(only_not))
    return usable


def note_overlap(findings: Findings, learnt: Queries, others: Iterable[Queries]) -> None:
    """Note queries of other splits whose text is learnt from. A split that holds all of the learnt ones is their union with others."""
    for other in others:
        if learnt.ids and learnt.ids <= other.ids:
            continue
        both = [key for key in other.texts if key in learnt.texts]
        if both:
            first = f"{other.name}: query {other.texts[both[0]]!r} has the text of {learnt.name}: {learnt.texts[both[0]]!r}"
            what = f"query text of {other.name} that is in {learnt.name} too"
            findings.note(what, first, "take them out of one of the two: what was learnt by heart flatters", fault=False, count=len(both))


def read_training_set(
    findings: Findings, path: Path, table: Table, qrels: Qrels, template: TextTemplate, count: Count | None, looked_at: set[int]
) -> tuple[Queries, dict[str, Any]]:
    """A training set's examples against the corpus and the judgments of the split that it is made of.

    Returns:
        Its queries, and for the report ``positives``, ``negatives`` by pool, ``without_negatives``.
    """
    queries, texts = Queries("training set", True), list[str]()
    positives, without, pools = 0, 0, dict[str, int]()
    lost = _Lost(findings)
    findings.place = None
    with findings.going_on():
        for example in console.progress(read_examples(path, findings), "check_data: reading the training set", None, "queries"):
            _add_text(findings, queries, example.query_id, example.query, looked_at)
            texts.append(example.query)
            queries.usable += _check_example(findings, example, table, qrels.get(example.query_id, {}), lost)
            positives += len(example.positives)
            without += not any(example.negatives.values())
            for name, ids in example.negatives.items():
                pools[name] = pools.get(name, 0) + len(ids)
            if len(texts) == 4096:
                _add_tokens(queries, texts, template, count)
                texts.clear()
    _add_tokens(queries, texts, template, count)
    if without and pools:
        remedy = "nothing, or mine deeper: random passages fill the group"
        findings.note("query of the training set without negatives", f"{without:,} in all", remedy, fault=False, count=without)
    return queries, {"positives": positives, "negatives": dict(sorted(pools.items())), "without_negatives": without}


class _Lost:
    """Notes each passage that the corpus lacks once."""

    def __init__(self, findings: Findings):
        self._findings, self._seen = findings, set[int]()

    def __call__(self, id: str, where: Callable[[], str]) -> None:
        before = len(self._seen)
        self._seen.add(hash(id))
        if len(self._seen) > before:
            self._findings.note("passage of the training set that the corpus lacks", f"{where()}: {id!r}", _MISSING, fault=True)


def _check_example(findings: Findings, example: Example, table: Table, judged: Mapping[str, int], lost: _Lost) -> bool:
    """Look one example up; whether it can be learnt from."""

    def where() -> str:
        return findings.where(f"query {example.query_id!r}")

    known = dict.fromkeys([*example.positives, *(id for id, grade in judged.items() if grade > 0)])
    rows = table.rows(known)
    texts = set(table.keys[rows[rows >= 0]].tolist()) - {NO_TEXT}
    for id, row in zip(example.positives, rows.tolist(), strict=False):
        if row < 0:
            lost(id, where)
    for pool, ids in example.negatives.items():
        for id, row in zip(ids, table.rows(ids).tolist(), strict=True):
            if row < 0:
                lost(id, where)
            elif id in known:  # not among the example's own positives: the reader refuses that row
                remedy = "add them to the positives, or take them out: they would be learnt as wrong answers"
                findings.note("negative that the judgments call relevant", f"{where()}: {id!r} in {pool}", remedy, fault=True)
            elif table.keys[row] in texts:
                remedy = "take them out, or call them positives: they would be learnt as wrong answers"
                findings.note("negative with the text of a positive", f"{where()}: {id!r} in {pool}", remedy, fault=True)
    return bool((rows[: len(example.positives)] >= 0).any())

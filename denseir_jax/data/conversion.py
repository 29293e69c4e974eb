"""Data sets and training sets written for other tools: BEIR and MS MARCO folders, FlagEmbedding's, Tevatron's and DPR's rows.

Folders hold the whole corpus, queries and judgments; rows hold the texts of the passages that they name, and nothing else.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError
from denseir_jax.data import beir, trec
from denseir_jax.data.examples import Example
from denseir_jax.data.records import Dataset, Passage
from denseir_jax.data.supervised import Supervised

Scores = Mapping[tuple[str, str], float]
"""(query id, passage id) -> a teacher's score."""

FOLDERS = ("beir", "tsv")
CHANGED = "tabs and line ends written as spaces"


def write_folder(form: str, path: Path, dataset: Dataset, training: Mapping[str, Sequence[Example]]) -> Counter[str]:
    """Write a data set as a folder of format `form`, one of `FOLDERS`, whole or not at all.

    Args:
        training: split -> examples, whose negatives go into ``qidpidtriples.SPLIT.tsv`` of a tsv folder; BEIR has no place for them.
    Returns:
        What had to be changed, by cause -> count.
    Raises:
        InputError: a bad row of the data set, or negatives for BEIR.
    """
    if form == "beir":
        if any(example.negatives for examples in training.values() for example in examples):
            raise InputError(
                "a BEIR folder has no place for negatives; expected to=tsv, flag_embedding, tevatron or dpr for a training set"
            )
        beir.write_folder(path, dataset)
        return Counter()
    changed: Counter[str] = Counter()

    def cell(text: str) -> str:
        plain = " ".join(text.splitlines()).replace("\t", " ")
        changed[CHANGED] += plain != text
        return plain

    titled = any(passage.title for passage in dataset.corpus())
    with artifacts.new_folder(path) as folder:
        corpus = ((p.id, *([cell(p.title)] if titled else []), cell(p.text)) for p in dataset.corpus())
        _write_rows(folder / "collection.tsv", corpus)
        for split in dataset.splits:
            _write_rows(folder / f"queries.{split}.tsv", ((id, cell(text)) for id, text in dataset.queries(split).items()))
            trec.write_qrels(folder / f"qrels.{split}.tsv", dataset.qrels(split))
        for split, examples in training.items():
            _write_rows(folder / f"qidpidtriples.{split}.tsv", _triples(examples))
    return +changed


def _triples(examples: Iterable[Example]) -> Iterator[tuple[str, str, str]]:
    for example in examples:
        for positive in example.positives:
            for negative in example.negative_ids:
                yield example.query_id, positive, negative


def _write_rows(path: Path, rows: Iterable[Sequence[str]]) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as stream:
        stream.writelines("\t".join(row) + "\n" for row in rows)


def write_rows(
    form: str,
    path: Path,
    dataset: Dataset,
    training: Mapping[str, Sequence[Example]],
    scores: Scores | None = None,
    origin: str = "the training set",
) -> Counter[str]:
    """Write training examples with their texts as ``SPLIT.jsonl`` in a folder, whole or not at all.

    The texts of all passages that the examples name are in memory at once.

    Args:
        form: a key of `ROWS`. scores: for those that have a place for them (FlagEmbedding). origin: where the examples come
            from, for errors.
    Returns:
        What was left out, by cause -> count.
    Raises:
        InputError: an example names a passage that the corpus lacks, or a bad row of the data set.
    """
    wanted = {id for examples in training.values() for example in examples for id in example.passage_ids}
    texts = {passage.id: passage for passage in dataset.corpus() if passage.id in wanted}
    lost = next((id for id in sorted(wanted) if id not in texts), None)
    if lost is not None:
        raise InputError(f"{origin} names the passage {lost!r}, which the corpus lacks; expected the corpus that it was made from")
    left_out: Counter[str] = Counter()
    with artifacts.new_folder(path) as folder:
        for split, examples in training.items():
            answers = dataset.answers(split) if isinstance(dataset, Supervised) and split in dataset.splits else {}
            with open(folder / f"{split}.jsonl", "w", encoding="utf-8", newline="\n") as stream:
                for example in examples:
                    row = ROWS[form](example, texts, answers.get(example.query_id, ()), scores or {}, left_out)
                    stream.write(json.dumps(row, ensure_ascii=False) + "\n")
    return +left_out


def _flag_embedding(
    example: Example, texts: Mapping[str, Passage], answers: Sequence[str], scores: Scores, left_out: Counter[str]
) -> dict[str, Any]:
    def whole(id: str) -> str:
        return " ".join(part for part in (texts[id].title, texts[id].text) if part)

    sides = {"pos": list(example.positives), "neg": example.negative_ids}
    row: dict[str, Any] = {"query": example.query, **{side: [whole(id) for id in ids] for side, ids in sides.items()}}
    known = {side: [scores.get((example.query_id, id)) for id in ids] for side, ids in sides.items()}
    if scores and all(value is not None for values in known.values() for value in values):
        row |= {f"{side}_scores": values for side, values in known.items()}
    elif scores:
        left_out["rows whose scores are not all known, written without"] += 1
    return row


def _tevatron(
    example: Example, texts: Mapping[str, Passage], answers: Sequence[str], scores: Scores, left_out: Counter[str]
) -> dict[str, Any]:
    def passages(ids: Iterable[str]) -> list[dict[str, str]]:
        return [{"docid": id, "title": texts[id].title, "text": texts[id].text} for id in ids]

    row: dict[str, Any] = {"query_id": example.query_id, "query": example.query}
    return {
        **row,
        **({"answers": list(answers)} if answers else {}),
        "positive_passages": passages(example.positives),
        "negative_passages": passages(example.negative_ids),
    }


def _dpr(example: Example, texts: Mapping[str, Passage], answers: Sequence[str], scores: Scores, left_out: Counter[str]) -> dict[str, Any]:
    def contexts(ids: Iterable[str]) -> list[dict[str, str]]:
        return [{"title": texts[id].title, "text": texts[id].text, "passage_id": id} for id in ids]

    return {
        "question": example.query,
        "answers": list(answers),
        "positive_ctxs": contexts(example.positives),
        "negative_ctxs": [],
        "hard_negative_ctxs": contexts(example.negative_ids),
    }


ROWS: dict[str, Callable[[Example, Mapping[str, Passage], Sequence[str], Scores, Counter[str]], dict[str, Any]]] = {
    "flag_embedding": _flag_embedding,
    "tevatron": _tevatron,
    "dpr": _dpr,
}

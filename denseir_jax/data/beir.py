"""The reader and the writer of BEIR folders: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv, plain or compressed."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError
from denseir_jax.data import jsonl, trec, tsv
from denseir_jax.data.lines import BadRows
from denseir_jax.data.records import Dataset, Passage, Qrels, need_split


class BeirFolder:
    """A `records.Dataset` over a BEIR folder.

    Raises:
        InputError: the folder holds no corpus.jsonl.
    """

    attribution = ""

    def __init__(self, path: str, bad: BadRows):
        self.folder, self._bad = Path(path), bad
        self.splits = tsv.names(self.folder / "qrels", "", ".tsv")
        self._corpus = self._file("corpus.jsonl")

    def _file(self, name: str) -> str:
        path = tsv.packed(self.folder, name)
        if path is None:
            raise InputError(f"{self.folder} holds no {name}; expected corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv (or .gz, .zst)")
        return str(path)

    def corpus(self) -> Iterator[Passage]:
        """All passages, in file order."""
        return jsonl.passages(self._corpus, self._bad)

    def queries(self, split: str) -> dict[str, str]:
        """Query id -> text of the queries judged in a split, in file order.

        Raises:
            InputError: no such split, no queries.jsonl, or a bad row.
        """
        judged = self.qrels(split)
        return {query.id: query.text for query in jsonl.queries(self._file("queries.jsonl"), self._bad) if query.id in judged}

    def qrels(self, split: str) -> Qrels:
        """The judgments of a split.

        Raises:
            InputError: no such split, or a bad row.
        """
        need_split(split, self.splits, str(self.folder))
        return trec.read_qrels(str(tsv.packed(self.folder / "qrels", f"{split}.tsv")), self._bad)


def write_folder(path: Path, dataset: Dataset) -> None:
    """Write any data set as a BEIR folder, whole or not at all; a query of several splits is written once.

    Raises:
        InputError: as the data set's own reader; a query with different texts in two splits.
    """
    with artifacts.new_folder(path) as folder:
        _write(folder / "corpus.jsonl", ({"_id": one.id, "title": one.title, "text": one.text} for one in dataset.corpus()))
        texts: dict[str, str] = {}
        (folder / "qrels").mkdir()
        for split in dataset.splits:
            for id, text in dataset.queries(split).items():
                if texts.setdefault(id, text) != text:
                    raise InputError(f"query {id!r} has another text in the split {split!r} than in one before; expected one text an id")
            with open(folder / "qrels" / f"{split}.tsv", "w", encoding="utf-8", newline="\n") as stream:
                stream.write("query-id\tcorpus-id\tscore\n")
                for query, judged in dataset.qrels(split).items():
                    stream.writelines(f"{query}\t{passage}\t{value}\n" for passage, value in judged.items())
        _write(folder / "queries.jsonl", ({"_id": id, "text": text} for id, text in texts.items()))


def _write(path: Path, rows: Iterable[Mapping[str, str]]) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

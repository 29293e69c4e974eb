"""The reader of BEIR folders: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv, plain or compressed."""

from collections.abc import Iterator
from pathlib import Path

from denseir_jax.core.errors import InputError
from denseir_jax.data import jsonl, trec, tsv
from denseir_jax.data.lines import BadRows
from denseir_jax.data.records import Passage, Qrels, need_split


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

"""The reader of collections that the package ir_datasets provides: ``ir_datasets:beir/scifact``. The package is optional."""

import importlib
from collections.abc import Iterator
from typing import Any

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError
from denseir_jax.data.lines import BadRows
from denseir_jax.data.records import Passage, Qrels, SeenIds, fault_of_id, need_split

_INSTALL = "install it with: pip install ir-datasets"
_SPLITS = ("train", "dev", "test")


class Collection:
    """One data set of ir_datasets, by name. A `records.Dataset`.

    The parts NAME/train, NAME/dev and NAME/test that have judgments are its splits; a name with judgments of its own has one
    split, called as its last part if that is train, dev or test, else ``test``.

    Raises:
        InputError: the package is missing, or knows no such name.
    """

    attribution = ""

    def __init__(self, name: str, bad: BadRows):
        self.name, self._bad = name, bad
        self._dataset = _load(name)
        own = name.rsplit("/", 1)[-1]
        self._parts = {own if own in _SPLITS else "test": self._dataset} if self._dataset.has_qrels() else _parts(name)
        self.splits = tuple(self._parts)

    def corpus(self) -> Iterator[Passage]:
        """All passages; the text is what the package calls the default text where a document has no ``text`` or ``body``.

        Raises:
            InputError: the collection has no documents; a bad or a second id.
        """
        if not self._dataset.has_docs():
            raise InputError(f"ir_datasets:{self.name} has no documents; expected a name that has")
        seen = SeenIds()
        self._bad.begin(self.name)
        for number, document in enumerate(self._dataset.docs_iter(), start=1):
            id, fault = document.doc_id, fault_of_id(document.doc_id)
            fault = fault or ("duplicate id" if seen.again(id) else "")
            if fault:
                self._bad.bad(self.name, number, fault, f" {id!r}; expected one without whitespace, every one once")
                continue
            text = next((getattr(document, field) for field in ("text", "body") if hasattr(document, field)), None)
            title = getattr(document, "title", "") or ""
            yield Passage(id, text, title) if text is not None else Passage(id, document.default_text())

    def queries(self, split: str) -> dict[str, str]:
        """Query id -> text of the queries judged in a split.

        Raises:
            InputError: no such split.
        """
        judged = self.qrels(split)
        return {query.query_id: _query_text(query) for query in self._parts[split].queries_iter() if query.query_id in judged}

    def qrels(self, split: str) -> Qrels:
        """The judgments of a split.

        Raises:
            InputError: no such split.
        """
        need_split(split, self.splits, f"ir_datasets:{self.name}")
        qrels: Qrels = {}
        for judgment in self._parts[split].qrels_iter():
            qrels.setdefault(judgment.query_id, {})[judgment.doc_id] = int(judgment.relevance)
        return qrels


def _query_text(query: Any) -> str:
    text = next((getattr(query, field) for field in ("text", "title", "query") if hasattr(query, field)), None)
    return str(text if text is not None else query.default_text())


def _package() -> Any:
    try:
        return importlib.import_module("ir_datasets")
    except ImportError:
        raise InputError(f"the source ir_datasets: needs the Python package ir-datasets, which is missing; {_INSTALL}") from None


def _load(name: str) -> Any:
    package = _package()
    try:
        return package.load(name)
    except KeyError:
        raise InputError(f"ir_datasets knows no data set {name!r}; expected a name as in beir/scifact/test") from None


def _parts(name: str) -> dict[str, Any]:
    package, found = _package(), {}
    for split in _SPLITS:
        try:
            part = package.load(f"{name}/{split}")
        except KeyError:
            continue
        if part.has_qrels():
            found[split] = part
    return found


def identity(name: str) -> str:
    """What identifies a collection: its name and the package's version, which fixes the checksums of its files.

    Raises:
        InputError: the package is missing.
    """
    return f"sha256:{artifacts.text_sha256(f'ir_datasets {_package().__version__} {name}')}"

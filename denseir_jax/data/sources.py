"""Where text comes from, written ``format:path``: ``jsonl:docs.jsonl.gz``, ``beir:folder``, ``demo:``, ``txt:-``.

A new format is one reader and one line in `FORMATS`.
"""

import difflib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError
from denseir_jax.data import columns, demo, dpr, flag_embedding, ir_collection, jsonl, msmarco, tevatron, text_rows, tfds_folder, tsv
from denseir_jax.data.beir import BeirFolder
from denseir_jax.data.lines import STDIN, BadRows, shown
from denseir_jax.data.records import Dataset, Passage


@dataclass(frozen=True)
class Format:
    """How one format is read.

    Attributes:
        holds: "file", "folder", "either", "name" (of something that lies elsewhere) or "nothing": what its path may be.
        corpus: path -> passages, where a path can be a corpus alone. dataset: path -> corpus, queries, qrels; where there is
        a `corpus` too, a file is that, and a folder this.
    """

    holds: str
    corpus: Callable[[str, BadRows], Iterator[Passage]] | None = None
    dataset: Callable[[str, BadRows], Dataset] | None = None


FORMATS = {
    "jsonl": Format("file", corpus=jsonl.passages),
    "txt": Format("file", corpus=tsv.text_passages),
    "tsv": Format("either", corpus=tsv.passages, dataset=msmarco.passage_folder),
    "msmarco_docs": Format("either", corpus=msmarco.documents, dataset=msmarco.document_folder),
    "triples": Format("either", dataset=text_rows.triples),
    "top1000": Format("either", dataset=text_rows.candidates),
    "beir": Format("folder", dataset=BeirFolder),
    "flag_embedding": Format("either", dataset=flag_embedding.dataset),
    "tevatron": Format("either", dataset=tevatron.dataset),
    "dpr": Format("either", dataset=dpr.dataset),
    "dpr_wiki": Format("file", corpus=dpr.wiki_passages),
    "rocketqa": Format("either", dataset=text_rows.rocketqa),
    "columns": Format("either", dataset=columns.dataset),
    "tfds": Format("folder", corpus=tfds_folder.passages),
    "ir_datasets": Format("name", dataset=ir_collection.Collection),
    "demo": Format("nothing", dataset=lambda path, bad: demo.Demo()),
}


@dataclass(frozen=True)
class Source:
    """A source as parsed: the name of its format, and the path ("-" for standard input, "" for none)."""

    format: str
    path: str

    def __str__(self) -> str:
        return f"{self.format}:{self.path}"


def parse(source: str) -> Source:
    """Take ``format:path`` apart and see that the path is there.

    Raises:
        InputError: no or an unknown format, a missing path, a folder where a file is needed, or the reverse.
    """
    name, colon, path = source.partition(":")
    if not colon or name not in FORMATS:
        near = difflib.get_close_matches(name, FORMATS, n=1)
        hint = f"; did you mean {near[0]}:{path}?" if colon and near else ""
        what = f"unknown format {name!r}" if colon else "no format"
        raise InputError(f"source {source!r}: {what}; expected format:path, format one of {', '.join(FORMATS)}{hint}")
    holds = FORMATS[name].holds
    if holds == "nothing":
        if path:
            raise InputError(f"source {source!r}: expected {name}: without a path")
        return Source(name, "")
    if not path:
        raise InputError(f"source {source!r}: no path; expected {name}:PATH")
    if holds == "name" or (path == STDIN and holds != "folder"):
        return Source(name, path)
    place = Path(path).expanduser()
    if not place.exists():
        raise InputError(f"source {source!r}: {place} does not exist")
    if place.is_dir() != (holds == "folder") and holds != "either":
        raise InputError(f"source {source!r}: {place} is a {'folder' if place.is_dir() else 'file'}; expected a {holds}")
    return Source(name, str(place))


def identity(source: str) -> str:
    """What identifies a source's content: ``sha256:...``. Standard input cannot be read twice, so it has one for all.

    Raises:
        InputError: as `parse`.
    """
    found = parse(source)
    if found.path == STDIN:
        return "sha256:" + artifacts.text_sha256("standard input")
    if found.format == "ir_datasets":
        return ir_collection.identity(found.path)
    return demo.identity() if found.format == "demo" else "sha256:" + artifacts.content_sha256(Path(found.path))


def read_corpus(source: str, bad: BadRows) -> Iterator[Passage]:
    """Passages of any source, streamed in constant memory (but for the hashes that tell duplicate ids).

    Raises:
        InputError: at once, as `parse`; while reading, a bad row under the policy "error", or no passage at all.
    """
    found = parse(source)
    form = FORMATS[found.format]
    if form.dataset is not None and (form.corpus is None or Path(found.path).is_dir()):
        return _not_empty(form.dataset(found.path, bad).corpus(), source, bad)
    assert form.corpus is not None  # every format has one or the other
    return _not_empty(form.corpus(found.path, bad), source, bad)


def _not_empty(passages: Iterator[Passage], source: str, bad: BadRows) -> Iterator[Passage]:
    first = next(passages, None)
    if first is None:
        skipped = ", ".join(f"{count:,} x {reason}" for reason, count in bad.counts.items())
        raise InputError(f"{shown(source.partition(':')[2]) or source} holds no passage{f' (skipped: {skipped})' if skipped else ''}")
    yield first
    yield from passages


def read_dataset(source: str, bad: BadRows) -> Dataset:
    """A corpus with queries and judgments. Its files are read when asked for, each time anew.

    Raises:
        InputError: as `parse`; a format without queries; a folder without its corpus.
    """
    found = parse(source)
    dataset = FORMATS[found.format].dataset
    is_corpus = FORMATS[found.format].corpus is not None and not Path(found.path).is_dir()
    if dataset is None or found.path == STDIN or is_corpus:
        able = ", ".join(name for name, form in FORMATS.items() if form.dataset is not None)
        raise InputError(f"source {source!r} has passages but no queries; expected one of {able}, with a folder as path where one is due")
    return dataset(found.path, bad)


@dataclass(frozen=True)
class Dangling:
    """Judgments that point nowhere.

    Attributes:
        judgments: judgments in the split. passages, queries: ids judged that the corpus or the queries lack.
        without_positive: queries judged that have no relevance above 0.
    """

    judgments: int
    passages: tuple[str, ...]
    queries: tuple[str, ...]
    without_positive: int

    def warnings(self) -> list[str]:
        """One line for each kind that occurs."""
        lines = []
        for what, ids in (("passages", self.passages), ("queries", self.queries)):
            if ids:
                sample = ", ".join(itertools.islice(ids, 3))
                lines.append(f"{len(ids):,} judged {what} do not exist in the {'corpus' if what == 'passages' else what} ({sample} ...)")
        if self.without_positive:
            lines.append(f"{self.without_positive:,} queries have no relevant passage")
        return lines


def check(dataset: Dataset, split: str, passage_ids: Iterable[str] | None = None) -> Dangling:
    """Look for judgments of a split whose passage or query does not exist.

    Args:
        passage_ids: the ids of the corpus if they are at hand; otherwise the corpus is read.
    Raises:
        InputError: no such split, or a bad row.
    """
    qrels = dataset.qrels(split)
    missing = {passage: None for judged in qrels.values() for passage in judged}  # a dict keeps the order
    for id in passage_ids if passage_ids is not None else (passage.id for passage in dataset.corpus()):
        missing.pop(id, None)
    texts = dataset.queries(split)
    return Dangling(
        judgments=sum(map(len, qrels.values())),
        passages=tuple(missing),
        queries=tuple(query for query in qrels if query not in texts),
        without_positive=sum(max(judged.values()) <= 0 for judged in qrels.values()),
    )

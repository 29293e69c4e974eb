"""Readers of plain and tab-separated text.

Nothing is ever quoted: a quote character is data.
"""

from collections.abc import Iterator
from pathlib import Path

from denseir_jax.data.lines import BadRows, open_text
from denseir_jax.data.records import Passage, Query, SeenIds, fault_of_id

PACKED = ("", ".gz", ".zst")


def text_passages(path: str, bad: BadRows) -> Iterator[Passage]:
    """Yield one passage a line; its id is the line number counted from 0.

    Raises:
        InputError: as `lines.open_text`.
    """
    for line, text in open_text(path, bad):
        yield Passage(str(line - 1), text)


def passages(path: str, bad: BadRows) -> Iterator[Passage]:
    """Yield passages from ``id <tab> text`` or ``id <tab> title <tab> text``; the first row decides for all.

    Raises:
        InputError: as `lines.open_text`, or a bad row under the policy "error".
    """
    for cells in rows(path, (2, 3), "id <tab> text, or id <tab> title <tab> text", bad):
        yield Passage(cells[0], cells[-1], cells[1] if len(cells) == 3 else "")


def queries(path: str, bad: BadRows) -> Iterator[Query]:
    """Yield queries from ``id <tab> text``.

    Raises:
        InputError: as `passages`.
    """
    for cells in rows(path, (2,), "id <tab> text", bad):
        yield Query(cells[0], cells[1])


def rows(path: str, widths: tuple[int, ...], layout: str, bad: BadRows) -> Iterator[list[str]]:
    """Yield the cells of rows that begin with an id; the first row decides how many there are.

    Raises:
        InputError: as `lines.open_text`; wrong columns, a bad or a second id.
    """
    seen = SeenIds()
    for line, text in open_text(path, bad):
        cells = text.split("\t")
        fault = fault_of_id(cells[0])
        if len(cells) not in widths:
            bad.bad(path, line, "wrong number of columns", f": {len(cells)} instead of {' or '.join(map(str, widths))}; expected {layout}")
        elif fault:
            bad.bad(path, line, fault, f" {cells[0]!r}; expected an id of one or more characters, none of them whitespace")
        elif seen.again(cells[0]):
            bad.bad(path, line, "duplicate id", f" {cells[0]!r}; expected every id once")
        else:
            widths = (len(cells),)
            yield cells


def packed(folder: Path, name: str) -> Path | None:
    """A file of the folder, plain or compressed."""
    return next((folder / (name + end) for end in PACKED if (folder / (name + end)).is_file()), None)


def names(folder: Path, prefix: str, suffix: str) -> tuple[str, ...]:
    """What stands between prefix and suffix in the names of the folder's files, plain or compressed; train, dev, test first."""
    found = set()
    for file in folder.iterdir() if folder.is_dir() else ():
        plain = next((file.name.removesuffix(end) for end in PACKED[1:] if file.name.endswith(end)), file.name)
        if not plain.startswith(".") and plain.startswith(prefix) and plain.endswith(suffix) and len(plain) > len(prefix) + len(suffix):
            found.add(plain[len(prefix) : -len(suffix)])
    first = ("train", "dev", "test")
    return tuple(name for name in first if name in found) + tuple(sorted(found.difference(first)))

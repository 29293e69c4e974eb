"""What is wrong with data, gathered instead of raised: every kind once, with its count and where it was first."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from denseir_jax.core.errors import InputError
from denseir_jax.data.lines import BLANK, BadRows, shown

_UNREADABLE = "source that cannot be read"
_BAD_ROW = "mend these rows, or leave them out of every stage with --config.on_bad_row=skip"
_REMEDIES = {
    "not UTF-8": "convert the file to UTF-8 (iconv -f latin1 -t utf-8, if that is what it is)",
    "duplicate id": "keep one row of an id; the first was taken here",
    "key twice": "keep one of the two values",
    "positive among the negatives": "mine again, or take these ids out of the negatives: they would be learnt as wrong answers",
    "query without positives": "add positives, or take the query out: nothing can be learnt from it",
    "judgment repeated": "nothing; the second of two equal judgments is dropped",
    BLANK: "nothing; blank lines are passed over, but a passage without an id is named by its line",
}


@dataclass
class Finding:
    """One kind of thing that is wrong.

    Attributes:
        what: the kind, in the singular. fault: training would be wrong; otherwise a warning. count: how often.
        first: the first of them, by file and line or by id. remedy: what to do.
    """

    what: str
    fault: bool
    count: int
    first: str
    remedy: str


class Findings(BadRows):
    """Bad rows for readers, which skip them all, and whatever else a check finds.

    Args:
        policy: of the stages to come. Rows that they will skip are warnings here, rows that they will refuse are faults.
    """

    def __init__(self, policy: Literal["error", "skip"] = "error"):
        super().__init__("skip")
        self._rows_are_faults = policy == "error"
        self._firsts: dict[str, dict[str, str]] = {}  # file -> reason -> place and detail of the first
        self._notes: dict[tuple[str, str], Finding] = {}
        self._messages: set[str] = set()

    def begin(self, path: str) -> None:
        """`path` is read from its first line on; what was found in it before is forgotten."""
        super().begin(path)
        self._firsts[path] = {}

    def bad(self, path: str, line: int, reason: str, detail: str = "") -> None:
        """Count one row, and keep the place of the first for this reason."""
        super().bad(path, line, reason, detail)
        joint = "" if detail[:1] in (":", ";") else ":"
        self._firsts.setdefault(path, {}).setdefault(reason, f"{shown(path)}:{line}{joint}{detail}")

    def note(self, what: str, first: str, remedy: str, fault: bool, count: int = 1, of: str = "") -> None:
        """Something is wrong, `count` times more. `of` keeps apart what is the same in different places (a split)."""
        found = self._notes.setdefault((what, of), Finding(what, fault, 0, first, remedy))
        found.count += count

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        """What is refused inside is noted, once for each message, and the check goes on behind it."""
        try:
            yield
        except InputError as error:
            if str(error) not in self._messages:
                self._messages.add(str(error))
                self.note(_UNREADABLE, str(error), "see that the source is there, whole and not empty", fault=True)

    def where(self, name: str) -> str:
        """The row in hand: its file and line if it has any, and its name."""
        return name if self.place is None else f"{shown(self.place[0])}:{self.place[1]} ({name})"

    def all(self) -> list[Finding]:
        """Faults, then warnings, each in the order in which they were found; bad rows before the rest."""
        rows: dict[str, Finding] = {}
        for path, counts in self._files.items():
            for reason, count in counts.items():
                first = self._firsts.get(path, {}).get(reason, "")  # what is no fault under any policy has none
                remedy = _REMEDIES.get(reason, _BAD_ROW)
                found = rows.setdefault(reason, Finding(reason, self._rows_are_faults and bool(first), 0, first or shown(path), remedy))
                found.count += count
        found_all = [*rows.values(), *self._notes.values()]
        return [found for found in found_all if found.fault] + [found for found in found_all if not found.fault]

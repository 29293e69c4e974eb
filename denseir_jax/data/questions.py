"""The reader of questions with answers, as Natural Questions, TriviaQA and others are given out with DPR.

``question <tab> ["answer", 'another']``: the answers are a list as Python writes it, in a cell that may be quoted.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from denseir_jax.data import quoted
from denseir_jax.data.lines import BadRows


@dataclass(frozen=True)
class Question:
    """One question. Its id is its row's number from 0, as published runs count. answers: none is empty."""

    id: str
    text: str
    answers: tuple[str, ...]


def read_questions(path: str, bad: BadRows) -> Iterator[Question]:
    """Yield questions. Empty answers, which every text would hold, are left out and counted.

    Raises:
        InputError: as `quoted.rows`; wrong columns, an empty question, answers that are no list of strings.
    """
    for line, cells in quoted.rows(path, bad, "\t"):
        answers = _literal(cells[1]) if len(cells) == 2 else None
        if len(cells) != 2:
            bad.bad(path, line, "wrong number of columns", f": {len(cells)} instead of 2; expected question <tab> ['answer', ...]")
        elif not cells[0].strip():
            bad.bad(path, line, "empty question", "; expected text")
        elif answers is None:
            bad.bad(path, line, "answers are no list", f" of strings as Python writes it: {cells[1][:60]!r}; expected ['answer', ...]")
        else:
            for answer in answers:
                if not answer.strip():
                    bad.count(path, "empty answer")
            yield Question(str(line - 1), cells[0], tuple(answer for answer in answers if answer.strip()))


def _literal(text: str) -> list[str] | None:
    try:
        value = ast.literal_eval(text.strip())  # builds constants and lists of them; nothing is called
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, list) and all(isinstance(answer, str) for answer in value) else None

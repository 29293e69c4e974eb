"""Rankings with their texts, as DPR and pyserini keep them in JSON; and the plain text rankings of Tevatron and RocketQA.

DPR: a list of ``{"question", "answers", "ctxs": [{"id", "title", "text", "score", "has_answer"}]}``, questions in the order of their file.
pyserini: ``{question id: {"question", "answers", "contexts": [{"docid", "score", "text": "title\\ntext", "has_answer"}]}}``.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from denseir_jax.core import artifacts
from denseir_jax.core.errors import InputError
from denseir_jax.data import json_array, jsonl
from denseir_jax.data.jsonl import BadField
from denseir_jax.data.lines import BadRows, open_text, shown
from denseir_jax.data.records import Passage, Ranking
from denseir_jax.data.trec import best_first
from denseir_jax.evals.answers import Answers, prepared


@dataclass(frozen=True)
class Context:
    """A passage retrieved. has_answer: whether it holds an answer, or None where nobody has looked."""

    passage: Passage
    score: float
    has_answer: bool | None = None


@dataclass(frozen=True)
class Result:
    """A question and what was retrieved for it, best first."""

    question_id: str
    question: str
    answers: tuple[str, ...]
    contexts: tuple[Context, ...]


def write_results(path: Path, results: Iterable[Result], layout: Literal["dpr", "pyserini"] = "dpr") -> None:
    """Write results whole or not at all, one at a time. `has_answer` is written where it is known. DPR's layout has no place for ids.

    Raises:
        ValueError: a score is not finite.
    """
    with artifacts.new_file(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as stream:
        brackets = "[]" if layout == "dpr" else "{}"
        stream.write(brackets[0])
        for number, result in enumerate(results):
            stream.write(",\n" if number else "\n")
            if layout == "pyserini":
                stream.write(json.dumps(result.question_id, ensure_ascii=False) + ": ")
            _write(stream, result, layout)
        stream.write(f"\n{brackets[1]}\n")


def _write(stream: IO[str], result: Result, layout: str) -> None:
    contexts: list[dict[str, Any]] = []
    for found in result.contexts:
        if not math.isfinite(found.score):
            raise ValueError(f"score {found.score} of passage {found.passage.id!r} for {result.question_id!r} is not finite")
        id, title, text = found.passage.id, found.passage.title, found.passage.text
        known = {} if found.has_answer is None else {"has_answer": found.has_answer}
        if layout == "dpr":
            contexts.append({"id": id, "title": title, "text": text, "score": str(found.score), **known})
        else:
            contexts.append({"docid": id, "score": found.score, "text": f"{title}\n{text}", **known})
    key = "ctxs" if layout == "dpr" else "contexts"
    row = {"question": result.question, "answers": list(result.answers), key: contexts}
    stream.write(json.dumps(row, ensure_ascii=False, allow_nan=False))


def read_results(path: str, bad: BadRows | None = None) -> Iterator[Result]:
    """Yield results of either layout. DPR's have no ids: a question's id is its number from 0, as its file of questions has it.

    pyserini's layout is held in memory whole.

    Raises:
        InputError: the file is not JSON, or under the policy "error" a bad result: a key missing, a wrong type, an id that is no
            string, a score that is no finite number.
    """
    bad = bad or BadRows()
    first = next((text.lstrip()[:1] for _, text in open_text(path)), "")
    if first == "[":
        given: Iterator[tuple[int, str, Any]] = ((line, str(n), value) for n, (line, value) in enumerate(json_array.objects(path, bad)))
    else:
        whole = _whole(path)
        given = ((1, id, value) for id, value in whole.items())
    for line, id, value in given:
        try:
            result = _result(id, value)
        except BadField as fault:
            bad.bad(path, line, fault.reason, f" in question {id!r}{fault.detail}")
        else:
            yield result


def _whole(path: str) -> Mapping[str, Any]:
    text = "\n".join(text for _, text in open_text(path))
    try:
        value = jsonl.DECODER.decode(text)
        jsonl.need_whole(value, text)
    except (ValueError, RecursionError, BadField) as error:
        raise InputError(f"{shown(path)} is not JSON ({error}); expected a list, or an object by question id") from None
    if not isinstance(value, dict):
        raise InputError(f"{shown(path)} holds {jsonl.kind(value)}; expected a list, or an object by question id")
    return value


def _result(id: str, value: Any) -> Result:
    if not isinstance(value, dict):
        raise BadField("not an object", f": {jsonl.kind(value)}; expected question, answers and contexts")
    key = jsonl.first_key(value, ("ctxs", "contexts"))
    if key is None:
        raise BadField("no contexts", "; expected a list under ctxs or contexts")
    contexts = tuple(_context(one) for one in jsonl.list_of(value, key, dict, "objects, one a passage"))
    return Result(id, jsonl.text_of(value, ("question",)), tuple(jsonl.list_of(value, "answers", str, "strings")), contexts)


def _context(one: Mapping[str, Any]) -> Context:
    id, text = jsonl.id_of(one, ("id", "docid")), jsonl.text_of(one, ("text",))
    title = jsonl.title_of(one)
    if "docid" in one and "title" not in one and "\n" in text:
        title, text = text.split("\n", 1)
    try:
        score = float(one["score"])
    except (KeyError, TypeError, ValueError):
        score = math.nan
    if not math.isfinite(score):
        raise BadField("bad score", f" of passage {id!r}: {one.get('score')!r}; expected a finite number")
    known = one.get("has_answer")
    if known is not None and not isinstance(known, bool):
        raise BadField("has_answer is not true or false", f" but {jsonl.kind(known)}; expected true, false or nothing")
    return Context(Passage(id, text, title), score, known)


def with_answers(results: Iterable[Result]) -> Iterator[Result]:
    """Yield results with `has_answer` of every passage's text, as DPR looks (titles are not searched); as they are without answers."""
    for result in results:
        wanted = Answers(result.answers)
        contexts = (dataclasses.replace(c, has_answer=wanted.within(prepared(c.passage.text, "string"))) for c in result.contexts)
        yield dataclasses.replace(result, contexts=tuple(contexts)) if result.answers else result


def ranking_of(results: Iterable[Result]) -> Ranking:
    """The ranking in results, by score as float32, ties by passage id descending."""
    return {found.question_id: best_first([(one.passage.id, one.score) for one in found.contexts]) for found in results}


def results_of(
    ranking: Ranking, questions: Mapping[str, str], passages: Mapping[str, Passage], answers: Mapping[str, tuple[str, ...]]
) -> Iterator[Result]:
    """Yield the results of all questions, in their order; one that nothing was retrieved for has no contexts.

    Args:
        passages: at least those in the ranking, by id.
    Raises:
        InputError: a passage is missing.
    """
    for id, text in questions.items():
        line = ranking.get(id, [])
        lost = next((passage for passage, _ in line if passage not in passages), None)
        if lost is not None:
            raise InputError(f"passage {lost!r} in the ranking of {id!r} is not in the corpus; expected the corpus that was searched")
        yield Result(id, text, answers.get(id, ()), tuple(Context(passages[passage], score) for passage, score in line))

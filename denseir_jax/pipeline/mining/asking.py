"""Who asks: judged queries, questions with answers, queries that nobody judged; and what is known of each beforehand."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from denseir_jax.core.errors import InputError
from denseir_jax.data import jsonl, sources, tsv
from denseir_jax.data.examples import Example, file_of, read_examples
from denseir_jax.data.lines import BadRows
from denseir_jax.data.questions import read_questions
from denseir_jax.data.records import Dataset, Query, positives_of
from denseir_jax.data.supervised import Supervised, query_of
from denseir_jax.evals.answers import Answers
from denseir_jax.pipeline.mining.config import MineConfig
from denseir_jax.search.negatives import normalized

_FILES = {"tsv": tsv.queries, "jsonl": jsonl.queries}


@dataclass(frozen=True)
class Asked:
    """Attributes:
    queries: query id -> text; those with known positives first. known: all positives by query, from the judgments and the
    earlier training set. answers: of the queries that have any. earlier: the examples to be extended.
    counts: queries of each kind. left_out: queries of none, by cause.
    """

    queries: dict[str, str]
    known: dict[str, list[str]]
    answers: dict[str, Answers]
    earlier: dict[str, Example]
    counts: dict[str, int]
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def dangling(self) -> list[str]:
        """Queries that are judged and have no text."""
        return [query for query, found in self.known.items() if found and query not in self.queries and query not in self.earlier]


def gather(config: MineConfig, dataset: Dataset, bad: BadRows, need_answers: bool = True) -> Asked:
    """Read all that is known before anything is searched.

    Raises:
        InputError: a bad row; no query to mine for; no answers though the config asks for them and they are needed; an id that
            two queries share; an earlier training set that already has the pool.
    """
    earlier = _earlier(config, bad)
    known, texts = _judged(config, dataset, earlier)
    answers, new = answers_of(config, dataset, texts, bad, need_answers)
    judged = {query: text for query, text in texts.items() if known.get(query)}
    by_answer = {query: text for query, text in {**texts, **new}.items() if not known.get(query) and query in answers}
    by_answer = by_answer if config.positives_by_answer else {}
    unlabelled, same = _unlabelled(config, dataset, {**texts, **new}, earlier, bad)
    queries = {**judged, **by_answer, **unlabelled}
    if not queries:
        raise InputError(f"{config.dataset}: the split {config.split!r} has no query with a relevant passage")
    counts = {"judged": len(judged), "by_answer": len(by_answer), "unlabelled": len(unlabelled)}
    counts["questions_not_used"] = len(new.keys() - by_answer.keys())
    left_out = {"the text is that of a judged query": same} if same else {}
    return Asked(queries, known, _ready(config, queries, answers), earlier, counts, left_out)


def again(config: MineConfig, dataset: Dataset, examples: Iterable[Example], bad: BadRows) -> Asked:
    """The queries of a training set that are mined anew. All known positives count: those of the examples, and the judgments'.

    Raises:
        InputError: a bad row; no answers though the config asks for them.
    """
    earlier = {example.query_id: example for example in examples}
    queries = {query: example.query for query, example in earlier.items()}
    judged = positives_of(dataset.qrels(config.split)) if config.split else {}
    known = {query: list(dict.fromkeys([*example.positives, *judged.get(query, ())])) for query, example in earlier.items()}
    answers, _ = answers_of(config, dataset, queries, bad)
    return Asked(queries, known, _ready(config, queries, answers), earlier, {"again": len(queries)})


def answers_of(
    config: MineConfig, dataset: Dataset, texts: Mapping[str, str], bad: BadRows, needed: bool = True
) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Answers by query id, of the data set and of the file of questions, and the questions that no query of `texts` has.

    Raises:
        InputError: a bad row; no answers though the config asks for them and they are needed.
    """
    answers: dict[str, tuple[str, ...]] = {}
    if config.exclude_answers and config.split and isinstance(dataset, Supervised):
        answers.update(dataset.answers(config.split))
    new = _questions(config, texts, answers, bad) if config.questions else {}
    answers = {query: found for query, found in answers.items() if any(map(str.strip, found))}
    if config.exclude_answers and needed and not answers and config.questions:
        raise InputError(f"{config.questions} gives no answers; expected rows question <tab> ['answer', ...] with some that are not empty")
    if config.exclude_answers and needed and not answers:
        raise InputError(f"{config.dataset} gives no answers for exclude_answers={config.exclude_answers}; name a file by config.questions")
    return answers, new


def _ready(config: MineConfig, queries: Iterable[str], answers: Mapping[str, tuple[str, ...]]) -> dict[str, Answers]:
    mode = config.exclude_answers or "string"
    return {query: Answers(answers[query], mode) for query in queries if query in answers}


def _earlier(config: MineConfig, bad: BadRows) -> dict[str, Example]:
    """The examples to be extended, by query id."""
    if not config.training_set:
        return {}
    path = file_of(config.training_set)
    found = {example.query_id: example for example in read_examples(path, bad)}
    if any(config.pool_name in example.negatives for example in found.values()):
        raise InputError(f"{path} already has negatives in the pool {config.pool_name!r}; name the new one by config.pool")
    return found


def _judged(config: MineConfig, dataset: Dataset, earlier: Mapping[str, Example]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """All positives by query, what the judgments say and what the earlier training set says; and the texts of the split."""
    known = positives_of(dataset.qrels(config.split)) if config.split else {}
    for query, example in earlier.items():
        known[query] = list(dict.fromkeys([*example.positives, *known.get(query, ())]))
    return known, dataset.queries(config.split) if config.split else {}


def _questions(config: MineConfig, texts: Mapping[str, str], answers: dict[str, tuple[str, ...]], bad: BadRows) -> dict[str, str]:
    """Add the answers of questions to queries of the same text; returns the questions that no query has, under ids of their texts."""
    by_text: dict[str, list[str]] = {}
    for query, text in texts.items():
        by_text.setdefault(normalized(text), []).append(query)
    new: dict[str, str] = {}
    for question in read_questions(str(config.questions), bad):
        name = query_of(question.text)
        found = by_text.get(normalized(question.text), [name.id])
        new.update({name.id: name.text} if found == [name.id] and name.id not in texts else {})
        for query in found:
            answers[query] = tuple(dict.fromkeys([*answers.get(query, ()), *question.answers]))
    return new


def _unlabelled(
    config: MineConfig, dataset: Dataset, taken: Mapping[str, str], earlier: Mapping[str, Example], bad: BadRows
) -> tuple[dict[str, str], int]:
    """Queries of a file, none of them one of the data set; and how many were left out, since they have the text of a judged query.

    What is judged of that text, for whatever split, would be taken for negatives here.
    """
    if not config.unlabelled:
        return {}, 0
    form, _, path = config.unlabelled.partition(":")
    before = {name: example.query for name, example in earlier.items()}
    judged = {normalized(text) for split in dataset.splits for text in dataset.queries(split).values()}
    again = {normalized(text) for text in before.values()}
    found: dict[str, str] = {}
    same = 0
    for query in _FILES[form](path, bad):
        _need_own(config, query, taken, before)
        if not query.text.strip():
            assert bad.place is not None
            bad.bad(*bad.place, "empty query", "; expected text")
            continue
        text = normalized(query.text)
        if text in judged or (text in again and query.id not in before):  # one of an earlier run may come again
            same += 1
        else:
            found[query.id] = query.text
    return found, same


def _need_own(config: MineConfig, query: Query, taken: Mapping[str, str], earlier: Mapping[str, str]) -> None:
    """Refuse an id that means another query elsewhere; one that an earlier run found a positive for may come again."""
    if query.id in taken or earlier.get(query.id, query.text) != query.text:
        where = config.dataset if query.id in taken else config.training_set
        raise InputError(f"{config.unlabelled}: the query id {query.id!r} is also one of {where}; expected ids of their own")


def need_file(unlabelled: str) -> Path:
    """The path in ``tsv:FILE`` or ``jsonl:FILE``.

    Raises:
        InputError: another format, or no such file.
    """
    form, _, path = unlabelled.partition(":")
    if form not in _FILES or not path:
        raise InputError(f"config.unlabelled={unlabelled!r}: expected one of {', '.join(f'{name}:FILE' for name in _FILES)}")
    if not Path(path).is_file():
        raise InputError(f"config.unlabelled={unlabelled!r}: {path} is no file")
    return Path(path)


def identities(config: MineConfig) -> dict[str, str | Path]:
    """What `gather` reads, for the record of inputs."""
    found: dict[str, str | Path] = {"dataset": sources.identity(config.dataset)}
    if config.questions:
        found["questions"] = Path(config.questions)
    if config.unlabelled:
        found["unlabelled"] = need_file(config.unlabelled)
    if config.training_set:
        found["training_set"] = config.training_set
    return found

"""BM25 by bm25s, in Lucene's variant (Kamphuis et al. 2020, table 1, with exact document lengths).

score = sum over query words of ln(1 + (n - df + 0.5) / (df + 0.5)) * tf / (tf + k1 * (1 - b + b * length / mean length))
"""

import dataclasses
import functools
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from denseir_jax.core import artifacts
from denseir_jax.core.console import Meter, progress
from denseir_jax.core.errors import InputError
from denseir_jax.data.facts import build, read_facts
from denseir_jax.data.records import Passage, Ranking
from denseir_jax.search.ids import read_ids, write_ids
from denseir_jax.search.rankings import Rankings

_WORD = re.compile(r"\w+")
_FACTS, _IDS = "bm25.json", "ids.txt"
_MOST_K1 = 1e6  # a word's frequency hardly saturates at 100 already
# The list of Lucene's EnglishAnalyzer.
_STOP_WORDS = """
a an and are as at be but by for if in into is it no not of on or
such that the their then there these they this to was will with
"""


@dataclasses.dataclass(frozen=True)
class Bm25Config:
    """k1 and b as in Anserini's defaults for passages; words are ``\\w+`` of the lower-cased text, not stemmed.

    Attributes:
        use_title: whether a passage's title is put before its text.
    """

    k1: float = 0.9
    b: float = 0.4
    stop_words: Literal["english", "none"] = "english"
    use_title: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.k1 <= _MOST_K1 or not 0 <= self.b <= 1:  # nan is in no range
            raise ValueError(f"k1={self.k1} must be in [0, {_MOST_K1}] and b={self.b} in [0, 1]")

    def words(self, text: str) -> list[str]:
        """The words of a text that count."""
        stop = _stop_words() if self.stop_words == "english" else frozenset()
        return [word for word in _WORD.findall(text.lower()) if word not in stop]


class Bm25:
    """An inverted index over passages.

    Rankings: score descending, equal scores in corpus order; a passage that shares no word with the query is no result.

    Attributes:
        ids: passage ids in corpus order. config: the settings it was built with.
    """

    def __init__(self, library: Any, ids: Sequence[str], config: Bm25Config):
        self._library, self.ids, self.config = library, list(ids), config
        self._row: dict[str, int] | None = None

    @classmethod
    def build(cls, passages: Iterable[Passage], config: Bm25Config) -> "Bm25":
        """Index all passages; about 8 bytes a word are held while it is built.

        Raises:
            InputError: there is no passage, or not one word in any.
        """
        bm25s = _bm25s()
        vocabulary: dict[str, int] = {}
        ids, documents = [], []
        for passage in progress(passages, "bm25: reading", None, "passages"):
            ids.append(passage.id)
            words = config.words(f"{passage.title} {passage.text}" if config.use_title else passage.text)
            documents.append([vocabulary.setdefault(word, len(vocabulary)) for word in words])
        if not vocabulary:
            raise InputError(f"bm25: {len(ids):,} passages without a single word; nothing to index")
        library = bm25s.BM25(method="lucene", k1=config.k1, b=config.b)
        library.index((documents, vocabulary), show_progress=False)
        return cls(library, ids, config)

    def scores(self, query: str) -> Float[np.ndarray, " n"]:
        """Scores of all passages, in corpus order; a word asked twice counts twice."""
        words = self._library.get_tokens_ids(self.config.words(query))
        if not words:
            return np.zeros(len(self.ids), np.float32)
        return np.asarray(self._library.get_scores_from_ids(words), np.float32)

    def search(self, queries: Mapping[str, str], k: int) -> Ranking:
        """The k best passages of each query (id -> text); fewer where fewer share a word with it."""
        return dict(self.rankings(queries, k))

    def rankings(self, queries: Mapping[str, str], k: int) -> Rankings:
        """As `search`, in arrays."""
        k = min(k, len(self.ids))
        found, rows = np.full((len(queries), k), -np.inf, np.float32), np.full((len(queries), k), -1, np.int32)
        with Meter("bm25: searching", len(queries), "queries") as meter:
            for number, text in enumerate(queries.values()):
                scores = self.scores(text)
                best = self._best(scores, k)
                found[number, : len(best)], rows[number, : len(best)] = scores[best], best
                meter.advance()
        return Rankings(list(queries), self.ids, found, rows)

    def score_of(self, query: str, passage_ids: Sequence[str]) -> list[float]:
        """Scores of named passages; one that is not indexed has nan."""
        if self._row is None:
            self._row = {item: row for row, item in enumerate(self.ids)}
        scores = self.scores(query)
        return [float(scores[self._row[item]]) if item in self._row else float("nan") for item in passage_ids]

    def _best(self, scores: np.ndarray, k: int) -> np.ndarray:
        """Rows, best first."""
        rows: np.ndarray = np.flatnonzero(scores > 0)
        if len(rows) > k:  # all that reach the k-th score, so that equals at the edge are cut by row, not by chance
            rows = rows[scores[rows] >= np.partition(scores[rows], -k)[-k]]
        return rows[np.argsort(-scores[rows], kind="stable")[:k]]

    def save(self, folder: Path) -> None:
        """Write the index whole or not at all."""
        with artifacts.new_folder(folder.absolute()) as temporary:
            self._library.save(str(temporary), show_progress=False)
            write_ids(temporary / _IDS, self.ids)
            facts = {"config": dataclasses.asdict(self.config), "ids_sha256": artifacts.file_sha256(temporary / _IDS)}
            artifacts.write_json(temporary / _FACTS, facts)

    @classmethod
    def load(cls, folder: Path) -> "Bm25":
        """Read what `save` wrote, memory-mapped.

        Raises:
            InputError: no index there, or its files were changed.
        """
        facts = read_facts(folder / _FACTS, config=dict, ids_sha256=str)
        config = build(Bm25Config, facts["config"], folder / _FACTS)
        ids = read_ids(folder / _IDS)
        if artifacts.file_sha256(folder / _IDS) != facts["ids_sha256"]:
            raise InputError(f"{folder / _IDS} was changed after the index had been built; remove {folder}")
        try:
            return cls(_bm25s().BM25.load(str(folder), mmap=True, show_progress=False), ids, config)
        except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
            raise InputError(f"the BM25 index in {folder} cannot be read: {error}; remove it") from None


@functools.cache
def _stop_words() -> frozenset[str]:
    return frozenset(_STOP_WORDS.split())


def _bm25s() -> Any:
    import bm25s  # on first use: importing it touches a JAX device

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # the library sets it to DEBUG, whatever the root logger's level is
    return bm25s

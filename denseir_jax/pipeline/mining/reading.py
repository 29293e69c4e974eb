"""One pass over the corpus for all that mining must know of its texts, which are not kept."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from denseir_jax.core import console
from denseir_jax.data.records import Dataset, Passage
from denseir_jax.evals.answers import prepared
from denseir_jax.pipeline.mining.asking import Asked
from denseir_jax.pipeline.mining.config import MineConfig
from denseir_jax.search import negatives
from denseir_jax.search.negatives import Marks
from denseir_jax.search.rankings import Places, Rankings


@dataclass
class Evidence:
    """What is known of what was ranked.

    Attributes:
        keys: passage id -> hash of its text. answered: bool [q, reach], reach being as far as anything is taken from; None if
        answers do not matter. probability: float32 [q, hi], the cross-encoder's, NaN where it was not asked; None without one.
    """

    keys: dict[str, bytes]
    answered: Bool[np.ndarray, "q reach"] | None = None
    probability: Float[np.ndarray, "q hi"] | None = None

    def of(self, number: int) -> Marks:
        """Of the query with this number in the rankings."""
        answered, probability = self.answered, self.probability
        return Marks(None if answered is None else answered[number].tolist(), None if probability is None else probability[number].tolist())


def read_texts(dataset: Dataset, asked: Asked, rankings: Rankings, config: MineConfig) -> Evidence:
    """Text keys of all that is ranked or known to be positive, and which ranked passages hold an answer."""
    wanted = rankings.passages().union(*asked.known.values())
    passages: Iterable[Passage] = console.progress(dataset.corpus(), "mine: reading texts", None, "passages")
    answered = None
    if config.exclude_answers:
        reach = min(max(config.hi, config.denoise.fill_to), rankings.rows.shape[1])
        answered = np.zeros((len(rankings), reach), bool)
        passages = _marking(passages, asked, rankings, config, answered)
    return Evidence(negatives.text_keys(passages, wanted), answered)


def _marking(
    passages: Iterable[Passage], asked: Asked, rankings: Rankings, config: MineConfig, answered: Bool[np.ndarray, "q reach"]
) -> Iterator[Passage]:
    """Pass passages through; mark where each holds an answer of a query that ranks it."""
    queries, reach = list(rankings), answered.shape[1]
    rows = rankings.rows[:, :reach].copy()
    rows[[query not in asked.answers for query in queries]] = -1
    places, marked = Places(rows.reshape(-1)), answered.reshape(-1)
    for passage in passages:
        row = rankings.row_of.get(passage.id, -1)
        at = places.of(row) if row >= 0 else []
        if at:
            assert config.exclude_answers
            texts = [prepared(text, config.exclude_answers) for text in (passage.text, passage.title)[: 1 + config.answers_in_title]]
            for place in at:
                answers = asked.answers[queries[place // reach]]
                marked[place] = any(answers.within(text) for text in texts)
        yield passage

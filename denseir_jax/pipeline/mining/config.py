"""The config of the stage `mine`."""

import dataclasses
from typing import Literal

from denseir_jax.core.config import located, operational
from denseir_jax.data.template import TextTemplate
from denseir_jax.search.bm25 import Bm25Config
from denseir_jax.search.denoise import DenoiseConfig
from denseir_jax.search.negatives import NegativesConfig
from denseir_jax.search.scann_index import ScannConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class MineConfig(NegativesConfig):
    """What to mine, with what, and what is kept (see `NegativesConfig` for lo, hi, n, take and the margins).

    Attributes:
        dataset: source as format:path. split: whose judgments count; "" for none: only queries without judgments are mined.
        retriever: "bm25", run:DIR or hf:DIR.
        embeddings: a finished encode run of that retriever; without it the corpus is encoded here.
        index: how vectors are searched: "exact" gives the same bytes everywhere, "scann" is faster on a large corpus and
        gives the same bytes in this folder only. depth: passages retrieved a query. training_set: a finished mine run, or a
        .jsonl file, whose pools are kept beside the new one. pool: name of the new pool; "" is bm25 or mined.
        exclude_answers: a passage that holds an answer of its query is no negative; how answers are looked for (see
        `evals.answers`), "" not at all. answers_in_title: in titles too (RocketQA does, DPR does not). questions: a file with
        answers, ``question <tab> ['answer', ...]``, for queries of the same text; without it the data set gives the answers.
        positives_by_answer: a query that has answers and no judged positive takes the first of its hi passages that holds one;
        questions that the data set lacks are mined so too.
        unlabelled: queries without judgments, tsv:FILE or jsonl:FILE, whose positives a cross-encoder finds. denoise: see
        `DenoiseConfig`.
    """

    stage: str = "mine"
    dataset: str = located("")
    split: str = "train"
    retriever: str = located("bm25")
    embeddings: str | None = located(None)
    index: Literal["scann", "exact"] = "scann"
    depth: int = 200
    training_set: str | None = located(None)
    pool: str = ""
    exclude_answers: Literal["", "string", "regex"] = ""
    answers_in_title: bool = False
    questions: str | None = located(None)
    positives_by_answer: bool = False
    unlabelled: str | None = located(None)
    denoise: DenoiseConfig = DenoiseConfig()
    seed: int = 0
    template: TextTemplate = TextTemplate()
    bm25: Bm25Config = Bm25Config()
    scann: ScannConfig = ScannConfig()
    batch_tokens: int = operational(0)
    on_bad_row: Literal["error", "skip"] = "error"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hi > self.depth:
            raise ValueError(f"hi={self.hi} lies beyond depth={self.depth}, the number of passages retrieved")
        if self.retriever == "bm25" and self.embeddings:
            raise ValueError("embeddings are of no use to retriever=bm25")
        if self.seed < 0 or self.batch_tokens < 0:
            raise ValueError(f"seed={self.seed} and batch_tokens={self.batch_tokens} must not be negative")
        if not self.exclude_answers and (self.questions or self.positives_by_answer or self.answers_in_title):
            raise ValueError("questions, positives_by_answer and answers_in_title need exclude_answers: how answers are looked for")
        if self.unlabelled and not self.denoise.reranker:
            raise ValueError("the positives of unlabelled queries are found by a cross-encoder; name it by denoise.reranker")
        if self.denoise.fill_to and not self.hi < self.denoise.fill_to <= self.depth:
            raise ValueError(f"denoise.fill_to={self.denoise.fill_to} must lie in (hi={self.hi}, depth={self.depth}], or be 0")

    @property
    def pool_name(self) -> str:
        """The pool that is written."""
        return self.pool or ("bm25" if self.retriever == "bm25" else "mined")

"""What a half-trained encoder is worth, every N steps: a small retrieval task, and how far apart its vectors lie.

The loss alone does not say whether the vectors retrieve anything, or whether they have all collapsed to one.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Float, Int

from denseir_jax.analyses.spread import cosine_spread
from denseir_jax.core.errors import ConfigError, InputError
from denseir_jax.data.batches import frame
from denseir_jax.data.tokenizer import SpecialIds, Tokenizer
from denseir_jax.data.tokens import TokenStore
from denseir_jax.models.embedder import Embedder, EmbedderConfig
from denseir_jax.models.shape import EncoderConfig
from denseir_jax.objectives.base import Embeds, Objective, ScoresPairs

Embed = Callable[[Any, Any, Any], jax.Array]  # params, ids [b, l], length [b] -> [b, d]
_ROWS = 64  # encoded at a time
_CANDIDATES = 32  # that a cross-encoder puts in order, a query


@dataclasses.dataclass(frozen=True)
class Texts:
    """Rows ready for the encoder: ids int32 [n, l], length int32 [n]."""

    ids: Int[np.ndarray, "n l"]
    length: Int[np.ndarray, " n"]

    @staticmethod
    def pack(tokens: Sequence[np.ndarray], special: SpecialIds, length: int) -> "Texts":
        """[CLS] tokens [SEP], cut and padded to `length`."""
        room = length - 2
        ids = np.zeros((len(tokens), room), np.int32)
        for row, text in zip(ids, tokens, strict=True):
            row[: min(len(text), room)] = text[:room]
        lengths = np.asarray([min(len(text), room) for text in tokens], np.int64)
        return Texts(*frame(ids, lengths, special.cls, special.sep, special.pad))


@dataclasses.dataclass(frozen=True)
class Task:
    """A small retrieval task: `relevant[i]` lists the passages that answer query i, `starts` the first row of each, its first block."""

    queries: Texts
    passages: Texts
    relevant: tuple[np.ndarray, ...]
    starts: Int[np.ndarray, " p"]


def halves(store: TokenStore, size: int, seed: int) -> Task:
    """A task without labels: the first half of a passage must find its second half among `size` others.

    Raises:
        InputError: fewer than two passages are long enough (8 tokens).
    """
    order = np.random.default_rng(seed).permutation(store.n_pieces)
    texts: list[np.ndarray] = []
    for piece in order:
        ids = store.piece(int(piece))[0]
        if len(ids) >= 8:
            texts.append(ids)
        if len(texts) == size:
            break
    if len(texts) < 2:
        raise InputError("the retrieval probe needs at least two passages of 8 tokens; switch it off by --config.cadence.probe=0")
    length = store.template.passage_length
    kept = [ids[: 2 * (length - 2)] for ids in texts]
    queries = Texts.pack([ids[: len(ids) // 2] for ids in kept], store.special_ids, length)
    passages = Texts.pack([ids[len(ids) // 2 :] for ids in kept], store.special_ids, length)
    return Task(queries, passages, tuple(np.asarray([i]) for i in range(len(kept))), np.arange(len(kept)))


def judged(
    store: TokenStore, tokenizer: Tokenizer, queries: Mapping[str, str], qrels: Mapping[str, Mapping[str, int]], size: int, seed: int
) -> Task:
    """Up to `size` judged queries against their relevant passages and random others, at most ``4 * size`` passages."""
    rng = np.random.default_rng(seed)
    able = [q for q in sorted(qrels) if q in queries and any(rel > 0 and doc in store.row_of for doc, rel in qrels[q].items())]
    if not able:
        raise InputError(
            "the retrieval probe found no judged query whose passage is in the corpus; switch it off by --config.cadence.probe=0"
        )
    chosen = [able[i] for i in sorted(rng.permutation(len(able))[:size])]
    answers = [[store.row_of[doc] for doc, rel in qrels[q].items() if rel > 0 and doc in store.row_of] for q in chosen]
    rows = sorted({row for found in answers for row in found})
    taken = set(rows)
    others = [int(row) for row in rng.permutation(store.n_documents)[: 5 * size] if row not in taken]
    rows += others[: max(4 * size - len(rows), 0)]
    place = {row: i for i, row in enumerate(rows)}
    encoded = tokenizer.encode_batch([store.template.query(queries[q]) for q in chosen])
    blocks, number_of = store.template.cut([store.document(row)[0] for row in rows])
    return Task(
        Texts.pack([e.ids for e in encoded], store.special_ids, store.template.query_length),
        Texts.pack(blocks, store.special_ids, store.template.passage_length),
        tuple(np.asarray([place[row] for row in found]) for found in answers),
        np.cumsum(number_of) - number_of,
    )


class Probe:
    """Call it with parameters to get RR@10, R@10, and how far apart vectors lie: cosine_mean, cosine_std, and the same of [CLS].

    cosine_mean: mean cosine between the vectors of different passages; near 1 = collapsed. cosine_std: its spread.
    cls_*: of the bare [CLS] states, whatever the pooling: the bottleneck that most pre-training objectives train.
    """

    def __init__(self, task: Task, objective: Embeds, encoder: EncoderConfig):
        self._task = task
        cls = Embedder(encoder, EmbedderConfig(pooling="cls"))

        def embed_cls(params: Any, ids: Any, length: Any) -> jax.Array:
            return cls.embed(list(objective.towers(params).values())[-1], ids, length)

        self._query, self._passage = _compiled(objective.embed_query), _compiled(objective.embed_passage)
        self._cls = _compiled(embed_cls)

    def __call__(self, params: Any) -> dict[str, float]:
        queries = _encode(self._query, params, self._task.queries)
        passages = _encode(self._passage, params, self._task.passages)
        ranks = best_ranks(np.maximum.reduceat(queries @ passages.T, self._task.starts, axis=1), self._task.relevant)
        found = ranks <= 10
        mean, spread = cosine_spread(passages)
        cls_mean, cls_spread = cosine_spread(_encode(self._cls, params, self._task.passages))
        return {
            "RR@10": float(np.mean(np.where(found, 1 / ranks, 0))),
            "R@10": float(np.mean(found)),
            "cosine_mean": mean,
            "cosine_std": spread,
            "cls_cosine_mean": cls_mean,
            "cls_cosine_std": cls_spread,
        }


class RerankProbe:
    """Call it with parameters to get RR@10 and accuracy (the first is relevant) of a cross-encoder that puts every query's
    relevant passages and random others, `_CANDIDATES` in all, in order: the same ones each time."""

    def __init__(self, task: Task, objective: ScoresPairs):
        self._score = jax.jit(objective.score, out_shardings=P())
        self._task, drawn = task, []
        for number, relevant in enumerate(task.relevant):
            others = np.setdiff1d(np.arange(len(task.passages.ids)), relevant)
            random = np.random.default_rng(number).permutation(others)[: max(_CANDIDATES - len(relevant), 1)]
            drawn.append(np.concatenate([relevant, random]))
        self._candidates = drawn

    def __call__(self, params: Any) -> dict[str, float]:
        queries = np.repeat(np.arange(len(self._candidates)), [len(found) for found in self._candidates])
        rows, texts = np.concatenate(self._candidates), self._task.passages
        asked = self._task.queries

        def some(take: np.ndarray) -> jax.Array:
            q, p = queries[take], rows[take]
            return self._score(params, asked.ids[q], asked.length[q], texts.ids[p], texts.length[p])

        scores = np.split(_in_parts(some, len(rows)), np.cumsum([len(found) for found in self._candidates])[:-1])
        ranks = np.concatenate(
            [best_ranks(row[None], [np.arange(len(relevant))]) for row, relevant in zip(scores, self._task.relevant, strict=True)]
        )
        return {"RR@10": float(np.mean(np.where(ranks <= 10, 1 / ranks, 0))), "accuracy": float(np.mean(ranks == 1))}


def make_probe(task: Task, objective: Objective, encoder: EncoderConfig) -> Callable[[Any], dict[str, float]]:
    """The probe that fits an objective.

    Raises:
        ConfigError: none does.
    """
    if isinstance(objective, ScoresPairs):
        return RerankProbe(task, objective)
    if isinstance(objective, Embeds):
        return Probe(task, objective, encoder)
    raise ConfigError("there is no probe for this objective; switch it off by --config.cadence.probe=0")


def of_sets(probes: Mapping[str, Callable[[Any], dict[str, float]]]) -> Callable[[Any], dict[str, float]] | None:
    """One probe of several data sets: each measure as the mean over sets, by which the best is chosen, and as measure/set."""
    if len(probes) < 2:
        return next(iter(probes.values()), None)

    def measures(params: Any) -> dict[str, float]:
        found = {name: probe(params) for name, probe in probes.items()}
        names = next(iter(found.values()))
        mean = {measure: float(np.mean([one[measure] for one in found.values()])) for measure in names}
        return mean | {f"{measure}/{name}": value for name, one in found.items() for measure, value in one.items()}

    return measures


def _compiled(embed: Embed) -> Embed:
    return jax.jit(embed, out_shardings=P())  # on every device, so that each process can read it


def _encode(embed: Embed, params: Any, texts: Texts) -> Float[np.ndarray, "n d"]:
    return _in_parts(lambda take: embed(params, texts.ids[take], texts.length[take]), len(texts.ids))


def _in_parts(compute: Callable[[np.ndarray], jax.Array], n: int) -> Float[np.ndarray, "n ..."]:
    """What `compute` gives for rows 0 to n, `_ROWS` at a time: one shape alone is compiled."""
    padded = -(-n // _ROWS) * _ROWS
    take = np.minimum(np.arange(padded), n - 1)
    parts = [np.asarray(compute(take[i : i + _ROWS])) for i in range(0, padded, _ROWS)]
    return np.concatenate(parts)[:n].astype(np.float32)


def best_ranks(scores: Float[np.ndarray, "q n"], relevant: Sequence[np.ndarray]) -> Int[np.ndarray, " q"]:
    """Rank (from 1) of each query's best relevant passage; a tie with an irrelevant one counts against it."""
    ranks = []
    for row, answers in zip(scores, relevant, strict=True):
        best = row[answers].max()
        others = np.ones(len(row), bool)
        others[answers] = False
        ranks.append(1 + int(np.sum(row[others] >= best)))
    return np.asarray(ranks)

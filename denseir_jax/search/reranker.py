"""What scores a query together with a passage: a cross-encoder, on disk and in hand.

A training run holds ``cross_encoder/``, a folder that transformers loads; ``denseir.json`` in it adds what the others do not say:
text template, most tokens of a pair, and the hash of the parameters, by which scores of two models are told apart.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float, Int
from scipy.special import expit

from denseir_jax.core import artifacts
from denseir_jax.core.console import Meter
from denseir_jax.core.errors import InputError
from denseir_jax.data.facts import build, read_facts
from denseir_jax.data.records import Passage
from denseir_jax.data.template import TextTemplate
from denseir_jax.data.tokenizer import Tokenizer, load_tokenizer
from denseir_jax.models import hf, hf_pairs
from denseir_jax.models.cross_encoder import CrossEncoder
from denseir_jax.search.devices import rows_over_devices
from denseir_jax.search.encode import Batch, plan, tokens_at_once
from denseir_jax.search.retriever import FACTS, folder_of, need_params

FOLDER = "cross_encoder"  # its place in a run folder


@runtime_checkable
class PairScorer(Protocol):
    """What is needed of a cross-encoder.

    Attributes:
        sha256: of its parameters: scores of two models are told apart by it.
    """

    @property
    def sha256(self) -> str: ...

    def score(self, pairs: Sequence[tuple[str, Passage]], meter: Meter | None = None) -> Float[np.ndarray, " n"]:
        """float32 logits of (query text, passage), in their order; larger is more relevant."""
        ...

    def probability(self, scores: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Scores as probabilities of relevance, in [0, 1]."""
        ...


class _Texts(NamedTuple):
    """Texts that are different from each other, as tokens without [CLS] and [SEP], and which of them stands where."""

    tokens: list[Int[np.ndarray, " _"]]
    of: Int[np.ndarray, " n"]

    @property
    def lengths(self) -> Int[np.ndarray, " n"]:
        """With [CLS] and [SEP]."""
        return np.array([len(ids) + 2 for ids in self.tokens], np.int64)[self.of]


@dataclasses.dataclass(frozen=True)
class Reranker:
    """A cross-encoder with all that its scores depend on. A `PairScorer`.

    Attributes:
        params: ``{"encoder", "classifier"}``, numpy. template: how texts are written, and the lengths of each.
        pair_length: most tokens of a pair; what is longer loses the end of its passage. sha256: of the parameters.
        batch_tokens: tokens computed at once on a device, about; 0: as `encode.tokens_at_once` says.
    """

    model: CrossEncoder
    params: Mapping[str, Any]
    tokenizer: Tokenizer
    template: TextTemplate
    pair_length: int
    sha256: str
    batch_tokens: int = 0

    @property
    def facts(self) -> dict[str, Any]:
        """What scores depend on beside the texts: equal here means they can be compared."""
        return {
            "params_sha256": self.sha256,
            "tokenizer_sha256": self.tokenizer.sha256,
            "template": self.template.facts,
            "pair_length": self.pair_length,
        }

    def probability(self, scores: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """The sigmoid of the score: for two outputs the softmax of the second, since their score is the difference."""
        return expit(np.asarray(scores, np.float32))

    def score(self, pairs: Sequence[tuple[str, Passage]], meter: Meter | None = None) -> Float[np.ndarray, " n"]:
        """float32 logits of (query text, passage), in their order; pairs of like length share a batch.

        Raises:
            InputError: a score is not finite.
        """
        queries = self._texts([self.template.query(query) for query, _ in pairs], self.template.query_length)
        passages = self._texts([self.template.passage(passage) for _, passage in pairs], self.template.passage_length)
        lengths = np.minimum(self.model.room(queries.lengths, passages.lengths), self.pair_length)
        scores = np.empty(len(pairs), np.float32)
        split, _, devices = rows_over_devices()
        pending: tuple[Batch, Any] | None = None
        for batch in [*plan(lengths, self.pair_length, tokens_at_once(self.batch_tokens, devices), devices), None]:
            computing = None
            if batch is not None:
                rows = jax.device_put(self._fill(queries, passages, batch), split)
                computing = batch, _compiled(self.model)(self._on_devices, *rows, batch.length)
            if pending is not None:  # read while the next one is under way
                done, found = pending
                scores[done.rows] = np.asarray(found)[: len(done.rows)]
                if meter is not None:
                    meter.advance(len(done.rows))
            pending = computing
        if not np.isfinite(scores).all():
            raise InputError(f"the cross-encoder {self.sha256[:12]} gives scores that are not finite numbers; its parameters are spoilt")
        return scores

    @functools.cached_property
    def _on_devices(self) -> Any:
        return jax.device_put(dict(self.params), rows_over_devices()[1])

    def _texts(self, texts: Sequence[str], longest: int) -> _Texts:
        number = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        tokens = [encoded.ids[: longest - 2] for encoded in self.tokenizer.encode_batch(list(number))]
        return _Texts(tokens, np.array([number[text] for text in texts], np.int64))

    def _fill(self, queries: _Texts, passages: _Texts, batch: Batch) -> tuple[np.ndarray, ...]:
        """(ids, length) of the queries and of the passages of a batch, cut so that no pair is longer than it may be."""
        longest = self.template.query_length
        query = self._framed(queries, batch, longest, np.full(len(batch.rows), longest))
        left = self.pair_length - self.model.room(query[1][: len(batch.rows)], 0)
        return *query, *self._framed(passages, batch, batch.length, left)

    def _framed(self, texts: _Texts, batch: Batch, width: int, most: Int[np.ndarray, " k"]) -> tuple[np.ndarray, np.ndarray]:
        special = self.tokenizer.special_ids
        ids, length = np.full((batch.size, width), special.pad, np.int32), np.full(batch.size, 2, np.int32)
        for place, (row, longest) in enumerate(zip(batch.rows, most, strict=True)):
            text = texts.tokens[texts.of[row]][: longest - 2]
            ids[place, 1 : len(text) + 1] = text
            length[place] = len(text) + 2
        ids[:, 0] = special.cls
        ids[np.arange(batch.size), length - 1] = special.sep
        return ids, length


@functools.cache
def _compiled(model: CrossEncoder) -> Callable[..., Any]:
    """One compiled function a model, for all parameters of this process: (params, query, length, passage, length, width) -> scores."""

    def score(params: Any, query: Any, query_length: Any, passage: Any, passage_length: Any, width: int) -> Any:
        return model.score(params, model.join(query, query_length, passage, passage_length, width))

    return jax.jit(score, static_argnums=5)


def save_reranker(
    run_folder: Path, model: CrossEncoder, params: Mapping[str, Any], tokenizer: Tokenizer, template: TextTemplate, pair_length: int
) -> str:
    """Write ``cross_encoder/`` into a run folder, whole or not at all; return the hash of its parameters."""
    kept = {part: params[part] for part in ("encoder", "classifier")}
    rows = model.encoder.vocab_size  # beyond it is padding, which a reader gets as zeros
    word = np.array(kept["encoder"]["embeddings"]["word"])
    word[rows:] = 0
    kept["encoder"] = {**kept["encoder"], "embeddings": {**kept["encoder"]["embeddings"], "word": word}}
    sha256 = _sha256(kept)
    facts = {"template": template.facts, "pair_length": pair_length, "params_sha256": sha256}
    hf_pairs.write_cross_encoder(run_folder / FOLDER, model.encoder, kept, tokenizer, pair_length, facts)
    return sha256


def is_reranker(origin: str) -> bool:
    """Whether ``run:DIR`` or ``hf:DIR`` is a cross-encoder, as far as its folder says: it may still be one that cannot be read.

    Raises:
        InputError: as `retriever.folder_of`.
    """
    folder = folder_of(origin)
    if origin.startswith("run:"):
        return (folder / FOLDER).is_dir()
    config = folder / "config.json"
    return config.is_file() and hf.has_classifier(artifacts.read_json(config))


def load_reranker(origin: str, template: TextTemplate | None = None, pair_length: int = 0, batch_tokens: int = 0) -> Reranker:
    """Load a cross-encoder.

    Args:
        origin: ``run:DIR``, a finished training run, or ``hf:DIR``, a folder of ``ForSequenceClassification`` with 1 or 2 labels.
        template, pair_length: how texts are written and cut for a published model, which does not say it (0: both texts whole,
            as long as the template lets them be); a run brings its own, and others are refused. batch_tokens: see `Reranker`.
    Raises:
        InputError: no cross-encoder there, its parameters are not those that its ``denseir.json`` was written for, another
            template or length than it was trained with, or more tokens than it has positions.
    """
    folder = folder_of(origin)
    if origin.startswith("run:"):
        artifacts.finished_run(folder, ("finetune",))
        if not (folder / FOLDER / FACTS).exists():
            raise InputError(
                f"run folder {folder} holds no {FOLDER}/{FACTS}: it has no cross-encoder in it; expected a run that trained one"
            )
        folder = folder / FOLDER
    model, params, tokenizer = _read(folder)
    found = _sha256(params)
    if (folder / FACTS).exists():
        facts = read_facts(folder / FACTS, template=dict, pair_length=int, params_sha256=str)
        own = build(TextTemplate, facts["template"], folder / FACTS)
        if template not in (None, own) or pair_length not in (0, facts["pair_length"]):
            asked = f"{template or own}, pair_length={pair_length}"
            raise InputError(f"{folder} was trained with {own}, pair_length={facts['pair_length']}; another one was asked for: {asked}")
        need_params(folder, found, facts["params_sha256"])
        return Reranker(model, params, tokenizer, own, facts["pair_length"], found, batch_tokens)
    template = template or TextTemplate()
    pair_length = check_pair_length(model, template, pair_length)
    return Reranker(model, params, tokenizer, template, pair_length, found, batch_tokens)


def check_pair_length(model: CrossEncoder, template: TextTemplate, pair_length: int) -> int:
    """Most tokens of a pair; 0: what the template's lengths come to.

    Raises:
        InputError: no token of a passage fits behind the longest query, or the encoder has fewer positions.
    """
    least, whole = model.room(template.query_length, 3), model.room(template.query_length, template.passage_length)
    longest = pair_length or whole
    if not least <= longest <= model.encoder.max_length:
        raise InputError(
            f"query_length={template.query_length}, passage_length={template.passage_length}, pair_length={pair_length}: pairs of "
            f"{longest} tokens; expected {least}, for one token of the passage, to {model.encoder.max_length}, the encoder's positions"
        )
    return min(longest, whole)


def _read(folder: Path) -> tuple[CrossEncoder, dict[str, Any], Tokenizer]:
    found = hf.read_folder(folder)
    if "classifier" not in found.params:
        raise InputError(f"{folder} holds no cross-encoder; expected one with a classifier, as BertForSequenceClassification")
    params = {part: found.params[part] for part in ("encoder", "classifier")}
    tokenizer, outputs = load_tokenizer(found.tokenizer), len(params["classifier"]["out"]["bias"])
    if outputs > 2:
        raise InputError(f"{folder}: its classifier has {outputs} outputs; expected 1 (a score) or 2 (not relevant, relevant)")
    return CrossEncoder(found.encoder, tokenizer.sep_id, tokenizer.pad_id, outputs), params, tokenizer


def _sha256(params: Mapping[str, Any]) -> str:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return artifacts.arrays_sha256({jax.tree_util.keystr(path): np.asarray(leaf, np.float32) for path, leaf in leaves})

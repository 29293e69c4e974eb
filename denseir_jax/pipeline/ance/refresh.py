"""One round of the inferencer: encode, search, mine and publish a set by the trainer's newest checkpoint.

What is in hand lies in ``inferencer/round/``, parameters included: a round that was killed goes on, shard by shard, even when
the trainer has removed the checkpoint since, and ends in the same set (with the exact index: ScaNN builds differ).
"""

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from denseir_jax.core import artifacts, console, failpoints
from denseir_jax.core.errors import InputError
from denseir_jax.data import sources
from denseir_jax.data.examples import TRAINING_SET, Example, read_examples, write_examples
from denseir_jax.data.facts import build, read_facts
from denseir_jax.data.lines import BadRows
from denseir_jax.data.tokens import TokenStore
from denseir_jax.evals.evaluation import evaluate
from denseir_jax.pipeline.ance.config import CHECKPOINTS, INFERENCER, LOG, SETS, AnceConfig
from denseir_jax.pipeline.ance.sets import FACTS, SetFacts, Sets
from denseir_jax.pipeline.mining import asking, scoring
from denseir_jax.pipeline.mining.asking import Asked
from denseir_jax.pipeline.mining.choosing import Chooser
from denseir_jax.pipeline.mining.reading import read_texts
from denseir_jax.pipeline.mining.searching import Dense, Searcher
from denseir_jax.pipeline.mining.writing import Note, audit
from denseir_jax.pipeline.stages import training
from denseir_jax.pipeline.stages.encode import VECTORS
from denseir_jax.search import shards
from denseir_jax.search.denoise import Thresholds
from denseir_jax.search.retriever import Retriever, assembled
from denseir_jax.train import checkpoint, warm_start
from denseir_jax.train.state import nested, on_host

POOL, ROUND, _IN_HAND = "ance", "round", "round.json"
_MEASURES = ("nDCG@10", "RR@10")


@dataclasses.dataclass(frozen=True)
class Round:
    """What is mined now: which set it becomes, and by which checkpoint."""

    number: int
    checkpoint_step: int


class Refresher:
    """Makes the next set from the newest checkpoint of a run folder. Only one process may: the caller holds the folder.

    Args:
        workdir: the trainer's run folder, with set 0 and tokens in it. config: that of the trainer.
    """

    def __init__(self, workdir: Path, config: AnceConfig):
        self.workdir, self.config, self.sets = workdir, config, Sets(workdir / SETS)
        self.sets.clean()
        self.folder = workdir / INFERENCER / ROUND
        for left in self.folder.parent.glob(f".{ROUND}.*.tmp"):
            shutil.rmtree(left)
        self._store = TokenStore.open(Path(config.tokens) if config.tokens else workdir / "prepare")
        self._tokenizer = self._store.tokenizer()
        self._context = training.context(config, self._store, self._tokenizer, warm_start.load(config.init_from))
        self._objective = config.objective.build(self._context)
        self._shapes = jax.eval_shape(self._objective.init, jax.random.key(0))
        self._dataset, self._mine = sources.read_dataset(config.dataset, BadRows(config.on_bad_row)), config.mining
        # Scores of pairs are good for all rounds.
        self._judge = scoring.judge_of(self._mine, self.folder.parent / "pairs")

    def due(self) -> bool:
        """Whether there is a round to go on with, or a checkpoint newer than the one that mined the last set.

        Nobody would train on what the last step's checkpoint mines.
        """
        steps, newest = checkpoint.committed(self.workdir / CHECKPOINTS), self.sets.need_newest()
        fresh = bool(steps) and self.sets.facts(newest).checkpoint_step < steps[-1] < self.config.steps
        return fresh or self._begun() is not None

    def refresh(self) -> SetFacts | None:
        """Publish one set and return what it says of itself; None if no checkpoint is newer than the one that mined the last.

        Raises:
            InputError: a set that is needed is gone or was changed, or the parameters in hand cannot be read.
        """
        found = self._begin()
        if found is None:
            return None
        earlier = self._earlier(found.number)
        params = self._objective.towers(nested(self._params()))
        encoder, template = self._context.encoder, self._store.template
        retriever = assembled(params, encoder, self._context.embedder, self._tokenizer, template, self._objective.similarity)
        searcher, parts = self._searcher(retriever), self.config.refresh.query_parts
        asked = asking.again(self._mine, self._dataset, earlier[(found.number - 1) % parts :: parts], BadRows(self.config.on_bad_row))
        chooser = self._choose(searcher, asked, found.number)
        facts = self._publish(found, retriever.params_sha256, earlier, asked, chooser, self._measure(searcher))
        failpoints.reach("ance_published")
        shutil.rmtree(self.folder)
        return facts

    def _begin(self) -> Round | None:
        """The round that a killed life began, or a new one of the newest checkpoint."""
        newest, found = self.sets.need_newest(self.workdir / LOG), self._begun()
        if found is not None:
            if found.number == newest + 1:
                console.say(f"ance inferencer: goes on with set {found.number}")
                return found
            shutil.rmtree(self.folder)  # it was published
        if not self.due():
            return None
        step, params = checkpoint.read_params(self.workdir / CHECKPOINTS, self._shapes)
        with artifacts.new_folder(self.folder) as folder:
            warm_start.save_params(folder, on_host(params))
            artifacts.write_json(folder / _IN_HAND, dataclasses.asdict(Round(newest + 1, step)))
        return Round(newest + 1, step)

    def _begun(self) -> Round | None:
        """What is in hand; None where that is nothing, or not all that a round needs: it begins anew."""
        path = self.folder / _IN_HAND
        if not path.is_file() or not (self.folder / warm_start.PARAMS).is_file():
            return None
        return build(Round, read_facts(path, number=int, checkpoint_step=int), path)

    def _params(self) -> dict[str, np.ndarray]:
        path = self.folder / warm_start.PARAMS
        try:
            return dict(load_file(path))
        except SafetensorError as error:
            raise InputError(f"{path} cannot be read ({error}); remove {self.folder}, and the round begins anew") from None

    def _earlier(self, number: int) -> list[Example]:
        path = self.sets.examples(number - 1, self.sets.facts(number - 1).sha256)
        return list(read_examples(path, BadRows("error"), self._store.row_of))

    def _searcher(self, retriever: Retriever) -> Searcher:
        """Of the corpus, by this retriever."""
        folder = self.folder / VECTORS
        chunks = shards.chunks_of_store(self._store, retriever, self.config.refresh.shard_rows)
        shards.encode_corpus(folder, retriever, chunks, self._store.n_documents, "float16", self._mine.batch_tokens)
        failpoints.reach("ance_encoded")
        return Dense(self._mine, retriever, shards.open_for(folder, retriever), self.folder / "index")

    def _choose(self, searcher: Searcher, asked: Asked, number: int) -> Chooser:
        """What the stage `mine` does, but for the positives, which stay as they are."""
        searched = searcher.search(asked.queries, asked.known)
        evidence = read_texts(self._dataset, asked, searched.rankings, self._mine)
        thresholds = None
        if self._judge:
            scoring.score(self._dataset, asked, searched, evidence, self._mine, self._judge)
            thresholds = Thresholds(self._mine.denoise.keep_below, self._mine.denoise.positive_above)
        seed = self.config.seed + 1_000_003 * number  # every round draws anew
        return Chooser(self._mine, asked, searched, evidence, thresholds, seed)

    def _measure(self, searcher: Searcher) -> dict[str, float]:
        split = self.config.refresh.dev_split
        if not split:
            return {}
        qrels = self._dataset.qrels(split)
        queries = {query: text for query, text in self._dataset.queries(split).items() if query in qrels}
        return evaluate(dict(searcher.search(queries, {}).rankings), qrels, _MEASURES, documents_known=True).means()

    def _publish(
        self, found: Round, params_sha256: str, earlier: Sequence[Example], asked: Asked, chooser: Chooser, dev: Mapping[str, float]
    ) -> SetFacts:
        with self.sets.publish(found.number) as folder:
            with audit(folder) as note:
                counts = write_examples(folder / TRAINING_SET, (_renewed(example, asked, chooser, note) for example in earlier))
                failpoints.reach("ance_mid_publish")
            facts = SetFacts(
                **dataclasses.asdict(found),
                params_sha256=params_sha256,
                sha256=artifacts.file_sha256(folder / TRAINING_SET),
                queries=counts["queries"],
                mined=len(asked.queries),
                dropped=dict(sorted(chooser.miner.dropped.items())),
                dev=dict(dev),
            )
            artifacts.write_json(folder / FACTS, dataclasses.asdict(facts))
        return facts


def _renewed(example: Example, asked: Asked, chooser: Chooser, note: Note) -> Example:
    """With the negatives of this round in place of all that it had; a query that is not mined keeps those."""
    chosen = chooser.choose(example.query_id) if example.query_id in asked.queries else None
    if chosen is None:
        return example
    note(example.query_id, chosen)
    return dataclasses.replace(example, negatives={POOL: tuple(item.id for item in chosen.choice.negatives)})

"""What an asynchronous refresh is told, and where its parts lie in the run folder."""

import dataclasses
from typing import Literal

from denseir_jax.core.config import operational
from denseir_jax.pipeline.stages.finetune import FinetuneConfig

INFERENCER, CHECKPOINTS, SETS, LOG, HEARTBEATS = "inferencer", "checkpoints", "sets", "sets.log", "heartbeats"
Role = Literal["both", "trainer", "inferencer", "sliced"]


@dataclasses.dataclass(frozen=True)
class RefreshConfig:
    """One round of the inferencer, beside what `mine` says of every set. The defaults are ANCE's.

    Attributes:
        query_parts: round k mines every query_parts-th query, from the (k - 1)-th on; the others keep the negatives that they had.
        shard_rows: passages encoded at a time, the unit of resuming. dev_split: judged queries on which every round measures its
        checkpoint; "" = none.
    """

    query_parts: int = 5
    shard_rows: int = 16384
    dev_split: str = ""

    def __post_init__(self) -> None:
        for name in ("query_parts", "shard_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnceConfig(FinetuneConfig):
    """Fine-tuning whose negatives are mined again and again by the model in training.

    Set 0, the warm-up, is what `training_set` names or `mine` makes (BM25; or ``mine.retriever``, a warmed-up model). `mine` says how
    negatives are chosen for all sets: the index and its depth, ranks, n, draw (another each round), margins, answers and the
    cross-encoder. All sets hold the queries and positives of set 0, the only one that ``mine.retriever``, ``embeddings``,
    ``training_set``, ``pool``, ``positives_by_answer`` and ``unlabelled`` are about.

    Attributes:
        role: both (this command trains, and starts the inferencer beside it), trainer or inferencer (one of them, on a host of
        its own that sees the folder), sliced (one process does both in turn, after every ``cadence.save`` steps).
        refresh: the inferencer's work. poll: steps between two looks for a newer set. rewarm: steps over which the learning
        rate rises again on every new set, 0 = off. on_silence: what the trainer does without a living inferencer: wait for it,
        continue on the set it has, or save and stop. patience: seconds without a sign of life that count as silence; of the
        trainer too, whose inferencer then ends. inferencer_devices: GPUs of this machine, the last ones, that role=both gives
        the inferencer; 0: it shares all with the trainer.
    """

    stage: str = "ance"
    role: Role = operational("both")
    refresh: RefreshConfig = RefreshConfig()
    poll: int = operational(100)
    rewarm: int = 0
    on_silence: Literal["wait", "continue", "stop"] = operational("wait")
    patience: float = operational(600.0)
    inferencer_devices: int = operational(0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.poll < 1 or self.rewarm < 0 or self.patience <= 0 or self.inferencer_devices < 0:
            raise ValueError(
                f"poll={self.poll} must be at least 1, patience={self.patience} above 0, rewarm={self.rewarm} and "
                f"inferencer_devices={self.inferencer_devices} not negative"
            )
        if self.datasets or self.epochs:
            raise ValueError("datasets and epochs are for the stage finetune: here one dataset is trained on, for so many steps")
        if self.objective.name != "contrastive":
            raise ValueError(f"objective.name={self.objective.name!r}: mined negatives carry no teacher's score; expected contrastive")
        if self.objective.sources or self.objective.group_size < 2:
            raise ValueError("the sets say which negatives are in use: expected objective.sources=() and group_size of 2 or more")
        if not self.cadence.save:
            raise ValueError("cadence.save=0: the inferencer follows checkpoints; expected at least 1")
        window, denoise = max(self.mine.hi, self.mine.denoise.fill_to) - self.mine.lo, self.mine.denoise
        if self.mine.n > window:
            raise ValueError(f"mine.n={self.mine.n} negatives cannot come out of the {window} ranks that mine.lo and mine.hi leave")
        if denoise.more_positives or denoise.calibrate_split:
            raise ValueError(
                "mine.denoise: all sets have the positives of the first and one threshold; expected more_positives=False and"
                ' calibrate_split="": calibrate with the stage mine, and give keep_below and training_set'
            )

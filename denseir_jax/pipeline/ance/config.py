"""What an asynchronous refresh is told, and where its parts lie in the run folder."""

import dataclasses
from typing import Literal

from denseir_jax.core.config import operational
from denseir_jax.pipeline.stages.finetune import FinetuneConfig
from denseir_jax.search.negatives import NegativesConfig
from denseir_jax.search.scann_index import ScannConfig

INFERENCER, CHECKPOINTS, SETS, LOG, HEARTBEATS = "inferencer", "checkpoints", "sets", "sets.log", "heartbeats"
Role = Literal["both", "trainer", "inferencer", "sliced"]


@dataclasses.dataclass(frozen=True)
class RefreshConfig:
    """One round of the inferencer: encode, search, mine. The defaults are ANCE's for passages.

    Attributes:
        depth: passages retrieved a query. n: negatives kept of them. take: a seeded draw of n, another each round, or the first n
        by rank. query_parts: round k mines every query_parts-th query, from the (k - 1)-th on; the others keep the negatives that
        they had. index: "exact" gives the same sets everywhere, "scann" is faster on a large corpus. shard_rows: passages encoded
        at a time, the unit of resuming. dev_split: judged queries on which every round measures its checkpoint; "" = none.
    """

    depth: int = 200
    n: int = 20
    take: Literal["draw", "first"] = "draw"
    query_parts: int = 5
    index: Literal["scann", "exact"] = "scann"
    scann: ScannConfig = ScannConfig()
    shard_rows: int = 16384
    batch_tokens: int = operational(0)
    dev_split: str = ""

    def __post_init__(self) -> None:
        for name in ("depth", "n", "query_parts", "shard_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.n > self.depth:
            raise ValueError(f"n={self.n} negatives cannot come out of depth={self.depth} passages")

    @property
    def negatives(self) -> NegativesConfig:
        """As `negatives.mine` wants it."""
        return NegativesConfig(lo=0, hi=self.depth, n=self.n, take=self.take)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnceConfig(FinetuneConfig):
    """Fine-tuning whose negatives are mined again and again by the model in training.

    Set 0, the warm-up, is what `training_set` names or `mine` makes (BM25; or ``mine.retriever``, a warmed-up model).

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

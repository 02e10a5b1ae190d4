"""What every executor does: prepare a segment, run it, and hand back losses, scores and a commit.

Invariant: whichever exact executor runs a segment, the outcome is that of one event at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from ..models import DynamicGNN, Events
from ..storage import NodeState
from ..stream import Int64
from .replay import Replay
from .scoring import Scored, Scorer
from .segment import Segment
from .sharing import sum_gradients, together
from .stages import Stages

Prepared = TypeVar("Prepared")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run of a segment gives; `commit` then makes its states the current ones."""

    losses: Tensor  # (n,) with gradient if parameters have it
    scores: Tensor | None  # (n, 1 + m): the event's own destination, then the candidates
    commit: Callable[[], None]
    pair_scores: Tensor | None = None  # (n, 1 + q): the event's own pair, then those asked for
    embedded: Tensor | None = None  # (n, width) of the event's source, if asked for; no gradient
    expected: Tensor | None = None  # (n,) `expected_idle` of the model, if it has one


class Executor(ABC, Generic[Prepared]):
    """Performs segments of one replay; abstract in `prepare` and `run`."""

    consistency = "exact"

    def __init__(self, replay: Replay) -> None:
        if replay.consistency != self.consistency:
            raise ValueError(
                f"a replay with `consistency` {replay.consistency!r} cannot be run by "
                f"{type(self).__name__}, which is for {self.consistency!r}"
            )
        self.replay = replay
        self.model: DynamicGNN = replay.model
        self.encoder = replay.model.encode
        self.state: NodeState = replay.state
        self.stages: Stages = replay.stages
        self.scorer = Scorer(
            *(replay.model, replay.log, replay.dtype, replay.device),
            once=replay.model.timeless and self.consistency == "batch",
        )

    @abstractmethod
    def prepare(self, segment: Segment) -> Prepared:
        """What can be decided before the first run and kept for all epochs."""

    @abstractmethod
    def widths(self, prepared: Prepared) -> Int64:
        """How many events each level of a prepared segment holds."""

    @abstractmethod
    def run(self, prepared: Prepared, *, embed: bool = False) -> Outcome:
        """Execute a prepared segment from the current states; link values change at once.

        With `embed` the outcome holds the embeddings of the events' sources.
        """

    def outcome(
        self,
        segment: Segment,
        scored: Scored,
        penalty: Tensor | None,
        commit: Callable[[], None],
    ) -> Outcome:
        """What every rank has `scored` of its own events, of all ranks; a `penalty` (n,) added."""
        losses = scored.losses if penalty is None else scored.losses + penalty[segment.own]
        comm, n = self.replay.comm, len(segment)
        self.stages.enter("exchange" if comm.size > 1 else "score")

        def whole(own: Tensor | None) -> Tensor | None:
            return None if own is None else together(comm, own, n)

        return Outcome(
            together(comm, losses, n),
            whole(scored.scores),
            commit,
            whole(scored.pair_scores),
            whole(scored.embedded),
            whole(scored.expected),
        )

    def add_up_gradients(self) -> None:
        """Make the gradients of parameters whole: each rank has a share of them after backward."""
        comm = self.replay.comm
        if comm.size > 1:
            self.stages.enter("exchange")
            sum_gradients(comm, self.model.parameters())

    def encode(self, events: Events) -> dict[str, Tensor]:
        """What the model makes of the events themselves, each (n, ...)."""
        known = self.encoder(events)
        return {n: self.stages.on_backward("backward hoist", v) for n, v in known.items()}

    def touch_links(self, links: Int64) -> None:
        """Make room for these directed links, and tell the journal that they may change."""
        if self.model.link_tables:
            rows = links + 1
            for name in self.model.link_tables:
                self.state.grow(name, 1 + 2 * self.replay.graph.num_links)
                self.state.touch(name, rows)

"""What every executor does: prepare a segment, run it, and hand back losses, scores and a commit.

Invariant: whichever executor runs a segment, the outcome is that of one event at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..models import DynamicGNN, Events, Nodes
from ..storage import NodeState
from ..stream import Int64
from .segment import Beside, Replay, Segment

Prepared = TypeVar("Prepared")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run of a segment gives; `commit` then makes its states the current ones."""

    losses: Tensor  # (n,) with gradient if parameters have it
    scores: Tensor | None  # (n, 1 + m): the event's own destination, then the candidates
    commit: Callable[[], None]


class Executor(ABC, Generic[Prepared]):
    """Performs segments of one replay; abstract in `prepare` and `run`."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self.model: DynamicGNN = replay.model
        self.state: NodeState = replay.state

    @abstractmethod
    def prepare(self, segment: Segment) -> Prepared:
        """What can be decided before the first run and kept for all epochs."""

    @abstractmethod
    def widths(self, prepared: Prepared) -> Int64:
        """How many events each level of a prepared segment holds."""

    @abstractmethod
    def run(self, prepared: Prepared) -> Outcome:
        """Execute a prepared segment from the current states; link values change at once."""

    def nodes(self, beside: Beside, states: dict[str, Tensor], rows: slice = slice(None)) -> Nodes:
        """The view of `beside` that a model scores."""
        device = self.replay.device
        return Nodes(
            states,
            torch.from_numpy(beside.gap[rows]).to(device),
            torch.from_numpy(beside.idle[rows]).to(device),
            torch.from_numpy(beside.valid[rows]).to(device),
        )

    def touch_links(self, segment: Segment) -> None:
        """Make room for the links of the segment, and tell the journal which it may change."""
        if self.model.link_tables:
            rows = np.unique(segment.neighbors.link) + 1
            for name in self.model.link_tables:
                self.state.grow(name, 1 + 2 * self.replay.graph.num_links)
                self.state.touch(name, rows)


def column(beside: Beside, index: int) -> Beside:
    """One column of `beside`, (n, 1)."""
    pick = slice(index, index + 1)
    return Beside(
        beside.node[:, pick], beside.valid[:, pick], beside.gap[:, pick], beside.idle[:, pick]
    )


def join(left: Beside, right: Beside) -> Beside:
    """Both side by side, (n, m1 + m2)."""
    names = ("node", "valid", "gap", "idle")
    return Beside(*(np.concatenate([getattr(b, n) for b in (left, right)], axis=1) for n in names))


def take(events: Events, rows: slice) -> Events:
    """The events of a slice."""
    columns = (events.kind, events.gap, events.weight, events.features)
    return Events(*(None if c is None else c[rows] for c in columns))  # type: ignore[arg-type]

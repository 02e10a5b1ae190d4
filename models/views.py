"""What a model is shown: events without state, a level of independent events, and nodes to score.

Invariant: every state in a view is the one *before* the event it stands beside.  The executors
build these views; a model never sees the log, the graph or the future.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Events:
    """What is known of `n` events without any state."""

    kind: Tensor  # (n,) int64, index into the log's kinds
    gap: Tensor  # (n, 2) float64, seconds since the last event of source and destination
    weight: Tensor | None = None  # (n,)
    features: Tensor | None = None  # (n, num_features)

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, slots=True)
class Links:
    """The links of both ends, the event's own included if it makes one, with their values."""

    values: Mapping[str, Tensor]  # each (n, 2, k), without gradient
    after: Tensor  # (n, 2, k) bool: the link stands after the event
    partner: Tensor  # (n, 2, k) bool: the link to the other end of the event


@dataclass(frozen=True, slots=True)
class Level:
    """`n` independent events, to be updated together."""

    kind: Tensor  # (n,) int64
    encoded: Mapping[str, Tensor]  # what `encode` returned, each (n, ...)
    ends: Mapping[str, Tensor]  # each (n, 2, width): source and destination
    neighbors: Mapping[str, Tensor]  # each (n, 2, k, width)
    mask: Tensor  # (n, 2, k) bool: the neighbour stands before the event
    links: Links | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """What a level leaves behind; of a self loop the destination's values stand."""

    states: Mapping[str, Tensor]  # each (n, 2, width), for source and destination
    links: Mapping[str, Tensor] = field(default_factory=dict)  # each (n, 2, k)


@dataclass(frozen=True, slots=True)
class Nodes:
    """`m` nodes beside each of `n` events, in the state before that event."""

    states: Mapping[str, Tensor]  # each (n, m, width)
    gap: Tensor  # (n, m) float64, seconds since the node's last event
    idle: Tensor  # (n, m) float64, the same in mean gaps of a node: events since x 2 / known nodes
    valid: Tensor  # (n, m) bool; False is padding

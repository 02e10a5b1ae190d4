"""What a model is shown: events without state, a level of independent events, and nodes to score.

Invariant: every state in a view is the one *before* the event it stands beside.  The executors
build these views; a model never sees the log, the graph or the future.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class StateRows(Mapping[str, Tensor]):
    """States by name, each (..., width), that are gathered when they are asked for.

    A model may take them as they are: they stand in `rows` of `tables`.

    >>> import torch
    >>> StateRows({"memory": torch.eye(3)}, torch.tensor([2]))["memory"].tolist()
    [[0.0, 0.0, 1.0]]
    """

    tables: Mapping[str, Tensor]  # each (r, width)
    rows: Tensor  # (...) int64

    def __getitem__(self, name: str) -> Tensor:
        return F.embedding(self.rows, self.tables[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables)

    def __len__(self) -> int:
        return len(self.tables)


def rows_of(states: Mapping[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
    """A table (r, width), and the rows of it (...) where states (..., width) stand."""
    if isinstance(states, StateRows):
        return states.tables[name], states.rows
    values = states[name]
    shape = values.shape[:-1]
    rows = torch.arange(shape.numel(), device=values.device).view(shape)
    return values.reshape(-1, values.shape[-1]), rows


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
class Near:
    """The earlier events through which the recent neighbours of both ends were met."""

    gap: Tensor  # (n, 2, k) float64, seconds since that event
    is_src: Tensor  # (n, 2, k) bool: the end, not the neighbour, was its source


@dataclass(frozen=True, slots=True)
class Members:
    """The distinct nodes of each event: its ends, then their neighbours, each once."""

    states: Mapping[str, Tensor]  # each (n, p, width)
    mask: Tensor  # (n, p) bool; False is padding
    ends: Tensor  # (n, 2) int64, the slots of source and destination; equal for a self loop
    neighbors: Tensor  # (n, 2, k) int64, the slot of each neighbour; of padding, that of the end


@dataclass(frozen=True, slots=True)
class Level:
    """`n` independent events, to be updated together."""

    kind: Tensor  # (n,) int64
    encoded: Mapping[str, Tensor]  # what `encode` returned, each (n, ...)
    ends: Mapping[str, Tensor]  # each (n, 2, width): source and destination
    neighbors: Mapping[str, Tensor]  # each (n, 2, k, width)
    mask: Tensor  # (n, 2, k) bool: the neighbour stands before the event
    links: Links | None = None  # for models with `link_tables`
    near: Near | None = None  # where the neighbourhood is "recent"
    members: Members | None = None  # for models that write to neighbours, in place of `ends`
    sampled: Mapping[str, Tensor] = field(default_factory=dict)  # each (n, s, width)
    sampled_mask: Tensor | None = None  # (n, s) bool
    noise: Tensor | None = None  # (n, `reads.noise`) uniform in (0, 1), a function of the event


@dataclass(frozen=True, slots=True)
class Written:
    """What a level leaves behind; of a self loop the destination's values stand."""

    states: Mapping[str, Tensor]  # each (n, 2, width), or (n, p, width) for members
    links: Mapping[str, Tensor] = field(default_factory=dict)  # each (n, 2, k)
    penalty: Tensor | None = None  # (n,) what the update itself adds to the loss of its event


@dataclass(frozen=True, slots=True)
class Around:
    """The `k` most recent events of each of the nodes beside an event, oldest first."""

    states: Mapping[str, Tensor]  # each (n, m, k, width), of the neighbour, before the event;
    #                               gathered anew whenever they are asked for
    mask: Tensor  # (n, m, k) bool; False is padding
    gap: Tensor  # (n, m, k) float64, seconds since the event with the neighbour
    idle_gap: Tensor  # (n, m, k) float64, seconds since the neighbour's own last event
    is_src: Tensor  # (n, m, k) bool: the node, not the neighbour, was the source of that event
    kind: Tensor  # (n, m, k) int64, of that event
    weight: Tensor | None = None  # (n, m, k)
    features: Tensor | None = None  # (n, m, k, num_features)


@dataclass(frozen=True, slots=True)
class Nodes:
    """`m` nodes beside each of `n` events, in the state before that event."""

    states: Mapping[str, Tensor]  # each (n, m, width)
    gap: Tensor  # (n, m) float64, seconds since the node's last event
    idle: Tensor  # (n, m) float64, the same in mean gaps of a node: events since x 2 / known nodes
    valid: Tensor  # (n, m) bool; False is padding
    around: Around | None = None  # for models that read `around`
    embedded: Tensor | None = None  # (n, m, width), what `embed` returned

    @property
    def embedding(self) -> Tensor:
        """What the model's `embed` made of the nodes, (n, m, width)."""
        assert self.embedded is not None
        return self.embedded

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
    """States by name, each (..., width), with the `rows` of `tables` in which they stand.

    Those that are not in `gathered` are gathered whenever they are asked for; a compiled model may
    take the rows instead.

    >>> import torch
    >>> StateRows({"memory": torch.eye(3)}, torch.tensor([2]))["memory"].tolist()
    [[0.0, 0.0, 1.0]]
    """

    tables: Mapping[str, Tensor]  # each (r, width)
    rows: Tensor  # (...) int64
    gathered: Mapping[str, Tensor] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        found = self.gathered.get(name)
        return F.embedding(self.rows, self.tables[name]) if found is None else found

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables)

    def __len__(self) -> int:
        return len(self.tables)

    def gather(self) -> StateRows:
        """The same with all states gathered."""
        return StateRows(self.tables, self.rows, dict(self))


def rows_of(name: str, *parts: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """One table (r, width), and the rows of it (...) in which states (..., width) stand.

    A table is made if the states of several parts stand in none, or in different ones.
    """
    tables = [part.tables[name] for part in parts if isinstance(part, StateRows)]
    if len(tables) == len(parts) and all(table is tables[0] for table in tables):
        return tables[0], *(part.rows for part in parts if isinstance(part, StateRows))
    values = [part[name] for part in parts]
    rows, start = [], 0
    for each in values:
        count = each.shape[:-1].numel()
        rows.append(torch.arange(start, start + count, device=each.device).view(each.shape[:-1]))
        start += count
    return torch.cat([each.reshape(-1, each.shape[-1]) for each in values]), *rows


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

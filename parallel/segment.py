"""A segment is what can be known of a run of events without any parameter.

Invariant: every answer in it is as of a position: the event's own (exact), or that of the batch's
first event (stale).  So nothing in a segment depends on how it will be executed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np
from torch import Tensor

from ..models import Events
from ..stream import Bool, Float64, Int64

Consistency = Literal["exact", "batch"]


@dataclass(frozen=True, slots=True)
class Neighbors:
    """The neighbours of both ends of every event, as lists: those of source, then destination."""

    indptr: Int64  # (2 n + 1,)
    node: Int64  # (r,)
    before: Bool  # (r,) False for the link that the event, or its pair in a stale batch, makes
    link: Int64  # (r,) directed link ids; empty unless the neighbours are links
    partner: Bool  # (r,) the neighbour is the other end of the event; empty likewise
    gap: Float64  # (r,) seconds since the event with the neighbour; empty unless they are recent
    is_src: Bool  # (r,) the end was the source of that event; empty likewise


@dataclass(frozen=True, slots=True)
class Members:
    """The distinct nodes of every event, as lists: its ends, then its neighbours."""

    indptr: Int64  # (n + 1,)
    node: Int64  # (t,)
    ends: Int64  # (n, 2) the slots of source and destination in the event's list
    neighbors: Int64  # (r,) the slots of the neighbours


@dataclass(frozen=True, slots=True)
class Recent:
    """The `k` most recent events of `m` nodes beside each of `n` events, oldest first."""

    node: Int64  # (n, m, k)
    mask: Bool  # (n, m, k)
    event: Int64  # (n, m, k) log position, 0 where masked
    is_src: Bool  # (n, m, k) the node was the source of it
    gap: Float64  # (n, m, k) seconds since it
    idle_gap: Float64  # (n, m, k) seconds since the neighbour's own last event

    def columns(self, which: slice) -> Recent:
        """The events of some of the nodes."""
        node, mask, event = self.node[:, which], self.mask[:, which], self.event[:, which]
        gap, idle_gap = self.gap[:, which], self.idle_gap[:, which]
        return Recent(node, mask, event, self.is_src[:, which], gap, idle_gap)


@dataclass(frozen=True, slots=True)
class Beside:
    """`m` nodes beside each of `n` events."""

    node: Int64  # (n, m)
    valid: Bool  # (n, m)
    gap: Float64  # (n, m) seconds since the node's last event
    idle: Float64  # (n, m) the same in mean gaps of a node: events since x 2 / known nodes
    recent: Recent | None = None  # for models that read `around`

    def __len__(self) -> int:
        return int(self.node.shape[1])

    def columns(self, which: slice) -> Beside:
        """Some of the nodes."""
        recent = None if self.recent is None else self.recent.columns(which)
        node, valid = self.node[:, which], self.valid[:, which]
        return Beside(node, valid, self.gap[:, which], self.idle[:, which], recent)


class Group(IntEnum):
    """What is scored beside an event, in the order of its columns."""

    SRC = 0
    DST = 1
    OTHER_SRC = 2
    OTHER_DST = 3
    CANDIDATES = 4
    PAIR_SRC = 5  # of pairs to be scored, the event's own first; or none at all
    PAIR_DST = 6


LEARNED = (Group.SRC, Group.DST, Group.OTHER_SRC, Group.OTHER_DST)  # from which losses are made


@dataclass(frozen=True, slots=True)
class Segment:
    """Events with all that surrounds them; `[start, stop)` of the log unless `positions` differ.

    What is scored stands beside the m events of `own` only: all of them, or a rank's share.
    """

    positions: Int64  # (n,)
    events: Events
    ends: Int64  # (n, 2)
    neighbors: Neighbors
    members: Members | None  # for models that write to neighbours
    sampled: Int64  # (n, s)
    sampled_valid: Bool  # (n, s)
    noise: Float64  # (n, q)
    ranked: Int64  # (n, c) destinations to rank the event's own against
    ranked_valid: Bool  # (n, c)
    own: slice  # of the events
    shown: Beside  # (m, columns) all that is scored, group by group
    sizes: tuple[int, ...]  # columns of each `Group`

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def groups(self) -> list[slice]:
        """The columns of each `Group`."""
        return [slice(a, b) for a, b in pairwise(accumulate(self.sizes, initial=0))]

    @property
    def src(self) -> Beside:
        """(m, 1)."""
        return self._group(Group.SRC)

    @property
    def dst(self) -> Beside:
        """(m, 1)."""
        return self._group(Group.DST)

    @property
    def other_src(self) -> Beside:
        """(m, num_negatives), or none."""
        return self._group(Group.OTHER_SRC)

    @property
    def other_dst(self) -> Beside:
        """(m, num_negatives)."""
        return self._group(Group.OTHER_DST)

    @property
    def candidates(self) -> Beside:
        """(m, c), those of `ranked`."""
        return self._group(Group.CANDIDATES)

    def _group(self, group: Group) -> Beside:
        return self.shown.columns(self.groups[group])

    @property
    def start(self) -> int:
        """The position of the first event."""
        return int(self.positions[0]) if len(self) else 0

    @property
    def stop(self) -> int:
        """The position after the last event."""
        return int(self.positions[-1]) + 1 if len(self) else 0

    def part(self) -> Segment:
        """The segment of `own` alone, to be scored."""
        if self.own == slice(0, len(self)):
            return self
        return replace(
            self,
            positions=self.positions[self.own],
            events=take(self.events, self.own),
            ends=self.ends[self.own],
            own=slice(0, len(self.shown.node)),
        )

    def scored(self) -> Int64:
        """Every node that is read for scoring, (m, columns): those shown, then around them."""
        nodes, recent = self.shown.node, self.shown.recent
        if recent is None:
            return nodes
        n, m, k = recent.node.shape
        return np.concatenate([nodes, recent.node.reshape(n, m * k)], axis=1)

    def around(self, shown: slice) -> slice:
        """The columns of `scored` where those stand that are around some of the nodes shown."""
        m, recent = len(self.shown), self.shown.recent
        k = 0 if recent is None else recent.node.shape[2]
        return slice(m + k * shown.start, m + k * shown.stop)


def take(events: Events, rows: slice | Int64 | Tensor) -> Events:
    """Some of the events."""
    columns = (events.kind, events.gap, events.weight, events.features)
    return Events(*(None if c is None else c[rows] for c in columns))  # type: ignore[arg-type]

"""A schedule is pure data: which version of a node's state each event reads, and its level.

Every write makes a new version, so only a read of an earlier event's write orders two events.
Equal times are not special: events are ordered by their position.  One pass in log order gives the
exact levels in linear time, in place of the pairwise conflict tests of the NeutronStream paper
(Chen et al., PVLDB 17(3), 2023).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..stream import Int64
from .kernels import resolve_rows


@dataclass(frozen=True, slots=True)
class Schedule:
    """Rows are base rows (state at the start), then one row a write, level by level."""

    base: Int64  # (b,) the node of each base row
    read_row: Int64  # (r,) the row that each read sees
    score_row: Int64  # (n or fewer, m) the row that each scored node is seen in
    write_row: Int64  # (w,) the row that each write makes
    last_row: Int64  # (b,) the row of the last version of each base node
    level: Int64  # (n,) from 0
    order: Int64  # (n,) events level by level, in log order inside a level

    def __len__(self) -> int:
        return len(self.level)

    @property
    def num_rows(self) -> int:
        """Base rows and written rows together."""
        return len(self.base) + len(self.write_row)

    @property
    def num_levels(self) -> int:
        """The length of the critical path."""
        return int(self.level.max()) + 1 if len(self.level) else 0

    def widths(self) -> Int64:
        """The number of events of each level, (num_levels,)."""
        return np.bincount(self.level, minlength=self.num_levels)


def schedule(
    read_start: Int64,
    read_node: Int64,
    write_start: Int64,
    write_node: Int64,
    scored: Int64 | None = None,
    *,
    first_scored: int = 0,
    scratch: Int64 | None = None,
) -> Schedule:
    """The schedule of `n` events that read and write the given nodes.

    Event `e` reads `read_node[read_start[e]:read_start[e + 1]]` and then writes the nodes of its
    slice of `write_node`; where it writes a node twice, the last write stands.  `scored` (n, m)
    names nodes whose version before the event is wanted although the event does not depend on it;
    with `first_scored` its m <= n rows are of the events from there on.
    `scratch` is (num_nodes,) of -1, kept by callers that schedule often.

    >>> ends = np.array([0, 1, 1, 2, 3, 4])  # (a, b), (b, c), (d, e)
    >>> starts = np.array([0, 2, 4, 6])
    >>> schedule(starts, ends, starts, ends).level.tolist()
    [0, 1, 0]
    """
    num_events = len(read_start) - 1
    if scored is None:
        scored = np.empty((num_events, 0), np.int64)
    if scratch is None:
        highest = max((int(a.max()) for a in (read_node, write_node, scored) if a.size), default=-1)
        scratch = np.full(highest + 1, -1, np.int64)
    room = min(len(scratch), read_node.size + write_node.size + scored.size)
    base = np.empty(room, np.int64)
    last = np.empty(room, np.int64)
    read_row = np.empty(len(read_node), np.int64)
    score_row = np.empty(scored.shape, np.int64)
    write_row = np.empty(len(write_node), np.int64)
    level, order = np.empty(num_events, np.int64), np.empty(num_events, np.int64)
    count = resolve_rows(
        *(read_start, read_node, write_start, write_node, scored, first_scored, scratch),
        *(base, read_row, score_row, write_row, level, order, last),
    )
    return Schedule(
        base[:count].copy(), read_row, score_row, write_row, last[:count].copy(), level, order
    )

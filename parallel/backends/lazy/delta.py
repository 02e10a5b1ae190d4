"""Boundary rows that are sent only if they are new to the rank that needs them, or have changed.

Both ends keep the last row that went from one to the other, so what is left out is known exactly:
with `eps` 0 the halo has the values that it would have if all rows were sent.  A row counts as
changed if any of its numbers is further than `eps` from what the other end has; what that left out
is added up.  Beside the rows a byte crosses for each of them, which says whether it comes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ....stream import Bool, Int64
from .gate import Gate
from .part import Part


class _Table:
    """The last row of each node, as both ends know it."""

    def __init__(self) -> None:
        self.nodes = np.empty(0, np.int64)  # ascending
        self.rows = torch.empty(0, 0)

    def differ(self, nodes: Int64, rows: Tensor) -> tuple[Bool, Tensor]:
        """Which nodes are new, and how far the others are from what is kept: (m,) each."""
        place, known = self._find(nodes)
        off = torch.zeros(len(nodes), dtype=rows.dtype)
        if known.any():
            there = torch.from_numpy(known)
            kept = self.rows[torch.from_numpy(place[known])]
            off[there] = (rows[there] - kept).abs().amax(1)
        return ~known, off

    def put(self, nodes: Int64, rows: Tensor) -> None:
        """Keeps these rows; the nodes ascend."""
        place, known = self._find(nodes)
        if known.any():
            self.rows[torch.from_numpy(place[known])] = rows[torch.from_numpy(known)]
        new = ~known
        if new.any():
            whole = np.concatenate((self.nodes, nodes[new]))
            order = np.argsort(whole, kind="stable")
            fresh = rows[torch.from_numpy(new)]
            joined = torch.cat((self.rows, fresh)) if len(self.nodes) else fresh
            self.nodes, self.rows = whole[order], joined[torch.from_numpy(order)]

    def take(self, nodes: Int64, width: int) -> tuple[Tensor, int]:
        """The rows of nodes, 0 of those that never came, and how many these are."""
        place, known = self._find(nodes)
        found = self.rows.new_zeros((len(nodes), width))
        found[torch.from_numpy(known)] = self.rows[torch.from_numpy(place[known])]
        return found, len(nodes) - int(known.sum())

    def _find(self, nodes: Int64) -> tuple[Int64, Bool]:
        if not len(self.nodes):
            return np.zeros(len(nodes), np.int64), np.zeros(len(nodes), bool)
        place = np.minimum(np.searchsorted(self.nodes, nodes), len(self.nodes) - 1)
        return place, self.nodes[place] == nodes


@dataclass(frozen=True, slots=True)
class Stale:
    """What a rank's halo lacks because others were late."""

    rows: int  # that did not come, so that the last ones that did stand for them
    never: int  # of these, rows that never came: they are 0
    bytes: int  # that the rows would have taken; no saving


class DeltaHalo:
    """What the ranks have of each other's rows, by stage; lives as long as the partition.

    `eps` bounds by how much a number of a halo row may be out of date.
    """

    def __init__(self, eps: float = 0.0) -> None:
        if not eps >= 0:
            raise ValueError(f"`eps` must be at least 0: got {eps}")
        self.eps = eps
        self.sent_rows: dict[int, int] = defaultdict(int)  # by stage
        self.full_rows: dict[int, int] = defaultdict(int)  # that would have been sent otherwise
        self.skipped = 0.0  # the largest difference of each row that was left out, added up
        self._given: dict[tuple[int, int], _Table] = defaultdict(_Table)  # by stage and rank
        self._taken: dict[tuple[int, int], _Table] = defaultdict(_Table)

    def exchange(
        self,
        gate: Gate,
        part: Part,
        own: Tensor,
        stage: int,
        purpose: str,
        *,
        late: Collection[int] = (),
    ) -> tuple[Tensor, Stale]:
        """The rows of the halo, from those that came now and those that came before: (h, d).

        From `late` ranks none comes, and what they have given is kept as it was, so that the next
        exchange makes up for it.
        """
        boundary, size = part.boundary, range(gate.size)
        gives = gate.rank not in late
        flags = [
            self._choose(part, boundary.given_to(to), own, stage, to)
            if gives
            else np.zeros(boundary.sent[to], bool)
            for to in size
        ]
        chosen = np.concatenate(flags)
        come = [0 if rank in late else boundary.received[rank] for rank in size]
        bits = torch.from_numpy(chosen.astype(np.uint8)[: len(chosen) * gives])
        there = np.repeat([rank not in late for rank in size], boundary.received)  # (h,)
        told = np.zeros(len(boundary.halo), bool)
        told[there] = gate.flags(bits, boundary.sent if gives else [0] * gate.size, come) > 0
        sent = [int(flag.sum()) for flag in flags]
        starts = np.concatenate(([0], np.cumsum(boundary.received)))
        received = [int(told[start:stop].sum()) for start, stop in pairwise(starts.tolist())]
        found = gate.some_rows(own, boundary.given[chosen], sent, received, purpose)
        self.sent_rows[stage] += sum(sent)
        self.full_rows[stage] += len(chosen) * gives
        halo = own.new_empty((len(boundary.halo), own.shape[1]))
        never = 0
        for owner, rows in enumerate(torch.split(found, received)):
            where = slice(int(starts[owner]), int(starts[owner + 1]))
            table = self._taken[stage, owner]
            halo[where], lacks = _unfold(part, table, boundary.halo[where], told[where], rows)
            never += lacks
        stale = len(there) - int(there.sum())
        return halo, Stale(stale, never, stale * own.shape[1] * own.element_size())

    def _choose(self, part: Part, given: Int64, own: Tensor, stage: int, to: int) -> Bool:
        """Which of the rows that a rank needs it does not have as they are: (g,)."""
        table, chosen = self._given[stage, to], np.zeros(len(given), bool)
        for step, rows in _by_snapshot(part, part.own[given]):
            nodes, values = part.own[given[rows]] - step, own[torch.from_numpy(given[rows])]
            is_new, off = table.differ(nodes, values)
            # not `off <= eps`: a number that is none has changed
            goes = is_new | ~(off <= self.eps).numpy()
            self.skipped += float(off[torch.from_numpy(~goes)].sum())
            table.put(nodes[goes], values[torch.from_numpy(goes)])
            chosen[rows] = goes
        return chosen


def _unfold(part: Part, table: _Table, halo: Int64, told: Bool, come: Tensor) -> tuple[Tensor, int]:
    """All rows that one rank's nodes have in the halo, by snapshot, and how many never came."""
    out, start, never = come.new_empty((len(halo), come.shape[1])), 0, 0
    for step, rows in _by_snapshot(part, halo):
        nodes, here = halo[rows] - step, told[rows]
        stop = start + int(here.sum())
        table.put(nodes[here], come[start:stop])
        if len(nodes):
            out[torch.from_numpy(rows)], lacks = table.take(nodes, come.shape[1])
            never += lacks
        start = stop
    return out, never


def _by_snapshot(part: Part, nodes: Int64) -> list[tuple[int, Int64]]:
    """For each snapshot of a window its first node, and which of the nodes are in it."""
    width = part.ownership.num_nodes // part.snapshots
    step = nodes // max(width, 1)
    return [(at * width, np.flatnonzero(step == at)) for at in range(part.snapshots)]

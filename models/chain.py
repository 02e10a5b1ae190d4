"""A chain: the updates of a segment in log order, each read and write resolved to a row of a table.

It is what a fused scan goes through in one pass, where `Level` shows a model one level at a time.
Rows are versions of states: those before the segment first, then one for each write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ..stream import Bool, Float64, Int64


@dataclass(frozen=True, slots=True)
class ChainMembers:
    """The distinct nodes of every event, as lists: its ends, then its neighbours."""

    indptr: Int64  # (n + 1,)
    rows: Int64  # (t,) rows that are read
    ends: Int64  # (n, 2) the slots of source and destination in the event's list
    neighbors: Int64  # (r,) the slots of the neighbours


@dataclass(frozen=True, slots=True)
class Chain:
    """The updates of `n` events; a row is written once, and read only by later events."""

    num_rows: int  # rows of states before the segment, then one for each write
    base: Mapping[str, Tensor]  # the former, each (b, width) of the model's tables; no gradient
    kind: Int64  # (n,)
    encoded: Mapping[str, Tensor]  # what `encode` returned, each (n, ...)
    ends: Int64  # (n, 2) rows read of source and destination; the same one for a self loop
    writes: Int64  # (w,) the row of each write: two an event, source first, or those of its members
    indptr: Int64  # (2 n + 1,) the neighbour lists of source and destination of each event
    neighbors: Int64  # (r,) rows that are read
    before: Bool  # (r,) False for the link that the event makes
    partner: Bool  # (r,) the neighbour is the other end; empty unless neighbours are links
    link: Int64  # (r,) rows of the link tables; empty likewise
    is_loop: Bool  # (n,) of the links of a self loop the destination's values stand
    gap: Float64  # (r,) seconds since the event with the neighbour; empty unless they are recent
    is_src: Bool  # (r,) the end was the source of that event; empty likewise
    links: Mapping[str, npt.NDArray[np.floating[Any]]]  # link tables (rows,), changed by the scan
    members: ChainMembers | None  # for models that write to neighbours
    sampled: Int64  # (n, s) rows that are read
    sampled_mask: Bool  # (n, s)
    noise: Float64  # (n, q)
    parts: tuple[Int64, ...] = ()  # events for one thread each: they read nothing of other parts
    tables: Mapping[str, Tensor] = field(default_factory=dict)  # (num_rows, width) for one scan,
    # their first rows those of `base`; a table that is not there is made

    def __len__(self) -> int:
        return len(self.kind)

    def table(self, name: str) -> Tensor:
        """(num_rows, width) for a scan to fill: the base rows, and room for those written."""
        if name in self.tables:
            return self.tables[name]
        base = self.base[name]
        table = base.new_empty(self.num_rows, base.shape[1])
        table[: len(base)] = base
        return table

    def take(self, events: Int64) -> Chain:
        """The chain of some of the events, in log order, that read nothing of what others write.

        What `encode` returned is to be that of these events already.
        """
        lists, heard = _lists(self.indptr, np.stack([2 * events, 2 * events + 1], axis=1).ravel())
        members, written = self.members, np.stack([2 * events, 2 * events + 1], axis=1).ravel()
        if members is not None:
            starts, written = _lists(members.indptr, events)
            members = ChainMembers(
                starts, members.rows[written], members.ends[events], members.neighbors[heard]
            )
        of_list = {
            name: values[heard] if len(values) else values
            for name in ("neighbors", "before", "partner", "link", "gap", "is_src")
            for values in (getattr(self, name),)
        }
        of_event = {
            name: getattr(self, name)[events]
            for name in ("kind", "ends", "is_loop", "sampled", "sampled_mask", "noise")
        }
        rest = replace(self, indptr=lists, members=members, parts=(), **of_list, **of_event)
        return replace(rest, writes=self.writes[written])


def _lists(indptr: Int64, which: Int64) -> tuple[Int64, Int64]:
    """Some lists of many, (len(which) + 1,), and the places of what stands in them."""
    lengths = np.diff(indptr)[which]
    stops = np.cumsum(lengths)
    starts = np.concatenate([[0], stops])
    return starts, np.repeat(indptr[which] - starts[:-1], lengths) + np.arange(starts[-1])


@dataclass(frozen=True, slots=True)
class Scanned:
    """What a scan leaves behind."""

    states: Mapping[str, Tensor]  # each (num_rows, width), the base rows among them
    penalty: Tensor | None = None  # (n,) what the updates themselves add to the losses

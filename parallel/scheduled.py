"""What executors share that go by a schedule: rows for every version, scoring, and the commit.

Invariant: a row is a version of a node's states; those before the segment come first, then one for
each write.  How the rows are filled is what such executors differ in.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..models import Pairs, PairsAround, can_price
from ..models.views import StateRows
from ..stream import EventBatch, Int64
from .costs import Costs
from .executor import Executor, Outcome
from .gather import gather_rows
from .pieces import Rows
from .replay import Replay
from .schedule import Schedule, schedule
from .scoring import Places, Scored
from .segment import Group, Segment, take
from .sharing import Shares, share_events

Work = TypeVar("Work")

ReadRows = Callable[[Sequence[tuple[str, Tensor]]], Sequence[Tensor]]
"""Of (table, rows): the states, with gradient."""


@dataclass(frozen=True, slots=True)
class Plan(Generic[Work]):
    """A segment with its schedule, and what its executor has made of both."""

    segment: Segment
    schedule: Schedule
    base: Tensor  # (b,)
    score_row: Tensor  # (n, columns)
    shares: Shares | None  # None: every rank updates all events
    mine: Int64 | None  # (p,) the events that this rank updates, or None: all
    work: Work


class ScheduledExecutor(Executor[Plan[Work]], Generic[Work]):
    """Schedules a segment, fills the rows, then scores it in one batch."""

    costs: Costs

    def __init__(self, replay: Replay) -> None:
        super().__init__(replay)
        self._scratch = np.full(replay.log.num_nodes, -1, np.int64)
        model, reads = self.model, self.model.reads
        fed_back = {*reads.ends, *reads.neighbors, *reads.sampled}
        self.derives_late = bool(model.derived) and not fed_back & set(model.derived)
        widths = dict(model.tables) | ({} if self.derives_late else dict(model.derived))
        self.widths_of_rows: dict[str, int] = widths

    def prepare(self, segment: Segment) -> Plan[Work]:
        self.stages.enter("schedule")
        reads, slots = reads_of(segment)
        members = segment.members
        if members is None:
            writes, written = np.arange(0, 2 * len(segment) + 1, 2), segment.ends.ravel()
        else:
            writes, written = members.indptr, members.node
        indptr, nodes = reads
        plan = schedule(
            *(indptr, nodes, writes, written, segment.scored()),
            first_scored=segment.own.start,
            scratch=self._scratch,
        )
        rows = Rows(*(plan.read_row[slot] for slot in slots))
        comm = self.replay.comm
        shares = share_events(plan, indptr, writes, comm.size, self.row_bytes, self.costs)
        mine = None if shares is None else shares.mine(comm.rank)
        work = self.arrange(segment, plan, rows, mine)
        base, score_row = self.tensor(plan.base), self.tensor(plan.score_row)
        return Plan(segment, plan, base, score_row, shares, mine, work)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of all tables that are exchanged."""
        return sum(self.widths_of_rows.values()) * self.replay.dtype.itemsize

    @abstractmethod
    def arrange(self, segment: Segment, plan: Schedule, rows: Rows, mine: Int64 | None) -> Work:
        """What can be decided before the first run of the events that are this rank's."""

    def tensor(self, array: Int64) -> Tensor:
        """Indices where the states are."""
        return torch.from_numpy(array).to(self.replay.device)

    def widths(self, prepared: Plan[Work]) -> Int64:
        return prepared.schedule.widths()

    def base(self, prepared: Plan[Work]) -> dict[str, Tensor]:
        """The states before the segment, a row for each node that it touches."""
        count = len(prepared.base)
        return {name: table[:count] for name, table in self.tables(prepared, count).items()}

    def tables(self, prepared: Plan[Work], num_rows: int) -> dict[str, Tensor]:
        """The same at the front of tables (num_rows, width), of which nothing more is set."""
        tables = {}
        for name, width in self.model.tables.items():
            tables[name] = self.state[name].new_empty(num_rows, width)
            self.state.read(name, prepared.base, out=tables[name][: len(prepared.base)])
        return tables

    def encoded(self, prepared: Plan[Work]) -> dict[str, Tensor]:
        """What the model makes of the events that this rank updates."""
        events, mine = prepared.segment.events, prepared.mine
        return self.encode(events if mine is None else take(events, mine))

    def exchange_penalty(self, prepared: Plan[Work], penalty: Tensor) -> Tensor:
        """What the updates add to the losses of all events (n,), from that of this rank's (p,)."""
        comm, shares = self.replay.comm, prepared.shares
        assert shares is not None
        if torch.is_grad_enabled() and not penalty.requires_grad:
            penalty = penalty.detach().requires_grad_()  # every rank takes part in going back
        events = [shares.mine(rank) for rank in range(comm.size)]
        found = gather_rows(comm, penalty, [len(e) for e in events], "penalties")
        return found.new_zeros(len(found)).index_copy(0, self.tensor(np.concatenate(events)), found)

    def exchange_links(self, prepared: Plan[Work]) -> None:
        """Take the values on links that the events of other ranks have set."""
        model, comm, shares = self.model, self.replay.comm, prepared.shares
        if not model.link_tables:
            return
        assert shares is not None
        lists = prepared.segment.neighbors
        of_link = np.repeat(np.repeat(shares.rank_of, 2), np.diff(lists.indptr))
        rows = [np.unique(lists.link[of_link == rank]) + 1 for rank in range(comm.size)]
        own = torch.cat([self.state[n][rows[comm.rank]] for n in model.link_tables], dim=1)
        found = comm.all_gather_rows(own, [len(r) for r in rows], "link values")
        at = self.tensor(np.concatenate(rows))
        for name, values in zip(model.link_tables, torch.split(found, 1, dim=1), strict=True):
            self.state[name][at] = values

    def finish(
        self,
        prepared: Plan[Work],
        tables: Mapping[str, Tensor],
        penalty: Tensor | None,
        embed: bool,
        *,
        read: ReadRows | None = None,
    ) -> Outcome:
        """Score what stands in the rows of `tables` and was filled.

        `read` gives their gradient; without it, tables have one themselves, and may be priced as
        they are.
        """
        self.stages.enter("score")
        scored = self._score(prepared, tables, read, embed)
        plan, state = prepared.schedule, self.state

        def commit() -> None:
            kept = np.flatnonzero(plan.last_row >= len(plan.base))
            nodes = self.tensor(plan.base[kept])
            last = self.tensor(plan.last_row[kept])
            for name in self.model.tables:
                state.write(name, nodes, tables[name].detach().index_select(0, last))

        return self.outcome(prepared.segment, scored, penalty, commit)

    def _score(
        self,
        prepared: Plan[Work],
        tables: Mapping[str, Tensor],
        read: ReadRows | None,
        embed: bool,
    ) -> Scored:
        model = self.model
        learned: dict[str, Tensor] = {}  # whole tables with gradient, each read once

        def with_gradient(names: Sequence[str]) -> dict[str, Tensor]:
            lacking = [name for name in names if name not in learned]
            if read is None:
                learned.update((name, tables[name]) for name in lacking)
            elif lacking:
                everything = torch.arange(prepared.schedule.num_rows, device=self.replay.device)
                whole = read([(name, everything) for name in lacking])
                learned.update(zip(lacking, whole, strict=True))
            return {name: learned[name] for name in names}

        if self.derives_late:  # once for all versions, since no update waits for it
            learned |= model.derive(with_gradient(tuple(model.tables)))
        still = {name: table.detach() for name, table in {**tables, **learned}.items()}

        def read_scored(
            names: tuple[str, ...], columns: Places, rows: Places, grad: bool
        ) -> StateRows:
            learns = grad and torch.is_grad_enabled()
            shown = with_gradient(names) if learns else {name: still[name] for name in names}
            return StateRows(shown, prepared.score_row[rows, columns])

        part, priced = prepared.segment.part(), None
        if read is None and can_price(model) and part.sizes[Group.SRC]:
            priced = model.losses_of(_pairs(prepared, part, self.replay.log.events), tables)
        return self.scorer.score(part, read_scored, slice(None), embed=embed, priced=priced)


def _pairs(prepared: Plan[Any], part: Segment, log: EventBatch) -> Pairs:
    """What the losses of this rank's share of a segment are made of."""
    rows, groups = prepared.score_row.numpy(), part.groups
    sources, destinations = groups[Group.OTHER_SRC], groups[Group.OTHER_DST]
    learned = slice(0, destinations.stop)
    shown, around = part.shown.columns(learned), None
    if shown.recent is not None:
        mask, near = shown.recent.mask, rows[:, part.around(learned)]
        known = shown.recent.event, shown.recent.gap, shown.recent.idle_gap
        around = PairsAround(near.reshape(mask.shape), mask, *known, log)
    return Pairs(
        len(prepared.schedule.base),
        part.events.kind.numpy(),
        *(rows[:, :2], rows[:, sources], shown.valid[:, sources]),
        *(rows[:, destinations], shown.valid[:, destinations]),
        np.ascontiguousarray(shown.idle),
        around,
        len(prepared.segment),
    )


def reads_of(segment: Segment) -> tuple[tuple[Int64, Int64], tuple[Int64, Int64, Int64, Int64]]:
    """What each event's update reads, as lists (indptr, node), and the places in `node` of

    its ends (n, 2), neighbours (r,), members (t,) and sampled nodes (n, s).  The neighbours of an
    event with members stand among these.
    """
    n, neighbors, members = len(segment), segment.neighbors, segment.members
    width = segment.sampled.shape[1]
    if members is None and not len(neighbors.node) and not width:
        nothing, none = np.empty(0, np.int64), np.empty((n, 0), np.int64)
        ends = np.arange(2 * n).reshape(n, 2)
        return (np.arange(0, 2 * n + 1, 2), segment.ends.ravel()), (ends, nothing, nothing, none)
    if members is None:
        lengths = 2 + np.diff(neighbors.indptr).reshape(n, 2).sum(1)
        listed, fixed = neighbors.node, 2
    else:
        lengths = np.diff(members.indptr)
        listed, fixed = members.node, 0
    event = np.repeat(np.arange(n), lengths - fixed)
    indptr = np.concatenate([[0], np.cumsum(lengths + width)])
    # the fixed ends first, then the list, then what was sampled
    place = np.arange(len(listed)) + (fixed + width) * event + fixed
    drawn = indptr[1:, None] - width + np.arange(width)
    node = np.empty(indptr[-1], np.int64)
    node[place], node[drawn] = listed, segment.sampled
    if members is None:
        ends = indptr[:-1, None] + np.arange(2)
        node[ends] = segment.ends
        return (indptr, node), (ends, place, np.empty(0, np.int64), drawn)
    first = indptr[:-1]
    ends = first[:, None] + members.ends
    of_neighbor = np.repeat(np.arange(n), np.diff(neighbors.indptr).reshape(n, 2).sum(1))
    return (indptr, node), (ends, first[of_neighbor] + members.neighbors, place, drawn)

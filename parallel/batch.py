"""The usual stale training, to be compared with: a whole batch sees the state before it.

All events of a batch see graph and states as of its first event.  What they tell a node is kept
until the node is next read: only then is the node renewed, so that gradient reaches the update, and
when a later batch of the node is committed the state table takes the result.  Of several writes of
one batch to a node the last one stands, or the mean of the messages (`aggregation`).  This is how
TGN's authors train (Rossi et al. 2020, section 3.2) and, in its details, torch_geometric's
`TGNMemory`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..models import DynamicGNN, Level, Written
from ..models.views import StateRows
from ..stream import Int64
from .executor import Executor, Outcome
from .pieces import Piece, Rows, lay_out, spread, write_links
from .replay import PENDING
from .scoring import Places
from .segment import Segment


@dataclass(frozen=True, slots=True)
class Batch:
    """A segment with the distinct nodes that it reads or writes."""

    segment: Segment
    nodes: Int64  # (b,)
    score_row: Tensor  # (n, columns) rows of `nodes`
    written: Int64  # (w,) the distinct nodes that it writes
    written_row: Tensor  # (w,) rows of `nodes`
    last_event: Int64  # (w,) position of the last event that writes each


@dataclass(slots=True)
class Renewed:
    """Nodes that had something pending, after it."""

    states: dict[str, Tensor]  # each (p, width)
    penalties: list[Tensor] = field(default_factory=list)  # each (events,)
    links: list[tuple[Tensor, Written]] = field(default_factory=list)  # rows of the link tables


class BatchExecutor(Executor[Batch]):
    """Runs segments as stale batches."""

    consistency = "batch"

    def prepare(self, segment: Segment) -> Batch:
        scored = segment.scored()
        writes, event = segment.ends.ravel(), np.repeat(np.arange(len(segment)), 2)
        if segment.members is not None:
            writes = segment.members.node
            event = np.repeat(np.arange(len(segment)), np.diff(segment.members.indptr))
        nodes = np.unique(np.concatenate([scored.ravel(), writes]))
        comm = self.replay.comm
        if comm.size > 1:  # what renewing a node adds to the loss does not depend on who scores it
            counts = [count[0] for count in comm.gather_objects([len(nodes)], "nodes")]
            nodes = np.unique(
                comm.all_gather_rows(torch.from_numpy(nodes), counts, "nodes").numpy()
            )
        row = np.searchsorted(nodes, scored)
        written, last = np.unique(writes[::-1], return_index=True)
        return Batch(
            segment,
            nodes,
            self._tensor(row),
            written,
            self._tensor(np.searchsorted(nodes, written)),
            segment.positions[event[::-1][last]],
        )

    def _tensor(self, array: Int64) -> Tensor:
        return torch.from_numpy(array).to(self.replay.device)

    def widths(self, prepared: Batch) -> Int64:
        return np.array([len(prepared.segment)] if len(prepared.segment) else [], np.int64)

    def run(self, prepared: Batch, *, embed: bool = False) -> Outcome:
        segment, model, state = prepared.segment, self.model, self.state
        states = {name: state.read(name, prepared.nodes) for name in model.tables}
        self.touch_links(np.empty(0, np.int64))  # room for them
        pending = state.read(PENDING, prepared.nodes).cpu().numpy()
        rows = np.flatnonzero(pending[:, 0])
        renewed = None
        if len(rows):
            last, seen = pending[rows, 0] - 1, pending[rows, 1]
            by_message = type(model).update is DynamicGNN.update
            renew = self._by_message if by_message else self._by_update
            renewed = renew(prepared.nodes[rows], last, seen, prepared.written)
            at = self._tensor(rows)
            states = {n: s.index_copy(0, at, renewed.states[n]) for n, s in states.items()}
        shown = states | dict(model.derive(states))

        def read(names: tuple[str, ...], columns: Places, rows: Places, grad: bool) -> StateRows:
            return StateRows({n: shown[n] for n in names}, prepared.score_row[rows, columns])

        scored = self.scorer.score(segment.part(), read, slice(None), embed=embed)
        penalty = None
        if renewed is not None and renewed.penalties and len(segment):
            total = torch.cat(renewed.penalties).sum()
            penalty = (total / len(segment)).expand(len(segment))

        def commit() -> None:
            if renewed is not None:
                for rows, written in renewed.links:
                    self.touch_links(np.unique(rows[rows > 0].cpu().numpy()) - 1)
                    write_links(state, rows, written.links)
            for name in model.tables:
                state.write(name, prepared.written, states[name].detach()[prepared.written_row])
            start = np.full_like(prepared.last_event, segment.start)
            kept = np.stack([prepared.last_event + 1, start], axis=1)
            state.write(PENDING, prepared.written, torch.from_numpy(kept))

        return self.outcome(segment, scored, penalty, commit)

    def _by_update(self, nodes: Int64, last: Int64, seen: Int64, kept: Int64) -> Renewed:
        """`nodes` (p,) after the last events (p,) that wrote them, as of `seen` (p,).

        Values on links stand for the nodes in `kept`, which will be committed.
        """
        positions, event = np.unique(last, return_inverse=True)
        as_of = np.empty_like(positions)
        as_of[event] = seen
        segment = self.replay.updates(positions, as_of)
        sizes, place = _places(segment, event.astype(np.int64), nodes)
        stands = np.zeros((len(positions), 2), bool)  # whose links are written
        committed = np.isin(nodes, kept)
        for side in range(2):
            own = committed & (segment.ends[event, side] == nodes)
            stands[event[own], side] = True
        made: dict[str, list[Tensor]] = {name: [] for name in self.model.tables}
        first = np.empty(len(positions), np.int64)  # the row of each event's first write
        count = 0
        renewed = Renewed({})
        for which, piece, level in self._levels(segment):
            written = self.model.update(level)
            for name, value in piece.flat(written).items():
                made[name].append(value)
            first[which] = count + np.cumsum(sizes[which]) - sizes[which]
            count += piece.num_writes
            if written.penalty is not None:
                renewed.penalties.append(written.penalty)
            if piece.written is not None:
                own = torch.from_numpy(stands[which])[:, :, None].to(piece.written.device)
                renewed.links.append((torch.where(own, piece.written, 0), written))
        at = self._tensor(first[event] + place)
        renewed.states = {name: torch.cat(parts)[at] for name, parts in made.items()}
        return renewed

    def _by_message(self, nodes: Int64, last: Int64, seen: Int64, kept: Int64) -> Renewed:
        """`nodes` after the messages of their last batches: the last one, or the mean of all."""
        events = self.replay.log.events
        if self.model.aggregation == "mean":
            row, position, side = self._messages(nodes, last, seen)
        else:
            row, position = np.arange(len(nodes)), last
            side = (events.dst[last] == nodes).astype(np.int64)  # the later one of a self loop
        positions, event = np.unique(position, return_inverse=True)
        as_of = np.empty_like(positions)
        as_of[event] = seen[row]
        parts, order = [], []
        for which, _, level in self._levels(self.replay.updates(positions, as_of)):
            parts.append(self.model.message(level))
            order.append(which)
        back = np.empty(len(positions), np.int64)
        back[np.concatenate(order)] = np.arange(len(positions))
        told = torch.cat(parts).flatten(0, 1)[self._tensor(2 * back[event] + side)]
        if self.model.aggregation == "mean":
            total = told.new_zeros(len(nodes), told.shape[1])
            total = total.index_add(0, self._tensor(row), told)
            counts = np.bincount(row, minlength=len(nodes))
            told = total / torch.from_numpy(counts).to(total)[:, None]
        before = {name: self.state.read(name, nodes) for name in self.model.tables}
        return Renewed(dict(self.model.renew(before, told)))

    def _messages(self, nodes: Int64, last: Int64, seen: Int64) -> tuple[Int64, Int64, Int64]:
        """All messages of the nodes' last batches: row of `nodes`, event and side."""
        graph = self.replay.graph
        most = graph.degree(nodes, last + 1) - graph.degree(nodes, seen)
        found = graph.sample(nodes, last + 1, int(most.max()))
        row = np.repeat(np.arange(len(nodes)), np.diff(found.indptr))
        own = found.position >= seen[row]
        row, position, side = row[own], found.position[own], 1 - found.is_src[own].astype(np.int64)
        loop = found.node[own] == nodes[row]  # stands once in the graph, and gets both messages
        return (
            np.append(row, row[loop]),
            np.append(position, position[loop]),
            np.append(side, 1 - side[loop]),
        )

    def _levels(self, segment: Segment) -> Iterator[tuple[Int64, Piece, Level]]:
        """All events from the state as it stands: some of them at a time, and which they are."""
        model, device = self.model, self.replay.device
        members = segment.members
        lists = [segment.ends, segment.neighbors.node, segment.sampled]
        nodes = np.unique(np.concatenate([nodes.ravel() for nodes in lists]))
        states = {name: self.state.read(name, nodes) for name in model.tables}
        states |= dict(model.derive(states))

        def read(wanted: Sequence[tuple[str, Tensor]]) -> list[Tensor]:
            return [F.embedding(rows, states[name]) for name, rows in wanted]

        def rows(of: Int64) -> Int64:
            return np.searchsorted(nodes, of)

        all_rows = Rows(
            rows(segment.ends),
            rows(segment.neighbors.node),
            rows(np.empty(0, np.int64) if members is None else members.node),
            rows(segment.sampled),
        )
        lengths = np.diff(segment.neighbors.indptr).reshape(len(segment), 2).max(1)
        order = np.argsort(lengths, kind="stable")  # alike together: less padding
        together = np.zeros(len(segment), np.int64)
        has_links = bool(model.link_tables)
        pieces = lay_out(segment, all_rows, order, together, device, has_links=has_links)
        encoded = spread(model.encode(segment.events), self._tensor(order), pieces)
        stop = 0
        for piece, known in zip(pieces, encoded, strict=True):
            which = order[stop : stop + piece.size]
            stop += piece.size
            yield which, piece, piece.level(model, self.state, known, read)


def _places(segment: Segment, event: Int64, nodes: Int64) -> tuple[Int64, Int64]:
    """How many writes every event makes (n,), and which of those of `event` (p,) is `nodes` (p,)'s.

    Of a self loop the destination's stands.
    """
    members = segment.members
    if members is None:
        sizes = np.full(len(segment), 2)
        return sizes, (segment.ends[event, 1] == nodes).astype(np.int64)
    sizes = np.diff(members.indptr)
    owner = np.repeat(np.arange(len(segment)), sizes)
    scale = int(max(members.node.max(), nodes.max())) + 1
    keys = owner * scale + members.node
    order = np.argsort(keys)
    at = order[np.searchsorted(keys[order], event * scale + nodes)]
    return sizes, at - members.indptr[event]

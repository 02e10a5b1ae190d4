"""A level at a time: independent events together, on the tape, and all scoring in one batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..stream import Int64
from .executor import Executor, Outcome
from .pieces import Piece, Rows, lay_out, spread, write_links
from .replay import Replay
from .schedule import Schedule, schedule
from .scoring import Places, Scored
from .segment import Segment
from .tape import Tape


@dataclass(frozen=True, slots=True)
class Plan:
    """A segment with its schedule, laid out piece by piece."""

    segment: Segment
    schedule: Schedule
    base: Tensor  # (b,)
    order: Tensor  # (n,)
    pieces: tuple[Piece, ...]
    score_row: Tensor  # (n, columns)


class LevelExecutor(Executor[Plan]):
    """Runs a schedule level by level on the tape, then scores the segment in one batch."""

    def __init__(self, replay: Replay) -> None:
        super().__init__(replay)
        self._scratch = np.full(replay.log.num_nodes, -1, np.int64)
        model, reads = self.model, self.model.reads
        fed_back = {*reads.ends, *reads.neighbors, *reads.sampled}
        self._late = bool(model.derived) and not fed_back & set(model.derived)
        self._widths = dict(model.tables) | ({} if self._late else dict(model.derived))

    def prepare(self, segment: Segment) -> Plan:
        reads, slots = reads_of(segment)
        members = segment.members
        if members is None:
            writes, written = np.arange(0, 2 * len(segment) + 1, 2), segment.ends.ravel()
        else:
            writes, written = members.indptr, members.node
        indptr, nodes = reads
        plan = schedule(*(indptr, nodes, writes, written, segment.scored()), scratch=self._scratch)
        rows = Rows(*(plan.read_row[slot] for slot in slots))
        pieces = lay_out(
            *(segment, rows, plan.order, plan.level, self.replay.device),
            has_links=bool(self.model.link_tables),
        )
        base, order = self._tensor(plan.base), self._tensor(plan.order)
        return Plan(segment, plan, base, order, pieces, self._tensor(plan.score_row))

    def _tensor(self, array: Int64) -> Tensor:
        return torch.from_numpy(array).to(self.replay.device)

    def widths(self, prepared: Plan) -> Int64:
        return prepared.schedule.widths()

    def run(self, prepared: Plan, *, embed: bool = False) -> Outcome:
        segment, plan = prepared.segment, prepared.schedule
        model, state = self.model, self.state
        tape = Tape(self._widths, plan.num_rows, self.replay.dtype, self.replay.device)
        base = {name: state.read(name, prepared.base) for name in model.tables}
        tape.write(0, base | self._derive(base))
        encoded = spread(model.encode(segment.events), prepared.order, prepared.pieces)
        self.touch_links(segment.neighbors.link)
        penalties: list[Tensor] = []
        row = len(plan.base)
        for piece, known in zip(prepared.pieces, encoded, strict=True):
            written = model.update(piece.level(model, state, known, tape.read))
            states = piece.flat(written)
            tape.write(row, states | self._derive(states))
            if piece.written is not None:
                write_links(state, piece.written, written.links)
            if written.penalty is not None:
                penalties.append(written.penalty)
            row += piece.num_writes
        penalty = None
        if penalties:
            penalty = torch.empty_like(prepared.order, dtype=self.replay.dtype)
            penalty = penalty.index_copy(0, prepared.order, torch.cat(penalties))
        scored = self._score(prepared, tape, embed)

        def commit() -> None:
            kept = np.flatnonzero(plan.last_row >= len(plan.base))
            nodes = self._tensor(plan.base[kept])
            last = self._tensor(plan.last_row[kept])
            for name in model.tables:
                state.write(name, nodes, tape.rows[name][last])

        return Outcome.of(scored, penalty, commit)

    def _derive(self, states: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {} if self._late else dict(self.model.derive(states))

    def _score(self, prepared: Plan, tape: Tape, embed: bool) -> Scored:
        model = self.model
        late: Mapping[str, Tensor] = {}
        if self._late:  # once for all versions, since no update waits for it
            everything = torch.arange(prepared.schedule.num_rows, device=self.replay.device)
            names = tuple(model.tables)
            values = tape.read([(name, everything) for name in names])
            late = model.derive(dict(zip(names, values, strict=True)))

        def read(
            names: tuple[str, ...], columns: Places, rows: Places, grad: bool
        ) -> dict[str, Tensor]:
            at = prepared.score_row[rows, columns]
            if not (grad and torch.is_grad_enabled()):
                return {n: (late[n] if n in late else tape.rows[n])[at] for n in names}
            kept = [name for name in names if name not in late]
            found = dict(zip(kept, tape.read([(n, at) for n in kept]), strict=True))
            return {n: F.embedding(at, late[n]) if n in late else found[n] for n in names}

        scored = self.scorer.score(prepared.segment, read, slice(None), embed=embed)
        tape.close()
        return scored


def reads_of(segment: Segment) -> tuple[tuple[Int64, Int64], tuple[Int64, Int64, Int64, Int64]]:
    """What each event's update reads, as lists (indptr, node), and the places in `node` of

    its ends (n, 2), neighbours (r,), members (t,) and sampled nodes (n, s).  The neighbours of an
    event with members stand among these.
    """
    n, neighbors, members = len(segment), segment.neighbors, segment.members
    width = segment.sampled.shape[1]
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

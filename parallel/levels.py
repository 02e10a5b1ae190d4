"""A level at a time: independent events together, on the tape, and all scoring in one batch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ..models import Level, Links
from ..stream import Bool, Int64
from .executor import Executor, Outcome, column, join, take
from .kernels import cut_pieces, pad_lists
from .schedule import Schedule, schedule
from .segment import Replay, Segment
from .tape import Tape

PADDING_BUDGET = 4096  # padded neighbour slots that a piece may waste
SCORE_BUDGET = 1 << 19  # state rows gathered at a time for ranking


@dataclass(frozen=True, slots=True)
class Piece:
    """Independent events that are updated together: a level, or a part of a wide one."""

    size: int
    kind: Tensor  # (size,)
    ends: Tensor  # (size, 2) rows
    neighbors: Tensor  # (size, 2, k) rows
    mask: Tensor  # (size, 2, k) bool
    links: Tensor | None  # (size, 2, k) rows of the link tables, 0 is padding
    written: Tensor | None  # the same without what the other side of a self loop writes
    after: Tensor | None
    partner: Tensor | None
    start: int  # the first row that it writes


@dataclass(frozen=True, slots=True)
class Plan:
    """A segment with its schedule, laid out piece by piece."""

    segment: Segment
    schedule: Schedule
    base: Tensor  # (b,)
    order: Tensor  # (n,)
    pieces: tuple[Piece, ...]
    score_row: Tensor  # (n, m)


class LevelExecutor(Executor[Plan]):
    """Runs a schedule level by level on the tape, then scores the segment in one batch."""

    def __init__(self, replay: Replay) -> None:
        super().__init__(replay)
        self._scratch = np.full(replay.log.num_nodes, -1, np.int64)
        self._widths = dict(self.model.tables) | dict(self.model.derived)

    def prepare(self, segment: Segment) -> Plan:
        ends, neighbors = segment.ends.node, segment.neighbors
        n = len(ends)
        lengths = np.diff(neighbors.indptr).reshape(n, 2)
        starts = np.concatenate([[0], np.cumsum(2 + lengths.sum(1))])
        end_slots = starts[:-1, None] + np.arange(2)
        event = np.repeat(np.arange(n), lengths.sum(1))
        neighbor_slots = np.arange(len(neighbors.node)) + 2 * (event + 1)
        reads = np.empty(starts[-1], np.int64)
        reads[end_slots] = ends
        reads[neighbor_slots] = neighbors.node
        beside = (segment.ends, segment.other_src, segment.other_dst, segment.candidates)
        scored = np.concatenate([b.node for b in beside], axis=1)
        writes = np.arange(0, 2 * n + 1, 2)
        plan = schedule(starts, reads, writes, ends.ravel(), scored, scratch=self._scratch)
        rows = plan.read_row
        pieces = self._lay_out(segment, plan, rows[end_slots], rows[neighbor_slots], lengths)
        base, order = self._tensor(plan.base), self._tensor(plan.order)
        return Plan(segment, plan, base, order, pieces, self._tensor(plan.score_row))

    def _tensor(self, array: Int64 | Bool) -> Tensor:
        return torch.from_numpy(array).to(self.replay.device)

    def _lay_out(
        self, segment: Segment, plan: Schedule, end_rows: Int64, rows: Int64, lengths: Int64
    ) -> tuple[Piece, ...]:
        n, neighbors = len(segment), segment.neighbors
        stops, widths = np.empty(n, np.int64), np.empty(n, np.int64)
        longest = lengths.max(1) if n else np.empty(0, np.int64)
        count = cut_pieces(plan.order, plan.level, longest, PADDING_BUDGET, stops, widths)
        stops, widths = stops[:count], widths[:count]
        sizes = np.diff(stops, prepend=0)
        cells = int((2 * sizes * widths).sum())

        def pad(values: Int64) -> tuple[Tensor, Tensor]:
            padded, mask = np.empty(cells, np.int64), np.empty(cells, np.bool_)
            pad_lists(plan.order, stops, widths, neighbors.indptr, values, 0, padded, mask)
            return self._tensor(padded), self._tensor(mask)

        neighbor_rows, listed = pad(rows)
        before = pad(neighbors.before.astype(np.int64))[0].bool()
        has_links = bool(self.model.link_tables)
        links = pad(neighbors.link + 1)[0] if has_links else None
        written = links
        loops = segment.ends.node[:, 0] == segment.ends.node[:, 1]
        if has_links and loops.any():
            sources = np.stack([loops, np.zeros_like(loops)], axis=1).ravel()
            hidden = np.repeat(sources, np.diff(neighbors.indptr))
            written = pad(np.where(hidden, 0, neighbors.link + 1))[0]
        partner = pad(neighbors.partner.astype(np.int64))[0].bool() if has_links else None
        kind = segment.events.kind[self._tensor(plan.order)]
        ends = self._tensor(np.ascontiguousarray(end_rows[plan.order]))
        pieces = []
        cell, first = 0, len(plan.base)
        for stop, size, width in zip(stops.tolist(), sizes.tolist(), widths.tolist(), strict=True):
            span, shape = slice(cell, cell + 2 * size * width), (size, 2, width)
            which = slice(stop - size, stop)
            piece = Piece(
                size=size,
                kind=kind[which],
                ends=ends[which],
                neighbors=neighbor_rows[span].view(shape),
                mask=before[span].view(shape),
                links=None if links is None else links[span].view(shape),
                written=None if written is None else written[span].view(shape),
                after=None if links is None else listed[span].view(shape),
                partner=None if partner is None else partner[span].view(shape),
                start=first,
            )
            pieces.append(piece)
            cell += 2 * size * width
            first += 2 * size
        return tuple(pieces)

    def widths(self, prepared: Plan) -> Int64:
        return prepared.schedule.widths()

    def run(self, prepared: Plan) -> Outcome:
        segment, plan = prepared.segment, prepared.schedule
        model, state, reads = self.model, self.state, self.model.reads
        tape = Tape(self._widths, plan.num_rows, self.replay.dtype, self.replay.device)
        base = {name: state.read(name, prepared.base) for name in model.tables}
        tape.write(0, base | dict(model.derive(base)))
        encoded = model.encode(segment.events)
        sizes = [piece.size for piece in prepared.pieces]
        slices = {name: torch.split(e[prepared.order], sizes) for name, e in encoded.items()}
        self.touch_links(segment)
        for index, piece in enumerate(prepared.pieces):
            rows = [(name, piece.ends) for name in reads.ends]
            rows += [(name, piece.neighbors) for name in reads.neighbors]
            values = tape.read(rows)
            links = None
            if piece.links is not None:
                assert piece.after is not None and piece.partner is not None
                gathered = {name: state[name][:, 0][piece.links] for name in model.link_tables}
                links = Links(gathered, piece.after, piece.partner)
            level = Level(
                piece.kind,
                {name: parts[index] for name, parts in slices.items()},
                dict(zip(reads.ends, values, strict=False)),
                dict(zip(reads.neighbors, values[len(reads.ends) :], strict=True)),
                piece.mask,
                links,
            )
            written = model.update(level)
            states = {
                name: value.reshape(2 * piece.size, -1) for name, value in written.states.items()
            }
            tape.write(piece.start, states | dict(model.derive(states)))
            if piece.written is not None:
                for name, value in written.links.items():
                    table = state[name][:, 0]
                    table[piece.written] = value
                    table[0] = 0.0
        losses, scores = self._score(prepared, tape)

        def commit() -> None:
            kept = np.flatnonzero(plan.last_row >= len(plan.base))
            nodes = self._tensor(plan.base[kept])
            last = self._tensor(plan.last_row[kept])
            for name in model.tables:
                state.write(name, nodes, tape.rows[name][last])

        return Outcome(losses, scores, commit)

    def _score(self, prepared: Plan, tape: Tape) -> tuple[Tensor, Tensor | None]:
        segment, names = prepared.segment, self.model.reads.scored
        beside = [column(segment.ends, 0), column(segment.ends, 1)]
        beside += [segment.other_src, segment.other_dst]
        cuts = np.cumsum([0] + [b.node.shape[1] for b in beside])
        rows = [prepared.score_row[:, a:b] for a, b in pairwise(cuts)]
        values = tape.read([(name, part) for part in rows for name in names])
        tape.close()
        views = [
            self.nodes(b, dict(zip(names, values[i * len(names) :], strict=False)))
            for i, b in enumerate(beside)
        ]
        losses = self.model.loss(segment.events, *views)
        num_candidates = segment.candidates.node.shape[1]
        if not num_candidates:
            return losses, None
        # rank: the event's own destination first, then the candidates, a few events at a time
        destinations = torch.cat([rows[1], prepared.score_row[:, cuts[-1] :]], dim=1)
        shown = join(column(segment.ends, 1), segment.candidates)
        step = max(1, SCORE_BUDGET // (1 + num_candidates))
        parts = []
        for start in range(0, len(segment), step):
            span = slice(start, start + step)
            src = self.nodes(beside[0], {n: tape.rows[n][rows[0][span]] for n in names}, span)
            dst = self.nodes(shown, {n: tape.rows[n][destinations[span]] for n in names}, span)
            parts.append(self.model.score(take(segment.events, span), src, dst))
        return losses, torch.cat(parts)

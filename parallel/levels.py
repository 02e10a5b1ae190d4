"""A level at a time: independent events together, on the tape, and all scoring in one batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..stream import Int64
from .costs import LEVELS
from .executor import Outcome
from .pieces import Piece, Rows, lay_out, spread, write_links
from .schedule import Schedule
from .scheduled import Plan, ScheduledExecutor
from .segment import Segment
from .tape import Tape


@dataclass(frozen=True, slots=True)
class Levels:
    """The events of a segment level by level, laid out piece by piece."""

    order: Tensor  # (p,) places among the events that this rank updates
    pieces: tuple[Piece, ...]
    written: Tensor | None  # (w,) the rows that they make; None: one after the other


class LevelExecutor(ScheduledExecutor[Levels]):
    """Runs a schedule level by level on the tape, then scores the segment in one batch."""

    costs = LEVELS

    def arrange(self, segment: Segment, plan: Schedule, rows: Rows, mine: Int64 | None) -> Levels:
        order = plan.order
        if mine is not None:
            order = order[np.isin(order, mine, assume_unique=True)]
        pieces = lay_out(
            *(segment, rows, order, plan.level, self.replay.device),
            has_links=bool(self.model.link_tables),
        )
        if mine is None:
            return Levels(self.tensor(order), pieces, None)
        starts = np.arange(0, 2 * len(segment) + 1, 2)
        if segment.members is not None:
            starts = segment.members.indptr
        made = [plan.write_row[starts[e] : starts[e + 1]] for e in order.tolist()]
        written = self.tensor(np.concatenate([np.empty(0, np.int64), *made]))
        return Levels(self.tensor(np.searchsorted(mine, order)), pieces, written)

    def run(self, prepared: Plan[Levels], *, embed: bool = False) -> Outcome:
        segment, plan, work = prepared.segment, prepared.schedule, prepared.work
        model, state = self.model, self.state
        self.stages.enter("hoist")
        tape = Tape(self.widths_of_rows, plan.num_rows, self.replay.dtype, self.replay.device)
        base = self.base(prepared)
        tape.write(slice(0, len(plan.base)), base | self._derive(base))
        known = spread(self.encoded(prepared), work.order, work.pieces)
        self.stages.enter("scan")
        self.touch_links(segment.neighbors.link)
        penalties: list[Tensor] = []
        stop = 0 if work.written is not None else len(plan.base)
        for piece, told in zip(work.pieces, known, strict=True):
            written = model.update(piece.level(model, state, told, tape.read))
            states = piece.flat(written)
            start, stop = stop, stop + piece.num_writes
            rows = slice(start, stop) if work.written is None else work.written[start:stop]
            tape.write(rows, states | self._derive(states))
            if piece.written is not None:
                write_links(state, piece.written, written.links)
            if written.penalty is not None:
                penalties.append(written.penalty)
        penalty = None
        if penalties:
            penalty = torch.empty_like(work.order, dtype=self.replay.dtype)
            penalty = penalty.index_copy(0, work.order, torch.cat(penalties))
        if prepared.shares is not None:
            tape.exchange(self.replay.comm, prepared.shares)
            if penalty is None:  # a rank without events does not know whether there are any
                penalty = tape.token.new_zeros(len(work.order))
            self.exchange_links(prepared)
            penalty = self.exchange_penalty(prepared, penalty)
        tape.mark(self.stages, "backward scan")
        outcome = self.finish(prepared, tape.rows, penalty, embed, read=tape.read)
        tape.close()
        return outcome

    def _derive(self, states: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {} if self.derives_late else dict(self.model.derive(states))

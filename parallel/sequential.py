"""One event at a time: the plain reference that every other executor must equal.

States are a dictionary from node to its latest version; each event is scored from it, then updates
it.  Nothing is batched over events.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..models import DynamicGNN, Level, Links
from ..stream import Int64
from .executor import Executor, Outcome, column, join, take
from .segment import Beside, Segment


class SequentialExecutor(Executor[Segment]):
    """Runs events in log order with one call of the model's methods for each."""

    def prepare(self, segment: Segment) -> Segment:
        return segment

    def widths(self, prepared: Segment) -> Int64:
        return np.ones(len(prepared), np.int64)

    def run(self, prepared: Segment) -> Outcome:
        segment, model, state = prepared, self.model, self.state
        nodes = segment_nodes(segment)
        place = {node: row for row, node in enumerate(nodes.tolist())}
        base = {name: state.read(name, nodes) for name in model.tables}
        base |= dict(model.derive(base))
        latest: dict[str, list[Tensor]] = {name: list(v.unbind(0)) for name, v in base.items()}
        self.touch_links(segment)
        losses: list[Tensor] = []
        scores: list[Tensor] = []

        def step(i: int) -> None:
            losses.append(self._loss(segment, i, place, latest))
            if segment.candidates.node.shape[1]:
                scores.append(self._score(segment, i, place, latest))
            self._update(segment, i, place, latest)

        spans = _Spans(model, step)
        length = max(1, math.isqrt(len(segment)))
        for start in range(0, len(segment), length):
            # every span sees the parameters under a name of its own, so that their gradients are
            # summed in two stages and the rounding does not grow with the number of events
            views = {name: p.view_as(p) for name, p in spans.named_parameters()}
            span = range(start, min(start + length, len(segment)))
            functional_call(spans, views, (span,))

        def commit() -> None:
            touched = np.unique(segment.ends.node)
            for name in model.tables:
                rows = [latest[name][place[node]].detach() for node in touched.tolist()]
                if rows:
                    state.write(name, touched, torch.stack(rows))

        empty = torch.zeros(0, dtype=self.replay.dtype, device=self.replay.device)
        together = torch.cat(scores) if scores else None
        return Outcome(torch.cat(losses) if losses else empty, together, commit)

    def _states(
        self,
        names: tuple[str, ...],
        nodes: list[int],
        place: dict[int, int],
        latest: dict[str, list[Tensor]],
    ) -> dict[str, Tensor]:
        rows = [place[node] for node in nodes]
        return {name: torch.stack([latest[name][row] for row in rows])[None] for name in names}

    def _loss(
        self, segment: Segment, i: int, place: dict[int, int], latest: dict[str, list[Tensor]]
    ) -> Tensor:
        rows = slice(i, i + 1)
        views = []
        ends = (column(segment.ends, 0), column(segment.ends, 1))
        for beside in (*ends, segment.other_src, segment.other_dst):
            nodes = beside.node[i].tolist()
            states = self._states(self.model.reads.scored, nodes, place, latest)
            views.append(self.nodes(beside, states, rows))
        return self.model.loss(take(segment.events, rows), *views)

    def _score(
        self, segment: Segment, i: int, place: dict[int, int], latest: dict[str, list[Tensor]]
    ) -> Tensor:
        rows = slice(i, i + 1)
        src = column(segment.ends, 0)
        dst = join(column(segment.ends, 1), segment.candidates)
        views = []
        for beside in (src, dst):
            nodes = beside.node[i].tolist()
            states = self._states(self.model.reads.scored, nodes, place, latest)
            views.append(self.nodes(beside, states, rows))
        return self.model.score(take(segment.events, rows), *views)

    def _update(
        self, segment: Segment, i: int, place: dict[int, int], latest: dict[str, list[Tensor]]
    ) -> None:
        model, reads, lists = self.model, self.model.reads, segment.neighbors
        ends = segment.ends.node[i].tolist()
        bounds = lists.indptr[2 * i : 2 * i + 3]
        k = max(1, int(np.diff(bounds).max()))
        mask, after, partner = (torch.zeros(1, 2, k, dtype=torch.bool) for _ in range(3))
        padded, rows = [], torch.zeros(1, 2, k, dtype=torch.int64)
        for side in range(2):
            span = slice(int(bounds[side]), int(bounds[side + 1]))
            count = span.stop - span.start
            padded += lists.node[span].tolist() + [ends[side]] * (k - count)
            mask[0, side, :count] = torch.from_numpy(lists.before[span])
            after[0, side, :count] = True
            partner[0, side, :count] = torch.from_numpy(lists.partner[span])
            if model.link_tables:
                rows[0, side, :count] = torch.from_numpy(lists.link[span] + 1)
        neighbors = self._states(reads.neighbors, padded, place, latest)
        links = None
        if model.link_tables:
            values = {name: self.state[name][:, 0][rows] for name in model.link_tables}
            links = Links(values, after, partner)
        level = Level(
            segment.events.kind[i : i + 1],
            model.encode(take(segment.events, slice(i, i + 1))),
            self._states(reads.ends, ends, place, latest),
            {name: v.view(1, 2, k, -1) for name, v in neighbors.items()},
            mask,
            links,
        )
        written = model.update(level)
        states = {name: value[0] for name, value in written.states.items()}
        for name, value in (states | dict(model.derive(states))).items():
            for side in range(2):
                latest[name][place[ends[side]]] = value[side]
        for name, value in written.links.items():
            table = self.state[name][:, 0]
            for side in range(2):  # of a self loop the second one stands
                table[rows[0, side][after[0, side]]] = value[0, side][after[0, side]]


class _Spans(nn.Module):
    """Calls `step` for a span of events, under whatever parameters the module has then."""

    def __init__(self, model: DynamicGNN, step: Callable[[int], None]) -> None:
        super().__init__()
        self.model = model
        self._step = step

    def forward(self, span: range) -> None:
        for i in span:
            self._step(i)


def segment_nodes(segment: Segment) -> Int64:
    """Every node that the segment reads or writes."""
    sides: list[Beside] = [segment.ends, segment.other_src, segment.other_dst, segment.candidates]
    return np.unique(np.concatenate([s.node.ravel() for s in sides] + [segment.neighbors.node]))

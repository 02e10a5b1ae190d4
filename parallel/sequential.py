"""One event at a time: the plain reference that every other executor must equal.

States are a dictionary from node to its latest version; each event is scored from it, then updates
it.  Nothing is batched over events.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..models import DynamicGNN, Level, Links, Members, Near
from ..stream import Int64
from .executor import Executor, Outcome
from .replay import Replay
from .scoring import Places, Scored
from .segment import Segment, take


class SequentialExecutor(Executor[Segment]):
    """Runs events in log order with one call of the model's methods for each."""

    def __init__(self, replay: Replay) -> None:
        super().__init__(replay)
        if replay.comm.size > 1:
            raise ValueError(
                "the executor 'sequential' is the reference of one process: start it on one rank, "
                f"or use 'auto'; got {replay.comm.size} ranks"
            )

    def prepare(self, segment: Segment) -> Segment:
        return segment

    def widths(self, prepared: Segment) -> Int64:
        return np.ones(len(prepared), np.int64)

    def run(self, prepared: Segment, *, embed: bool = False) -> Outcome:
        segment, state = prepared, self.state
        latest = _Latest(self.model, segment)
        latest.fill({name: state.read(name, latest.nodes) for name in self.model.tables})
        self.touch_links(segment.neighbors.link)
        scored: list[Scored] = []
        penalties: list[Tensor] = []

        def step(i: int) -> None:
            scored.append(self._score(segment, i, latest, embed))
            penalty = self._update(segment, i, latest)
            if penalty is not None:
                penalties.append(penalty)

        spans = _Spans(self.model, step)
        length = max(1, math.isqrt(len(segment)))
        for start in range(0, len(segment), length):
            # every span sees the parameters under a name of its own, so that their gradients are
            # summed in two stages and the rounding does not grow with the number of events
            views = {name: p.view_as(p) for name, p in spans.named_parameters()}
            span = range(start, min(start + length, len(segment)))
            functional_call(spans, views, (span,))
        written = segment.ends.ravel() if segment.members is None else segment.members.node

        def commit() -> None:
            touched = np.unique(written)
            for name in self.model.tables:
                rows = [version.detach() for version in latest.of(name, touched.tolist())]
                if rows:
                    state.write(name, touched, torch.stack(rows))

        empty = torch.zeros(0, dtype=self.replay.dtype, device=self.replay.device)

        def together(name: str) -> Tensor | None:
            parts = [getattr(each, name) for each in scored]
            return torch.cat(parts) if parts and parts[0] is not None else None

        losses = together("losses")
        whole = Scored(
            empty if losses is None else losses,
            *(together(name) for name in ("scores", "pair_scores", "embedded", "expected")),
        )
        return self.outcome(segment, whole, torch.cat(penalties) if penalties else None, commit)

    def _score(self, segment: Segment, i: int, latest: _Latest, embed: bool) -> Scored:
        def read(
            names: tuple[str, ...], columns: Places, rows: Places, grad: bool
        ) -> dict[str, Tensor]:
            nodes = latest.scored[i, columns].tolist()
            return {name: latest.stack(name, nodes)[None] for name in names}

        return self.scorer.score(segment, read, slice(i, i + 1), embed=embed)

    def _update(self, segment: Segment, i: int, latest: _Latest) -> Tensor | None:
        level, slots, rows = self._level(segment, i, latest)
        written = self.model.update(level)
        states = {name: value[0] for name, value in written.states.items()}
        for name, value in (states | dict(self.model.derive(states))).items():
            for node, version in zip(slots, value, strict=False):
                latest.set(name, node, version)
        for name, value in written.links.items():
            table = self.state[name][:, 0]
            for side in range(2):  # of a self loop the second one stands
                stands = rows[side] > 0
                table[rows[side][stands]] = value[0, side].detach()[stands]
        return written.penalty

    def _level(
        self, segment: Segment, i: int, latest: _Latest
    ) -> tuple[Level, list[int], list[Tensor]]:
        """The event alone, the nodes that it writes, and the rows of its links."""
        model, reads, lists = self.model, self.model.reads, segment.neighbors
        ends = segment.ends[i].tolist()
        bounds = lists.indptr[2 * i : 2 * i + 3]
        spans = [slice(int(bounds[side]), int(bounds[side + 1])) for side in range(2)]
        k = max(1, *(span.stop - span.start for span in spans))

        def laid(array: npt.NDArray[Any]) -> Tensor:
            return torch.from_numpy(array).to(self.replay.device)

        def padded(values: npt.NDArray[Any], fill: Iterable[float] = (0, 0)) -> Tensor:
            """The lists of both ends, (1, 2, k)."""
            made = [
                np.concatenate([values[span], np.full(k - (span.stop - span.start), f)])
                for span, f in zip(spans, fill, strict=True)
            ]
            return laid(np.stack(made).astype(values.dtype))[None]

        mask = padded(lists.before)
        links = near = members = None
        link_rows = [laid(np.zeros(k, np.int64))] * 2
        if model.link_tables:
            rows = padded(lists.link + 1)
            values = {name: self.state[name][:, 0][rows] for name in model.link_tables}
            links = Links(values, rows > 0, padded(lists.partner))
            link_rows = list(rows[0])
        if reads.neighborhood != "links":
            near = Near(padded(lists.gap), padded(lists.is_src))
        first = {name: latest.stack(name, ends)[None] for name in reads.ends}
        written = ends
        if segment.members is not None:
            span = slice(*segment.members.indptr[i : i + 2].tolist())
            written = segment.members.node[span].tolist()
            slots = segment.members.ends[i : i + 1]
            members = Members(
                {name: latest.stack(name, written)[None] for name in reads.ends},
                laid(np.ones((1, len(written)), np.bool_)),
                laid(slots),
                padded(segment.members.neighbors, slots[0]),
            )
            first = {}
        nodes = padded(lists.node, ends)[0].ravel().tolist()
        around = {name: latest.stack(name, nodes).view(1, 2, k, -1) for name in reads.neighbors}
        drawn = segment.sampled[i].tolist()
        level = Level(
            segment.events.kind[i : i + 1],
            model.encode(take(segment.events, slice(i, i + 1))),
            *(first, around, mask, links, near, members),
            {name: latest.stack(name, drawn)[None] for name in reads.sampled},
            laid(segment.sampled_valid[i : i + 1]),
            laid(segment.noise[i : i + 1]),
        )
        return level, written, link_rows


@dataclass
class _Latest:
    """The latest version of every node that a segment reads or writes."""

    model: DynamicGNN
    segment: Segment
    nodes: Int64 = field(init=False)
    scored: Int64 = field(init=False)

    def __post_init__(self) -> None:
        segment = self.segment
        self.scored = segment.scored()
        parts = [self.scored, segment.ends, segment.sampled, segment.neighbors.node]
        self.nodes = np.unique(np.concatenate([part.ravel() for part in parts]))
        self._place = {node: row for row, node in enumerate(self.nodes.tolist())}
        self._versions: dict[str, list[Tensor]] = {}

    def fill(self, states: dict[str, Tensor]) -> None:
        """Take the states (nodes, width) that stand before the segment."""
        states = states | dict(self.model.derive(states))
        self._versions = {name: list(values.unbind(0)) for name, values in states.items()}

    def set(self, name: str, node: int, version: Tensor) -> None:
        self._versions[name][self._place[node]] = version

    def of(self, name: str, nodes: list[int]) -> list[Tensor]:
        return [self._versions[name][self._place[node]] for node in nodes]

    def stack(self, name: str, nodes: list[int]) -> Tensor:
        """(len(nodes), width)."""
        if not nodes:
            return torch.stack(self._versions[name][:1])[:0]
        return torch.stack(self.of(name, nodes))


class _Spans(nn.Module):
    """Calls `step` for a span of events, under whatever parameters the module has then."""

    def __init__(self, model: DynamicGNN, step: Callable[[int], None]) -> None:
        super().__init__()
        self.model = model
        self._step = step

    def forward(self, span: range) -> None:
        for i in span:
            self._step(i)

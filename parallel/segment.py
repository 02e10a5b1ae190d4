"""A segment is what can be known of a run of events without any parameter: it is resolved once.

Neighbours, links, gaps and negatives are asked of the store *as of* each event's position, for the
whole segment in one call, so nothing in a segment depends on how it will be executed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..models import DynamicGNN, Events
from ..storage import DynamicGraph, NegativeSampler, NodeState, OracleGraph, compare
from ..stream import TICKS_PER_SECOND, Bool, EventLog, Float64, Int64


@dataclass(frozen=True, slots=True)
class Neighbors:
    """The neighbours of both ends of every event, as lists: those of source, then destination."""

    indptr: Int64  # (2 n + 1,)
    node: Int64  # (r,)
    link: Int64  # (r,) directed link ids; empty where the model keeps nothing on links
    before: Bool  # (r,) False only for the link that the event itself makes
    partner: Bool  # (r,) the neighbour is the other end of the event


@dataclass(frozen=True, slots=True)
class Beside:
    """`m` nodes beside each of `n` events."""

    node: Int64  # (n, m)
    valid: Bool  # (n, m)
    gap: Float64  # (n, m) seconds since the node's last event
    idle: Float64  # (n, m) the same in mean gaps of a node: events since x 2 / known nodes


@dataclass(frozen=True, slots=True)
class Segment:
    """The events `[start, stop)` of the log with all that surrounds them."""

    start: int
    stop: int
    events: Events
    ends: Beside  # (n, 2)
    neighbors: Neighbors
    other_src: Beside  # (n, num_negatives)
    other_dst: Beside  # (n, num_negatives)
    candidates: Beside  # (n, m) distinct destinations to rank the event's own against

    def __len__(self) -> int:
        return self.stop - self.start


class Replay:
    """The store of one run: log, graph, node state and samplers, moving forward together."""

    def __init__(
        self,
        log: EventLog,
        model: DynamicGNN,
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        check: bool = False,
    ) -> None:
        model.check()
        self.log = log
        self.model = model
        self.device = torch.device(device)
        self.dtype = dtype
        self.graph = DynamicGraph(log.initial, log.num_nodes)
        self.oracle = OracleGraph(log.initial) if check else None
        tables = dict(model.tables) | dict.fromkeys(model.link_tables, 1)
        num_rows = dict.fromkeys(model.tables, log.num_nodes) | dict.fromkeys(
            model.link_tables, 1 + 2 * self.graph.num_links
        )  # row 0 of a link table is padding: link l stands in row l + 1
        self.state = NodeState(
            tables, num_rows, dtype=dtype, device=self.device, seed=seed, fill=model.fill
        )
        self.sampler = NegativeSampler(
            log.events.src, log.events.dst, seed=seed, initial=log.initial
        )
        self._fill_initial_links()

    def _fill_initial_links(self) -> None:
        if not (self.model.link_tables and self.graph.num_links):
            return
        nodes = np.arange(self.graph.num_nodes)
        links = self.graph.links(nodes, np.zeros(len(nodes), np.int64))
        degree = np.diff(links.indptr)
        of_node = torch.from_numpy(np.repeat(degree, degree)).to(self.dtype)
        values = self.model.first_links(of_node)
        for name, value in values.items():
            self.state.write(name, links.link + 1, value[:, None].to(self.state[name]))

    def apply(self, stop: int) -> None:
        """Feed the graph up to `stop`; what it knew of earlier positions stays as it was."""
        if stop <= self.graph.position:
            return
        batch = self.log[self.graph.position : stop]
        links = self.model.makes_link(batch, self.log.kinds)
        self.graph.apply(batch, links)
        if self.oracle is not None:
            self.oracle.apply(batch, links)

    def resolve(self, start: int, stop: int, *, num_candidates: int | None = None) -> Segment:
        """The segment `[start, stop)`.

        `num_candidates` destinations an event are drawn to rank its own against, each at most
        once, and all that are known by then where there are no more, or for 0; None takes no
        candidates.  The first of them is a draw that does not depend on `num_candidates`.
        """
        self.apply(stop)
        batch = self.log[start:stop]
        positions = np.arange(start, stop)
        ends = np.stack([batch.src, batch.dst], axis=1)
        beside = self._beside(ends, np.ones(ends.shape, bool), positions)
        count = self.model.num_negatives
        others = [
            self._beside(*self.sampler.sample(role, positions, count, ends), positions)
            for role in ("src", "dst")
        ]
        if num_candidates == 0:
            num_candidates = len(self.sampler.pool("dst", stop - 1))
        drawn = self.sampler.sample(
            "dst", positions, num_candidates or 0, ends, stream=1, replace=False
        )
        events = Events(
            torch.from_numpy(batch.kind.astype(np.int64)).to(self.device),
            torch.from_numpy(beside.gap).to(self.device),
            None if batch.weight is None else torch.tensor(batch.weight, device=self.device),
            None if batch.features is None else torch.tensor(batch.features, device=self.device),
        )
        return Segment(
            *(start, stop, events, beside, self._neighbors(ends, positions)),
            *(others[0], others[1], self._beside(*drawn, positions)),
        )

    def _beside(self, nodes: Int64, valid: Bool, positions: Int64) -> Beside:
        flat = np.repeat(positions, nodes.shape[1])
        last = self.graph.last_position(nodes.ravel(), flat).reshape(nodes.shape)
        time = self.log.events.time
        since = time[np.maximum(last, 0)]  # a new node waits since the first event of the log
        ticks = time[positions][:, None] - since if len(positions) else since
        gap = ticks / TICKS_PER_SECOND[self.log.unit]
        known = np.maximum(self.log.nodes_before(positions), 1)  # each event is one of two nodes
        idle = (positions[:, None] - last) * (2.0 / known[:, None])
        return Beside(nodes, valid, gap, idle)

    def _neighbors(self, ends: Int64, positions: Int64) -> Neighbors:
        reads = self.model.reads
        nodes = ends.ravel()
        twice = np.repeat(positions, 2)
        empty = np.empty(0, np.int64)
        if reads.neighborhood == "none":
            nothing = np.empty(0, bool)
            return Neighbors(np.zeros(len(nodes) + 1, np.int64), empty, empty, nothing, nothing)
        if reads.neighborhood == "recent":
            recent = self.graph.sample(nodes, twice, reads.k)
            if self.oracle is not None:
                compare(recent, self.oracle.sample(nodes, twice, reads.k), nodes, twice)
            before = np.ones(len(recent.node), bool)
            return Neighbors(recent.indptr, recent.node, empty, before, np.zeros_like(before))
        links = self.graph.links(nodes, twice + 1)
        if self.oracle is not None:
            compare(links, self.oracle.links(nodes, twice + 1), nodes, twice + 1)
        row = np.repeat(np.arange(len(nodes)), np.diff(links.indptr))
        partner = links.node == ends[:, ::-1].ravel()[row]
        return Neighbors(links.indptr, links.node, links.link, links.position < twice[row], partner)

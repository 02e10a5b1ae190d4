"""The store of one run: log, graph, node state and samplers, moving forward together.

Neighbours, links, gaps and negatives are asked of the store *as of* a position, for a whole segment
in one call each; the graph is never rewound, whatever windows do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..models import DynamicGNN, Events
from ..storage import (
    DynamicGraph,
    NegativeSampler,
    Neighborhood,
    NodeState,
    OracleGraph,
    Rests,
    compare,
    uniform,
)
from ..stream import TICKS_PER_SECOND, Bool, EventLog, Float64, Int64
from .kernels import collect_members, lay_gaps
from .ranks import Alone, Comm
from .segment import Beside, Consistency, Group, Members, Neighbors, Recent, Segment
from .sharing import share_rows
from .stages import Stages

PENDING = "pending"
"""The table of a stale run: of each node, 1 + the last event that wrote it, and its batch's start.
"""


class Replay:
    """The store of one run.

    With `consistency="batch"` all events of a segment see graph and states as of its first event,
    as the usual stale training does; it must then be run by the executor of that name.  Of the
    ranks of `comm` each scores its share of the events.
    """

    def __init__(
        self,
        log: EventLog,
        model: DynamicGNN,
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        check: bool = False,
        consistency: Consistency = "exact",
        comm: Comm | None = None,
    ) -> None:
        model.check()
        if consistency not in ("exact", "batch"):
            raise ValueError(f"`consistency` must be 'exact' or 'batch': got {consistency!r}")
        self.log = log
        self.model = model
        self.device = torch.device(device)
        self.dtype = dtype
        self.seed = seed
        self.consistency = consistency
        self.comm = comm or Alone()
        self.stages = Stages()
        self.graph = DynamicGraph(log.initial, log.num_nodes, len(log))
        self.oracle = OracleGraph(log.initial) if check else None
        tables = dict(model.tables) | dict.fromkeys(model.link_tables, 1)
        num_rows = dict.fromkeys(model.tables, log.num_nodes) | dict.fromkeys(
            model.link_tables, 1 + 2 * self.graph.num_links
        )  # row 0 of a link table is padding: link l stands in row l + 1
        if consistency == "batch":
            tables |= {PENDING: 2}
            num_rows |= {PENDING: log.num_nodes}
        self.state = NodeState(
            *(tables, num_rows),
            dtype=dtype,
            device=self.device,
            seed=seed,
            fill=model.fill,
            dtypes={PENDING: torch.int64},
        )
        self.sampler = NegativeSampler(
            log.events.src, log.events.dst, seed=seed, initial=log.initial
        )
        members = log.num_nodes if model.writes == "neighbors" else 0
        self._member_scratch = np.full(members, -1, np.int64)
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

    def resolve(
        self,
        start: int,
        stop: int,
        *,
        num_candidates: int | None = None,
        candidates: tuple[Int64, Bool] | None = None,
        pairs: tuple[Int64, Int64] | None = None,
        score: bool = True,
    ) -> Segment:
        """The segment `[start, stop)`.

        `num_candidates` destinations an event are drawn to rank its own against, each at most
        once, and all that are known by then where there are no more, or for 0; None takes no
        candidates.  The first of them is a draw that does not depend on `num_candidates`.
        `candidates`, nodes and which of them count, both (n, m), are taken instead if given.
        `pairs`, sources and destinations (n, q), are scored beside each event too, the event's
        own pair before them.  With `score=False` nothing is, and losses are 0: the quick way to
        bring states forward.
        """
        self.stages.enter("resolve")
        self.apply(stop)
        positions = np.arange(start, stop)
        seen = positions if self.consistency == "exact" else np.full_like(positions, start)
        batch = self.log[start:stop]
        ends = np.stack([batch.src, batch.dst], axis=1)
        if not score:
            return self._unscored(positions, seen, ends)
        if num_candidates == 0:
            num_candidates = len(self.sampler.pool("dst", stop - 1))
        if candidates is None:
            candidates = self.sampler.sample(
                "dst", positions, num_candidates or 0, ends, stream=1, replace=False
            )
        counts = {"dst": self.model.num_negatives, "src": 0}
        if self.model.corrupts == "both":
            counts["src"] = counts["dst"]
        others = [
            self.sampler.sample(role, positions, counts[role], ends) for role in ("src", "dst")
        ]
        sides = [np.empty((len(batch), 0), np.int64)] * 2
        if pairs is not None:
            both = (batch.src, batch.dst)
            sides = [np.column_stack([a, b]) for a, b in zip(both, pairs, strict=True)]
        everywhere = np.ones(sides[0].shape, bool)
        real = np.ones((len(batch), 1), bool)
        shown = [(batch.src[:, None], real), (batch.dst[:, None], real), *others, candidates]
        shown += [(side, everywhere) for side in sides]
        own = slice(*share_rows(len(batch), self.comm.rank, self.comm.size))
        together = [np.concatenate([part[i] for part in shown], axis=1)[own] for i in range(2)]
        beside = self._beside(together[0], together[1], positions[own], seen[own])
        sizes = tuple(nodes.shape[1] for nodes, _ in shown)
        return self._segment(positions, seen, ends, own, (beside, sizes), candidates)

    def updates(self, positions: Int64, seen: Int64) -> Segment:
        """The updates of the events at `positions`, each as of the position in `seen`.

        Nothing is scored beside them.
        """
        events = self.log.events
        ends = np.stack([events.src[positions], events.dst[positions]], axis=1)
        return self._unscored(positions, seen, ends)

    def _unscored(self, positions: Int64, seen: Int64, ends: Int64) -> Segment:
        own = slice(*share_rows(len(positions), self.comm.rank, self.comm.size))
        shape = (own.stop - own.start, 0)
        nothing = self._beside(
            *(np.empty(shape, np.int64), np.empty(shape, bool), positions[own], seen[own])
        )
        none = (nothing.node, nothing.valid)
        return self._segment(positions, seen, ends, own, (nothing, (0,) * len(Group)), none)

    def _segment(
        self,
        positions: Int64,
        seen: Int64,
        ends: Int64,
        own: slice,
        shown: tuple[Beside, tuple[int, ...]],
        candidates: tuple[Int64, Bool],
    ) -> Segment:
        reads, log = self.model.reads, self.log.events
        last = self._last(ends, seen)
        gap = self._seconds(log.time[np.maximum(last, 0)], positions)
        events = Events(
            torch.from_numpy(log.kind[positions].astype(np.int64)).to(self.device),
            torch.from_numpy(gap).to(self.device),
            self._column(log.weight, positions),
            self._column(log.features, positions),
        )
        neighbors = self._neighbors(ends, positions, seen)
        members = self._members(ends, neighbors) if self.model.writes == "neighbors" else None
        wanted = reads.num_sampled if reads.sampled else 0
        sampled, valid = np.empty((len(ends), 0), np.int64), np.empty((len(ends), 0), bool)
        if wanted:
            sampled, valid = self.sampler.sample(
                "any", positions, wanted, ends, stream=2, replace=False
            )
        noise = uniform(self.seed, "noise", positions, reads.noise)
        return Segment(
            *(positions, events, ends, neighbors, members, sampled, valid, noise, *candidates, own),
            *shown,
        )

    def _column(self, values: npt.NDArray[Any] | None, positions: Int64) -> torch.Tensor | None:
        if values is None:
            return None
        return torch.from_numpy(values[positions]).to(self.device, self.dtype)

    def _last(self, nodes: Int64, seen: Int64) -> Int64:
        flat = np.repeat(seen, nodes.shape[1])
        return self.graph.last_position(nodes.ravel(), flat).reshape(nodes.shape)

    def _seconds(self, since: Int64, positions: Int64) -> Float64:
        """From the times `since` (n, ...) to the events at `positions` (n,).

        A new node waits since the first event of the log.
        """
        now = self.log.events.time[positions].reshape(-1, *(1,) * (since.ndim - 1))
        ticks = now - since
        return np.asarray(ticks / TICKS_PER_SECOND[self.log.unit])

    def _beside(self, nodes: Int64, valid: Bool, positions: Int64, seen: Int64) -> Beside:
        recent = None
        if self.model.reads.around:
            last, recent = self._recent(nodes, positions, seen)
        else:
            last = self._last(nodes, seen)
        gap = self._seconds(self.log.events.time[np.maximum(last, 0)], positions)
        known = np.maximum(self.log.nodes_before(positions), 1)  # each event is one of two nodes
        idle = (positions[:, None] - last) * (2.0 / known[:, None])
        return Beside(nodes, valid, gap, idle, recent)

    def _recent(self, nodes: Int64, positions: Int64, seen: Int64) -> tuple[Int64, Recent]:
        """The position of each node's last event (n, m), and the recent events of each."""
        n, m = nodes.shape
        k, time = self.model.reads.k, self.log.events.time
        flat, at = nodes.ravel(), np.repeat(seen, m)
        stage = self.stages.enter("sample")
        found = self.graph.rests(flat, at, k)
        self.stages.enter(stage or "resolve")
        if self.oracle is not None:
            self._compare(found, flat, at, k)
        mask, gap, idle_gap = (
            np.empty((n * m, k), dtype) for dtype in (np.bool_, np.float64, np.float64)
        )
        event = found.position
        lay_gaps(
            *(event, found.last_of, time, time[positions]),
            *(float(TICKS_PER_SECOND[self.log.unit]), mask, gap, idle_gap),
        )
        lists: tuple[npt.NDArray[Any], ...] = (found.node, mask, event, found.is_src, gap, idle_gap)
        return found.last.reshape(n, m), Recent(*(each.reshape(n, m, k) for each in lists))

    def _compare(self, found: Rests, nodes: Int64, positions: Int64, k: int) -> None:
        """Hold what was found to plain lists."""
        assert self.oracle is not None
        plain = self.oracle.sample(nodes, positions, k)
        real = found.position >= 0
        indptr = np.concatenate([[0], np.cumsum(real.sum(1))])
        at = found.position[real]
        ours = Neighborhood(
            indptr, found.node[real], at, self.log.events.time[at], found.is_src[real]
        )
        compare(ours, plain, nodes, positions)
        compare(found.last, self.oracle.last_position(nodes, positions), nodes, positions)
        row = np.repeat(positions, np.diff(indptr))
        ends = self.oracle.last_position(ours.node, row)
        compare(found.last_of[real], ends, ours.node, row)

    def _neighbors(self, ends: Int64, positions: Int64, seen: Int64) -> Neighbors:
        reads = self.model.reads
        nodes, twice = ends.ravel(), np.repeat(seen, 2)
        empty, nothing, none = np.empty(0, np.int64), np.empty(0, bool), np.empty(0)
        if reads.neighborhood == "none":
            indptr = np.zeros(len(nodes) + 1, np.int64)
            return Neighbors(indptr, empty, nothing, empty, nothing, none, nothing)
        if reads.neighborhood == "recent":
            recent = self.graph.sample(nodes, twice, reads.k)
            if self.oracle is not None:
                compare(recent, self.oracle.sample(nodes, twice, reads.k), nodes, twice)
            row = np.repeat(np.arange(len(nodes)), np.diff(recent.indptr))
            now = self.log.events.time[positions[row // 2]]
            gap = (now - recent.time) / TICKS_PER_SECOND[self.log.unit]
            before = np.ones(len(recent.node), bool)
            return Neighbors(
                *(recent.indptr, recent.node, before, empty, nothing, gap, recent.is_src)
            )
        own = np.repeat(positions, 2)
        links = self.graph.links(nodes, own + 1)
        if self.oracle is not None:
            compare(links, self.oracle.links(nodes, own + 1), nodes, own + 1)
        row = np.repeat(np.arange(len(nodes)), np.diff(links.indptr))
        before = links.position < twice[row]
        partner = links.node == ends[:, ::-1].ravel()[row]
        indptr, node, link = links.indptr, links.node, links.link
        if self.consistency == "batch":  # links of the batch are seen only by events of their pair
            kept = before | partner | (links.position == own[row])
            indptr = np.concatenate([[0], np.cumsum(np.bincount(row[kept], minlength=len(nodes)))])
            node, link, before, partner = node[kept], link[kept], before[kept], partner[kept]
        return Neighbors(indptr, node, before, link, partner, none, nothing)

    def _members(self, ends: Int64, neighbors: Neighbors) -> Members:
        n = len(ends)
        indptr, slots = np.empty(n + 1, np.int64), np.empty((n, 2), np.int64)
        node = np.empty(2 * n + len(neighbors.node), np.int64)
        of_neighbor = np.empty(len(neighbors.node), np.int64)
        count = collect_members(
            *(ends, neighbors.indptr, neighbors.node, self._member_scratch),
            *(indptr, node, slots, of_neighbor),
        )
        return Members(indptr, node[:count].copy(), slots, of_neighbor)

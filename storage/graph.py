"""The dynamic graph: time-ordered adjacency that answers *as of position p*.

Invariant: an answer as of `p` has read only initial links and events with a position below `p`,
however many have been applied.  Events count every contact; links are distinct undirected pairs.
Times are int64 ticks from end to end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ..stream.errors import OrderError
from ..stream.events import Bool, EventBatch, Int64
from . import kernels

Direction: TypeAlias = Literal["both", "in", "out"]

MAX_NODES = 2**31  # two ids make one key of the table of pairs
WORDS = 8  # of lists, room among them, that an event takes: 3 to 6 in real logs
UNWANTED = {"both": -1, "in": kernels.OUT, "out": kernels.IN}  # a role to pass over


@dataclass(frozen=True, slots=True)
class Neighborhood:
    """The sampled events of n query nodes, ragged; each row oldest first."""

    indptr: Int64  # (n + 1,) row i is indptr[i]:indptr[i + 1]
    node: Int64  # (m,) the other end; the node itself for a self loop
    position: Int64  # (m,) log position of the event
    time: Int64  # (m,) ticks
    is_src: Bool  # (m,) the query node was the event's source

    def padded(self, k: int) -> tuple[Int64, Int64, Int64, Bool]:
        """`(node, position, time, mask)`, each (n, k), rows filled from the left, oldest first.

        A row with more than `k` entries gives its newest; where `mask` is False stand
        node 0, position -1 and time 0.
        """
        size = np.minimum(np.diff(self.indptr), k)  # (n,)
        columns = np.arange(k)
        mask = columns < size[:, None]  # (n, k)
        at = ((self.indptr[1:] - size)[:, None] + columns)[mask]
        node, position, time = (np.full(mask.shape, pad, np.int64) for pad in (0, -1, 0))
        node[mask], position[mask], time[mask] = self.node[at], self.position[at], self.time[at]
        return node, position, time, mask


@dataclass(frozen=True, slots=True)
class Rests:
    """The sampled events of n query nodes in rows of k, oldest first from the left.

    Where a node had fewer events stand node 0, positions -1 and False.
    """

    node: Int64  # (n, k) the other end
    position: Int64  # (n, k)
    is_src: Bool  # (n, k)
    last: Int64  # (n,) the position of the query node's own latest event, -1 if there is none
    last_of: Int64  # (n, k) the same of the other ends


@dataclass(frozen=True, slots=True)
class Links:
    """The linked neighbours of n query nodes, ragged, in order of the links' creation."""

    indptr: Int64  # (n + 1,) row i is indptr[i]:indptr[i + 1]
    node: Int64  # (m,) the neighbour
    link: Int64  # (m,) directed link id: pair j is 2j for its creating source's row, else 2j + 1
    position: Int64  # (m,) of the event that made the link; -1 for an initial one


class DynamicGraph:
    """A graph that takes events in order, takes them back, and answers as of any position.

    A self loop stands once in its node's lists and adds 1 to its degree.  Initial links are links,
    not events: `links` and `num_linked` show them (position -1), `sample`, `degree` and `last_*` do
    not.  Positions beyond `position` see all that has been applied; positions below 0 see nothing.
    Nodes that have not appeared have no neighbours.

    `num_nodes` and `num_events` reserve room, which costs nothing until it is used; beyond that
    the graph grows by itself, at amortised constant cost.

    >>> graph = DynamicGraph()
    >>> ids = np.array([0, 0, 0]), np.array([1, 2, 1])
    >>> graph.apply(EventBatch(*ids, np.array([3, 5, 9]), np.zeros(3, np.uint8)))
    >>> graph.sample(np.array([0]), 2, k=5).node.tolist(), graph.num_links
    ([1, 2], 2)
    >>> graph.undo(1)
    >>> graph.num_nodes, graph.degree(np.array([0]), 3).tolist()
    (2, [1])
    """

    def __init__(
        self, initial: EventBatch | None = None, num_nodes: int = 0, num_events: int = 0
    ) -> None:
        self._heads = np.zeros((max(num_nodes, 16), 8), np.int64)
        self._pool = np.empty(max(WORDS * num_events, 256), np.int64)
        self._free = np.full(64, -1, np.int64)
        self._counts = np.zeros(3, np.int64)
        self._table = np.zeros(64, np.int64)
        self._made = np.empty((32, 3), np.int64)
        self._record = np.zeros((max(1 + num_events, 64), 5), np.int64)
        self._position = 0
        if initial is not None:
            src, dst = _ends(initial)
            self._apply(src, dst, src, np.ones(len(src), np.bool_), -1)
        self._record[0, kernels.LINKS_AFTER] = self.num_links
        self._record[0, kernels.NODES_AFTER] = self.num_nodes

    @property
    def num_nodes(self) -> int:
        """One more than the largest node id seen so far."""
        return int(self._counts[kernels.NUM_NODES])

    @property
    def position(self) -> int:
        """How many events have been applied: the position of the next one."""
        return self._position

    @property
    def num_links(self) -> int:
        """How many distinct undirected pairs are linked."""
        return int(self._counts[kernels.NUM_LINKS])

    def apply(self, batch: EventBatch, links: Bool | None = None) -> None:
        """Apply the events at the next positions.

        `links` (n,) says which events make a link between their ends; None means all.
        A batch that is refused changes nothing.

        Raises:
            OrderError: if `time` decreases, within the batch or from what was applied before.
            ValueError: if an id is negative or too large, or `links` has another length.
        """
        src, dst = _ends(batch)
        time = _int64("time", batch.time)
        mask = np.ones(len(src), np.bool_) if links is None else np.asarray(links)
        if mask.shape != src.shape or mask.dtype != np.bool_:
            raise ValueError(
                f"`links` must be one bool an event: "
                f"got {mask.dtype} of shape {mask.shape} for {len(src)} events"
            )
        if len(src) == 0:
            return
        drops = np.flatnonzero(time[1:] < time[:-1])
        if len(drops):
            i = int(drops[0]) + 1
            raise OrderError(
                f"`time` must not decrease: event {i} of the batch has {time[i]} after "
                f"{time[i - 1]}; sort the events first (stable)"
            )
        last = int(self._record[self._position, kernels.TIME])
        if self._position and time[0] < last:
            raise OrderError(
                f"`time` must not go back: the batch begins at {time[0]}, but an event at {last} "
                f"has been applied; undo it first"
            )
        size = 1 + self._position + len(src)
        if size > kernels.MAX_EVENTS:
            raise ValueError(f"at most {kernels.MAX_EVENTS - 1} events fit: got {size - 1}")
        self._record = _grown(self._record, size, 1 + self._position)
        self._apply(src, dst, time, mask, self._position)
        self._position += len(src)

    def undo(self, position: int) -> None:
        """Take back every event at `position` and after; the cost is that of what is taken back.

        Afterwards every answer is as if only the events before `position` had been applied.

        Raises:
            ValueError: if `position` is negative or beyond what has been applied.
        """
        if not 0 <= position <= self._position:
            raise ValueError(
                f"`position` must be one of the {self._position} applied events or the next: "
                f"got {position}"
            )
        with np.errstate(over="ignore"):
            kernels.undo_events(
                self._heads, self._counts, self._table, self._record, self._position, position
            )
        self._position = position

    def sample(
        self,
        nodes: Int64,
        positions: Int64 | int,
        k: int | None,
        direction: Direction = "both",
    ) -> Neighborhood:
        """The `k` latest events of each node before its position (None: all), oldest first.

        A neighbour met twice stands twice.  `direction` keeps the events that came "in" (the node
        was the destination) or went "out"; a self loop does both.
        """
        if k is not None and k < 0:
            raise ValueError(f"`k` must not be negative: got {k}")
        if direction not in UNWANTED:
            raise ValueError(f"`direction` must be 'both', 'in' or 'out': got {direction!r}")
        nodes, positions = _queries(nodes, positions)
        ends = self._events_before(nodes, positions)
        unwanted = UNWANTED[direction]
        sizes = ends if k is None else np.minimum(ends, k)
        if direction != "both":
            limit = int(ends.max(initial=0)) if k is None else k
            sizes = np.empty_like(ends)
            kernels.count_recent(self._heads, self._pool, nodes, ends, unwanted, limit, sizes)
        indptr = _indptr(sizes)
        node, position, time = (np.empty(indptr[-1], np.int64) for _ in range(3))
        is_src = np.empty(indptr[-1], np.bool_)
        kernels.copy_recent(
            self._heads,
            self._pool,
            self._record,
            nodes,
            ends,
            unwanted,
            indptr,
            node,
            position,
            time,
            is_src,
        )
        return Neighborhood(indptr, node, position, time, is_src)

    def rests(self, nodes: Int64, positions: Int64, k: int) -> Rests:
        """The `k` latest events of each node before its position, and how long their ends rest.

        It answers `sample` and `last_position`, of all nodes that are found too, in one pass.

        >>> graph = DynamicGraph()
        >>> ids = np.array([0, 0, 1]), np.array([1, 2, 1])
        >>> graph.apply(EventBatch(*ids, np.array([3, 5, 9]), np.zeros(3, np.uint8)))
        >>> found = graph.rests(np.array([0]), np.array([3]), k=2)
        >>> found.node.tolist(), found.last.tolist(), found.last_of.tolist()
        ([[1, 2]], [1], [[2, 1]])
        """
        if k < 0:
            raise ValueError(f"`k` must not be negative: got {k}")
        nodes, positions = _queries(nodes, positions)
        shape = (len(nodes), k)
        node, position, last_of = (np.empty(shape, np.int64) for _ in range(3))
        is_src, last = np.empty(shape, np.bool_), np.empty(len(nodes), np.int64)
        kernels.lay_recent(
            *(self._heads, self._pool, self._record, nodes, np.minimum(positions, self._position)),
            *(node, position, is_src, last, last_of),
        )
        return Rests(node, position, is_src, last, last_of)

    def links(self, nodes: Int64, positions: Int64 | int) -> Links:
        """All distinct neighbours that each node is linked with before its position."""
        nodes, positions = _queries(nodes, positions)
        indptr = _indptr(self._links_before(nodes, positions))
        node, link, position = (np.empty(indptr[-1], np.int64) for _ in range(3))
        kernels.copy_links(self._heads, self._pool, self._made, nodes, indptr, node, link, position)
        return Links(indptr, node, link, position)

    def degree(self, nodes: Int64, positions: Int64 | int) -> Int64:
        """How many events each node had before its position; (n,)."""
        return self._events_before(*_queries(nodes, positions))

    def num_linked(self, nodes: Int64, positions: Int64 | int) -> Int64:
        """How many distinct neighbours each node is linked with before its position; (n,)."""
        return self._links_before(*_queries(nodes, positions))

    def last_position(self, nodes: Int64, positions: Int64 | int) -> Int64:
        """The position of each node's latest event before its position, -1 if there is none."""
        nodes, positions = _queries(nodes, positions)
        out = np.empty(len(nodes), np.int64)
        ends = self._events_before(nodes, positions)
        kernels.copy_last(self._heads, self._pool, nodes, ends, out)
        return out

    def last_time(self, nodes: Int64, positions: Int64 | int, default: int) -> Int64:
        """The time of each node's latest event before its position, `default` if there is none."""
        last = self.last_position(nodes, positions)
        return np.where(last < 0, np.int64(default), self._record[last + 1, kernels.TIME])

    def _events_before(self, nodes: Int64, positions: Int64) -> Int64:
        limits = np.clip(positions, 0, self._position) << kernels.POSITION_SHIFT
        return self._below(nodes, limits, kernels.EVENTS)

    def _links_before(self, nodes: Int64, positions: Int64) -> Int64:
        before = self._record[np.clip(positions, 0, self._position), kernels.LINKS_AFTER]
        limits = np.where(positions < 0, 0, 2 * before)
        return self._below(nodes, limits, kernels.LINKS)

    def _below(self, nodes: Int64, limits: Int64, which: int) -> Int64:
        out = np.empty(len(nodes), np.int64)
        kernels.count_below(self._heads, self._pool, nodes, limits, which, out)
        return out

    def _apply(self, src: Int64, dst: Int64, time: Int64, links: Bool, position: int) -> None:
        if len(src) == 0:
            return
        known = int(max(src.max(), dst.max())) + 1
        if known > len(self._heads):
            heads = np.zeros((max(known, 2 * len(self._heads)), 8), np.int64)
            heads[: len(self._heads)] = self._heads
            self._heads = heads
        # pages that are not touched cost nothing, copies do: reserve generously
        used = int(self._counts[kernels.USED])
        self._pool = _grown(self._pool, used + 2 * kernels.FIRST_CAPACITY * len(src), used)
        done = 0
        while True:
            with np.errstate(over="ignore"):  # hashes wrap on purpose; the interpreter would warn
                done = kernels.apply_events(
                    self._heads,
                    self._pool,
                    self._free,
                    self._counts,
                    self._table,
                    self._made,
                    self._record,
                    src,
                    dst,
                    time,
                    links,
                    done,
                    position,
                )
            if done == len(src):
                return
            if 2 * (self.num_links + 1) > len(self._table):
                self._grow_table()
            else:
                used = int(self._counts[kernels.USED])
                self._pool = _grown(self._pool, len(self._pool) + 1, used)

    def _grow_table(self) -> None:
        self._table = np.zeros(2 * len(self._table), np.int64)
        self._made = _grown(self._made, len(self._table) // 2, self.num_links)
        with np.errstate(over="ignore"):
            kernels.refill(self._table, self._made, self.num_links)


def _grown(array: Int64, size: int, used: int) -> Int64:
    """The array with room for `size` rows, at least doubled if it must grow."""
    if size <= len(array):
        return array
    grown = np.empty((max(size, 2 * len(array)), *array.shape[1:]), array.dtype)
    grown[:used] = array[:used]
    return grown


def _ends(batch: EventBatch) -> tuple[Int64, Int64]:
    """The checked node ids of a batch."""
    ends = _int64("src", batch.src), _int64("dst", batch.dst)
    for name, ids in zip(("src", "dst"), ends, strict=True):
        if len(ids) and not 0 <= ids.min() <= ids.max() < MAX_NODES:
            bad = int(np.flatnonzero((ids < 0) | (ids >= MAX_NODES))[0])
            raise ValueError(
                f"`{name}` must hold dense node ids from 0 to {MAX_NODES - 1}: got {ids[bad]} "
                f"at event {bad} of the batch"
            )
    return ends


def _int64(name: str, values: npt.ArrayLike) -> Int64:
    """A contiguous int64 array; a view if it is one already."""
    array: npt.NDArray[Any] = np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise ValueError(
            f"`{name}` must be a 1-d array of integers: got {array.dtype} of shape {array.shape}"
        )
    return np.ascontiguousarray(array, np.int64)


def _queries(nodes: Int64, positions: Int64 | int) -> tuple[Int64, Int64]:
    """The checked query nodes with one position each."""
    nodes = _int64("nodes", nodes)
    if len(nodes) and nodes.min() < 0:
        raise ValueError(f"`nodes` must not be negative: got {nodes.min()}")
    if np.ndim(positions) == 0:
        return nodes, np.full(len(nodes), positions, np.int64)
    positions = _int64("positions", positions)
    if len(positions) != len(nodes):
        raise ValueError(
            f"`positions` must be one number or one a node: got {len(positions)} for {len(nodes)}"
        )
    return nodes, positions


def _indptr(sizes: Int64) -> Int64:
    """Where each of the consecutive rows begins and ends; (n + 1,)."""
    indptr = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=indptr[1:])
    return indptr

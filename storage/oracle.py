"""The dynamic graph once more in plain Python lists: slow, and plainly right.

`OracleGraph` gives the answers of `DynamicGraph` by reading a node's history from its beginning and
stopping at the position asked for.  `compare` is what `--check` calls on every answer.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from ..stream.errors import LeakError, OrderError
from ..stream.events import Bool, EventBatch, Int64
from .graph import Direction, Links, Neighborhood

Answer = TypeVar("Answer", Neighborhood, Links, Int64)


class Contact(NamedTuple):
    """An event as one of its ends sees it."""

    node: int  # the other end
    position: int
    time: int
    is_src: bool


class Link(NamedTuple):
    """A link as one of its ends sees it."""

    node: int  # the other end
    link: int
    position: int


class OracleGraph:
    """The methods of `DynamicGraph`, with the same results.

    >>> graph = OracleGraph()
    >>> graph.apply(EventBatch(*np.array([[0, 0], [1, 2], [3, 5]]), np.zeros(2, np.uint8)))
    >>> graph.sample(np.array([0]), 1, k=5).node.tolist()
    [1]
    """

    def __init__(self, initial: EventBatch | None = None, num_nodes: int = 0) -> None:
        self._applied: list[tuple[int, int, int, bool]] = []  # src, dst, time, made a link
        self._contacts: defaultdict[int, list[Contact]] = defaultdict(list)
        self._links: defaultdict[int, list[Link]] = defaultdict(list)
        self._pairs: set[frozenset[int]] = set()
        self._initial_nodes = 0
        if initial is not None:
            for src, dst in zip(initial.src.tolist(), initial.dst.tolist(), strict=True):
                self._link(src, dst, -1)
                self._initial_nodes = max(self._initial_nodes, src + 1, dst + 1)

    @property
    def num_nodes(self) -> int:
        """One more than the largest node id seen so far."""
        seen = (max(src, dst) + 1 for src, dst, _, _ in self._applied)
        return max(self._initial_nodes, max(seen, default=0))

    @property
    def position(self) -> int:
        """How many events have been applied."""
        return len(self._applied)

    @property
    def num_links(self) -> int:
        """How many distinct undirected pairs are linked."""
        return len(self._pairs)

    def apply(self, batch: EventBatch, links: Bool | None = None) -> None:
        """Apply the events at the next positions, one by one."""
        for i in range(len(batch)):
            src, dst, time = int(batch.src[i]), int(batch.dst[i]), int(batch.time[i])
            if self._applied and time < self._applied[-1][2]:
                raise OrderError(f"`time` must not go back: {time} after {self._applied[-1][2]}")
            position = len(self._applied)
            self._contacts[src].append(Contact(dst, position, time, True))
            if src != dst:
                self._contacts[dst].append(Contact(src, position, time, False))
            is_new = (links is None or bool(links[i])) and self._link(src, dst, position)
            self._applied.append((src, dst, time, is_new))

    def _link(self, src: int, dst: int, position: int) -> bool:
        pair = frozenset((src, dst))
        if pair in self._pairs:
            return False
        number = len(self._pairs)
        self._pairs.add(pair)
        self._links[src].append(Link(dst, 2 * number, position))
        if src != dst:
            self._links[dst].append(Link(src, 2 * number + 1, position))
        return True

    def undo(self, position: int) -> None:
        """Take back every event at `position` and after."""
        while len(self._applied) > position:
            src, dst, _, made_link = self._applied.pop()
            for node in {src, dst}:
                self._contacts[node].pop()
                if made_link:
                    self._links[node].pop()
            if made_link:
                self._pairs.remove(frozenset((src, dst)))

    def sample(
        self, nodes: Int64, positions: Int64 | int, k: int | None, direction: Direction = "both"
    ) -> Neighborhood:
        """The `k` latest events of each node before its position (None: all), oldest first."""
        rows = []
        for node, position in _queries(nodes, positions):
            row = self._before(node, position)
            if direction == "in":
                row = [c for c in row if not c.is_src or c.node == node]
            elif direction == "out":
                row = [c for c in row if c.is_src]
            rows.append(row if k is None else row[max(len(row) - k, 0) :])
        found = [contact for row in rows for contact in row]
        return Neighborhood(
            np.cumsum([0, *map(len, rows)]),
            np.array([contact.node for contact in found], np.int64),
            np.array([contact.position for contact in found], np.int64),
            np.array([contact.time for contact in found], np.int64),
            np.array([contact.is_src for contact in found], np.bool_),
        )

    def links(self, nodes: Int64, positions: Int64 | int) -> Links:
        """All distinct neighbours that each node is linked with before its position."""
        rows = [self._links_before(*query) for query in _queries(nodes, positions)]
        found = [link for row in rows for link in row]
        return Links(
            np.cumsum([0, *map(len, rows)]),
            np.array([link.node for link in found], np.int64),
            np.array([link.link for link in found], np.int64),
            np.array([link.position for link in found], np.int64),
        )

    def degree(self, nodes: Int64, positions: Int64 | int) -> Int64:
        """How many events each node had before its position."""
        return np.array([len(self._before(*q)) for q in _queries(nodes, positions)], np.int64)

    def num_linked(self, nodes: Int64, positions: Int64 | int) -> Int64:
        """How many distinct neighbours each node is linked with before its position."""
        sizes = [len(self._links_before(*query)) for query in _queries(nodes, positions)]
        return np.array(sizes, np.int64)

    def last_position(self, nodes: Int64, positions: Int64 | int) -> Int64:
        """The position of each node's latest event before its position, -1 if there is none."""
        rows = [self._before(*query) for query in _queries(nodes, positions)]
        return np.array([row[-1].position if row else -1 for row in rows], np.int64)

    def last_time(self, nodes: Int64, positions: Int64 | int, default: int) -> Int64:
        """The time of each node's latest event before its position, `default` if there is none."""
        rows = [self._before(*query) for query in _queries(nodes, positions)]
        return np.array([row[-1].time if row else default for row in rows], np.int64)

    def _before(self, node: int, position: int) -> list[Contact]:
        return [c for c in self._contacts.get(node, []) if c.position < position]

    def _links_before(self, node: int, position: int) -> list[Link]:
        return [link for link in self._links.get(node, []) if link.position < position]


def compare(
    graph_answer: Answer,
    oracle_answer: Answer,
    nodes: Int64 | None = None,
    positions: Int64 | int | None = None,
) -> None:
    """Check that the graph answered its queries as the oracle does.

    `nodes` and `positions` are the queries; without them the message can only number the query.

    Raises:
        LeakError: naming the first node and position where the answers differ.
    """
    ours, theirs = _rows(graph_answer), _rows(oracle_answer)
    if len(ours) != len(theirs):
        raise LeakError(f"the graph answers {len(ours)} queries, the oracle {len(theirs)}")
    for i, (mine, right) in enumerate(zip(ours, theirs, strict=True)):
        if mine != right:
            asked = f"query {i}"
            if nodes is not None and positions is not None:
                node, position = _queries(nodes, positions)[i]
                asked = f"node {node} as of position {position}"
            raise LeakError(f"{asked}: the graph answers {mine}, the oracle {right}")


def _rows(answer: Neighborhood | Links | Int64) -> list[list[tuple[int, ...]]]:
    """An answer as one list of tuples a query."""
    if isinstance(answer, np.ndarray):
        return [[(value,)] for value in answer.tolist()]
    columns: list[Int64 | Bool]
    if isinstance(answer, Links):
        columns = [answer.node, answer.link, answer.position]
    else:
        columns = [answer.node, answer.position, answer.time, answer.is_src]
    entries = list(zip(*(column.tolist() for column in columns), strict=True))
    return [entries[start:stop] for start, stop in pairwise(answer.indptr.tolist())]


def _queries(nodes: Int64, positions: Int64 | int) -> list[tuple[int, int]]:
    """The queries as Python numbers."""
    everywhere = np.broadcast_to(positions, np.shape(nodes))
    return list(zip(np.asarray(nodes).tolist(), everywhere.tolist(), strict=True))

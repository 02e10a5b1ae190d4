"""Which rank holds the rows of which nodes.

Invariant: every node has one owner; a rank holds its rows in ascending order of the nodes.  Shares
may be uneven, down to none.  Nodes that come later are dealt out without moving the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heapreplace
from math import isfinite

import numpy as np

from ...stream import Int64


@dataclass(frozen=True, eq=False)
class Ownership:
    """The nodes of each rank."""

    rows: tuple[Int64, ...]  # for each rank its nodes, ascending

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.rows)

    @cached_property
    def sizes(self) -> list[int]:
        """How many nodes each rank has."""
        return [len(rows) for rows in self.rows]

    @cached_property
    def num_nodes(self) -> int:
        """How many nodes there are in all."""
        return sum(self.sizes)

    @cached_property
    def owner(self) -> Int64:
        """(V,) the rank of each node."""
        found = np.empty(self.num_nodes, np.int64)
        for rank, rows in enumerate(self.rows):
            found[rows] = rank
        return found

    @cached_property
    def place(self) -> Int64:
        """(V,) where each node stands among its owner's rows."""
        found = np.empty(self.num_nodes, np.int64)
        for rows in self.rows:
            found[rows] = np.arange(len(rows))
        return found

    @cached_property
    def order(self) -> Int64:
        """(V,) the nodes as they stand when the rows of all ranks are gathered."""
        return np.concatenate(self.rows)

    def grown(self, num_nodes: int) -> Ownership:
        """For a graph with more nodes: those that are there stay where they are.

        Each new one goes to the rank that has the fewest, of equals the first; a rank that has
        none gets none, unless no rank has any.

        Raises:
            ValueError: if there would be fewer nodes than there are.

        >>> [rows.tolist() for rows in Ownership.contiguous(3, [2, 1, 0]).grown(6).rows]
        [[0, 1, 4], [2, 3, 5], []]
        """
        if num_nodes < self.num_nodes:
            raise ValueError(
                f"`num_nodes` must be at least the {self.num_nodes} that are owned: got {num_nodes}"
            )
        ranks = [rank for rank, size in enumerate(self.sizes) if size] or list(range(self.size))
        fewest = [(self.sizes[rank], rank) for rank in ranks]
        heapify(fewest)
        owner = [*self.owner]
        while len(owner) < num_nodes:
            size, rank = fewest[0]
            owner.append(rank)
            heapreplace(fewest, (size + 1, rank))
        return Ownership.of(owner, self.size)

    @staticmethod
    def contiguous(num_nodes: int, shares: Sequence[float]) -> Ownership:
        """Runs of nodes, as long as the shares say; see `cut`."""
        ends = np.cumsum(cut(num_nodes, shares))
        return Ownership(tuple(np.split(np.arange(num_nodes), ends[:-1])))

    @staticmethod
    def round_robin(num_nodes: int, size: int) -> Ownership:
        """Node v at rank v mod `size`: whoever comes later moves nobody."""
        return Ownership(tuple(np.arange(rank, num_nodes, size) for rank in range(size)))

    @staticmethod
    def of(owner: Sequence[int] | Int64, size: int) -> Ownership:
        """From the rank of each node.

        Raises:
            ValueError: if a rank is not in `[0, size)`.
        """
        given = np.asarray(owner, np.int64)
        if len(given) and not 0 <= given.min() <= given.max() < size:
            raise ValueError(
                f"`owner` must be ranks from 0 to {size - 1}: got {given.min()} to {given.max()}"
            )
        return Ownership(tuple(np.flatnonzero(given == rank) for rank in range(size)))


def cut(length: int, shares: Sequence[float]) -> list[int]:
    """A length in whole parts, each within one of its share; the largest rests are rounded up.

    Raises:
        ValueError: if a share is negative or no number, or all are 0.

    >>> cut(10, [3, 1, 0])
    [8, 2, 0]
    """
    if not shares or any(share < 0 or not isfinite(share) for share in shares) or not sum(shares):
        raise ValueError(f"`shares` must be at least 0 and not all 0: got {list(shares)}")
    exact = np.asarray(shares, np.float64) / sum(shares) * length
    parts = np.floor(exact).astype(np.int64)
    late = np.argsort(parts - exact, kind="stable")[: length - int(parts.sum())]
    parts[late] += 1
    return [int(part) for part in parts]

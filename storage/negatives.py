"""Negative nodes for scoring: who could have taken part in an event, but did not.

Invariant: a draw is a pure function of (seed, stream, role, position, column) and of what the log
held before the position, so it is the same whatever the batches, the threads or the ranks.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from ..stream.events import Bool, EventBatch, Int64
from . import kernels
from .counter import key_of

Role: TypeAlias = Literal["src", "dst", "any"]

TRIES = 32  # draws before an allowed node is looked for one by one


class NegativeSampler:
    """Draws nodes that had the role before a position.

    Candidates for the role "dst" at position `p` are the distinct nodes that were the destination
    of an event before `p` or either end of an initial link, in order of first appearance; "src"
    likewise, and "any" are those that were either.

    `offsets[stream]` is added to the positions that are drawn for in that stream: with the length
    of the log every node of it is a candidate, and another multiple gives other draws.

    >>> sampler = NegativeSampler(np.array([0, 0, 3]), np.array([1, 2, 1]), seed=0)
    >>> sampler.pool("dst", 2).tolist(), sampler.pool("src", 3).tolist()
    ([1, 2], [0, 3])
    >>> sampler.sample("dst", np.array([2]), 3, np.array([[1]]))[0].tolist()
    [[2, 2, 2]]
    """

    def __init__(
        self, log_src: Int64, log_dst: Int64, *, seed: int, initial: EventBatch | None = None
    ) -> None:
        if len(log_src) != len(log_dst):
            raise ValueError(
                f"`log_dst` must be as long as `log_src`: got {len(log_dst)} for {len(log_src)}"
            )
        before = np.empty(0, np.int64)
        if initial is not None:
            before = np.stack([initial.src, initial.dst], axis=1).ravel()
        self.seed = seed
        self.offsets: dict[int, int] = {}  # of streams; 0 unless it is said
        self._pools = {
            "src": _first_appearances(before, np.asarray(log_src, np.int64)),
            "dst": _first_appearances(before, np.asarray(log_dst, np.int64)),
        }
        self._columns = before, log_src, log_dst
        # shuffled in part and put right for each row: a segment must not cost what all nodes do
        self._order = np.arange(sum(len(nodes) for nodes, _ in self._pools.values()))

    def pool(self, role: Role, position: int) -> Int64:
        """All candidates at `position`, in order of first appearance (a read-only view)."""
        nodes, since = self._pool(role)
        return nodes[: np.searchsorted(since, position)]

    def sample(
        self,
        role: Role,
        positions: Int64,
        k: int,
        avoid: Int64,
        stream: int = 0,
        *,
        replace: bool = True,
    ) -> tuple[Int64, Bool]:
        """`(nodes, valid)`, each (n, k): `k` draws for every position, the same with a larger `k`.

        `avoid` (n, a) holds the nodes that must not be drawn for each position.  Different
        `stream`s are independent draws.  Where no candidate is left stand node 0 and False: with
        `replace=False` a node is drawn once at most, and all of them where there are no more
        than `k`.
        """
        positions = np.asarray(positions, np.int64) + self.offsets.get(stream, 0)
        avoid = np.ascontiguousarray(avoid, np.int64)
        if k < 0:
            raise ValueError(f"`k` must not be negative: got {k}")
        if avoid.ndim != 2 or len(avoid) != len(positions):
            raise ValueError(
                f"`avoid` must have one row a position: got shape {avoid.shape} for "
                f"{len(positions)} positions"
            )
        if not k:
            return np.empty((len(positions), 0), np.int64), np.empty((len(positions), 0), np.bool_)
        pool, since = self._pool(role)
        sizes = np.searchsorted(since, positions).astype(np.int64)
        nodes = np.empty((len(positions), k), np.int64)
        valid = np.empty((len(positions), k), np.bool_)
        key = key_of(self.seed, stream, role)
        with np.errstate(over="ignore"):  # uint64 wraps on purpose; the interpreter would warn
            if replace:
                kernels.draw_negatives(pool, sizes, key, positions, avoid, TRIES, nodes, valid)
            else:
                swapped = np.empty(min(len(pool), k + avoid.shape[1]), np.int64)
                kernels.draw_distinct(
                    pool, sizes, key, positions, avoid, self._order, swapped, nodes, valid
                )
        return nodes, valid

    def _pool(self, role: Role) -> tuple[Int64, Int64]:
        if role == "any" and role not in self._pools:  # few models want it
            before, src, dst = self._columns
            ends = np.stack([src, dst], axis=1).astype(np.int64).ravel()
            nodes, since = _first_appearances(before, ends)
            self._pools["any"] = nodes, np.where(since < 0, since, since // 2)
        if role not in self._pools:
            raise ValueError(f"`role` must be 'src', 'dst' or 'any': got {role!r}")
        return self._pools[role]


def _first_appearances(before: Int64, column: Int64) -> tuple[Int64, Int64]:
    """Distinct nodes in order of first appearance, and the position of that (-1 in `before`)."""
    nodes, first = np.unique(np.concatenate([before, column]), return_index=True)
    order = np.argsort(first)
    pool = nodes[order]
    pool.flags.writeable = False
    return pool, np.maximum(first[order] - len(before), -1).astype(np.int64)

"""What a cluster is made of: how fast each worker is, how fast each pair of them is linked.

The tree of groups puts workers together that are linked fast, so that a mapping may deal with the
slow links first.  The clustering (by 1 / bandwidth, average linkage, cut where the bandwidth drops
to a half) is a reconstruction: of NeutronHeter only the abstract is open, which says that a tree is
built by hierarchical clustering on computing power and bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log
from time import perf_counter

import numpy as np
import torch

from ....storage.sparse import Float64, SparseMatrix
from ...ranks import Comm
from ..sparse import product

DROP = 2.0  # a level of the tree is that much slower than the one below it
NODES, EDGES, WIDTH = 2_000, 20_000, 64  # of the product that is timed
MESSAGE = 2**19  # bytes
TURNS = 3  # the best of so many counts


@dataclass(frozen=True, eq=False)
class Resources:
    """N workers and the links between them."""

    speed: Float64  # (N,) floating point operations a second
    bandwidth: Float64  # (N, N) bytes a second from the row's worker to the column's
    latency: Float64  # (N, N) seconds a message
    memory: Float64  # (N,) bytes that copies of remote rows may take

    def __post_init__(self) -> None:
        size = len(self.speed)
        for name in ("bandwidth", "latency"):
            if getattr(self, name).shape != (size, size):
                shape = getattr(self, name).shape
                raise ValueError(f"`{name}` must be ({size}, {size}), a pair: got {shape}")
        apart = ~np.eye(size, dtype=bool)
        if not (self.speed > 0).all() or not (self.bandwidth[apart] > 0).all():
            raise ValueError("`speed` and `bandwidth` must be above 0 for every worker and pair")

    @property
    def size(self) -> int:
        """How many workers there are."""
        return len(self.speed)

    @staticmethod
    def of(
        speed: Sequence[float],
        bandwidth: Sequence[Sequence[float]] | Float64,
        latency: float = 0.0,
        memory: float = inf,
    ) -> Resources:
        """From lists; one latency for all pairs, one memory for all workers."""
        size = len(speed)
        matrix = np.array(bandwidth, np.float64).reshape(size, size)
        np.fill_diagonal(matrix, inf)
        return Resources(
            np.array(speed, np.float64),
            matrix,
            np.where(np.eye(size, dtype=bool), 0.0, latency),
            np.full(size, memory),
        )

    def first(self, count: int) -> Resources:
        """The first `count` workers and the links between them.

        Raises:
            ValueError: if there are fewer.
        """
        if count > self.size:
            raise ValueError(f"`count` must be at most {self.size}, the workers there are: {count}")
        pairs = slice(count), slice(count)
        return Resources(
            self.speed[:count], self.bandwidth[pairs], self.latency[pairs], self.memory[:count]
        )

    @property
    def pace(self) -> Float64:
        """(N, N) seconds a byte: the mean of there, where a row goes, and back, as its gradient."""
        return (1 / self.bandwidth + 1 / self.bandwidth.T) / 2

    def slow_links(self) -> list[tuple[int, int]]:
        """Pairs (from, to) that are `DROP` times slower than the fastest pair, slowest first."""
        trip = self.pace
        apart = ~np.eye(self.size, dtype=bool)
        if not apart.any():
            return []
        slow = apart & (trip >= DROP * trip[apart].min())
        pairs = [(int(a), int(b)) for a, b in np.argwhere(slow)]
        return sorted(pairs, key=lambda pair: (-trip[pair], pair))


@dataclass(frozen=True)
class Group:
    """Workers that are linked alike: a leaf is one worker, a group has groups within."""

    workers: tuple[int, ...]  # ascending
    children: tuple[Group, ...]  # none in a leaf
    speed: float  # of all its workers together
    bandwidth: float  # bytes a second between two of its children; inf in a leaf

    @property
    def depth(self) -> int:
        """Levels of links: 0 in a leaf, 1 if all pairs are linked alike."""
        return 1 + max(child.depth for child in self.children) if self.children else 0


def tree(resources: Resources, drop: float = DROP) -> Group:
    """Workers grouped from the fastest links to the slowest; alike links make one flat group.

    >>> tree(Resources.of([1, 1, 1], [[9, 8, 1], [8, 9, 1], [1, 1, 9]])).children[0].workers
    (0, 1)
    """
    distance = resources.pace
    groups = [Group((rank,), (), float(s), inf) for rank, s in enumerate(resources.speed)]
    while len(groups) > 1:
        pairs = [(first, second) for second in groups for first in groups[: groups.index(second)]]
        # of equally fast links that between groups which compute alike
        first, second = min(
            pairs,
            key=lambda pair: (
                float(f"{_apart(pair[0], pair[1], distance):.6e}"),
                abs(log(pair[0].speed / pair[1].speed)),
            ),
        )
        merged = _merge(first, second, _apart(first, second, distance), drop)
        rest = [group for group in groups if group not in (first, second)]
        groups = sorted((merged, *rest), key=lambda group: group.workers)
    return groups[0]


def _apart(first: Group, second: Group, distance: Float64) -> float:
    """Average linkage: the mean over the pairs."""
    return float(distance[np.ix_(first.workers, second.workers)].mean())


def _merge(first: Group, second: Group, apart: float, drop: float) -> Group:
    """A child whose own links are not much faster gives its children instead of itself."""
    bandwidth = 1 / apart
    children: list[Group] = []
    for group in (first, second):
        alike = bool(group.children) and group.bandwidth < drop * bandwidth
        children += group.children if alike else (group,)
    children.sort(key=lambda group: group.workers)
    workers = tuple(sorted(first.workers + second.workers))
    return Group(workers, tuple(children), first.speed + second.speed, bandwidth)


def measure(comm: Comm) -> Resources:
    """The ranks of a job as they are now: every rank times products, each pair in turn a ping.

    All ranks compute at the same time, as they will in training.  The same answer on every rank.
    """
    speeds = comm.gather_objects(_speed(), "resources")
    bandwidth = np.full((comm.size, comm.size), inf)
    latency = np.zeros((comm.size, comm.size))
    for first in range(comm.size):
        for second in range(first + 1, comm.size):
            found = None
            if comm.rank in (first, second):
                other = second if comm.rank == first else first
                short = min(_ping(comm, other, 1) for _ in range(TURNS))
                long = min(_ping(comm, other, MESSAGE) for _ in range(TURNS))
                found = [short, max(long - short, 1e-9)]
            seconds = comm.gather_objects(found, "resources")[first]
            for pair in ((first, second), (second, first)):
                latency[pair], bandwidth[pair] = seconds[0], MESSAGE / seconds[1]
    return Resources(np.array(speeds), bandwidth, latency, np.full(comm.size, inf))


def _speed() -> float:
    """Operations a second: half of them in a sparse product, half in a dense one."""
    random = np.random.default_rng(0)
    src, dst = random.integers(0, NODES, (2, EDGES))
    matrix = SparseMatrix.from_edges(src, dst, NODES)
    x, weight = torch.ones(NODES, WIDTH), torch.ones(WIDTH, WIDTH)
    product(matrix, x)  # compiled
    seconds = [inf, inf]
    for _ in range(TURNS):
        start = perf_counter()
        product(matrix, x)
        middle = perf_counter()
        x @ weight
        seconds = [min(seconds[0], middle - start), min(seconds[1], perf_counter() - middle)]
    rates = 2 * matrix.num_edges * WIDTH / seconds[0], 2 * NODES * WIDTH**2 / seconds[1]
    return 2 / (1 / rates[0] + 1 / rates[1])


def _ping(comm: Comm, other: int, size: int) -> float:
    """Seconds that `size` bytes take one way: half of there and back."""
    data = torch.zeros(size, dtype=torch.uint8)
    start = perf_counter()
    for sends in (comm.rank < other, comm.rank > other):
        if sends:
            comm.start_send(data, other, "resources").wait()
        else:
            comm.start_receive((size,), torch.uint8, other, "resources").wait()
    return (perf_counter() - start) / 2

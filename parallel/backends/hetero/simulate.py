"""An epoch on a cluster that is not there: virtual clocks, real numbers of bytes and operations.

Every rank has a clock.  Operations move it on by operations / speed; a message leaves at its
sender's clock, waits for its link to be free, takes latency and bytes / bandwidth, and a receiver's
clock is at least its arrival.  Messages over different links do not delay each other, unless every
worker is given one port.  What the steps of a plan say is what backend `hetero` executes (a test
holds them against each other), so only the time is made up.

The profiles are those of the benchmark plan; speeds and links are round numbers, not machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ....storage.sparse import Float64
from ....stream import Int64
from ..ownership import cut
from .plan import Load, Stage
from .resources import Resources

SPEED = 2e9  # operations a second of a worker of speed 1
LATENCY = 2e-5  # seconds
GIGA = 1e9


@dataclass(frozen=True, eq=False)
class Compute:
    """Every rank computes for itself."""

    work: Float64  # (N,) operations


@dataclass(frozen=True, eq=False)
class Exchange:
    """Every rank sends to every other what it has for it, and waits for all that it gets."""

    sent: Float64  # (N, N) bytes from the row's rank to the column's


Step: TypeAlias = Compute | Exchange


@dataclass(frozen=True, eq=False)
class Epoch:
    """What the clocks say at the end of an epoch."""

    time: float  # seconds: the latest clock
    computing: Float64  # (N,) seconds that each rank computed
    sent: Float64  # (N, N) bytes over each link


def run(steps: Sequence[Step], resources: Resources, *, one_port: bool = False) -> Epoch:
    """The steps on the clocks, one after the other.

    With `one_port` a worker sends one message at a time and receives one at a time, over whatever
    links: first to the next rank, then to the one after it.

    >>> from .resources import Resources
    >>> two = Resources.of([1.0, 2.0], [[1, 10], [10, 1]])
    >>> run([Compute(np.array([4.0, 4.0])), Exchange(np.array([[0, 30], [0, 0.0]]))], two).time
    7.0
    """
    size = resources.size
    clock, computing = np.zeros(size), np.zeros(size)
    free, total = np.zeros((size, size)), np.zeros((size, size))  # when each link is
    out, into = np.zeros(size), np.zeros(size)  # when each port is
    pairs = [(giver, (giver + turn) % size) for turn in range(1, size) for giver in range(size)]
    for step in steps:
        if isinstance(step, Compute):
            seconds = step.work / resources.speed
            clock, computing = clock + seconds, computing + seconds
            continue
        arrival = clock.copy()
        for giver, taker in pairs:
            if step.sent[giver, taker] == 0:
                continue
            begins = max(clock[giver], free[giver, taker])
            if one_port:
                begins = max(begins, out[giver], into[taker])
            ends = begins + step.sent[giver, taker] / resources.bandwidth[giver, taker]
            free[giver, taker] = out[giver] = into[taker] = ends
            arrival[taker] = max(arrival[taker], ends + resources.latency[giver, taker])
        clock, total = arrival, total + step.sent
    return Epoch(float(clock.max(initial=0.0)), computing, total)


def vertex_parallel(stages: Sequence[Stage], load: Load, degree: Int64) -> list[Step]:
    """An epoch of backend `hetero` (and of `halo`, whose stages have no copies and relays)."""
    forward: list[Step] = []
    backward: list[Step] = []  # in the order of the way there
    for hop, stage in enumerate(stages):
        taken = np.array([len(rows) for rows in stage.taken]) * float(load.node_work(hop))
        edges = np.array([degree[rows].sum() for rows in stage.given]) * float(load.edge_work(hop))
        legs = [rows.astype(np.float64) * load.row_bytes(hop) for rows in stage.rows]
        moved = [Exchange(leg) for leg in legs if leg.any()]
        forward += [Compute(taken / 3), *moved, Compute(edges / 2)]
        back = [Exchange(step.sent.T) for step in moved]
        backward += [Compute(2 * taken / 3), *back, Compute(edges / 2)]
    return forward + backward[::-1] + sum_gradients(load, len(stages[0].taken))


def tensor_parallel(num_nodes: int, num_edges: int, load: Load, shares: Float64) -> list[Step]:
    """An epoch of tensor parallelism with rows and columns by share: the strong alternative.

    A rank has n_p rows in the dense products and c_p columns of every node in the sparse ones; a
    split or gather moves n_p c_q numbers (NeutronTP, PVLDB 18(2)).
    """
    rows = np.array(cut(num_nodes, shares.tolist()), np.float64)
    forward: list[Step] = []
    backward: list[Step] = []
    for hop in range(load.hops):
        columns = np.array(cut(load.widths[hop + 1], shares.tolist()), np.float64)
        split = np.outer(rows, columns) * load.itemsize
        np.fill_diagonal(split, 0)
        dense, sparse = rows * load.node_work(hop), num_edges * 4.0 * columns
        moves: list[Step] = [Exchange(split), Compute(sparse / 2), Exchange(split.T)]
        forward += [Compute(dense / 3), *moves]
        backward += [Compute(2 * dense / 3), *moves]
    # the way back runs the same moves: a split is the adjoint of a gather
    return forward + backward[::-1] + sum_gradients(load, len(shares))


def sum_gradients(load: Load, size: int) -> list[Step]:
    """The parameters' gradients, as `Comm.all_reduce` adds them up: scattered, then gathered."""
    pairs = zip(load.widths, load.widths[1:], strict=False)
    total = load.itemsize * sum(before * after for before, after in pairs)
    each = np.full((size, size), total / size)
    np.fill_diagonal(each, 0)
    return [Exchange(each), Exchange(each)] if size > 1 else []


def _blocks(sizes: Sequence[Sequence[int]], bandwidths: Sequence[float]) -> Float64:
    """Bandwidths of nested groups: `sizes[k]` cuts the workers at level k, the fastest last."""
    total = sum(sizes[0])
    found = np.full((total, total), bandwidths[0])
    for groups, bandwidth in zip(sizes, bandwidths[1:], strict=True):
        start = 0
        for size in groups:
            found[start : start + size, start : start + size] = bandwidth
            start += size
    return found


def _straggler() -> Float64:
    found = np.full((4, 4), GIGA)
    found[0, 3] = found[3, 0] = 0.02 * GIGA
    return found


def _lonely() -> Float64:
    found = np.full((4, 4), GIGA)
    found[0, :] = found[:, 0] = 0.02 * GIGA
    return found


def profile(name: str) -> Resources:
    """A cluster by name, see `PROFILES`.

    Raises:
        ValueError: if there is none of that name.
    """
    if name not in PROFILES:
        raise ValueError(f"`profile` must be one of {', '.join(PROFILES)}: got {name!r}")
    speed, bandwidth = PROFILES[name]
    return Resources.of((np.array(speed) * SPEED).tolist(), bandwidth, LATENCY)


PROFILES: dict[str, tuple[list[float], Float64]] = {
    "homogeneous": ([1, 1, 1, 1], np.full((4, 4), GIGA)),
    "fast GPU, slow net": ([4, 4, 1, 1], _blocks([[2, 2]], [0.05 * GIGA, 2 * GIGA])),
    "one straggler link": ([1, 1, 1, 1], _straggler()),
    "mixed 3-level": (
        [4, 4, 2, 2, 1, 1, 4, 1],
        _blocks([[4, 4], [2, 2, 2, 2]], [0.05 * GIGA, 0.5 * GIGA, 4 * GIGA]),
    ),
    "fast worker behind slow link": ([4, 1, 1, 1], _lonely()),
}
"""Speeds (1 is `SPEED`) and bandwidths (bytes a second) by name."""

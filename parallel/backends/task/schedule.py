"""How many ranks transform and how many propagate: a model of their seconds, then measured ones.

Work is in seconds of one rank.  The model is that of NeutronTask (PVLDB 18(6)), which counts
forward passes; that a transform costs four of them where it is done again on the way back (three
where not), that a propagation costs two, and that each task keeps at least one rank, is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from time import thread_time

import torch

from ....storage.sparse import SparseMatrix
from ...ranks import Comm
from ..sparse import product
from .engine import DecoupledGraph
from .roles import Roles


@dataclass(frozen=True, slots=True)
class Workload:
    """One graph and one model."""

    num_nodes: int
    num_edges: int  # entries of the matrix
    widths: Sequence[int]  # of the transform: features, hidden ..., output
    propagated: Sequence[int]  # the width of each hop
    attention_width: int = 0  # of the two ends of an edge that attention reads; 0: none
    recompute: bool = True


@dataclass(frozen=True, slots=True)
class Speeds:
    """What one rank does a second."""

    flops: float  # of dense products
    bandwidth: float  # numbers read or written by sparse products
    overlap: float = 0.0  # share of a propagation that computes rather than reads, in [0, 1]


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds that one rank would need for each task of one step."""

    transform: float
    propagate: float

    def corrected(self, measured: Work, trust: float = 1.0) -> Work:
        """Between this and what was measured: 0 leaves it, 1 takes the measured."""
        return Work(
            self.transform * (measured.transform / self.transform) ** trust,
            self.propagate * (measured.propagate / self.propagate) ** trust,
        )


def predict_work(load: Workload, speeds: Speeds) -> Work:
    """The model's seconds for both tasks of one step, forward and back.

    >>> predict_work(Workload(10, 50, [4, 2], [2, 2]), Speeds(flops=160.0, bandwidth=1e9)).transform
    4.0
    """
    dense = sum(2 * load.num_nodes * before * after for before, after in pairwise(load.widths))
    flops = dense + 2 * load.num_edges * load.attention_width**2
    computing = sum(2 * load.num_edges * width for width in load.propagated) / speeds.flops
    moved = sum(load.num_edges * (1 + 2 * width) + load.num_nodes for width in load.propagated)
    share = speeds.overlap
    once = share * computing + (1 - share) * moved / speeds.bandwidth
    return Work((4 if load.recompute else 3) * flops / speeds.flops, 2 * once)


def assign_ranks(work: Work, size: int) -> Roles:
    """N_p = N T_p / (T_p + T_t) in whole ranks: those with which the slower task is fastest.

    Of equal choices the one with fewer ranks that transform is taken.

    Raises:
        ValueError: if there are fewer than two ranks, or a second is not above 0.

    >>> [len(assign_ranks(Work(t, 1.0), 4).transform) for t in (0.1, 0.5, 1.0, 2.5, 9.0)]
    [1, 1, 2, 3, 3]
    """
    if size < 2:
        raise ValueError(f"`size` must be at least 2, a rank for each task: got {size}")
    if not min(work.transform, work.propagate) > 0:
        raise ValueError(f"`work` must be seconds above 0: got {work}")
    slowest = {n: max(work.transform / n, work.propagate / (size - n)) for n in range(1, size)}
    return Roles.of(size, min(slowest, key=lambda n: (slowest[n], n)))


def measure_speeds(matrix: SparseMatrix, width: int = 16, rounds: int = 3) -> Speeds:
    """Micro-benchmarks on this rank: a dense product, and one with the matrix at hand."""
    square, x = torch.randn(384, 384), torch.randn(matrix.num_columns, width)
    dense = median(_seconds(lambda: square @ square) for _ in range(rounds + 1))
    product(matrix, x)  # compiles
    sparse = median(_seconds(lambda: product(matrix, x)) for _ in range(rounds))
    moved = matrix.num_edges * (1 + 2 * width) + matrix.num_rows
    return Speeds(2 * 384**3 / dense, moved / sparse)


def measured_work(graph: DecoupledGraph, epochs: int = 3) -> Work:
    """Seconds of CPU that a step of training took both tasks, over all their ranks.

    Every rank must call it; the steps count as training.  What ranks waited is not in it.
    """
    graph.step()  # compiles
    before = graph.side.clock.seconds
    for _ in range(epochs):
        graph.step()
    return sum_work(graph.comm, graph.roles, (graph.side.clock.seconds - before) / epochs)


def sum_work(comm: Comm, roles: Roles, seconds: float) -> Work:
    """The seconds of all ranks of each task."""
    told = torch.zeros(2, dtype=torch.float64)
    told[int(comm.rank not in roles.transform)] = seconds
    transform, propagate = comm.all_reduce(told, "totals").tolist()
    return Work(transform, propagate)


def _seconds(act: Callable[[], object]) -> float:
    start = thread_time()
    act()
    return max(thread_time() - start, 1e-9)

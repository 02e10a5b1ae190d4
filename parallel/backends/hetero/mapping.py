"""Nodes to workers, by speed and by links: from the top of the tree of groups down.

The slowest links are decided first, while most is still open: at each group METIS parts the nodes
among its children by their speeds; then it is seen how long each worker would be busy, shares are
mended by that, and single nodes are moved.  The feedback breaks the tie that a fast worker behind a
slow link gets many nodes, and with them many bytes (NeutronHeter's challenge 2).  The scheme is a
reconstruction from the abstract.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....storage.sparse import Float64, SparseMatrix
from ....stream import Int64
from ..ownership import Ownership
from ..partition import metis, metis_of, undirected
from . import kernels
from .plan import Load, Stage, busy_times, plain_stage
from .resources import Group, Resources, tree

HASTE = 0.5  # how far shares follow what they were off: the power eta
LEAST = 1e-3  # of the mean share
ROUNDS = 4
PASSES = 3  # over all nodes, when single ones are moved
MOST = 5_000  # in-neighbours of a node that may be moved alone


@dataclass(frozen=True, eq=False)
class Mapping:
    """Owners, and what they would cost."""

    ownership: Ownership
    busy: Float64  # (N,) seconds an epoch, as `busy_times` has it

    @property
    def time(self) -> float:
        """Of an epoch: that of the busiest."""
        return float(self.busy.max(initial=0.0))


def node_weight(matrix: SparseMatrix, load: Load) -> Float64:
    """(V,) operations of each node an epoch, in those of an edge."""
    hops = range(load.hops)
    kappa = sum(map(load.node_work, hops)) / sum(map(load.edge_work, hops))
    return np.asarray(matrix.degree + kappa, np.float64)


def price(matrix: SparseMatrix, ownership: Ownership, resources: Resources, load: Load) -> Mapping:
    """What the owners would cost without copies and relays; `matrix` has self loops."""
    stages: list[Stage] = [plain_stage(matrix, ownership)] * load.hops
    return Mapping(ownership, busy_times(stages, load, resources, matrix.degree))


def map_equal(matrix: SparseMatrix, resources: Resources, load: Load) -> Mapping:
    """Plain METIS: every worker the same."""
    return map_by_shares(matrix, resources, load, np.ones(resources.size))


def map_by_shares(
    matrix: SparseMatrix, resources: Resources, load: Load, shares: Float64
) -> Mapping:
    """METIS with these shares, blind to links; by `resources.speed` it is the usual answer."""
    weight = node_weight(matrix, load)
    found = metis(matrix, resources.size, shares.tolist(), node_weight=weight)
    return price(matrix, found, resources, load)


def map_by_tree(
    matrix: SparseMatrix, resources: Resources, load: Load, shares: Float64 | None = None
) -> Mapping:
    """From the top of the tree down; `shares` (N,) are the speeds by default."""
    wanted = resources.speed if shares is None else shares
    owner = np.zeros(matrix.num_rows, np.int64)
    weight = node_weight(matrix, load)
    graph = undirected(matrix)
    _part(graph, tree(resources), np.arange(matrix.num_rows), weight, wanted, owner)
    return price(matrix, Ownership.of(owner, resources.size), resources, load)


def _part(
    graph: SparseMatrix,  # undirected, of these nodes
    group: Group,
    nodes: Int64,  # ascending
    weight: Float64,  # (V,)
    shares: Float64,  # (N,)
    owner: Int64,  # (V,) out
) -> None:
    """Deals the nodes out to the group's workers."""
    if not group.children:
        owner[nodes] = group.workers[0]
        return
    sums = [float(shares[list(child.workers)].sum()) for child in group.children]
    found = metis_of(graph, sums, weight[nodes])
    for child, rows in zip(group.children, found.rows, strict=True):
        inner = graph.take_rows(rows).take_columns(rows) if child.children else graph
        _part(inner, child, nodes[rows], weight, shares, owner)


def with_feedback(
    matrix: SparseMatrix, resources: Resources, load: Load, rounds: int = ROUNDS
) -> Mapping:
    """`map_by_tree` again and again, with shares mended by how busy workers are; the best of all.

    share_k <- share_k (mean time / time of k)^eta.
    """
    shares = resources.speed.copy()
    best = map_by_tree(matrix, resources, load, shares)
    latest = best
    for _ in range(rounds):
        busy = np.maximum(latest.busy, 1e-3 * latest.busy.mean() + 1e-30)
        shares = shares * (busy.mean() / busy) ** HASTE
        shares = np.maximum(shares, LEAST * shares.mean())
        latest = map_by_tree(matrix, resources, load, shares)
        if latest.time < best.time:
            best = latest
    return best


def refined(matrix: SparseMatrix, mapping: Mapping, resources: Resources, load: Load) -> Mapping:
    """Single nodes go to neighbouring parts while that makes the busiest less so; never worse."""
    size = resources.size
    owner = mapping.ownership.owner.copy()
    uses = np.zeros((matrix.num_rows, size), np.int32)
    kernels.count_uses(matrix.indptr, matrix.indices, owner, uses)
    rows = np.zeros((size, size), np.int64)
    kernels.count_rows(uses, owner, rows)
    hops = range(load.hops)
    trip = resources.pace * sum(map(load.row_bytes, hops))
    cost = node_weight(matrix, load) * sum(map(load.edge_work, hops))
    work = np.bincount(owner, weights=cost, minlength=size)
    busy = work / resources.speed + ((rows + rows.T) * trip).sum(1)
    for _ in range(PASSES):
        csr = matrix.indptr, matrix.indices
        if not kernels.move_nodes(*csr, cost, resources.speed, trip, owner, uses, busy, MOST):
            break
    found = price(matrix, Ownership.of(owner, size), resources, load)
    return found if found.time < mapping.time else mapping  # the kernel knows no latency


def map_nodes(
    matrix: SparseMatrix, resources: Resources, load: Load, *, rounds: int = 0
) -> Mapping:
    """By the tree, after so many rounds of feedback, with single nodes moved.

    A round costs as much as the tree; what single moves and migration make of it is hardly ever
    better than what they make of the tree alone (`benchmarks/hetero.py`).
    """
    return refined(matrix, with_feedback(matrix, resources, load, rounds), resources, load)

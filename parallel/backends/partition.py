"""Partitions: which rank owns which nodes, when few edges shall run between ranks.

`chunk` cuts the ids into runs, `metis` lets METIS look for a small cut (Karypis and Kumar, SIAM J.
Sci. Comput. 20(1), 1998).  Both balance one number a node only, the node's own weight.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ...storage.snapshot import Snapshot
from ...storage.sparse import Float64, SparseMatrix
from ...stream import Int64
from ..ranks import Comm
from .ownership import Ownership

LARGEST = 1_000  # METIS counts in whole numbers: the largest weight becomes this one


def chunk(num_nodes: int, size: int) -> Ownership:
    """Runs of nodes, equally many for each of `size` ranks.

    >>> [rows.tolist() for rows in chunk(5, 2).rows]
    [[0, 1, 2], [3, 4]]
    """
    return Ownership.contiguous(num_nodes, [1.0] * size)


def metis(
    matrix: SparseMatrix,
    size: int,
    shares: Sequence[float] | None = None,
    *,
    node_weight: npt.ArrayLike | None = None,
    weigh_edges: bool = False,
    seed: int = 0,
) -> Ownership:
    """A partition with a small cut: nodes that are linked, in whichever direction, stay together.

    Args:
        matrix: the adjacency.
        shares: of the whole node weight, one a rank; equal by default.
        node_weight: (V,) what is balanced, at least 0; by default one more than the in-degree,
            which balances edges.
        weigh_edges: whether the weights of the matrix, by size, say how dear it is to cut an edge.

    Raises:
        ImportError: if pymetis is missing.
        ValueError: if there are not as many shares as ranks, or one is not above 0.
    """
    given = [1.0] * size if shares is None else [float(share) for share in shares]
    if len(given) != size or min(given) <= 0:
        raise ValueError(f"`shares` must be {size} numbers above 0: got {given}")
    by_default = matrix.degree + 1 if node_weight is None else node_weight
    graph = undirected(matrix, weigh_edges=weigh_edges)
    return metis_of(graph, given, np.asarray(by_default, np.float64), weigh_edges, seed)


def metis_of(
    graph: SparseMatrix,
    shares: list[float],
    weight: Float64,
    weigh_edges: bool = False,
    seed: int = 0,
) -> Ownership:
    """`metis` for a graph that is already `undirected`, as it is when it is parted again."""
    size = len(shares)
    if size == 1 or graph.num_rows <= size:  # METIS asks for more nodes than parts
        return chunk(graph.num_rows, size)
    return Ownership.of(_metis(graph, shares, weight, weigh_edges, seed), size)


def undirected(matrix: SparseMatrix, *, weigh_edges: bool = False) -> SparseMatrix:
    """|A| + |A|^T without loops: an entry a linked pair and direction."""
    apart = matrix.row_of != matrix.indices
    row, column = matrix.row_of[apart], matrix.indices[apart]
    weight = np.abs(matrix.weight[apart]) if weigh_edges else np.ones(len(row))
    ends = np.concatenate((row, column)), np.concatenate((column, row))
    return SparseMatrix.from_edges(*ends, matrix.num_rows, np.concatenate((weight, weight)))


def _metis(
    graph: SparseMatrix, shares: list[float], weight: Float64, weigh_edges: bool, seed: int
) -> Int64:
    try:
        import pymetis
    except ImportError as error:
        raise ImportError(
            "a partition by METIS needs pymetis: `pip install 'neutronstream[snapshots]'`"
        ) from error
    _, part = pymetis.part_graph(
        len(shares),
        pymetis.CSRAdjacency(graph.indptr.tolist(), graph.indices.tolist()),
        vweights=_whole(weight, 0).tolist(),
        eweights=_whole(graph.weight, 1).tolist() if weigh_edges else None,
        tpwgts=[share / sum(shares) for share in shares],
        recursive=len(shares) <= 8,  # what METIS itself advises
        options=pymetis.Options(seed=seed),
    )
    found: Int64 = np.asarray(part, np.int64)
    return found


def _whole(weight: Float64, least: int) -> Int64:
    """As whole numbers, if they are not already small ones."""
    if len(weight) == 0 or (weight == np.rint(weight)).all():
        return _at_least(weight, least)
    return _at_least(weight / weight.max() * LARGEST, least)


def _at_least(weight: Float64, least: int) -> Int64:
    return np.maximum(np.rint(weight).astype(np.int64), least)


def most_nodes(snapshots: Sequence[Snapshot]) -> int:
    """How many nodes the largest snapshot has; 0 of none."""
    return max((snapshot.num_nodes for snapshot in snapshots), default=0)


def union(snapshots: Sequence[Snapshot]) -> SparseMatrix:
    """One matrix of the largest snapshot's size: A[v, u] counts those that have the edge u -> v."""
    matrices = [snapshot.adjacency for snapshot in snapshots]
    src = np.concatenate([np.zeros(0, np.int64), *(m.indices for m in matrices)])
    dst = np.concatenate([np.zeros(0, np.int64), *(m.row_of for m in matrices)])
    return SparseMatrix.from_edges(src, dst, most_nodes(snapshots))


def edges_of(matrix: SparseMatrix, ownership: Ownership) -> Int64:
    """(ranks,) the in-edges that each rank aggregates."""
    return np.array([matrix.degree[rows].sum() for rows in ownership.rows], np.int64)


def cut_edges(matrix: SparseMatrix, ownership: Ownership) -> int:
    """How many edges run from one rank's nodes to another's."""
    owner = ownership.owner
    return int((owner[matrix.row_of] != owner[matrix.indices]).sum())


def imbalance(work: npt.ArrayLike) -> float:
    """The largest share over the mean one: 1 is even.

    >>> imbalance([3, 1])
    1.5
    """
    shares = np.asarray(work, np.float64)
    return float(shares.max() / shares.mean()) if shares.any() else 1.0


def from_first(comm: Comm, ownership: Ownership | None) -> Ownership:
    """What rank 0 found, on every rank; what the others give is not looked at."""
    given = None if ownership is None else ownership.owner.astype(np.int32).tobytes()
    owner = np.frombuffer(comm.broadcast_bytes(given, "partition"), np.int32)
    return Ownership.of(owner.astype(np.int64), comm.size)

"""Generated graphs on which backends are compared; each is a function of its seed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from neutronstream.storage import Snapshot, SparseMatrix

Int64 = npt.NDArray[np.int64]


def dressed(adjacency: SparseMatrix, width: int, classes: int, seed: int) -> Snapshot:
    """With classes, and features that know something of them."""
    random = np.random.default_rng(seed)
    target = random.integers(0, classes, adjacency.num_rows)
    features = random.normal(size=(adjacency.num_rows, width)) + np.eye(classes, width)[target]
    return Snapshot(adjacency, features.astype(np.float32), target)


def power_law(
    num_nodes: int, num_edges: int, *, exponent: float = 2.1, is_sorted: bool = True, seed: int = 0
) -> SparseMatrix:
    """Directed, of Chung and Lu: ends drawn in proportion to rank^(-1 / (exponent - 1)).

    Ids by falling degree if sorted, which is the worst case for runs of nodes.
    """
    random = np.random.default_rng(seed)
    share = np.arange(1, num_nodes + 1) ** (-1 / (exponent - 1))
    src, dst = (random.choice(num_nodes, num_edges, p=share / share.sum()) for _ in range(2))
    names = np.arange(num_nodes) if is_sorted else random.permutation(num_nodes)
    return SparseMatrix.from_edges(names[src], names[dst], num_nodes)


def communities(
    num_nodes: int, num_edges: int, *, count: int = 16, inside: float = 0.95, seed: int = 0
) -> SparseMatrix:
    """Groups with most edges inside, ids shuffled: a partitioner finds them, runs of ids do not."""
    random = np.random.default_rng(seed)
    src = random.integers(0, num_nodes, num_edges)
    group = src % count
    near = random.integers(0, num_nodes // count, num_edges) * count + group
    dst = np.where(
        random.random(num_edges) < inside, near, random.integers(0, num_nodes, num_edges)
    )
    names = random.permutation(num_nodes)
    return SparseMatrix.from_edges(names[src], names[dst], num_nodes)


def grid(side: int) -> SparseMatrix:
    """A square of side x side nodes, each with its up to four neighbours, ids row by row."""
    ids = np.arange(side * side).reshape(side, side)
    pairs = [(ids[:, 1:], ids[:, :-1]), (ids[1:], ids[:-1])]
    src = np.concatenate([end.ravel() for pair in pairs for end in pair])
    dst = np.concatenate([end.ravel() for pair in pairs for end in reversed(pair)])
    return SparseMatrix.from_edges(src, dst, side * side)

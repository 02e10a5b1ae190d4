"""Graphs on which backends are compared: directed, uneven, with hubs and lonely nodes."""

from __future__ import annotations

import numpy as np
import torch

from neutronstream.storage import Snapshot, SparseMatrix


def power_law(
    num_nodes: int = 203,
    num_edges: int = 1_500,
    *,
    seed: int = 0,
    width: int = 9,
    classes: int = 7,
    is_sorted: bool = True,
) -> Snapshot:
    """Directed, with hubs; ids by falling degree if sorted, the worst case for runs of nodes.

    The features know something of the class.  The last node has no edge.
    """
    random = np.random.default_rng(seed)
    share = np.arange(1, num_nodes) ** -0.9
    src, dst = (random.choice(num_nodes - 1, num_edges, p=share / share.sum()) for _ in range(2))
    names = np.arange(num_nodes) if is_sorted else random.permutation(num_nodes)
    target = random.integers(0, classes, num_nodes)
    features = random.normal(size=(num_nodes, width)) + np.eye(classes, width)[target]
    adjacency = SparseMatrix.from_edges(names[src], names[dst], num_nodes)
    return Snapshot(adjacency, features.astype(np.float32), target)


def few_nodes() -> Snapshot:
    """Three nodes: fewer than ranks, so that some hold none."""
    adjacency = SparseMatrix.from_edges([0, 1, 2, 0], [1, 2, 0, 2], 3)
    features = np.random.default_rng(0).normal(size=(3, 9)).astype(np.float32)
    return Snapshot(adjacency, features, np.array([3, 1, 0]))


def skewed(snapshot: Snapshot) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Training nodes, nearly all of them with a low id."""
    where = np.zeros(snapshot.num_nodes, bool)
    where[: snapshot.num_nodes // 4] = True
    where[-2] = True
    return where


def edges(matrix: SparseMatrix) -> torch.Tensor:
    """(2, E) as torch_geometric has them: from, to."""
    return torch.from_numpy(np.stack([matrix.indices.astype(np.int64), matrix.row_of]))

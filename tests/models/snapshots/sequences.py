"""Sequences of changing snapshots, directed and weighted, and their edges for torch_geometric."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from neutronstream.storage import Snapshot, SparseMatrix


def changing(
    count: int = 6, num_nodes: int = 83, width: int = 4, *, seed: int = 0, num_edges: int = 300
) -> list[Snapshot]:
    """Another directed, weighted graph with loops at each step; one step has no edge at all.

    The last node never has one.  Nodes appear: step t knows the first ones only.
    """
    random = np.random.default_rng(seed)
    found = []
    for step in range(count):
        known = num_nodes - 2 * (count - 1 - step)
        edges = 0 if step == 2 else num_edges + 10 * step
        src = random.zipf(1.4, edges) % (known - 1)
        dst = random.integers(0, known - 1, edges)
        weight = random.uniform(0.5, 2.0, edges)
        features = random.normal(size=(num_nodes, width)).astype(np.float32)
        features[known:] = 0
        found.append(
            Snapshot(
                SparseMatrix.from_edges(src, dst, num_nodes, weight),
                features,
                random.normal(size=num_nodes).astype(np.float32),
                np.arange(num_nodes) < known,
                start=step,
                stop=step + 1,
            )
        )
    return found


def edges_of(snapshot: Snapshot, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(2, E) from and to, and (E,) weights."""
    matrix = snapshot.adjacency
    index = torch.from_numpy(np.stack([matrix.indices.astype(np.int64), matrix.row_of]))
    return index, torch.from_numpy(matrix.weight).to(dtype)


def features_of(snapshots: list[Snapshot], dtype: torch.dtype) -> list[Tensor]:
    """(V, F) of each."""
    return [torch.from_numpy(snapshot.features).to(dtype) for snapshot in snapshots]

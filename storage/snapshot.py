"""Snapshots: the graph of a window, frozen, with what its nodes carry.

Invariant: node v is node v in every snapshot of a log, so that state goes from one to the next; a
later snapshot may know more nodes, which are appended.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..stream.events import Bool
from .sparse import Normalisation, SparseMatrix

Float32: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A graph of V nodes, and what is known of them."""

    adjacency: SparseMatrix  # (V, V); row v holds the edges u -> v
    features: Float32 | None = None  # (V, F)
    target: npt.NDArray[Any] | None = None  # (V,) classes (int64) or values (float32)
    present: Bool | None = None  # (V,) nodes that exist in it; None: all do
    start: int = 0  # positions [start, stop) of the log whose events it holds
    stop: int = 0
    start_time: int = 0  # ticks; the period [start_time, stop_time)
    stop_time: int = 0

    def __post_init__(self) -> None:
        if self.adjacency.num_rows != self.adjacency.num_columns:
            raise ValueError(
                "`adjacency` must be square: got "
                f"{self.adjacency.num_rows} x {self.adjacency.num_columns}"
            )
        for name in ("features", "target", "present"):
            values = getattr(self, name)
            if values is not None and len(values) != self.num_nodes:
                raise ValueError(
                    f"`{name}` must have a row for each of {self.num_nodes} nodes: "
                    f"got {len(values)}"
                )

    @property
    def num_nodes(self) -> int:
        """How many nodes there are, those without an edge among them."""
        return self.adjacency.num_rows

    @cached_property
    def version(self) -> str:
        """16 hex digits that differ, nearly surely, if the graph, features or targets do."""
        digest = blake2b(self.adjacency.version.encode(), digest_size=8)
        for values in (self.features, self.target, self.present):
            if values is not None:
                digest.update(str((values.dtype, values.shape)).encode())
                digest.update(np.ascontiguousarray(values).tobytes())
        return digest.hexdigest()

    def matrix(self, how: Normalisation) -> SparseMatrix:
        """The adjacency as layers want it; see `SparseMatrix.normalised`."""
        return self.adjacency.normalised(how)

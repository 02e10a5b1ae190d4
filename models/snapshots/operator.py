"""What a model of snapshots may ask of the graph, whichever backend answers.

A model sees the rows of the nodes that its rank holds, and one operator that sends along the edges:
rows in, rows out, with exact gradients.  How the ranks do it is the backend's business; a model
never asks for a rank.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ...storage.snapshot import Snapshot
from ...storage.sparse import Normalisation


class Propagator(Protocol):
    """The operator; n is the number of rows that this rank holds.

    Every rank must call the same methods in the same order, also one that holds no rows.
    """

    def apply(
        self, snapshot: Snapshot, x: Tensor, how: Normalisation = "gcn", *, hop: int = 0
    ) -> Tensor:
        """A x for the normalised adjacency A: (n, d) -> (n, d).

        `hop` counts the layers of a model from 0: a backend that keeps copies of remote rows takes
        in more rows than it gives back, layer by layer.
        """

    def power(self, snapshot: Snapshot, x: Tensor, hops: int, how: Normalisation = "gcn") -> Tensor:
        """A^hops x: (n, d) -> (n, d)."""

    def chebyshev(self, snapshot: Snapshot, x: Tensor, orders: int) -> list[Tensor]:
        """T_0 .. T_{orders - 1} of the scaled Laplacian, each times x: orders times (n, d)."""

    def attend(
        self, snapshot: Snapshot, z: Tensor, receiver: Tensor, sender: Tensor, *, hop: int = 0
    ) -> Tensor:
        """Additive attention over in-edges and the node itself: (n, h, d) -> (n, h, d).

        `receiver` and `sender` are (n, h), the two halves of a score before the leaky rectifier.
        """

    def attend_power(
        self, snapshot: Snapshot, z: Tensor, receiver: Tensor, sender: Tensor, hops: int
    ) -> Tensor:
        """`attend`, hops times with the same attention: (n, h, d) -> (n, h, d)."""

    def fetch(self, x: Tensor, nodes: npt.NDArray[np.int64]) -> Tensor:
        """The rows of these nodes, wherever they are held: (n, d) -> (m, d)."""

    def local(self, whole: npt.NDArray[Any]) -> Tensor:
        """This rank's rows of what is known of all nodes: (V, ...) -> (n, ...)."""

    def top_nodes(self, scores: Tensor, count: int) -> npt.NDArray[np.int64]:
        """The nodes with the highest scores, highest first, of equals the first: (n,) -> (m,)."""

    def sum_rows(self, x: Tensor) -> Tensor:
        """The sum of the rows of all nodes, with gradients: (n, d) -> (d,)."""

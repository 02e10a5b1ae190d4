"""Every rank sends all its rows to all others: the weak baseline that papers compare with.

It stands here so that their figures can be read: what NeutronTP's code calls vertex parallelism
moves whole blocks (the 1D algorithm of CAGNET, SC 2020), (N - 1) V d numbers an exchange whatever
the graph.  A fair baseline is backend `halo`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from torch import Tensor

from ...storage.snapshot import Snapshot
from ...storage.sparse import Normalisation, SparseMatrix
from ..gather import gather_rows
from ..ranks import ALONE, Comm
from .ownership import Ownership
from .partition import chunk, most_nodes
from .propagator import Propagator
from .sparse import attend_to_all, multiply

PURPOSE = "blocks"


class BroadcastPropagator(Propagator):
    """Runs of nodes; before each product a rank gets the rows of all."""

    name = "broadcast"

    def __init__(self, ownership: Ownership, comm: Comm = ALONE) -> None:
        super().__init__(ownership, comm)
        self._matrices: dict[str, SparseMatrix] = {}

    @classmethod
    def of(cls, snapshots: Sequence[Snapshot], comm: Comm = ALONE, **options: Any) -> Self:
        """Equal runs of nodes."""
        return cls(chunk(most_nodes(snapshots), comm.size), comm, **options)

    def planned_bytes(self, widths: Sequence[int], *, itemsize: int = 4) -> int:
        """What exchanges of these widths move there and back, over all ranks: 2 (N-1) V d b."""
        return 2 * (self.comm.size - 1) * self.ownership.num_nodes * sum(widths) * itemsize

    def apply(
        self, snapshot: Snapshot, x: Tensor, how: Normalisation = "gcn", *, hop: int = 0
    ) -> Tensor:
        """A x: (n, d) -> (n, d)."""
        self.check(snapshot)
        return multiply(self._local(snapshot.matrix(how)), self._gather(x))

    def attend(
        self, snapshot: Snapshot, z: Tensor, receiver: Tensor, sender: Tensor, *, hop: int = 0
    ) -> Tensor:
        """Additive attention: (n, h, d) -> (n, h, d); values and scalars travel together."""
        self.check(snapshot)
        matrix = self._local(snapshot.matrix("loops"))
        return attend_to_all(matrix, z, receiver, sender, self._gather)

    def _gather(self, x: Tensor) -> Tensor:
        """The rows of all nodes, rank by rank, with gradients: (n, d) -> (V, d)."""
        return gather_rows(self.comm, x, self.ownership.sizes, PURPOSE)

    def _local(self, matrix: SparseMatrix) -> SparseMatrix:
        """Own rows x all columns, in the order in which blocks are gathered."""
        if matrix.version not in self._matrices:
            local = matrix.take_rows(self.own).take_columns(self.ownership.order)
            self._matrices[matrix.version] = local
        return self._matrices[matrix.version]

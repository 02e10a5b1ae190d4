"""Backend `lazy`: as `halo`, but others' rows are constants.

It is an approximation where more than one layer is learned at once: forward it is exact, but no
gradient goes back to the ranks that the rows came from, so half as much travels.  On one rank, and
for a first layer that is not learned through, it is exact.  The engine beside it trains a layer at
a time, where constants are all there is.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from ....storage.snapshot import Snapshot
from ....storage.sparse import Normalisation, SparseMatrix
from ....stream import Int64
from ...ranks import ALONE, Comm
from ..halo import Halo, wanted
from ..ownership import Ownership
from ..propagator import Propagator
from ..sparse import attend_to_all, multiply

PURPOSE = "constant rows"


class LazyPropagator(Propagator):
    """Own rows with gradients, remote ones without."""

    name = "lazy"

    def __init__(self, ownership: Ownership, comm: Comm = ALONE) -> None:
        super().__init__(ownership, comm)
        self._plans: dict[str, tuple[Halo, SparseMatrix]] = {}

    def apply(
        self, snapshot: Snapshot, x: Tensor, how: Normalisation = "gcn", *, hop: int = 0
    ) -> Tensor:
        """A x, whose gradient by x is that of own rows alone: (n, d) -> (n, d)."""
        self.check(snapshot)
        halo, matrix = self._plan(snapshot.matrix(how))
        return multiply(matrix, self._with_constants(halo, x))

    def attend(
        self, snapshot: Snapshot, z: Tensor, receiver: Tensor, sender: Tensor, *, hop: int = 0
    ) -> Tensor:
        """Additive attention over own rows and constants: (n, h, d) -> (n, h, d)."""
        self.check(snapshot)
        halo, matrix = self._plan(snapshot.matrix("loops"))
        exchange = partial(self._with_constants, halo)
        return attend_to_all(matrix, z, receiver, sender, exchange)

    def fetch(self, x: Tensor, nodes: Int64) -> Tensor:
        """The rows of these nodes; those of others are constants: (n, d) -> (m, d)."""
        found = super().fetch(x.detach(), nodes)
        wanted_nodes = np.asarray(nodes, np.int64)
        mine = np.flatnonzero(self.ownership.owner[wanted_nodes] == self.comm.rank)
        place = torch.from_numpy(self.ownership.place[wanted_nodes[mine]])
        return found.index_copy(0, torch.from_numpy(mine), x[place])

    def _with_constants(self, halo: Halo, x: Tensor) -> Tensor:
        """x with the remote rows below it: (n, d) -> (n + remote, d)."""
        own = x.detach()[halo.given]
        rows = self.comm.all_to_all_rows(own, halo.sent, halo.received, PURPOSE)
        return torch.cat((x, rows))

    def _plan(self, matrix: SparseMatrix) -> tuple[Halo, SparseMatrix]:
        """The exchange, and own rows x (own and remote) columns; made once a matrix."""
        if matrix.version not in self._plans:
            rows = self.ownership.rows
            halo = Halo.plan(wanted(matrix, rows, rows), self.ownership, self.comm.rank)
            columns = np.concatenate((self.own, halo.remote))
            local = matrix.take_rows(self.own).take_columns(columns)
            self._plans[matrix.version] = halo, local
        return self._plans[matrix.version]

"""Vertex parallelism: a rank owns nodes, and fetches the rows of in-neighbours that others own.

Invariant: of a remote row a rank gets one copy an exchange, however many of its nodes ask for it;
the way back sends the row's gradient home, where the copies' gradients are added up.  With R the
pairs (rank, remote row), an exchange of width d moves |R| d numbers, and as many on the way back.
This is the usual baseline of distributed full-graph training (DepComm of NeutronStar, SIGMOD 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from ...storage.snapshot import Snapshot
from ...storage.sparse import Normalisation, SparseMatrix
from ...stream import Int64
from ..ranks import ALONE, Comm
from .ownership import Ownership
from .partition import chunk, from_first, metis, most_nodes, union
from .propagator import Propagator, exchange_rows
from .sparse import attend_to_all, multiply

Partition = Literal["chunk", "metis"]

PURPOSE = "halo rows"


def wanted(matrix: SparseMatrix, rows: Sequence[Int64], held: Sequence[Int64]) -> tuple[Int64, ...]:
    """For each rank the columns that its rows of the matrix need and that it does not hold.

    >>> a = SparseMatrix.from_edges([0, 1, 2], [2, 2, 0], 3)
    >>> [nodes.tolist() for nodes in wanted(a, *[(np.array([0, 1]), np.array([2]))] * 2)]
    [[2], [0, 1]]
    """
    found = []
    for mine, there in zip(rows, held, strict=True):
        needed = np.zeros(matrix.num_columns, bool)
        needed[matrix.take_rows(mine).indices] = True
        needed[there] = False
        found.append(np.flatnonzero(needed))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class Halo:
    """One exchange, seen from a rank: what it gives of its own rows, and what comes."""

    remote: Int64  # the nodes whose rows come, in the order in which they come
    given: Tensor  # which own rows go out, rank by rank
    sent: list[int]  # how many of these to each rank
    received: list[int]

    @staticmethod
    def plan(remote: Sequence[Int64], ownership: Ownership, rank: int) -> Halo:
        """The exchange after which every rank has its remote rows; pure, the same everywhere."""
        owner, place = ownership.owner, ownership.place
        mine = remote[rank]
        given = [place[nodes[owner[nodes] == rank]] for nodes in remote]
        return Halo(
            mine[np.argsort(owner[mine], kind="stable")],
            torch.from_numpy(np.concatenate(given)),
            [len(rows) for rows in given],
            np.bincount(owner[mine], minlength=ownership.size).tolist(),
        )

    def exchange(self, comm: Comm, x: Tensor, purpose: str = PURPOSE) -> Tensor:
        """x with the remote rows below it: (n, d) -> (n + remote, d)."""
        rows = exchange_rows(comm, x, self.given, self.sent, self.received, purpose)
        return torch.cat((x, rows))


def links(remote: Sequence[Int64], ownership: Ownership) -> Int64:
    """(ranks, ranks) how many rows each rank, by row, gives to each other in an exchange."""
    counts = [np.bincount(ownership.owner[nodes], minlength=ownership.size) for nodes in remote]
    return np.stack(counts, axis=1).astype(np.int64)


class HaloPropagator(Propagator):
    """Own nodes and a halo; `partition` is `chunk` (runs of ids) or `metis`."""

    name = "halo"

    def __init__(self, ownership: Ownership, comm: Comm = ALONE) -> None:
        super().__init__(ownership, comm)
        self._halos: dict[str, tuple[Halo, int]] = {}
        self._matrices: dict[str, tuple[Halo, SparseMatrix]] = {}

    @classmethod
    def of(
        cls,
        snapshots: Sequence[Snapshot],
        comm: Comm = ALONE,
        *,
        partition: Partition = "chunk",
        **options: Any,
    ) -> Self:
        """With METIS the first rank looks for the partition, on all snapshots' edges together.

        Raises:
            ValueError: if `partition` is neither.
        """
        if partition == "chunk":
            return cls(chunk(most_nodes(snapshots), comm.size), comm, **options)
        if partition != "metis":
            raise ValueError(f"`partition` must be chunk or metis: got {partition!r}")
        first = None
        if comm.rank == 0:
            first = metis(union(snapshots), comm.size, weigh_edges=len(snapshots) > 1)
        return cls(from_first(comm, first), comm, **options)

    def remote_rows(self, snapshot: Snapshot, how: Normalisation = "gcn") -> int:
        """|R|: how many rows an exchange moves, over all ranks."""
        return self._halo(snapshot.matrix(how))[1]

    def planned_bytes(
        self,
        snapshot: Snapshot,
        widths: Sequence[int],
        how: Normalisation = "gcn",
        *,
        itemsize: int = 4,
    ) -> int:
        """What exchanges of these widths move there and back, over all ranks: 2 |R| d b each.

        For attention the width is that of the values and one scalar a head.
        """
        return 2 * self.remote_rows(snapshot, how) * sum(widths) * itemsize

    def apply(
        self, snapshot: Snapshot, x: Tensor, how: Normalisation = "gcn", *, hop: int = 0
    ) -> Tensor:
        """A x: (n, d) -> (n, d)."""
        self.check(snapshot)
        halo, matrix = self._plan(snapshot.matrix(how))
        return multiply(matrix, halo.exchange(self.comm, x))

    def attend(
        self, snapshot: Snapshot, z: Tensor, receiver: Tensor, sender: Tensor, *, hop: int = 0
    ) -> Tensor:
        """Additive attention: (n, h, d) -> (n, h, d); values and scalars travel together."""
        self.check(snapshot)
        halo, matrix = self._plan(snapshot.matrix("loops"))
        exchange = partial(halo.exchange, self.comm)
        return attend_to_all(matrix, z, receiver, sender, exchange)

    def _halo(self, matrix: SparseMatrix) -> tuple[Halo, int]:
        if matrix.version not in self._halos:
            rows = self.ownership.rows
            remote = wanted(matrix, rows, rows)
            halo = Halo.plan(remote, self.ownership, self.comm.rank)
            self._halos[matrix.version] = halo, sum(len(nodes) for nodes in remote)
        return self._halos[matrix.version]

    def _plan(self, matrix: SparseMatrix) -> tuple[Halo, SparseMatrix]:
        """The exchange, and own rows x (own and remote) columns; made once a matrix."""
        if matrix.version not in self._matrices:
            halo = self._halo(matrix)[0]
            columns = np.concatenate((self.own, halo.remote))
            local = matrix.take_rows(self.own).take_columns(columns)
            self._matrices[matrix.version] = halo, local
        return self._matrices[matrix.version]

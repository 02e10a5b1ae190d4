"""The operator by two kinds of ranks: rows go to those that multiply, and come back.

Ranks that transform hold the rows of all nodes and no product; ranks that propagate hold no rows
and multiply a slice of the columns by the whole matrix.  Any model that asks for a `Propagator`
runs here unchanged and exactly (NeutronTask, PVLDB 18(6), without its dropped edges).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ....storage.snapshot import Snapshot
from ....storage.sparse import Normalisation, SparseMatrix
from ...ranks import ALONE, Comm
from .. import sparse
from ..ownership import Ownership
from ..partition import most_nodes
from ..propagator import Propagator, chebyshev_terms
from ..tensor.split import Layout, gather, gather_now, split, split_now
from .roles import Roles

SCALARS = "attention scalars"


class TaskPropagator(Propagator):
    """A x, where some ranks hold x and others multiply."""

    name = "task"

    def __init__(self, ownership: Ownership, comm: Comm = ALONE, roles: Roles | None = None):
        super().__init__(ownership, comm)
        self.roles = roles if roles is not None else Roles.of(comm.size)
        self.layout = Layout(ownership, self.roles.shares, comm.rank)
        self._renumbered: WeakKeyDictionary[Snapshot, dict[Normalisation, SparseMatrix]]
        self._renumbered = WeakKeyDictionary()
        for rank, rows in enumerate(ownership.sizes):
            if rows and rank not in self.roles.transform:
                raise ValueError(
                    f"`ownership` must give rows only to ranks that transform, which are "
                    f"{list(self.roles.transform)}: rank {rank} has {rows}"
                )

    @classmethod
    def of(
        cls,
        snapshots: Sequence[Snapshot],
        comm: Comm = ALONE,
        *,
        num_transform: int | None = None,
        **options: Any,
    ) -> Self:
        """The backend for these snapshots; `num_transform` ranks hold runs of rows."""
        roles = Roles.of(comm.size, num_transform)
        return cls(roles.rows(most_nodes(snapshots)), comm, roles, **options)

    def apply(
        self, snapshot: Snapshot, x: Tensor, how: Normalisation = "gcn", *, hop: int = 0
    ) -> Tensor:
        """A x: (n, d) -> (n, d)."""
        return self.power(snapshot, x, 1, how)

    def power(self, snapshot: Snapshot, x: Tensor, hops: int, how: Normalisation = "gcn") -> Tensor:
        """A^hops x: (n, d) -> (n, d), between one way out and one back."""
        self.check(snapshot)
        y = split(self.comm, self.layout, x)  # (V, c)
        for _ in range(hops if y.shape[1] else 0):
            y = sparse.multiply(self._matrix(snapshot, how), y)
        return gather(self.comm, self.layout, y, x.shape[1])

    def chebyshev(self, snapshot: Snapshot, x: Tensor, orders: int) -> list[Tensor]:
        """T_0 .. T_{orders - 1} of the scaled Laplacian, each times x: orders x (n, d).

        T_0 does not travel back; the others do, in one message.
        """
        if orders <= 1:
            return [x][:orders]
        self.check(snapshot)

        def multiply(term: Tensor) -> Tensor:
            if not term.shape[1]:
                return term  # a rank that transforms needs no matrix
            return sparse.multiply(self._matrix(snapshot, "chebyshev"), term)

        terms = chebyshev_terms(split(self.comm, self.layout, x), orders, multiply)  # (V, c) each
        together = torch.stack(terms[1:], 1)  # (V, orders - 1, c)
        return [x, *gather(self.comm, self.layout, together, x.shape[1]).unbind(1)]

    def attend(
        self, snapshot: Snapshot, z: Tensor, receiver: Tensor, sender: Tensor, *, hop: int = 0
    ) -> Tensor:
        """Additive attention: (n, h, d) -> (n, h, d)."""
        return self.attend_power(snapshot, z, receiver, sender, 1)

    def attend_power(
        self, snapshot: Snapshot, z: Tensor, receiver: Tensor, sender: Tensor, hops: int
    ) -> Tensor:
        """`attend`, hops times with the same attention: (n, h, d) -> (n, h, d).

        Two scalars a node and head go to every rank that propagates; nothing an edge travels.
        """
        self.check(snapshot)
        heads, width = z.shape[1], z.shape[2]
        scalars = torch.cat((receiver, sender), 1)  # (n, 2h)
        found: tuple[Tensor, Tensor] = _SplitWithScalars.apply(z.flatten(1), scalars, self)  # type: ignore[no-untyped-call]
        y, both = found  # (V, c), (V, 2h)
        if y.shape[1]:
            matrix = self._matrix(snapshot, "loops")
            head_of = sparse.heads_of(heads, width)[self.layout.columns(heads * width)]
            alpha = sparse.attention(matrix, both[:, :heads], both[:, heads:])
            for _ in range(hops):
                y = sparse.weigh(matrix, alpha, y, head_of)
        return gather(self.comm, self.layout, y, heads * width).view(z.shape)

    def _matrix(self, snapshot: Snapshot, how: Normalisation) -> SparseMatrix:
        """The matrix with its rows as those of all ranks stand when they are together."""
        kept = self._renumbered.setdefault(snapshot, {})
        if how not in kept:
            kept[how] = self.layout.renumbered(snapshot.matrix(how))
        return kept[how]


class _SplitWithScalars(torch.autograd.Function):
    """Two results of one function, so that the way back is taken also where one is not used."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, scalars: Tensor, propagator: TaskPropagator
    ) -> tuple[Tensor, Tensor]:
        comm, layout, roles = propagator.comm, propagator.layout, propagator.roles
        sizes, multiplies = layout.ownership.sizes, comm.rank in roles.propagate
        sent = [len(z) if rank in roles.propagate else 0 for rank in range(comm.size)]
        received = [size if multiplies else 0 for size in sizes]
        ctx.how = comm, layout, z.shape[1], sent, received
        copies = scalars.detach().repeat(len(roles.propagate), 1)  # the same to each
        found = comm.all_to_all_rows(copies, sent, received, SCALARS)
        return split_now(comm, layout, z.detach()), found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        comm, layout, width, sent, received = ctx.how
        by_z = gather_now(comm, layout, grads[0], width)
        parts = comm.all_to_all_rows(grads[1], received, sent, f"{SCALARS}, gradients")
        copies = len([count for count in layout.shares if count])
        return by_z, parts.view(copies, len(by_z), grads[1].shape[1]).sum(0), None

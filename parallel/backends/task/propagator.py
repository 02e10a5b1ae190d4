"""The operator by two kinds of ranks: rows go to those that multiply, and come back.

Ranks that transform hold the rows of all nodes and no product; ranks that propagate hold no rows
and multiply a slice of the columns by the whole matrix.  Any model that asks for a `Propagator`
runs here unchanged and exactly (NeutronTask, PVLDB 18(6), section 3, without its dropped edges).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from ....storage.snapshot import Snapshot
from ....storage.sparse import Normalisation
from ...comm import ALONE, Comm
from .. import sparse
from ..ownership import Ownership
from ..propagator import Propagator
from .exchange import Exchange, gather, split
from .roles import Roles

TO_PROPAGATE, TO_TRANSFORM = "rows to propagate", "rows propagated"
SCALARS = "attention scalars"


class TaskPropagator(Propagator):
    """A x, where some ranks hold x and others multiply."""

    name = "task"

    def __init__(self, ownership: Ownership, comm: Comm = ALONE, roles: Roles | None = None):
        super().__init__(ownership, comm)
        self.roles = roles if roles is not None else Roles.of(comm.size)
        for rank, rows in enumerate(ownership.sizes):
            if rows and rank not in self.roles.transform:
                raise ValueError(
                    f"`ownership` must give rows only to ranks that transform, which are "
                    f"{list(self.roles.transform)}: rank {rank} has {rows}"
                )

    @classmethod
    def of(cls, snapshots: Sequence[Snapshot], comm: Comm = ALONE, **options: Any) -> Self:
        """The backend for these snapshots; `num_transform` ranks hold runs of rows."""
        num_nodes = max((snapshot.num_nodes for snapshot in snapshots), default=0)
        roles = Roles.of(comm.size, options.pop("num_transform", None))
        return cls(roles.rows(num_nodes), comm, roles, **options)

    def exchange(self, width: int) -> Exchange:
        """How a matrix of that width goes to those that propagate, and back."""
        return Exchange(self.comm, self.ownership, self.roles.columns(width))

    def apply(
        self, snapshot: Snapshot, x: Tensor, how: Normalisation = "gcn", *, hop: int = 0
    ) -> Tensor:
        """A x: (n, d) -> (n, d)."""
        return self.power(snapshot, x, 1, how)

    def power(self, snapshot: Snapshot, x: Tensor, hops: int, how: Normalisation = "gcn") -> Tensor:
        """A^hops x: (n, d) -> (n, d), between one way out and one back."""
        self.check(snapshot)
        exchange = self.exchange(x.shape[1])
        y = split(exchange, x, TO_PROPAGATE)  # (V, c)
        for _ in range(hops if y.shape[1] else 0):
            y = sparse.multiply(snapshot.matrix(how), y)
        return gather(exchange, y, TO_TRANSFORM)

    def chebyshev(self, snapshot: Snapshot, x: Tensor, orders: int) -> list[Tensor]:
        """T_0 .. T_{orders - 1} of the scaled Laplacian, each times x: orders x (n, d).

        T_0 does not travel back; the others do, in one message.
        """
        self.check(snapshot)
        if orders == 1:
            return [x]
        exchange = self.exchange(x.shape[1])
        terms = [split(exchange, x, TO_PROPAGATE)]  # (V, c)
        for order in range(1, orders):
            term = terms[-1]
            if term.shape[1]:
                term = sparse.multiply(snapshot.matrix("chebyshev"), term)
                term = term if order == 1 else 2 * term - terms[-2]
            terms.append(term)
        wide = Exchange(self.comm, self.ownership, [c * (orders - 1) for c in exchange.columns])
        back = gather(wide, torch.cat(terms[1:], 1), TO_TRANSFORM)  # (n, (orders - 1) d)
        widths = [c for c in exchange.columns for _ in range(orders - 1)]
        pieces = iter(torch.split(back, widths, 1))
        by_rank = [[next(pieces) for _ in range(orders - 1)] for _ in exchange.columns]
        return [x, *(torch.cat([rank[k] for rank in by_rank], 1) for k in range(orders - 1))]

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
        exchange = self.exchange(heads * width)
        scalars = torch.cat((receiver, sender), 1)  # (n, 2h)
        y, both = _split_with_scalars(exchange, z.flatten(1), scalars, self.roles)
        if y.shape[1]:
            first = sum(exchange.columns[: self.comm.rank])
            head_of = sparse.heads_of(heads, width)[first : first + y.shape[1]]
            matrix = snapshot.matrix("loops")
            alpha = sparse.attention(matrix, both[:, :heads], both[:, heads:])
            for _ in range(hops):
                y = sparse.weigh(matrix, alpha, y, head_of)
        return gather(exchange, y, TO_TRANSFORM).view(z.shape)


def _split_with_scalars(
    exchange: Exchange, z: Tensor, scalars: Tensor, roles: Roles
) -> tuple[Tensor, Tensor]:
    """This rank's columns of z, and all nodes' scalars where there are columns."""
    found: tuple[Tensor, Tensor] = _SplitWithScalars.apply(z, scalars, exchange, roles)  # type: ignore[no-untyped-call]
    return found


class _SplitWithScalars(torch.autograd.Function):
    """Two results of one function, so that the way back is taken also where one is not used."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, scalars: Tensor, exchange: Exchange, roles: Roles
    ) -> tuple[Tensor, Tensor]:
        columns = exchange.to_columns(z, TO_PROPAGATE)
        width = [scalars.shape[1] * (rank in roles.propagate) for rank in range(roles.size)]
        everyone = Exchange(exchange.comm, exchange.ownership, width)
        ctx.how = exchange, everyone, (len(roles.propagate), scalars.shape[1])
        copies = scalars.repeat(1, len(roles.propagate))  # the same to each that propagates
        return columns, everyone.to_columns(copies, SCALARS)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        exchange, everyone, shape = ctx.how
        back = exchange.to_rows(grads[0], f"{TO_PROPAGATE}, gradients")
        shares = everyone.to_rows(grads[1], f"{SCALARS}, gradients")  # (n, copies * 2h)
        return back, shares.view(len(shares), *shape).sum(1), None, None

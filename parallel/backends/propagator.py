"""The one operator behind which all backends stand: A x, with the rows of x spread over the ranks.

Invariants: `apply` is linear in x, its backward is its adjoint, and whatever the backend the result
is that of one process up to the order of sums.  All ranks must hold the same snapshot: its hash is
compared when it is first seen, so that none trains on another graph unnoticed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from ...storage.snapshot import Snapshot
from ...storage.sparse import Normalisation
from ...stream import Int64
from ..ranks import ALONE, Comm, agree
from ..sharing import sum_gradients
from .ownership import Ownership
from .partition import most_nodes


class Propagator(ABC):
    """A backend; see `models.snapshots.Propagator` for what a model may ask of it."""

    name: ClassVar[str]

    def __init__(self, ownership: Ownership, comm: Comm = ALONE) -> None:
        if ownership.size != comm.size:
            raise ValueError(
                f"`ownership` must deal the nodes out to {comm.size} ranks: got {ownership.size}"
            )
        self.comm = comm
        self.ownership = ownership
        self._seen: set[str] = set()

    @classmethod
    def of(cls, snapshots: Sequence[Snapshot], comm: Comm = ALONE, **options: Any) -> Self:
        """The backend for these snapshots; nodes are dealt out one by one."""
        ownership = Ownership.round_robin(most_nodes(snapshots), comm.size)
        return cls(ownership, comm, **options)

    @property
    def own(self) -> Int64:
        """(n,) the nodes whose rows this rank holds, ascending."""
        return self.ownership.rows[self.comm.rank]

    def local(self, whole: np.ndarray[Any, Any]) -> Tensor:
        """This rank's rows of what is known of all nodes: (V, ...) -> (n, ...)."""
        return torch.from_numpy(np.ascontiguousarray(whole[self.own]))

    def inputs(self, snapshot: Snapshot) -> Tensor:
        """The features that a model starts from: (rows that `apply` takes at hop 0, F)."""
        if snapshot.features is None:
            raise ValueError("the snapshot has no `features`: give it some, or a model its own")
        return self.local(snapshot.features)

    def check(self, snapshot: Snapshot) -> None:
        """Checks that all ranks hold this snapshot; one exchange the first time it is seen.

        Raises:
            ValueError: on every rank, if one holds another; or if it has more nodes than are owned.
        """
        if snapshot.version in self._seen:
            return
        agree(self.comm, {"snapshot": snapshot.version})
        if snapshot.num_nodes != self.ownership.num_nodes:
            raise ValueError(
                f"the snapshot has {snapshot.num_nodes} nodes, but {self.ownership.num_nodes} are "
                "dealt out to the ranks: make the backend for the largest snapshot"
            )
        self._seen.add(snapshot.version)

    @abstractmethod
    def apply(
        self, snapshot: Snapshot, x: Tensor, how: Normalisation = "gcn", *, hop: int = 0
    ) -> Tensor:
        """A x: (n, d) -> (n, d)."""

    @abstractmethod
    def attend(
        self, snapshot: Snapshot, z: Tensor, receiver: Tensor, sender: Tensor, *, hop: int = 0
    ) -> Tensor:
        """Additive attention over in-edges and the node itself: (n, h, d) -> (n, h, d)."""

    def power(self, snapshot: Snapshot, x: Tensor, hops: int, how: Normalisation = "gcn") -> Tensor:
        """A^hops x: (n, d) -> (n, d)."""
        for hop in range(hops):
            x = self.apply(snapshot, x, how, hop=hop)
        return x

    def chebyshev(self, snapshot: Snapshot, x: Tensor, orders: int) -> list[Tensor]:
        """T_0 .. T_{orders - 1} of the scaled Laplacian, each times x: orders x (n, d).

        T_0 = x, T_1 = L x, T_k = 2 L T_{k-1} - T_{k-2}.
        """
        return chebyshev_terms(x, orders, lambda term: self.apply(snapshot, term, "chebyshev"))

    def attend_power(
        self, snapshot: Snapshot, z: Tensor, receiver: Tensor, sender: Tensor, hops: int
    ) -> Tensor:
        """`attend`, hops times with the same attention: (n, h, d) -> (n, h, d)."""
        for hop in range(hops):
            z = self.attend(snapshot, z, receiver, sender, hop=hop)
        return z

    def fetch(self, x: Tensor, nodes: Int64) -> Tensor:
        """The rows of these nodes, wherever they are held: (n, d) -> (m, d).

        Each distinct remote row travels once a rank that asks for it; gradients go back and are
        summed at the owner.
        """
        distinct, place = np.unique(np.asarray(nodes, np.int64), return_inverse=True)
        owner = self.ownership.owner[distinct]
        order = np.argsort(owner, kind="stable")
        wanted = torch.from_numpy(self.ownership.place[distinct][order])
        counts = np.bincount(owner, minlength=self.comm.size).tolist()
        asked = torch.from_numpy(np.array(counts))
        each = [1] * self.comm.size
        sent = self.comm.all_to_all_rows(asked, each, each, "row requests").tolist()
        rows = self.comm.all_to_all_rows(wanted, counts, sent, "row requests")
        found = exchange_rows(self.comm, x, rows, sent, counts, "rows")
        back = np.empty(len(distinct), np.int64)
        back[order] = np.arange(len(distinct))
        return found[torch.from_numpy(back[place])]

    def top_nodes(self, scores: Tensor, count: int) -> Int64:
        """The nodes with the highest scores, highest first, of equals the first: (n,) -> (m,).

        All scores go to every rank, so that all choose alike.

        Raises:
            ValueError: if there are fewer nodes than `count`.
        """
        if count > self.ownership.num_nodes:
            raise ValueError(
                f"`count` must not exceed the {self.ownership.num_nodes} nodes: got {count}"
            )
        whole = self.gather(scores)  # (V,)
        order = torch.sort(whole, descending=True, stable=True).indices  # equals: as they stand
        return order[:count].cpu().numpy()

    def sum_rows(self, x: Tensor) -> Tensor:
        """The sum of the rows of all nodes, with gradients: (n, d) -> (d,)."""
        found: Tensor = _SumRows.apply(x, self.comm)  # type: ignore[no-untyped-call]
        return found

    def gather(self, x: Tensor) -> Tensor:
        """The rows of all nodes, on every rank, without gradients: (n, d) -> (V, d)."""
        stacked = self.comm.all_gather_rows(x.detach(), self.ownership.sizes, "results")
        whole = torch.empty_like(stacked)
        whole[torch.from_numpy(self.ownership.order)] = stacked
        return whole

    def total(self, value: Tensor) -> Tensor:
        """The sum of a value over the ranks, without gradients."""
        return self.comm.all_reduce(value.detach().clone(), "totals")

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Adds up the parameters' gradients over the ranks, in one message."""
        sum_gradients(self.comm, parameters)


def exchange_rows(
    comm: Comm, x: Tensor, given: Tensor, sent: list[int], received: list[int], purpose: str
) -> Tensor:
    """Rows `given` of x, `sent[r]` of them for rank r, for those the others send: (m, d).

    Its backward sends the gradients back and adds them up, so every rank must reach it.
    """
    found: Tensor = _ExchangeRows.apply(x, comm, given, sent, received, purpose)  # type: ignore[no-untyped-call]
    return found


class _ExchangeRows(torch.autograd.Function):
    """x -> the rows that others chose of theirs; backward y -> sums at the owners."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        comm: Comm,
        given: Tensor,
        sent: list[int],
        received: list[int],
        purpose: str,
    ) -> Tensor:
        ctx.how = comm, given, sent, received, purpose, len(x)
        return comm.all_to_all_rows(x.detach()[given], sent, received, purpose)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        comm, given, sent, received, purpose, length = ctx.how
        back = comm.all_to_all_rows(grads[0], received, sent, f"{purpose}, gradients")
        total = back.new_zeros((length, *back.shape[1:]))
        total.index_add_(0, given, back)
        return total, None, None, None, None, None


class _SumRows(torch.autograd.Function):
    """x -> the sum of all ranks' rows; backward y -> to each row what all ranks make of the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Comm) -> Tensor:
        ctx.how = comm, len(x)
        return comm.all_reduce(x.detach().sum(0), "sums of rows")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        comm, length = ctx.how
        total = comm.all_reduce(grads[0].contiguous().clone(), "sums of rows, gradients")
        return total.expand(length, *total.shape), None


def chebyshev_terms(x: Tensor, orders: int, multiply: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """T_0 x .. T_{orders - 1} x, at least T_0 x; `multiply` is by the scaled Laplacian."""
    terms = [x]
    for order in range(1, orders):
        term = multiply(terms[-1])
        terms.append(term if order == 1 else 2 * term - terms[-2])
    return terms

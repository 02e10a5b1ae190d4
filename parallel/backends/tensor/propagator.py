"""The tensor-parallel backend: whole graph on every rank, columns divided (NeutronTP).

Invariant: what travels depends on nodes and widths only, never on edges, and the multiplications
are divided by columns, so a hub costs every rank the same.  Repeated products, a Chebyshev
recursion or attention that is used again go between one split and one gather (PVLDB 18(2),
section 4).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ....storage.snapshot import Snapshot
from ....storage.sparse import Normalisation
from ...gather import gather_rows
from ...ranks import ALONE, Comm
from ..ownership import Ownership
from ..partition import most_nodes
from ..propagator import Propagator, chebyshev_terms
from ..sparse import attention, heads_of, multiply, product, weigh
from .chunks import Route, cut_rows, new_sources, plan_route
from .split import GATHER, SPLIT, Layout, deal, gather, split, start_gather, start_split
from .trace import Act, Step

SCALARS = "attention scalars"
"""Under which purpose the ledger has them; the way back says `, gradients` after it."""


class TensorPropagator(Propagator):
    """Rows between products, columns within them.

    `columns` are the ranks' shares of the columns, equal by default; rows are dealt out by
    `ownership`.  Where `ends` (from 0 to V) cut the nodes in runs, the exchanges of `apply` and
    `power` are cut likewise, and go on beside the multiplication.  What it does is noted in `trace`
    if that is a list.
    """

    name = "tensor"

    def __init__(
        self,
        ownership: Ownership,
        comm: Comm = ALONE,
        *,
        columns: Sequence[float] | None = None,
        ends: Sequence[int] = (),
    ) -> None:
        super().__init__(ownership, comm)
        shares = tuple(columns) if columns is not None else (1.0,) * comm.size
        self.layout = Layout(ownership, shares, comm.rank, tuple(ends))
        self.trace: list[Step] | None = None
        self._routes: dict[tuple[str, Normalisation, bool], Route] = {}
        # (V,) where each of all rows stands when the rows of all ranks are gathered
        self._gathered = torch.from_numpy(np.argsort(ownership.order)[self.layout.order])

    @classmethod
    def of(
        cls,
        snapshots: Sequence[Snapshot],
        comm: Comm = ALONE,
        *,
        speeds: Sequence[float] | None = None,
        rows: Sequence[float] | None = None,
        columns: Sequence[float] | None = None,
        chunks: int = 1,
        **options: Any,
    ) -> Self:
        """The backend for these snapshots.

        Rows and columns are shared out by the `speeds` of the ranks, or each by shares of its own,
        of which some may be 0.  Nodes are dealt out one by one; with `chunks` in the order in which
        they travel for the first snapshot, so that every rank gives about as much to each chunk.
        """
        if chunks < 1:
            raise ValueError(f"`chunks` must be at least 1: got {chunks}")
        shares = rows if rows is not None else speeds if speeds is not None else [1.0] * comm.size
        if len(shares) != comm.size:
            raise ValueError(f"`rows` must give a share to {comm.size} ranks: got {list(shares)}")
        num_nodes = most_nodes(snapshots)
        owner, ends = deal(num_nodes, shares), []
        if chunks > 1 and snapshots:
            matrix = snapshots[0].matrix("gcn")
            ends = cut_rows(matrix, chunks)
            travels = np.concatenate(new_sources(matrix, ends))
            owner[travels] = owner[: len(travels)].copy()
            ends[-1] = num_nodes
        ownership = Ownership.of(owner, comm.size)
        columns = columns if columns is not None else speeds
        return cls(ownership, comm, columns=columns, ends=ends, **options)

    def apply(
        self, snapshot: Snapshot, x: Tensor, how: Normalisation = "gcn", *, hop: int = 0
    ) -> Tensor:
        """A x: (n, d) -> (n, d); one split, one gather."""
        return self.power(snapshot, x, 1, how)

    def power(self, snapshot: Snapshot, x: Tensor, hops: int, how: Normalisation = "gcn") -> Tensor:
        """A^hops x: (n, d) -> (n, d); one split, one gather."""
        self.check(snapshot)
        if hops == 0:
            return x
        found: Tensor = _Propagate.apply(x, self, snapshot, how, hops)  # type: ignore[no-untyped-call]
        return found

    def chebyshev(self, snapshot: Snapshot, x: Tensor, orders: int) -> list[Tensor]:
        """T_0 .. T_{orders - 1} of the scaled Laplacian, each times x: orders x (n, d).

        One split of x and one gather of orders 1 and above together; order 0 is x.
        """
        self.check(snapshot)
        if orders <= 1:
            return [x][:orders]
        matrix = self.route(snapshot, "chebyshev", back=False).matrix
        columns = split(self.comm, self.layout, x)  # (V, c)
        terms = chebyshev_terms(columns, orders, partial(multiply, matrix))
        together = torch.stack(terms[1:], 1)  # (V, orders - 1, c)
        return [x, *gather(self.comm, self.layout, together, x.shape[1]).unbind(1)]

    def attend(
        self, snapshot: Snapshot, z: Tensor, receiver: Tensor, sender: Tensor, *, hop: int = 0
    ) -> Tensor:
        """Additive attention: (n, h, d) -> (n, h, d).

        2 h scalars a node go to every rank, and never anything an edge: each computes the softmax
        of all edges, and finds the part of its gradient that comes through its own columns.
        """
        return self.attend_power(snapshot, z, receiver, sender, 1)

    def attend_power(
        self, snapshot: Snapshot, z: Tensor, receiver: Tensor, sender: Tensor, hops: int
    ) -> Tensor:
        """`attend`, hops times with the same attention: one split, one gather."""
        self.check(snapshot)
        matrix, num_heads = self.route(snapshot, "loops", back=False).matrix, z.shape[1]
        scalars = torch.cat((receiver, sender), 1)  # (n, 2 h)
        scalars = gather_rows(self.comm, scalars, self.ownership.sizes, SCALARS)
        scalars = scalars[self._gathered]  # (V, 2 h)
        alpha = attention(matrix, scalars[:, :num_heads], scalars[:, num_heads:])  # (nnz, h)
        flat = z.flatten(1)
        head_of = heads_of(num_heads, z.shape[2])[self.layout.columns(flat.shape[1])]
        x = split(self.comm, self.layout, flat)  # (V, c)
        for _ in range(hops):
            x = weigh(matrix, alpha, x, head_of)
        return gather(self.comm, self.layout, x, flat.shape[1]).view(z.shape)

    def propagate(
        self, snapshot: Snapshot, x: Tensor, how: Normalisation, hops: int, *, back: bool
    ) -> Tensor:
        """A^hops x, or its adjoint if `back`, without a gradient: (n, d) -> (n, d)."""
        route = self.route(snapshot, how, back=back)
        width = x.shape[1]
        held = self.ownership.num_nodes, self.layout.widths(width)[self.comm.rank]
        sources, y = x.new_empty(held), x.new_empty(held)
        out = x.new_empty((len(self.own), width))
        for hop in range(hops):
            last = hop == hops - 1
            self._multiply(route, x if hop == 0 else None, sources, y, out if last else None)
            sources, y = y, sources
        return out

    def _multiply(
        self, route: Route, x: Tensor | None, sources: Tensor, y: Tensor, out: Tensor | None
    ) -> None:
        """y = A sources, split from x before and gathered to `out` after it, if these are given.

        While a chunk is multiplied the next one comes and the last one goes: at most two exchanges
        of each kind are on their way.
        """
        coming: deque[Callable[[], None]] = deque()
        going: deque[Callable[[], None]] = deque()
        if x is not None:
            coming.append(self._start_split(route, 0, x, sources))
        for number, chunk in enumerate(route.chunks):
            if x is not None:
                if number + 1 < len(route.chunks):
                    coming.append(self._start_split(route, number + 1, x, sources))
                coming.popleft()()
            product(chunk.matrix, sources, out=y[chunk.first : chunk.last])
            self._note("multiply", "", number, chunk.matrix.num_edges * y.shape[1])
            if out is not None:
                going.append(self._start_gather(route, number, y, out))
            if len(going) > 1:
                going.popleft()()
        for finish in going:
            finish()

    def _start_split(
        self, route: Route, number: int, x: Tensor, sources: Tensor
    ) -> Callable[[], None]:
        part = route.chunks[number].arrive
        begin = partial(start_split, self.comm, self.layout, part, x, sources)
        return self._noted(SPLIT, number, begin)

    def _start_gather(
        self, route: Route, number: int, y: Tensor, out: Tensor
    ) -> Callable[[], None]:
        part = route.chunks[number].leave
        begin = partial(start_gather, self.comm, self.layout, part, y, out)
        return self._noted(GATHER, number, begin)

    def _noted(
        self, purpose: str, chunk: int, begin: Callable[[], Callable[[], None]]
    ) -> Callable[[], None]:
        """An exchange begun, with its start and its end in the trace."""
        if self.trace is None:
            return begin()
        before = self._received(purpose)
        finish = begin()
        size = self._received(purpose) - before
        self._note("start", purpose, chunk, size)

        def wait() -> None:
            self._note("wait", purpose, chunk, size)
            finish()

        return wait

    def _received(self, purpose: str) -> int:
        traffic = self.comm.bytes.get(purpose)
        return 0 if traffic is None else traffic.received

    def _note(self, act: Act, purpose: str, chunk: int, size: int) -> None:
        if self.trace is not None:
            self.trace.append(Step(act, purpose, chunk, size))

    def route(self, snapshot: Snapshot, how: Normalisation, *, back: bool) -> Route:
        """The plan of a product, or of its adjoint if `back`; made once."""
        key = snapshot.version, how, back
        if key not in self._routes:
            matrix = snapshot.matrix(how)
            matrix = matrix.transposed if back else matrix
            self._routes[key] = plan_route(matrix, self.layout)
        return self._routes[key]


class _Propagate(torch.autograd.Function):
    """x -> A^hops x; backward y -> (A^T)^hops y; nothing of x is kept."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        propagator: TensorPropagator,
        snapshot: Snapshot,
        how: Normalisation,
        hops: int,
    ) -> Tensor:
        ctx.how = propagator, snapshot, how, hops
        return propagator.propagate(snapshot, x.detach(), how, hops, back=False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        propagator, snapshot, how, hops = ctx.how
        found = propagator.propagate(snapshot, grads[0], how, hops, back=True)
        return found, None, None, None, None

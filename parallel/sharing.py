"""Which rank, and thread, updates which events of a segment, and the exchange of written rows.

Events that read what others have written hang together; what does not hang together can be updated
on different ranks with one exchange at the end, however many levels there are.  Every rank makes
the same plan of the same schedule, so the plan itself never travels.  The invariant: a gradient
table holds on each rank a share of the gradient, and the sum over ranks is the whole; the exchange
going back gives what others found to the rank that made the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from ..models import Chain
from ..stream import Int64
from .costs import Costs
from .kernels import deal_out, join_events
from .ranks import Comm
from .schedule import Schedule
from .spans import span_of


@dataclass(frozen=True, slots=True)
class Shares:
    """A plan for all ranks; every event is updated on exactly one of them."""

    rank_of: Int64  # (n,)
    rows: Tensor  # (w,) the written rows, rank by rank, in log order inside a rank
    sizes: tuple[int, ...]  # (ranks,) how many of these each rank makes

    def mine(self, rank: int) -> Int64:
        """The events that a rank updates, in log order."""
        return np.flatnonzero(self.rank_of == rank)

    def rows_on(self, device: torch.device) -> Tensor:
        """`rows`, to index tables of the device with."""
        return self.rows.to(device)


def share_rows(count: int, rank: int, size: int) -> tuple[int, int]:
    """The even span of `count` rows that is a rank's to score.

    >>> [share_rows(7, rank, 3) for rank in range(3)]
    [(0, 2), (2, 4), (4, 7)]
    """
    return count * rank // size, count * (rank + 1) // size


def components(plan: Schedule, read_start: Int64, write_start: Int64) -> Int64:
    """Of each event the first one that it hangs together with, (n,).

    >>> from .schedule import schedule
    >>> ends, starts = np.array([0, 1, 3, 4, 1, 2]), np.array([0, 2, 4, 6])  # (a, b) (d, e) (b, c)
    >>> components(schedule(starts, ends, starts, ends), starts, starts).tolist()
    [0, 1, 0]
    """
    n = len(plan)
    writer = np.empty(len(plan.write_row), np.int64)
    writer[plan.write_row - len(plan.base)] = np.repeat(np.arange(n), np.diff(write_start))
    parent = np.arange(n)
    join_events(read_start, plan.read_row, len(plan.base), writer, parent)
    return parent


def share_events(
    plan: Schedule, read_start: Int64, write_start: Int64, ranks: int, row_bytes: int, costs: Costs
) -> Shares | None:
    """The events of a schedule shared out evenly, or None where the exchange would cost more.

    Whole components go, the largest first, to the rank that has the least to do.
    """
    n = len(plan)
    if ranks == 1 or n == 0:
        return None
    rank_of, longest = deal(components(plan, read_start, write_start), ranks)
    if not costs.worth_sharing(n, longest, len(plan.write_row) * row_bytes, ranks):
        return None
    of_write = np.repeat(rank_of, np.diff(write_start))
    rows = plan.write_row[np.argsort(of_write, kind="stable")]
    sizes = np.bincount(of_write, minlength=ranks)
    return Shares(rank_of, torch.from_numpy(rows), tuple(sizes.tolist()))


def deal(component: Int64, ranks: int) -> tuple[Int64, int]:
    """Of each event (n,) the rank that its component is dealt to, and the most events of a rank.

    >>> deal(np.array([0, 1, 0, 3, 0]), 2)
    (array([0, 1, 0, 1, 0]), 3)
    """
    rank_of, loads = np.empty(len(component), np.int64), np.zeros(ranks, np.int64)
    sizes = np.bincount(component)
    deal_out(component, np.argsort(-sizes, kind="stable"), sizes, loads, rank_of)
    return rank_of, int(loads.max())


def share_chain(chain: Chain, num_base: int, threads: int, costs: Costs) -> tuple[Int64, ...]:
    """The events of each of some threads, in log order; or none, where one thread is as soon done.

    As ranks they are dealt whole components, but what one writes all see: nothing is exchanged.
    """
    n = len(chain)
    if threads == 1 or n < 2:
        return ()
    starts = np.arange(n + 1)
    sizes = np.full(n, 2) if chain.members is None else np.diff(chain.members.indptr)
    writer = np.zeros(chain.num_rows - num_base, np.int64)  # of rows that others write, any
    writer[chain.writes - num_base] = np.repeat(starts[:-1], sizes)
    reads = [(2 * starts, chain.ends.ravel()), (chain.indptr[::2], chain.neighbors)]
    reads.append((chain.sampled.shape[1] * starts, chain.sampled.ravel()))
    if chain.members is not None:
        reads.append((chain.members.indptr, chain.members.rows))
    parent = starts[:-1].copy()
    for start, rows in reads:
        join_events(start, rows, num_base, writer, parent)
    thread_of, longest = deal(parent, threads)
    if not costs.worth_sharing(n, longest, 0, threads):
        return ()
    parts = (np.flatnonzero(thread_of == thread) for thread in range(threads))
    return tuple(part for part in parts if len(part))


class _Exchange(Function):
    """Tables whose rows each rank has made a part of, filled on all of them, in place."""

    @staticmethod
    def forward(ctx: Any, comm: Comm, shares: Shares, *tables: Tensor) -> tuple[Tensor, ...]:
        ctx.comm, ctx.shares = comm, shares
        # behind autograd's back: what made a table has kept it, and reads none of these rows again
        fill_rows(comm, shares, tuple(table.data for table in tables))
        return tuple(table.view_as(table) for table in tables)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *own_grads(ctx.comm, ctx.shares, grads)


def exchange(comm: Comm, shares: Shares, tables: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tables (num_rows, width) with the rows that other ranks have made."""
    filled = _Exchange.apply(comm, shares, *tables.values())  # type: ignore[no-untyped-call]
    return dict(zip(tables, filled, strict=True))


@torch.no_grad()
def fill_rows(comm: Comm, shares: Shares, tables: tuple[Tensor, ...]) -> None:
    """Take the rows of other ranks, in place; one message for all tables."""
    span, rows = span_of(comm.rank, shares.sizes), shares.rows_on(tables[0].device)
    found = comm.all_gather_rows(_beside(tables, rows[span]), shares.sizes, "rows")
    widths = [table.shape[1] for table in tables]
    for table, values in zip(tables, torch.split(found, widths, dim=1), strict=True):
        for others in (slice(0, span.start), slice(span.stop, len(found))):
            table.index_copy_(0, rows[others], values[others])


@torch.no_grad()
def collect_grads(comm: Comm, shares: Shares, grads: tuple[Tensor, ...]) -> None:
    """Add what all ranks found of the gradients of this rank's rows; those of others become 0."""
    mine, own = _summed(comm, shares, grads)
    for grad, values in zip(grads, own, strict=True):
        grad[shares.rows_on(grad.device)] = 0.0
        grad[mine] = values


@torch.no_grad()
def own_grads(comm: Comm, shares: Shares, grads: tuple[Tensor, ...]) -> list[Tensor]:
    """What all ranks found of the gradients of this rank's rows; 0 in all others, base rows too."""
    mine, own = _summed(comm, shares, grads)
    found = []
    for grad, values in zip(grads, own, strict=True):
        found.append(_zeros(grad.shape, values).index_copy_(0, mine, values))
    return found


def _zeros(shape: torch.Size, like: Tensor) -> Tensor:
    """Of the CPU's memory only those are fetched that are touched: there are many base rows."""
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    return torch.from_numpy(np.zeros(shape, like.numpy().dtype))


def _summed(
    comm: Comm, shares: Shares, grads: tuple[Tensor, ...]
) -> tuple[Tensor, Sequence[Tensor]]:
    """The rows that are this rank's (r,), and the sums over ranks of their gradients."""
    rows = shares.rows_on(grads[0].device)
    own = comm.reduce_scatter_rows(_beside(grads, rows), shares.sizes, "row gradients")
    mine = rows[span_of(comm.rank, shares.sizes)]
    return mine, torch.split(own, [grad.shape[1] for grad in grads], dim=1)


def _beside(tables: Sequence[Tensor], rows: Tensor) -> Tensor:
    """These rows of all tables, side by side."""
    parts = [table.index_select(0, rows) for table in tables]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


class _Together(Function):
    """Rows of all ranks; as what follows is the same on all, each takes its own gradient."""

    @staticmethod
    def forward(ctx: Any, comm: Comm, own: Tensor, sizes: tuple[int, ...]) -> Tensor:
        ctx.span = span_of(comm.rank, sizes)
        return comm.all_gather_rows(own, sizes, "scores")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None]:
        return None, grad[ctx.span], None


def together(comm: Comm, own: Tensor, count: int) -> Tensor:
    """(count, ...) of what each rank has of its `share_rows`.

    Every rank goes on to compute the same from it, once; so the gradient that goes back is not
    summed over ranks, and gradients of parameters are shares that `Comm.all_reduce` adds up.
    """
    if comm.size == 1:
        return own
    spans = (share_rows(count, rank, comm.size) for rank in range(comm.size))
    sizes = tuple(stop - start for start, stop in spans)
    found: Tensor = _Together.apply(comm, own, sizes)  # type: ignore[no-untyped-call]
    return found


def sum_gradients(comm: Comm, parameters: Iterable[Tensor]) -> None:
    """Add up the gradients of all ranks, in one message; one that is missing is 0."""
    kept = [p for p in parameters if p.requires_grad]
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in kept]
    if not grads:
        return
    flat = torch.cat([grad.reshape(-1) for grad in grads])
    comm.all_reduce(flat, "gradients")
    parts = torch.split(flat, [grad.numel() for grad in grads])
    for parameter, part in zip(kept, parts, strict=True):
        parameter.grad = part.view_as(parameter)

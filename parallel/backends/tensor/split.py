"""Split and gather: from some rows with all columns to all rows with some columns, and back.

    split   (n_r, d) -> (V, c_r)
    gather  (V, c_r) -> (n_r, d)

Both are one exchange in which rank p gives rank q a block of n_p x c_q; shares may be uneven, down
to none, and nothing is padded.  Invariant: each is the other's inverse and its adjoint
(NeutronTP, PVLDB 18(2), section 4).  The V rows stand as they travel, this rank's first and then
rank by rank, so that nothing is put in order on the way; the matrices are renumbered instead, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ....storage.sparse import SparseMatrix
from ....stream import Int64
from ...ranks import Comm
from ..ownership import Ownership, cut

SPLIT, GATHER = "split", "gather"
"""Under which purposes the ledger has the exchanges, forward and backward alike."""

Index: TypeAlias = slice | Tensor
"""Rows of a tensor; a slice where they follow one another, which copies nothing."""


@dataclass(frozen=True, eq=False)
class Part:
    """Some nodes, to travel together: rank by rank, then by node."""

    nodes: Int64  # (m,) this rank's, then those of the others as they travel
    rows: Index  # (m_r,) where this rank's stand among its rows
    mine: Index  # (m_r,) where they stand among all rows
    others: Index  # (m - m_r,) where those of the others stand among all rows
    sizes: tuple[int, ...]  # (ranks,) how many travel from each rank, or to it; 0 for this one


@dataclass(frozen=True, eq=False)
class Layout:
    """Which rank holds which rows before a split and which columns after it.

    `ends` cut the nodes in runs that travel on their own; by default there is one run.
    """

    ownership: Ownership
    shares: tuple[float, ...]  # (ranks,) of the columns, in proportion
    rank: int
    ends: tuple[int, ...] = ()  # (runs + 1,) from 0 to V
    _widths: dict[int, list[int]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.shares) != self.ownership.size:
            raise ValueError(
                f"`shares` must give columns to each of {self.ownership.size} ranks: "
                f"got {list(self.shares)}"
            )
        cut(0, self.shares)
        if not self.ends:
            object.__setattr__(self, "ends", (0, self.ownership.num_nodes))

    def widths(self, width: int) -> list[int]:
        """How many of so many columns each rank has."""
        if width not in self._widths:
            self._widths[width] = cut(width, self.shares)
        return self._widths[width]

    def columns(self, width: int) -> slice:
        """Which of so many columns this rank has."""
        ends = np.cumsum([0, *self.widths(width)]).tolist()
        return slice(ends[self.rank], ends[self.rank + 1])

    @cached_property
    def order(self) -> Int64:
        """(V,) the node of each of all rows: run by run, within a run this rank's and then others'.

        It is another on each rank.
        """
        nodes = np.arange(self.ownership.num_nodes)
        run = np.searchsorted(self.ends, nodes, side="right")
        owner = self.ownership.owner
        return np.lexsort((nodes, owner, owner != self.rank, run))

    @cached_property
    def place(self) -> Int64:
        """(V,) where the row of each node stands among all rows."""
        found = np.empty_like(self.order)
        found[self.order] = np.arange(len(found))
        return found

    @cached_property
    def is_by_node(self) -> bool:
        """Whether all rows stand by node."""
        return bool((self.order == np.arange(len(self.order))).all())

    def part(self, nodes: Int64) -> Part:
        """Distinct nodes, to travel together."""
        owner = self.ownership.owner[nodes]
        nodes = nodes[np.lexsort((nodes, owner, owner != self.rank))]
        own = int((owner == self.rank).sum())
        rows, places = self.ownership.place[nodes[:own]], self.place[nodes]
        sizes = np.bincount(owner, minlength=self.ownership.size)
        sizes[self.rank] = 0
        return Part(
            nodes,
            _index(rows),
            _index(places[:own]),
            _index(places[own:]),
            tuple(sizes.tolist()),
        )

    @cached_property
    def whole(self) -> Part:
        """All nodes."""
        return self.part(np.arange(self.ownership.num_nodes))

    def renumbered(self, matrix: SparseMatrix) -> SparseMatrix:
        """The square matrix with its rows and columns as all rows stand.

        The entries of a row keep their order, so that their sum keeps its bits; they no longer
        ascend.
        """
        if self.is_by_node:
            return matrix
        turned = matrix.take_rows(self.order)
        indices = self.place[turned.indices].astype(np.int32)
        return SparseMatrix(turned.num_columns, turned.indptr, indices, turned.weight)


def _index(places: Int64) -> Index:
    if len(places) and (np.diff(places) == 1).all():
        return slice(int(places[0]), int(places[-1]) + 1)
    return torch.from_numpy(places)


def start_split(
    comm: Comm, layout: Layout, part: Part, x: Tensor, out: Tensor
) -> Callable[[], None]:
    """Begins to split a part's rows of x (n, ..., d); the answer waits, fills `out` (V, ..., c).

    Every rank must begin the same exchanges in the same order.
    """
    rows = x[part.rows]  # (m_r, ..., d)
    widths, rank = layout.widths(x.shape[-1]), layout.rank
    blocks = torch.split(rows, widths, dim=-1)
    sent = [0 if other == rank else block.numel() for other, block in enumerate(blocks)]
    wire = x.new_empty(sum(sent))
    for room, block in zip(torch.split(wire, sent), blocks, strict=True):
        if room.numel():
            room.view(block.shape).copy_(block)
    each = out.shape[1:].numel()
    received = [size * each for size in part.sizes]
    pending = comm.start_all_to_all(wire, sent, received, SPLIT)
    out[part.mine] = blocks[rank]

    def finish() -> None:
        out[part.others] = pending.wait().view(sum(part.sizes), *out.shape[1:])

    return finish


def start_gather(
    comm: Comm, layout: Layout, part: Part, y: Tensor, out: Tensor
) -> Callable[[], None]:
    """Begins to gather a part's rows of y (V, ..., c); the answer waits, fills `out` (n, ..., d).

    Every rank must begin the same exchanges in the same order.
    """
    widths, rank = layout.widths(out.shape[-1]), layout.rank
    each = y.shape[1:].numel()
    wire = y[part.others].reshape(-1)
    own = y[part.mine]
    rooms = _rooms(out, part.rows, len(own))
    blocks = torch.split(rooms, widths, dim=-1)
    received = [0 if other == rank else block.numel() for other, block in enumerate(blocks)]
    pending = comm.start_all_to_all(wire, [size * each for size in part.sizes], received, GATHER)
    blocks[rank].copy_(own)

    def finish() -> None:
        found = torch.split(pending.wait(), received)
        for block, values in zip(blocks, found, strict=True):
            if values.numel():
                block.copy_(values.view(block.shape))
        if not isinstance(part.rows, slice):
            out[part.rows] = rooms

    return finish


def _rooms(out: Tensor, rows: Index, count: int) -> Tensor:
    """Where rows are put that go to `out`: there, if they follow one another."""
    return out[rows] if isinstance(rows, slice) else out.new_empty((count, *out.shape[1:]))


def split_now(comm: Comm, layout: Layout, x: Tensor) -> Tensor:
    """`split` without a gradient."""
    columns = layout.widths(x.shape[-1])[layout.rank]
    out = x.new_empty((layout.ownership.num_nodes, *x.shape[1:-1], columns))
    start_split(comm, layout, layout.whole, x, out)()
    return out


def gather_now(comm: Comm, layout: Layout, y: Tensor, width: int) -> Tensor:
    """`gather` without a gradient."""
    out = y.new_empty((layout.ownership.sizes[layout.rank], *y.shape[1:-1], width))
    start_gather(comm, layout, layout.whole, y, out)()
    return out


def split(comm: Comm, layout: Layout, x: Tensor) -> Tensor:
    """This rank's rows, all columns, for all rows, its columns: (n, ..., d) -> (V, ..., c)."""
    found: Tensor = _Split.apply(x, comm, layout)  # type: ignore[no-untyped-call]
    return found


def gather(comm: Comm, layout: Layout, y: Tensor, width: int) -> Tensor:
    """All rows, this rank's columns, for its rows, all `width` columns: (V, ..., c) -> (n, ..., d).

    What stands on the last axis is cut; axes between stay as they are.
    """
    found: Tensor = _Gather.apply(y, comm, layout, width)  # type: ignore[no-untyped-call]
    return found


class _Split(torch.autograd.Function):
    """x -> split x; backward y -> gather y."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Comm, layout: Layout) -> Tensor:
        ctx.how = comm, layout, x.shape[-1]
        return split_now(comm, layout, x.detach())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        comm, layout, width = ctx.how
        return gather_now(comm, layout, grads[0], width), None, None


class _Gather(torch.autograd.Function):
    """y -> gather y; backward x -> split x."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, comm: Comm, layout: Layout, width: int) -> Tensor:
        ctx.how = comm, layout
        return gather_now(comm, layout, y.detach(), width)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        comm, layout = ctx.how
        return split_now(comm, layout, grads[0]), None, None, None


def deal(num_nodes: int, shares: Sequence[float]) -> Int64:
    """(num_nodes,) the rank of each node, dealt out in proportion to the shares.

    The first k nodes are dealt out as they would be alone, so that whoever comes later moves
    nobody; with equal shares the ranks take turns.

    >>> deal(6, [3, 1]).tolist(), deal(4, [1, 1]).tolist()
    ([0, 0, 1, 0, 0, 0], [0, 1, 0, 1])
    """
    cut(num_nodes, shares)
    turn = [
        (np.arange(num_nodes) + 0.5) / share if share else np.empty(0) for share in shares
    ]  # when a rank's k-th node is its turn
    rank = np.repeat(np.arange(len(shares)), [len(times) for times in turn])
    return rank[np.argsort(np.concatenate(turn), kind="stable")][:num_nodes]

"""Rows to columns and back: who holds whole rows gives each rank its slice of the columns.

Invariant: the two movements are each other's inverse and each other's adjoint.  Shares may be
uneven, and a rank may hold no row, no column, or neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...comm import Comm
from ..ownership import Ownership


@dataclass(frozen=True)
class Exchange:
    """The two movements of a matrix of V rows, of whose columns each rank takes some."""

    comm: Comm
    ownership: Ownership  # of the rows
    columns: Sequence[int]  # of each rank

    def to_columns(self, x: Tensor, purpose: str) -> Tensor:
        """All rows of this rank's columns: (n, d) -> (V, c)."""
        mine, given = self.columns[self.comm.rank], len(x)
        flat = torch.cat(
            [part.reshape(-1) for part in torch.split(x.detach(), list(self.columns), 1)]
        )
        sent = [given * count for count in self.columns]
        received = [rows * mine for rows in self.ownership.sizes]
        found = self.comm.all_to_all_rows(flat, sent, received, purpose).view(-1, mine or 1)
        stacked = found if mine else x.new_empty((self.ownership.num_nodes, 0))  # (V, c)
        if self._is_ordered:
            return stacked
        whole = torch.empty_like(stacked)
        whole[self._order] = stacked
        return whole

    def to_rows(self, y: Tensor, purpose: str) -> Tensor:
        """This rank's rows, whole: (V, c) -> (n, d)."""
        mine = self.ownership.sizes[self.comm.rank]
        y = y.detach() if self._is_ordered else y.detach()[self._order]
        sent = [rows * y.shape[1] for rows in self.ownership.sizes]
        received = [mine * count for count in self.columns]
        found = self.comm.all_to_all_rows(y.reshape(-1), sent, received, purpose)
        blocks = torch.split(found, received)
        return torch.cat(
            [part.view(mine, count) for part, count in zip(blocks, self.columns, strict=True)], 1
        )  # (n, d)

    @property
    def _order(self) -> Tensor:
        return torch.from_numpy(self.ownership.order)

    @property
    def _is_ordered(self) -> bool:
        """Whether the rows, rank by rank, are those of nodes 0, 1, 2 ..."""
        order = self.ownership.order
        return bool((order[:-1] < order[1:]).all())


def split(exchange: Exchange, x: Tensor, purpose: str) -> Tensor:
    """`to_columns` with gradients, which go back by `to_rows`; every rank must reach both."""
    found: Tensor = _Split.apply(x, exchange, purpose)  # type: ignore[no-untyped-call]
    return found


def gather(exchange: Exchange, y: Tensor, purpose: str) -> Tensor:
    """`to_rows` with gradients, which go back by `to_columns`; every rank must reach both."""
    found: Tensor = _Gather.apply(y, exchange, purpose)  # type: ignore[no-untyped-call]
    return found


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange, purpose: str) -> Tensor:
        ctx.how = exchange, purpose
        return exchange.to_columns(x, purpose)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        exchange, purpose = ctx.how
        return exchange.to_rows(grads[0], f"{purpose}, gradients"), None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, exchange: Exchange, purpose: str) -> Tensor:
        ctx.how = exchange, purpose
        return exchange.to_rows(y, purpose)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        exchange, purpose = ctx.how
        return exchange.to_columns(grads[0], f"{purpose}, gradients"), None, None

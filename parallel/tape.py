"""The tape: one preallocated table a state, read and written differentiably at the cost of a level.

Rows are written once, in order, and read only afterwards.  Reads and writes are two small autograd
functions chained by a token, so that the backward pass visits them in exactly the reverse order; it
accumulates into one gradient table beside each state table, which is what makes a read cost its
own size and not the table's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .ranks import Comm
from .sharing import Shares, collect_grads, fill_rows
from .stages import Stages


class Tape:
    """Tables (num_rows, width) by name, without gradient of their own; `token` is the latest."""

    def __init__(
        self, widths: Mapping[str, int], num_rows: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.rows = {
            name: torch.empty(num_rows, width, dtype=dtype, device=device)
            for name, width in widths.items()
        }
        self.grads: dict[str, Tensor] = {}
        self.token = torch.zeros(0, dtype=dtype, device=device, requires_grad=True)

    def read(self, reads: Sequence[tuple[str, Tensor]]) -> tuple[Tensor, ...]:
        """The rows of each (name, rows (...)): tensors (..., width)."""
        result: tuple[Tensor, ...] = _Read.apply(  # type: ignore[no-untyped-call]
            self.token, self, tuple(reads)
        )
        return result

    def write(self, rows: slice | Tensor, values: Mapping[str, Tensor]) -> None:
        """Fill `rows` (n,) with `values`, each (n, width)."""
        self.token = _Write.apply(  # type: ignore[no-untyped-call]
            self.token, self, rows, tuple(values), *values.values()
        )

    def exchange(self, comm: Comm, shares: Shares) -> None:
        """Take the rows that other ranks have made; going back, give them their gradients."""
        self.token = _Exchange.apply(  # type: ignore[no-untyped-call]
            self.token, self, comm, shares
        )

    def mark(self, stages: Stages, name: str) -> None:
        """When all later reads have their gradient, the stage `name` begins."""
        self.token = stages.on_backward(name, self.token)

    def close(self) -> None:
        """No more writes: lets go of the token, which would keep the tape alive through its graph.

        The graph holds the tape and the token holds the graph, through nodes that Python's garbage
        collector does not see, so that every segment would stay in memory.
        """
        self.token = self.token.detach()

    def grad_of(self, name: str) -> Tensor:
        """The gradient table of a state, made when it is first wanted."""
        grad = self.grads.get(name)
        if grad is None:
            grad = self.grads[name] = torch.zeros_like(self.rows[name])
        return grad


class _Read(Function):
    @staticmethod
    def forward(
        ctx: Any, token: Tensor, tape: Tape, reads: tuple[tuple[str, Tensor], ...]
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.tape, ctx.reads = tape, reads
        return tuple(tape.rows[name][rows] for name, rows in reads)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, None, None]:
        for (name, rows), grad in zip(ctx.reads, grads, strict=True):
            if grad is not None:
                table = ctx.tape.grad_of(name)
                table.index_add_(0, rows.reshape(-1), grad.reshape(-1, table.shape[1]))
        return None, None, None


class _Write(Function):
    @staticmethod
    def forward(
        ctx: Any,
        token: Tensor,
        tape: Tape,
        rows: slice | Tensor,
        names: tuple[str, ...],
        *values: Tensor,
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.tape, ctx.names, ctx.rows = tape, names, rows
        for name, value in zip(names, values, strict=True):
            tape.rows[name][rows] = value
        return token.new_empty(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        # copies: a state that is passed on as it is would bring a view of the table back to it
        grads = (ctx.tape.grad_of(name)[ctx.rows].clone() for name in ctx.names)
        return (None, None, None, None, *grads)


class _Exchange(Function):
    @staticmethod
    def forward(ctx: Any, token: Tensor, tape: Tape, comm: Comm, shares: Shares) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.tape, ctx.comm, ctx.shares = tape, comm, shares
        fill_rows(comm, shares, tuple(tape.rows.values()))
        return token.new_empty(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[None, ...]:
        grads = tuple(ctx.tape.grad_of(name) for name in ctx.tape.rows)
        collect_grads(ctx.comm, ctx.shares, grads)
        return None, None, None, None

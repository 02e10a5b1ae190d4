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

    def write(self, start: int, values: Mapping[str, Tensor]) -> None:
        """Fill the rows from `start` with `values`, each (num_rows, width)."""
        self.token = _Write.apply(  # type: ignore[no-untyped-call]
            self.token, self, start, tuple(values), *values.values()
        )

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
        ctx: Any, token: Tensor, tape: Tape, start: int, names: tuple[str, ...], *values: Tensor
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        stop = start + len(values[0])
        ctx.tape, ctx.names, ctx.start, ctx.stop = tape, names, start, stop
        for name, value in zip(names, values, strict=True):
            tape.rows[name][start:stop] = value
        return token.new_empty(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        span = slice(ctx.start, ctx.stop)
        # copies: a state that is passed on as it is would bring a view of the table back to it
        grads = (ctx.tape.grad_of(name)[span].clone() for name in ctx.names)
        return (None, None, None, None, *grads)

"""The rows of all ranks, with gradients: an exchange whose backward is its adjoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .ranks import Comm


def gather_rows(comm: Comm, own: Tensor, sizes: Sequence[int], purpose: str) -> Tensor:
    """`all_gather_rows` with gradients: those of a row are summed over the ranks that used it.

    Its backward is an exchange too, so every rank must reach it.
    """
    if comm.size == 1:
        return own
    gathered: Tensor = _GatherRows.apply(own, comm, tuple(sizes), purpose)  # type: ignore[no-untyped-call]
    return gathered


class _GatherRows(torch.autograd.Function):
    """x -> A x, where A gathers the rows of all ranks; backward y -> A^T y."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, comm: Comm, sizes: tuple[int, ...], purpose: str) -> Tensor:
        ctx.how = comm, sizes, purpose
        return comm.all_gather_rows(own, sizes, purpose)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        comm, sizes, purpose = ctx.how
        return comm.reduce_scatter_rows(grads[0], sizes, f"{purpose}, gradients"), None, None, None

"""Linear layers whose rows depend neither on how many are computed together nor on their place.

Matrix products choose their kernels by the number of rows, and take the rows and inputs that are
left over at the end in another way: so they round a row differently in a batch of two than in one
of a hundred, and on some processors differently at the end than at the beginning.  The tail of an
elementwise loop does the same.  So rows are computed in multiples of `ROWS`, and their inputs in
multiples of `INPUTS`: an event's result is the same, bit for bit, alone and in any level, and equal
rows get equal results (tested on two kinds of x86-64 processors, for widths up to 200).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS = 32
INPUTS = 4


def pad_rows(x: Tensor) -> Tensor:
    """`x` (n, width) with rows of zeros up to a multiple of `ROWS`."""
    lacking = -len(x) % ROWS
    return F.pad(x, (0, 0, 0, lacking)) if lacking else x


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b of `x` (..., inputs), W (outputs, inputs), row by row independent of the others."""
    lacking = -x.shape[-1] % INPUTS
    if lacking:
        x, weight = F.pad(x, (0, lacking)), F.pad(weight, (0, lacking))
    weight = weight.contiguous()
    return _by_rows(partial(F.linear, weight=weight, bias=bias), x)


def linear(layer: nn.Module, x: Tensor) -> Tensor:
    """`layer` of `x` (..., inputs), row by row independent of the others.

    Of another layer than `nn.Linear`, or one with hooks, only the rows are padded.
    """
    if type(layer) is nn.Linear and not (layer._forward_hooks or layer._forward_pre_hooks):
        return product(x, layer.weight, layer.bias)
    return _by_rows(layer, x)


def products(x: Tensor, weights: Tensor) -> Tensor:
    """x_i W_i^T of `x` (n, rows, inputs), W_i (outputs, inputs) of n, likewise."""
    count, lacking = x.shape[1], -x.shape[2] % INPUTS
    x, weights = F.pad(x, (0, lacking, 0, -count % INPUTS)), F.pad(weights, (0, lacking))
    return torch.bmm(x, weights.contiguous().transpose(1, 2))[:, :count]


def elementwise(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`function` of each number of `x`, equal ones to equal results."""
    lacking = -x.numel() % ROWS
    if not lacking:
        return function(x)
    return function(F.pad(x.reshape(-1), (0, lacking)))[: x.numel()].view(x.shape)


def _by_rows(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`function` of the rows of `x` (..., inputs), with rows of zeros after them."""
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    result = function(pad_rows(rows))
    if len(result) != len(rows):  # autograd would copy what is cut to its whole length
        result = result[: len(rows)]
    return result if x.dim() == 2 else result.view(*x.shape[:-1], result.shape[-1])

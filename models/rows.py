"""Linear layers whose rows do not depend on how many are computed together.

Matrix products choose their kernels by the number of rows, and round a row differently in a batch
of two than in one of a hundred; the tail of an elementwise loop may do the same.  Rows are
therefore computed in multiples of `ROWS`, so that an event's result is the same, bit for bit, alone
and in any level (tested on x86-64 for widths up to 200).
"""

import torch.nn.functional as F
from torch import Tensor, nn

ROWS = 32


def pad_rows(x: Tensor) -> Tensor:
    """`x` (n, width) with rows of zeros up to a multiple of `ROWS`."""
    lacking = -len(x) % ROWS
    return F.pad(x, (0, 0, 0, lacking)) if lacking else x


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b of `x` (..., inputs), W (outputs, inputs), row by row independent of the others."""
    rows = x.reshape(-1, x.shape[-1])
    result = F.linear(pad_rows(rows), weight, bias)[: len(rows)]
    return result.view(*x.shape[:-1], result.shape[-1])


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """`layer` of `x` (..., in_features), row by row independent of the others."""
    return product(x, layer.weight, layer.bias)

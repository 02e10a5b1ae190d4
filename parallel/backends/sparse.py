"""Products with sparse matrices, with exact gradients.

`multiply` is linear, so it keeps nothing of its input for the way back, which goes through the
transpose: for a directed graph that is another matrix.  Where CUDA has the tensors torch's own
sparse product takes the place of the loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...storage.sparse import SparseMatrix
from ...stream import Int64
from . import kernels


def multiply(matrix: SparseMatrix, x: Tensor) -> Tensor:
    """A x: (columns, c) -> (rows, c).

    >>> a = SparseMatrix.from_edges([0, 1], [1, 1], 2)
    >>> multiply(a, torch.tensor([[1.0], [2.0]])).tolist()
    [[0.0], [3.0]]
    """
    found: Tensor = _Multiply.apply(x, matrix)  # type: ignore[no-untyped-call]
    return found


class _Multiply(torch.autograd.Function):
    """x -> A x; backward y -> A^T y."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: SparseMatrix) -> Tensor:
        ctx.matrix = matrix
        return product(matrix, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return product(ctx.matrix.transposed, grads[0]), None


def product(matrix: SparseMatrix, x: Tensor) -> Tensor:
    """A x without a gradient.

    Raises:
        ValueError: if x has not a row for each column of the matrix.
    """
    if x.dim() != 2 or len(x) != matrix.num_columns:
        raise ValueError(
            f"`x` must be ({matrix.num_columns}, width), a row a node: got {tuple(x.shape)}"
        )
    x = x.detach().contiguous()
    if x.is_cuda:
        return _product_on_cuda(matrix, x)
    out = x.new_empty((matrix.num_rows, x.shape[1]))
    weight = matrix.weights(_numpy(x).dtype)
    kernels.multiply(matrix.indptr, matrix.indices, weight, _numpy(x), _numpy(out))
    return out


def _product_on_cuda(matrix: SparseMatrix, x: Tensor) -> Tensor:
    kept = matrix.__dict__.setdefault("_on_cuda", {})
    key = x.device, x.dtype
    if key not in kept:
        parts = (matrix.indptr, matrix.indices.astype(np.int64), matrix.weight)
        indptr, indices, weight = (torch.from_numpy(part).to(x.device) for part in parts)
        shape = matrix.num_rows, matrix.num_columns
        kept[key] = torch.sparse_csr_tensor(indptr, indices, weight.to(x.dtype), shape)
    found: Tensor = kept[key] @ x
    return found


def attend(
    matrix: SparseMatrix,
    x: Tensor,
    receiver: Tensor,
    sender: Tensor,
    head_of: Int64,
    slope: float = 0.2,
) -> Tensor:
    """Additive attention over the entries of each row: (columns, c) -> (rows, c).

    Row v gets sum over u of alpha_vu x_u, where alpha is the softmax over the row of
    leaky(receiver_v + sender_u), a head at a time (Velickovic et al. 2018); `receiver` is
    (rows, h), `sender` (columns, h), and `head_of` (c,) says to which head each column of x
    belongs.  Rows without entries get 0.
    """
    found: Tensor = _Attend.apply(x, receiver, sender, matrix, head_of, slope)  # type: ignore[no-untyped-call]
    return found


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        receiver: Tensor,
        sender: Tensor,
        matrix: SparseMatrix,
        head_of: Int64,
        slope: float,
    ) -> Tensor:
        x, receiver, sender = (t.detach().contiguous() for t in (x, receiver, sender))
        alpha = x.new_empty((matrix.num_edges, receiver.shape[1]))
        out = x.new_empty((matrix.num_rows, x.shape[1]))
        csr = matrix.indptr, matrix.indices
        kernels.attention(*csr, _numpy(receiver), _numpy(sender), slope, _numpy(alpha))
        kernels.weigh(*csr, _numpy(alpha), head_of, _numpy(x), _numpy(out))
        ctx.how = matrix, head_of, slope
        ctx.save_for_backward(x, receiver, sender, alpha)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        matrix, head_of, slope = ctx.how
        x, receiver, sender, alpha = ctx.saved_tensors
        gradient = grads[0].contiguous()
        x_gradient, alpha_gradient = torch.empty_like(x), torch.zeros_like(alpha)
        back = matrix.transposed
        kernels.weigh_back(
            *(back.indptr, back.indices, matrix.transposed_edge, _numpy(alpha), head_of),
            *(_numpy(t) for t in (x, gradient, x_gradient, alpha_gradient)),
        )
        receiver_gradient, sender_gradient = torch.empty_like(receiver), torch.zeros_like(sender)
        kernels.attention_back(
            *(matrix.indptr, matrix.indices, _numpy(receiver), _numpy(sender), slope),
            *(_numpy(t) for t in (alpha, alpha_gradient, receiver_gradient, sender_gradient)),
        )
        return x_gradient, receiver_gradient, sender_gradient, None, None, None


def heads_of(num_heads: int, width: int) -> Int64:
    """(heads * width,) the head of each column, when heads stand side by side.

    >>> heads_of(2, 3).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    return np.repeat(np.arange(num_heads), width)


def _numpy(tensor: Tensor) -> Any:
    return tensor.numpy()

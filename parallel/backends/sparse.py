"""Products with sparse matrices, with exact gradients.

`multiply` is linear, so it keeps nothing of its input for the way back, which goes through the
transpose: for a directed graph that is another matrix.  Where CUDA has the tensors torch's own
sparse product takes the place of the loops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...storage.sparse import SparseMatrix
from ...stream import Int64
from . import kernels

SLOPE = 0.2  # of the leaky rectifier, as in the GAT paper


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


def product(matrix: SparseMatrix, x: Tensor, out: Tensor | None = None) -> Tensor:
    """A x without a gradient; into `out` (rows, c), if it is given, which must be contiguous.

    Raises:
        ValueError: if x has not a row for each column of the matrix.
    """
    if x.dim() != 2 or len(x) != matrix.num_columns:
        raise ValueError(
            f"`x` must be ({matrix.num_columns}, width), a row a node: got {tuple(x.shape)}"
        )
    x = x.detach().contiguous()
    if x.is_cuda:
        found = _product_on_cuda(matrix, x)
        return found if out is None else out.copy_(found)
    if out is None:
        out = x.new_empty((matrix.num_rows, x.shape[1]))
    weight = matrix.weights(_numpy(x).dtype)[:, None]
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
) -> Tensor:
    """Additive attention over the entries of each row: (columns, c) -> (rows, c).

    Row v gets sum over u of alpha_vu x_u, where alpha is the softmax over the row of
    leaky(receiver_v + sender_u), a head at a time (Velickovic et al. 2018); `receiver` is
    (rows, h), `sender` (columns, h), and `head_of` (c,) says to which head each column of x
    belongs.  Rows without entries get 0.
    """
    return weigh(matrix, attention(matrix, receiver, sender), x, head_of)


def attend_to_all(
    matrix: SparseMatrix,
    z: Tensor,
    receiver: Tensor,
    sender: Tensor,
    exchange: Callable[[Tensor], Tensor],
) -> Tensor:
    """`attend` where others hold some of the rows: (n, h, d) -> (rows, h, d).

    `exchange` gives a row for each column of the matrix, (n, .) -> (columns, .); values and the
    scalars of `sender` (n, h) go through it together.  `receiver` is (rows, h).
    """
    heads, width = z.shape[1], z.shape[2]
    rows = exchange(torch.cat((z.flatten(1), sender), 1))  # (columns, h d + h)
    values, scalars = rows[:, : heads * width], rows[:, heads * width :]
    found = attend(matrix, values, receiver, scalars, heads_of(heads, width))  # (rows, h d)
    return found.view(len(found), heads, width)


def attention(matrix: SparseMatrix, receiver: Tensor, sender: Tensor) -> Tensor:
    """The weights of `attend`, which can be used more than once: (nnz, h).

    A gradient that several ranks have parts of can be added up on this side or on the other: the
    way back is linear.
    """
    found: Tensor = _Attention.apply(receiver, sender, matrix)  # type: ignore[no-untyped-call]
    return found


def weigh(matrix: SparseMatrix, alpha: Tensor, x: Tensor, head_of: Int64) -> Tensor:
    """Sums over each row, with weights (nnz, h) by head: (columns, c) -> (rows, c).

    `head_of` (c,) must not fall: the columns of a head stand together.
    """
    found: Tensor = _Weigh.apply(alpha, x, matrix, head_of)  # type: ignore[no-untyped-call]
    return found


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, receiver: Tensor, sender: Tensor, matrix: SparseMatrix) -> Tensor:
        receiver, sender = (given.detach().contiguous() for given in (receiver, sender))
        alpha = receiver.new_empty((matrix.num_edges, receiver.shape[1]))
        csr = matrix.indptr, matrix.indices
        kernels.attention(*csr, _numpy(receiver), _numpy(sender), SLOPE, _numpy(alpha))
        ctx.matrix = matrix
        ctx.save_for_backward(receiver, sender, alpha)
        return alpha

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        matrix = ctx.matrix
        receiver, sender, alpha = ctx.saved_tensors
        by_receiver, by_sender = torch.empty_like(receiver), torch.zeros_like(sender)
        ends = matrix.indptr, matrix.indices, _numpy(receiver), _numpy(sender)
        given = _numpy(alpha), _numpy(grads[0].contiguous())
        kernels.attention_back(*ends, SLOPE, *given, _numpy(by_receiver), _numpy(by_sender))
        return by_receiver, by_sender, None


class _Weigh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, alpha: Tensor, x: Tensor, matrix: SparseMatrix, head_of: Int64) -> Tensor:
        alpha, x = alpha.detach().contiguous(), x.detach().contiguous()
        out = x.new_empty((matrix.num_rows, x.shape[1]))
        csr = matrix.indptr, matrix.indices
        bounds = np.searchsorted(head_of, np.arange(alpha.shape[1] + 1))
        kernels.weigh(*csr, _numpy(alpha), bounds, _numpy(x), _numpy(out))
        ctx.how = matrix, bounds
        ctx.save_for_backward(alpha, x)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        matrix, bounds = ctx.how
        alpha, x = ctx.saved_tensors
        gradient = grads[0].contiguous()
        by_alpha, by_x = torch.empty_like(alpha), torch.empty_like(x)
        back, edge = matrix.transposed, torch.from_numpy(matrix.transposed_edge)
        turned, given, found = (_numpy(value) for value in (alpha[edge], gradient, by_x))
        kernels.weigh(back.indptr, back.indices, turned, bounds, given, found)
        csr = matrix.indptr, matrix.indices
        kernels.weigh_back(*csr, bounds, _numpy(x), given, _numpy(by_alpha))
        return by_alpha, by_x, None, None


def heads_of(num_heads: int, width: int) -> Int64:
    """(heads * width,) the head of each column, when heads stand side by side.

    >>> heads_of(2, 3).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    return np.repeat(np.arange(num_heads), width)


def _numpy(tensor: Tensor) -> Any:
    return tensor.numpy()

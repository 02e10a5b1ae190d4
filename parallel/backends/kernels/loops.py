"""The loops: rows of a matrix in turn, the columns of x in blocks of as many as vectors hold."""

import numpy as np
from numba import njit

from ....models.kernels.tiles import widen
from ....storage.sparse import Int32
from ....stream import Int64
from .vectors import Floats, sum_entries


@njit(nogil=True, error_model="numpy", inline="always")
def _sum_row(
    indices: Int32,
    weight: Floats,  # (nnz, h)
    head: int,
    first: int,
    last: int,
    x: Floats,
    start: int,
    stop: int,  # columns [start, stop)
    out: Floats,
    row: int,
) -> None:
    """out[row] = sum of the entries [first, last), in some columns.

    The last block may overlap the one before: what it computes anew has the same bits.
    """
    width, at = stop - start, start
    while at < stop:
        rest = stop - at
        if rest > 16 and width >= 32:
            at = min(at, stop - 32)
            sum_entries(indices, weight, head, first, last, x, at, 32, out, row)
            at += 32
        elif rest > 8 and width >= 16:
            at = min(at, stop - 16)
            sum_entries(indices, weight, head, first, last, x, at, 16, out, row)
            at += 16
        elif rest > 4 and width >= 8:
            at = min(at, stop - 8)
            sum_entries(indices, weight, head, first, last, x, at, 8, out, row)
            at += 8
        elif rest > 1 and width >= 4:
            at = min(at, stop - 4)
            sum_entries(indices, weight, head, first, last, x, at, 4, out, row)
            at += 4
        else:
            sum_entries(indices, weight, head, first, last, x, at, 1, out, row)
            at += 1


@njit(cache=True, nogil=True, error_model="numpy")
def multiply(
    indptr: Int64,  # (rows + 1,)
    indices: Int32,  # (nnz,)
    weight: Floats,  # (nnz, 1)
    x: Floats,  # (columns of the matrix, c)
    out: Floats,  # out, (rows, c)
) -> None:
    """out = A x."""
    widen()
    for row in range(len(indptr) - 1):
        first, last = indptr[row], indptr[row + 1]
        _sum_row(indices, weight, 0, first, last, x, 0, x.shape[1], out, row)


@njit(cache=True, nogil=True, error_model="numpy")
def attention(
    indptr: Int64,  # (rows + 1,)
    indices: Int32,  # (nnz,)
    receiver: Floats,  # (rows, h)
    sender: Floats,  # (columns of the matrix, h)
    slope: float,  # of the leaky rectifier
    out: Floats,  # out, (nnz, h)
) -> None:
    """Softmax over each row of leaky(receiver + sender), a head at a time."""
    for row in range(len(indptr) - 1):
        first, last = indptr[row], indptr[row + 1]
        for head in range(receiver.shape[1]):
            largest = -np.inf
            for edge in range(first, last):
                raw = receiver[row, head] + sender[indices[edge], head]
                out[edge, head] = raw if raw > 0 else raw * slope
                largest = max(largest, out[edge, head])
            total = out.dtype.type(0)
            for edge in range(first, last):
                out[edge, head] = np.exp(out[edge, head] - largest)
                total += out[edge, head]
            for edge in range(first, last):
                out[edge, head] /= total


@njit(cache=True, nogil=True, error_model="numpy")
def weigh(
    indptr: Int64,  # (rows + 1,)
    indices: Int32,  # (nnz,)
    alpha: Floats,  # (nnz, h)
    bounds: Int64,  # (h + 1,) the columns of head k are bounds[k]:bounds[k + 1]
    x: Floats,  # (columns of the matrix, c)
    out: Floats,  # out, (rows, c)
) -> None:
    """out[v, c] = sum over the entries (v, u) of alpha[., head of c] x[u, c]."""
    widen()
    for row in range(len(indptr) - 1):
        first, last = indptr[row], indptr[row + 1]
        for head in range(len(bounds) - 1):
            start, stop = bounds[head], bounds[head + 1]
            _sum_row(indices, alpha, head, first, last, x, start, stop, out, row)


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc"})
def weigh_back(
    indptr: Int64,  # (rows + 1,)
    indices: Int32,  # (nnz,)
    bounds: Int64,  # (h + 1,)
    x: Floats,  # (columns, c)
    gradient: Floats,  # (rows, c)
    alpha_gradient: Floats,  # out, (nnz, h)
) -> None:
    """The adjoint of `weigh` by alpha; that by x is `weigh` with the transpose."""
    widen()
    for row in range(len(indptr) - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            source = indices[edge]
            for head in range(len(bounds) - 1):
                total = x.dtype.type(0)
                for column in range(bounds[head], bounds[head + 1]):
                    total += gradient[row, column] * x[source, column]
                alpha_gradient[edge, head] = total


@njit(cache=True, nogil=True, error_model="numpy")
def attention_back(
    indptr: Int64,
    indices: Int32,
    receiver: Floats,  # (rows, h)
    sender: Floats,  # (columns, h)
    slope: float,
    alpha: Floats,  # (nnz, h)
    alpha_gradient: Floats,  # (nnz, h)
    receiver_gradient: Floats,  # out, (rows, h)
    sender_gradient: Floats,  # in and out, (columns, h): what is found is added
) -> None:
    """The adjoint of `attention`."""
    for row in range(len(indptr) - 1):
        first, last = indptr[row], indptr[row + 1]
        for head in range(receiver.shape[1]):
            mean = alpha.dtype.type(0)
            for edge in range(first, last):
                mean += alpha[edge, head] * alpha_gradient[edge, head]
            total = alpha.dtype.type(0)
            for edge in range(first, last):
                source = indices[edge]
                value = alpha[edge, head] * (alpha_gradient[edge, head] - mean)
                if receiver[row, head] + sender[source, head] <= 0:
                    value *= slope
                total += value
                sender_gradient[source, head] += value
            receiver_gradient[row, head] = total

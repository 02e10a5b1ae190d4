"""Loops over the entries of a sparse matrix: arrays in, preallocated arrays out.

The entries of a row are added in their order, each column by itself: a slice of the columns has
the bits that it has in the whole.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from ...storage.sparse import Int32
from ...stream import Int64

Floats = npt.NDArray[Any]


@njit(cache=True, nogil=True, error_model="numpy")
def multiply(
    indptr: Int64,  # (rows + 1,)
    indices: Int32,  # (nnz,)
    weight: Floats,  # (nnz,)
    x: Floats,  # (columns of the matrix, c)
    out: Floats,  # out, (rows, c)
) -> None:
    """out = A x."""
    for row in range(len(indptr) - 1):
        out[row] = 0
        for edge in range(indptr[row], indptr[row + 1]):
            source, value = indices[edge], weight[edge]
            for column in range(x.shape[1]):
                out[row, column] += value * x[source, column]


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
    head_of: Int64,  # (c,) the head of each column of x
    x: Floats,  # (columns of the matrix, c)
    out: Floats,  # out, (rows, c)
) -> None:
    """out[v, c] = sum over the entries (v, u) of alpha[., head of c] x[u, c]."""
    for row in range(len(indptr) - 1):
        out[row] = 0
        for edge in range(indptr[row], indptr[row + 1]):
            source = indices[edge]
            for column in range(x.shape[1]):
                out[row, column] += alpha[edge, head_of[column]] * x[source, column]


@njit(cache=True, nogil=True, error_model="numpy")
def weigh_back(
    indptr: Int64,  # of the transpose: (columns + 1,)
    indices: Int32,  # (nnz,) of the transpose
    edge_of: Int64,  # (nnz,) the entry that each of the transpose is
    alpha: Floats,  # (nnz, h)
    head_of: Int64,  # (c,)
    x: Floats,  # (columns, c)
    gradient: Floats,  # (rows, c)
    x_gradient: Floats,  # out, (columns, c)
    alpha_gradient: Floats,  # out, (nnz, h)
) -> None:
    """The adjoint of `weigh`, by x and by alpha."""
    for source in range(len(indptr) - 1):
        x_gradient[source] = 0
        for place in range(indptr[source], indptr[source + 1]):
            row, edge = indices[place], edge_of[place]
            alpha_gradient[edge] = 0
            for column in range(x.shape[1]):
                head = head_of[column]
                x_gradient[source, column] += alpha[edge, head] * gradient[row, column]
                alpha_gradient[edge, head] += gradient[row, column] * x[source, column]


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

"""Sparse products in vectors: the bits of a plain loop, whatever the width and the slice."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from neutronstream.parallel.backends import kernels
from neutronstream.parallel.backends.sparse import attention, heads_of, multiply, product, weigh
from neutronstream.storage import SparseMatrix
from tests.uncompiled import run_uncompiled

from .graphs import power_law

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def plain(matrix: SparseMatrix, weight: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The sum over each row, entry after entry; `weight` is (nnz, c)."""
    out = np.zeros((matrix.num_rows, x.shape[1]), x.dtype)
    for row in range(matrix.num_rows):
        for entry in range(matrix.indptr[row], matrix.indptr[row + 1]):
            out[row] += weight[entry] * x[matrix.indices[entry]]
    return out


@DTYPES
def test_a_product_has_the_bits_of_a_plain_loop_at_every_width(dtype: torch.dtype) -> None:
    matrix = power_law(40, 150).matrix("gcn")
    x = torch.randn(40, 71, dtype=dtype)
    weight = matrix.weights(x.numpy().dtype)[:, None]
    expected = torch.from_numpy(plain(matrix, weight, x.numpy()))
    for width in (*range(18), 24, 31, 32, 33, 48, 63, 64, 65, 71):
        assert torch.equal(product(matrix, x[:, :width]), expected[:, :width])
    for start, stop in ((1, 2), (3, 8), (5, 38), (70, 71)):
        assert torch.equal(product(matrix, x[:, start:stop]), expected[:, start:stop])


@DTYPES
def test_heads_may_straddle_a_slice_of_the_columns(dtype: torch.dtype) -> None:
    matrix = power_law(40, 150).matrix("loops")
    x = torch.randn(40, 3 * 11, dtype=dtype)
    receiver, sender = torch.randn(2, 40, 3, dtype=dtype)
    alpha = attention(matrix, receiver, sender)
    head_of = heads_of(3, 11)
    expected = torch.from_numpy(plain(matrix, alpha.numpy()[:, head_of], x.numpy()))
    for columns in (slice(0, 33), slice(4, 15), slice(10, 30), slice(22, 33), slice(12, 12)):
        found = weigh(matrix, alpha, x[:, columns], head_of[columns])
        assert torch.equal(found, expected[:, columns])


def test_parts_of_the_gradient_of_attention_add_up() -> None:
    matrix = power_law(40, 150).matrix("loops")
    x = torch.randn(40, 10, dtype=torch.float64)
    given = torch.randn(40, 10, dtype=torch.float64)
    receiver, sender = (
        torch.randn(40, 2, dtype=torch.float64, requires_grad=True) for _ in range(2)
    )

    def back(columns: slice) -> tuple[torch.Tensor, ...]:
        alpha = attention(matrix, receiver, sender)
        found = weigh(matrix, alpha, x[:, columns], heads_of(2, 5)[columns])
        return torch.autograd.grad(found, (receiver, sender), given[:, columns])

    parts = [back(columns) for columns in (slice(0, 3), slice(3, 3), slice(3, 10))]
    for whole, *pieces in zip(back(slice(0, 10)), *parts, strict=True):
        torch.testing.assert_close(sum(pieces), whole, rtol=1e-12, atol=1e-12)


def test_no_rows_no_columns_and_no_entries_are_no_trouble() -> None:
    empty = SparseMatrix.from_edges([], [], 0)
    assert multiply(empty, torch.empty(0, 5)).shape == (0, 5)
    lonely = SparseMatrix.from_edges([], [], 3)
    assert multiply(lonely, torch.ones(3, 5)).tolist() == [[0.0] * 5] * 3
    assert multiply(power_law().matrix("gcn"), torch.empty(203, 0)).shape == (203, 0)


def test_a_product_goes_where_it_is_told() -> None:
    matrix = power_law(40, 150).matrix("gcn")
    x, room = torch.randn(40, 6), torch.full((60, 6), 7.0)
    found = product(matrix, x, out=room[10:50])
    assert torch.equal(room[10:50], product(matrix, x))
    assert found.data_ptr() == room[10:50].data_ptr()
    assert (room[:10] == 7).all()
    assert (room[50:] == 7).all()


@pytest.mark.skipif("NUMBA_DISABLE_JIT" in os.environ, reason="only compiled loops are checked")
def test_rows_that_are_not_contiguous_are_refused() -> None:
    matrix = power_law(40, 150).matrix("gcn")
    weight = matrix.weights(np.float32)[:, None]
    x, out = np.ones((40, 8), np.float32)[:, ::2], np.empty((40, 4), np.float32)
    with pytest.raises(Exception, match="must be contiguous"):
        kernels.multiply(matrix.indptr, matrix.indices, weight, x, out)


@pytest.mark.skipif("NUMBA_DISABLE_JIT" in os.environ, reason="this is that run")
def test_the_plain_form_of_the_loops_agrees() -> None:
    assert "passed" in run_uncompiled(
        "tests/parallel/backends/test_products.py", "-k", "bits or straddle"
    )

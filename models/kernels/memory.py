"""Loops of memories that an event renews at both of its ends, forward and backward.

Each end reads its own memory and the other's, side by side; what else it is told has been projected
before.  Backward passes give the gradients of pre-activations: those of weights are one product of
all of them.
"""

import numpy as np
from numba import njit

from ...stream import Int64
from .elementary import hyperbolic_tangent, sigmoid
from .linear import Floats, add_product, add_products


@njit(cache=True, nogil=True, error_model="numpy")
def read_both(table: Floats, rows: Int64, both: Floats) -> None:
    """[own, other's] memory of source and destination, (2, 2 width)."""
    width = table.shape[1]
    for side in range(2):
        own, other = rows[side], rows[1 - side]
        for c in range(width):
            both[side, c] = table[own, c]
            both[side, width + c] = table[other, c]


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def gru_forward(
    table: Floats,  # (rows, width) the base rows are filled; the others are, here
    ends: Int64,  # (n, 2)
    writes: Int64,  # (2 n,)
    told: Floats,  # (n, 2, 4 width) what is added to the products
    weight: Floats,  # (2 width, 4 width) of [own, other's]: reset, renew, new, and new's own part
    gates: Floats,  # out, (n, 2, 4 width), or (1, 2, 4 width) if they are not to be kept
) -> None:
    """n = tanh(a + r b), s' = (1 - z) n + z s with r, z the sigmoids; r, z, n and b are kept."""
    width = table.shape[1]
    one = table.dtype.type(1)
    both = np.empty((2, 2 * width), table.dtype)
    kept = len(gates) == len(ends)
    for event in range(len(ends)):
        gate = gates[event if kept else 0]
        read_both(table, ends[event], both)
        for side in range(2):
            for c in range(4 * width):
                gate[side, c] = told[event, side, c]
        add_products(weight, both, gate)
        for side in range(2):
            row = writes[2 * event + side]
            for c in range(2 * width):
                gate[side, c] = sigmoid(gate[side, c])
            for c in range(width):
                new = gate[side, 2 * width + c] + gate[side, c] * gate[side, 3 * width + c]
                gate[side, 2 * width + c] = hyperbolic_tangent(new)
            for c in range(width):
                z = gate[side, width + c]
                table[row, c] = (one - z) * gate[side, 2 * width + c] + z * both[side, c]


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def gru_backward(
    table: Floats,  # (rows, width)
    grad: Floats,  # (rows, width) of later readers; grows to the whole gradient of every row
    ends: Int64,  # (n, 2)
    writes: Int64,  # (2 n,)
    weight: Floats,  # (4 width, 2 width), the transpose of the forward pass's
    gates: Floats,  # (n, 2, 4 width) as kept; becomes the gradient of the pre-activations
) -> None:
    """The way back, last event first."""
    width = table.shape[1]
    one = table.dtype.type(1)
    into = np.empty((2, 2 * width), table.dtype)
    for event in range(len(ends) - 1, -1, -1):
        gate = gates[event]
        for side in range(2):
            row, own = writes[2 * event + side], ends[event, side]
            for c in range(width):
                r, z, n = gate[side, c], gate[side, width + c], gate[side, 2 * width + c]
                b, g = gate[side, 3 * width + c], grad[row, c]
                by_new = g * (one - z) * (one - n * n)
                gate[side, c] = by_new * b * r * (one - r)
                gate[side, width + c] = g * (table[own, c] - n) * z * (one - z)
                gate[side, 2 * width + c] = by_new
                gate[side, 3 * width + c] = by_new * r
                into[side, c] = g * z
                into[side, width + c] = 0
        add_products(weight, gate, into)
        for side in range(2):
            own, other = ends[event, side], ends[event, 1 - side]
            for c in range(width):
                grad[own, c] += into[side, c]
            for c in range(width):
                grad[other, c] += into[side, width + c]


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def tanh_forward(
    table: Floats,  # (rows, width) the base rows are filled; the others are, here
    ends: Int64,  # (n, 2)
    writes: Int64,  # (2 n,)
    told: Floats,  # (n, 2, width) what is added to the products
    weight: Floats,  # (1 or 2, 2 width, width) of both ends, or of each
) -> None:
    """s' = tanh(W [own, other's] + told)."""
    width = table.shape[1]
    both = np.empty((2, 2 * width), table.dtype)
    new = np.empty((2, width), table.dtype)
    for event in range(len(ends)):
        read_both(table, ends[event], both)
        for side in range(2):
            for c in range(width):
                new[side, c] = told[event, side, c]
        if len(weight) == 1:
            add_products(weight[0], both, new)
        else:
            add_product(weight[0], both[0], new[0])
            add_product(weight[1], both[1], new[1])
        for side in range(2):
            row = writes[2 * event + side]
            for c in range(width):
                table[row, c] = hyperbolic_tangent(new[side, c])


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def tanh_backward(
    table: Floats,  # (rows, width)
    grad: Floats,  # (rows, width) of later readers; grows to the whole gradient of every row
    ends: Int64,  # (n, 2)
    writes: Int64,  # (2 n,)
    weight: Floats,  # (1 or 2, width, 2 width), the transposes of the forward pass's
    slopes: Floats,  # out, (n, 2, width) the gradient of the pre-activations
) -> None:
    """The way back, last event first."""
    width = table.shape[1]
    one = table.dtype.type(1)
    into = np.empty((2, 2 * width), table.dtype)
    for event in range(len(ends) - 1, -1, -1):
        slope = slopes[event]
        for side in range(2):
            row = writes[2 * event + side]
            for c in range(width):
                slope[side, c] = grad[row, c] * (one - table[row, c] * table[row, c])
            for c in range(2 * width):
                into[side, c] = 0
        if len(weight) == 1:
            add_products(weight[0], slope, into)
        else:
            add_product(weight[0], slope[0], into[0])
            add_product(weight[1], slope[1], into[1])
        for side in range(2):
            own, other = ends[event, side], ends[event, 1 - side]
            for c in range(width):
                grad[own, c] += into[side, c]
            for c in range(width):
                grad[other, c] += into[side, width + c]

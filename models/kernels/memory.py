"""Loops of memories that an event renews at both of its ends, forward and backward.

Each end reads its own memory and the other's, side by side.  Backward passes give the gradients of
pre-activations: those of weights are one product of all of them.  A GRU takes the events of a level
together, since a weight that is read for one of them is then at hand for all.
"""

import numpy as np
from numba import njit

from ...stream import Int64
from .elementary import hyperbolic_tangent, sigmoid
from .linear import Floats, add_product, add_products
from .tiles import add_outer, add_rows, widen

EVENTS = 16  # of a level at a time
ENDS = 64  # at a time in products of all of them, so that a strip of columns stays close


@njit(cache=True, nogil=True, error_model="numpy")
def read_both(table: Floats, rows: Int64, both: Floats) -> None:
    """[own, other's] memory of source and destination, (2, 2 width)."""
    width = table.shape[1]
    for side in range(2):
        own, other = rows[side], rows[1 - side]
        for c in range(width):
            both[side, c] = table[own, c]
            both[side, width + c] = table[other, c]


@njit(cache=True, nogil=True)
def by_level(
    ends: Int64,  # (n, 2)
    writes: Int64,  # (2 n,)
    depth: Int64,  # (rows,) all 0: scratch
    order: Int64,  # out, (n,) events level by level, in log order inside a level
    starts: Int64,  # out, room for n + 1: where each level begins
) -> int:
    """The events that read nothing of one another stand together; the number of levels."""
    count = 0
    level = np.empty(len(ends), np.int64)
    starts[:] = 0
    for event in range(len(ends)):
        level[event] = max(depth[ends[event, 0]], depth[ends[event, 1]])
        for side in range(2):
            depth[writes[2 * event + side]] = level[event] + 1
        count = max(count, level[event] + 1)
        starts[level[event] + 1] += 1
    for place in range(count):
        starts[place + 1] += starts[place]
    at = starts.copy()
    for event in range(len(ends)):
        order[at[level[event]]] = event
        at[level[event]] += 1
    return count


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def gru_forward(
    table: Floats,  # (rows, width) the base rows are filled; the others are, here
    ends: Int64,  # (n, 2)
    writes: Int64,  # (2 n,)
    order: Int64,  # (n,) events level by level
    starts: Int64,  # (levels + 1,)
    told: Floats,  # (n, 2, t)
    own: Floats,  # (width, g) of own memory onto new's own part, reset, renew and new
    other: Floats,  # (width, h) of the other's onto the last three
    tail: Floats,  # (t, h) of what is told, likewise
    bias: Floats,  # (g,)
    read: Floats,  # out, (2 n, >= 2 width + t + 1) in that order: [own, other's, told, 1]
    gates: Floats,  # out, (2 n, g) in that order
) -> None:
    """n = tanh(a + r b), s' = (1 - z) n + z s with r, z the sigmoids; b, r, z and n are kept."""
    widen()
    width, size = table.shape[1], told.shape[2]
    one = table.dtype.type(1)
    for place in range(len(order)):
        for side in range(2):
            i, event = 2 * place + side, order[place]
            for c in range(size):
                read[i, np.uint64(2 * width + c)] = told[event, side, c]
            read[i, 2 * width + size] = one
            for c in range(len(bias)):
                gates[i, c] = bias[c]
    add_rows(tail, read[:, 2 * width :], gates[:, width:], len(read))
    for level in range(len(starts) - 1):
        for first in range(starts[level], starts[level + 1], EVENTS):
            count = min(EVENTS, starts[level + 1] - first)
            start, stop = 2 * first, 2 * (first + count)
            for place in range(first, first + count):
                for side in range(2):
                    i, row = 2 * place + side, ends[order[place], side]
                    j = 2 * place + 1 - side
                    for c in range(width):
                        read[i, c] = table[row, c]
                    for c in range(width):
                        read[j, np.uint64(width + c)] = table[row, c]
            add_rows(own, read[start:stop], gates[start:stop], stop - start)
            add_rows(other, read[start:stop, width:], gates[start:stop, width:], stop - start)
            for i in range(start, stop):
                row = writes[2 * order[i // 2] + i % 2]
                for c in range(width, 3 * width):
                    gates[i, np.uint64(c)] = sigmoid(gates[i, np.uint64(c)])
                for c in range(width):
                    r, z = gates[i, np.uint64(width + c)], gates[i, np.uint64(2 * width + c)]
                    n = hyperbolic_tangent(gates[i, np.uint64(3 * width + c)] + r * gates[i, c])
                    gates[i, np.uint64(3 * width + c)] = n
                    table[row, c] = (one - z) * n + z * read[i, c]


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def gru_backward(
    grad: Floats,  # (rows, width) of later readers; grows to the whole gradient of every row
    ends: Int64,  # (n, 2)
    writes: Int64,  # (2 n,)
    order: Int64,  # (n,)
    starts: Int64,  # (levels + 1,)
    own: Floats,  # (4 width, p), the transposes of the forward pass's
    other: Floats,  # (3 width, p)
    read: Floats,  # (2 n, ...) as kept
    gates: Floats,  # (2 n, g) as kept
    slopes: Floats,  # out, (2 n, g) the gradient of the pre-activations
) -> None:
    """The way back, last level first; the rows before the first one have no gradient."""
    widen()
    width = grad.shape[1]
    one = grad.dtype.type(1)
    into = np.empty((2, 2 * EVENTS, own.shape[1]), grad.dtype)
    for level in range(len(starts) - 2, -1, -1):
        for first in range(starts[level], starts[level + 1], EVENTS):
            count = min(EVENTS, starts[level + 1] - first)
            start, stop = 2 * first, 2 * (first + count)
            into[:, : 2 * count] = 0
            for i in range(start, stop):
                row = writes[2 * order[i // 2] + i % 2]
                for c in range(width):
                    b, r = gates[i, c], gates[i, np.uint64(width + c)]
                    z, n = gates[i, np.uint64(2 * width + c)], gates[i, np.uint64(3 * width + c)]
                    g = grad[row, c]
                    by_new = g * (one - z) * (one - n * n)
                    slopes[i, c] = by_new * r
                    slopes[i, np.uint64(width + c)] = by_new * b * r * (one - r)
                    slopes[i, np.uint64(2 * width + c)] = g * (read[i, c] - n) * z * (one - z)
                    slopes[i, np.uint64(3 * width + c)] = by_new
                    into[0, i - start, c] = g * z
            if level == 0:
                continue
            add_rows(own, slopes[start:stop], into[0], stop - start)
            add_rows(other, slopes[start:stop, width:], into[1], stop - start)
            for i in range(start, stop):
                event, side = order[i // 2], i % 2
                row, beside = ends[event, side], ends[event, 1 - side]
                for c in range(width):
                    grad[row, c] += into[0, i - start, c]
                for c in range(width):
                    grad[beside, c] += into[1, i - start, c]


@njit(cache=True, nogil=True)
def gru_weights(
    read: Floats,  # (2 n, c) as kept
    slopes: Floats,  # (2 n, g) the gradient of the pre-activations
    tail: Floats,  # (3 width, t) of what is told, the transpose of the forward pass's
    by_three: Floats,  # to be added to, (3 width, c): by weights of the last three
    by_part: Floats,  # to be added to, (width, width): by those of new's own part
    by_told: Floats,  # to be added to, (2 n, t); (0, t) if it is not wanted
) -> None:
    """The gradients of the weights, and of what is told."""
    widen()
    width = len(by_part)
    for start in range(0, len(read), ENDS):
        count = min(ENDS, len(read) - start)
        reads, slope = read[start : start + count], slopes[start : start + count]
        add_outer(slope[:, width : 4 * width], reads, by_three, count)
        add_outer(slope[:, :width], reads[:, :width], by_part, count)
    add_rows(tail, slopes[:, width:], by_told, len(by_told))


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

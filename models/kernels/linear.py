"""Products of a matrix with one or two rows, whose bits do not depend on what else is computed.

Weights stand as (inputs, outputs): every step of a loop reads a run of memory.  Four inputs at a
time are added to all outputs, always in the same order, so that a row has the same result alone and
beside any other.
"""

import numpy as np
import numpy.typing as npt
from numba import njit

Floats = npt.NDArray[np.floating]


@njit(cache=True, nogil=True, fastmath={"contract"})
def add_product(weight: Floats, x: Floats, y: Floats) -> None:
    """Add x W to y, of x (inputs,), W (inputs, outputs), y (outputs,)."""
    inputs, outputs = weight.shape
    whole = inputs - inputs % 4
    for c in range(0, whole, 4):
        x0, x1, x2, x3 = x[c], x[c + 1], x[c + 2], x[c + 3]
        for o in range(outputs):
            y[o] += (
                x0 * weight[c, o]
                + x1 * weight[c + 1, o]
                + x2 * weight[c + 2, o]
                + x3 * weight[c + 3, o]
            )
    for c in range(whole, inputs):
        x0 = x[c]
        for o in range(outputs):
            y[o] += x0 * weight[c, o]


@njit(cache=True, nogil=True, fastmath={"contract"})
def add_products(weight: Floats, x: Floats, y: Floats) -> None:
    """The same for two rows at once: x (2, inputs), y (2, outputs)."""
    inputs, outputs = weight.shape
    whole = inputs - inputs % 4
    for c in range(0, whole, 4):
        a0, a1, a2, a3 = x[0, c], x[0, c + 1], x[0, c + 2], x[0, c + 3]
        b0, b1, b2, b3 = x[1, c], x[1, c + 1], x[1, c + 2], x[1, c + 3]
        for o in range(outputs):
            w0, w1 = weight[c, o], weight[c + 1, o]
            w2, w3 = weight[c + 2, o], weight[c + 3, o]
            y[0, o] += a0 * w0 + a1 * w1 + a2 * w2 + a3 * w3
            y[1, o] += b0 * w0 + b1 * w1 + b2 * w2 + b3 * w3
    for c in range(whole, inputs):
        a0, b0 = x[0, c], x[1, c]
        for o in range(outputs):
            y[0, o] += a0 * weight[c, o]
            y[1, o] += b0 * weight[c, o]

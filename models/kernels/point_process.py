"""Losses of a point process over the rows of a table, event after event, forward and backward.

An event has one pair that met, (source, destination), and pairs that did not: (source, corrupted
destination) and (corrupted source, destination).  The backward loop gives gradients by written rows
only: what stood before the segment has none.
"""

import math

import numpy as np
import numpy.typing as npt
from numba import njit

from ...stream import Bool, Int64
from .elementary import sigmoid
from .tiles import add_rows

Floats = npt.NDArray[np.floating]

EPSILON = 1e-10
"""Added to an intensity whose logarithm is taken."""


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc"})
def pair_losses(
    states: Floats,  # (rows, width)
    rows: Int64,  # (n, 2 + 2 m): source, destination, m corrupted sources, m destinations
    valid: Bool,  # (n, 2 m)
    kind: Int64,  # (n,)
    omega: Floats,  # (kinds, width) symmetrised, like what follows
    bias: Floats,  # (kinds,)
    psi: Floats,  # (kinds,)
    between: Floats,  # (kinds, width, width), or (0, 0, 0)
    turned: Floats,  # out, (n, kinds, 2, width): M z of source and destination; (0, 0, 2, width)
    slope: Floats,  # out, (n, 1 + 2 m, kinds): the derivative of the loss by g of each pair
    by_psi: Floats,  # out, (n, kinds): the derivative of the loss by psi
    rate: Floats,  # out, (n,): the intensity of the pair that met
    losses: Floats,  # out, (n,)
) -> None:
    """-log of the intensity of what happened, and the mean intensity of what did not, by side."""
    num_kinds, width = omega.shape
    num_others = valid.shape[1] // 2
    half = states.dtype.type(0.5)
    centred = np.empty_like(states[:2])
    g = np.empty((1 + 2 * num_others, num_kinds), states.dtype)
    for i in range(len(kind)):
        for c in range(width if len(between) else 0):
            centred[0, c] = states[rows[i, 0], c] - half
            centred[1, c] = states[rows[i, 1], c] - half
        for k in range(num_kinds):
            first, second = bias[k], bias[k]
            for c in range(width):
                first += omega[k, c] * states[rows[i, 0], c]
                second += omega[k, c] * states[rows[i, 1], c]
            for j in range(2 * num_others):
                row, own = rows[i, 2 + j], second if j < num_others else first
                for c in range(width):
                    own += omega[k, c] * states[row, c]
                g[1 + j, k] = own
            g[0, k] = first + second - bias[k]
            if len(between):
                turned[i, k] = 0.0
                add_rows(between[k], centred, turned[i, k], 2)
                for p in range(1 + 2 * num_others):
                    row, side = rows[i, 1 + p], 1 if 0 < p <= num_others else 0
                    inner = g[p, k]
                    for c in range(width):
                        inner += turned[i, k, side, c] * (states[row, c] - half)
                    g[p, k] = inner
        by_psi[i] = 0.0
        slope[i] = 0.0
        loss = 0.0
        for side in range(2):
            a = side * num_others
            count = 0
            for j in range(a, a + num_others):
                count += valid[i, j]
            share = 1.0 / max(count, 1)
            for j in range(a, a + num_others):
                if valid[i, j]:
                    for k in range(num_kinds):
                        ratio, soft, inverse = soften(np.float64(g[1 + j, k]), np.float64(psi[k]))
                        loss += share * psi[k] * soft
                        slope[i, 1 + j, k] = share * sigmoid(ratio)
                        by_psi[i, k] += share * inverse
        k = kind[i]
        ratio, soft, inverse = soften(np.float64(g[0, k]), np.float64(psi[k]))
        rate[i] = psi[k] * soft
        steep = -1.0 / (psi[k] * soft + EPSILON)
        slope[i, 0, k] = steep * sigmoid(ratio)
        by_psi[i, k] += steep * inverse
        losses[i] = loss - math.log(psi[k] * soft + EPSILON)


@njit(cache=True, nogil=True, error_model="numpy")
def soften(g: float, psi: float) -> tuple[float, float, float]:
    """x = g / psi held in [-75, 75], softplus(x), and the derivative of psi softplus(x) by psi.

    The latter is softplus(x) - x sigmoid(x), the same for x and -x: so it does not cancel.
    """
    ratio = min(max(g / psi, -75.0), 75.0)
    size = abs(ratio)
    rest = math.exp(-size)
    small = math.log1p(rest)
    return ratio, max(ratio, 0.0) + small, small + size * rest / (1.0 + rest)


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc"})
def pair_losses_back(
    states: Floats,  # (rows, width) and so on, as in `pair_losses`
    rows: Int64,
    num_base: int,
    omega: Floats,
    between: Floats,
    turned: Floats,
    slope: Floats,
    grad: Floats,  # (n,)
    by_state: Floats,  # out, (rows, width), zeros
    by_omega: Floats,  # out, (n, kinds, width): by the omega of each event
    centred: Floats,  # out, (n, 2, width); (0, 2, width) without an interaction
    by_turned: Floats,  # out, (n, kinds, 2, width), zeros; (0, 0, 2, width) likewise
) -> None:
    """The gradient of `pair_losses`; that by M is the product of `centred` and `by_turned`."""
    num_kinds, width = omega.shape
    num_others = (rows.shape[1] - 2) // 2
    half = states.dtype.type(0.5)
    back = np.empty_like(states[:2])
    for i in range(len(rows)):
        back[:] = 0.0
        by_omega[i] = 0.0
        for side in range(2):
            for c in range(width if len(between) else 0):
                centred[i, side, c] = states[rows[i, side], c] - half
        for k in range(num_kinds):
            met = grad[i] * slope[i, 0, k]
            total = np.zeros(2, states.dtype)
            for j in range(2 * num_others):
                row, side = rows[i, 2 + j], 1 if j < num_others else 0
                steep = grad[i] * slope[i, 1 + j, k]
                total[side] += steep
                for c in range(width):
                    by_omega[i, k, c] += steep * states[row, c]
                if row >= num_base:
                    for c in range(width):
                        by_state[row, c] += steep * omega[k, c]
                if len(between):
                    for c in range(width):
                        by_turned[i, k, side, c] += steep * (states[row, c] - half)
                    if row >= num_base:
                        for c in range(width):
                            by_state[row, c] += steep * turned[i, k, side, c]
            for side in range(2):
                row, steep = rows[i, side], met + total[side]
                for c in range(width):
                    by_omega[i, k, c] += steep * states[row, c]
                    back[side, c] += steep * omega[k, c]
            if len(between):
                for c in range(width):
                    by_turned[i, k, 0, c] += met * centred[i, 1, c]
                    back[1, c] += met * turned[i, k, 0, c]
                add_rows(between[k], by_turned[i, k], back, 2)
        for side in range(2):
            row = rows[i, side]
            if row >= num_base:
                for c in range(width):
                    by_state[row, c] += back[side, c]

"""Loops of DyRep's attention, which carries no gradient: one event after the other, in float64.

An event's result does not depend, to the last bit, on the events computed beside it or on how its
lists are padded; that is what lets any cut of the stream give the same states.
"""

import math

import numpy as np
import numpy.typing as npt
from numba import njit

from ...stream import Bool, Float64, Int64

EPSILON = 1e-7


@njit(cache=True, nogil=True)
def event_rates(
    z: npt.NDArray[np.floating],  # (n, 2, width)
    kind: Int64,  # (n,)
    omega: npt.NDArray[np.floating],  # (kinds, 2 width)
    bias: npt.NDArray[np.floating],  # (kinds,)
    psi: npt.NDArray[np.floating],  # (kinds,)
    interaction: npt.NDArray[np.floating],  # (kinds, width, width), or (0, 0, 0) without one
    rate: Float64,  # out, (n,)
) -> None:
    """The intensity of each event's own kind between its two ends."""
    width = z.shape[2]
    for i in range(len(kind)):
        k = kind[i]
        g = np.float64(bias[k])
        for c in range(width):
            weight = (np.float64(omega[k, c]) + np.float64(omega[k, width + c])) / 2
            g += weight * (np.float64(z[i, 0, c]) + np.float64(z[i, 1, c]))
        if len(interaction):
            for a in range(width):
                inner = 0.0
                other = 0.0
                for b in range(width):
                    inner += np.float64(interaction[k, a, b]) * (np.float64(z[i, 1, b]) - 0.5)
                    other += np.float64(interaction[k, a, b]) * (np.float64(z[i, 0, b]) - 0.5)
                g += (np.float64(z[i, 0, a]) - 0.5) * inner / 2
                g += (np.float64(z[i, 1, a]) - 0.5) * other / 2
        ratio = min(max(g / psi[k], -75.0), 75.0)
        rate[i] = psi[k] * (max(ratio, 0.0) + math.log1p(math.exp(-abs(ratio))))


@njit(cache=True, nogil=True)
def attend_links(
    attention: npt.NDArray[np.floating],  # (n, 2, k) the rows of S before the event
    before: Bool,  # (n, 2, k) the link stands before the event
    after: Bool,  # (n, 2, k) it stands after it
    partner: Bool,  # (n, 2, k) it leads to the other end
    rate: Float64,  # (n,)
    weight: npt.NDArray[np.floating],  # out, (n, 2, k): softmax of S over the links before
    renewed: npt.NDArray[np.floating],  # out, (n, 2, k): the rows of S after it, algorithm 1
) -> None:
    """The weights with which an event reads neighbours, and the rows of S that it leaves."""
    for i in range(attention.shape[0]):
        for side in range(2):
            total, row_total = 0.0, 0.0
            num_before, num_after = 0, 0
            meets = False
            for c in range(attention.shape[2]):
                if before[i, side, c]:
                    num_before += 1
                    total += math.exp(np.float64(attention[i, side, c]))
                if after[i, side, c]:
                    num_after += 1
                if partner[i, side, c]:
                    meets = True
            shift = 1.0 / num_before - 1.0 / num_after if num_before else 0.0
            for c in range(attention.shape[2]):
                old = np.float64(attention[i, side, c])
                weight[i, side, c] = (
                    math.exp(old) / (total + EPSILON) if before[i, side, c] else 0.0
                )
                if partner[i, side, c]:
                    row_total += 1.0 / num_after + rate[i]
                elif before[i, side, c]:
                    row_total += old - shift
            for c in range(attention.shape[2]):
                old = np.float64(attention[i, side, c])
                if not meets:
                    renewed[i, side, c] = old
                elif partner[i, side, c]:
                    renewed[i, side, c] = (1.0 / num_after + rate[i]) / (row_total + EPSILON)
                elif before[i, side, c]:
                    renewed[i, side, c] = (old - shift) / (row_total + EPSILON)
                else:
                    renewed[i, side, c] = 0.0

"""Cosines of phases in turns, in loops that vectorise.

Whole turns are dropped in float64, since of a gap of months a float32 phase keeps no digit; what is
left, r in [-1/2, 1/2], gives cos(2 pi r) = S(1/4 - |r|) where S(x) = sin(2 pi x) for |x| <= 1/4 is
x times a polynomial in x^2 that meets sin(2 pi x) / x at the Chebyshev nodes: off by 7e-9 of it in
float32, with five terms, and 4e-19 in float64, with nine.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, types
from numba.extending import overload

from ...stream import Float64
from .tiles import widen

Floats = npt.NDArray[np.floating]

SINGLE = (
    *(6.2831852801544065, -41.341680613346515, 81.602476368925180),
    *(-76.581172644278724, 39.759827085319101),
)
DOUBLE = (
    *(6.2831853071795864756, -41.341702240399756862, 81.605249276073615183),
    *(-76.705859752824919209, 42.05869392542868225, -15.094641676117900093),
    *(3.8199280942271642021, -0.71773379214134533133, 0.10089695501646811163),
)


def quarter_sine(x: Any) -> Any:
    """sin(2 pi x) of a float32 or float64 in [-1/4, 1/4], in its own type."""
    return type(x)(math.sin(math.tau * x))


@overload(quarter_sine, inline="always")
def _quarter_sine(x: Any) -> Callable[..., Any] | None:
    if x == types.float32:
        a0, a1, a2, a3, a4 = (np.float32(a) for a in SINGLE)

        def in32(x: Any) -> Any:
            y = x * x
            return x * (a0 + y * (a1 + y * (a2 + y * (a3 + y * a4))))

        return in32
    if x == types.float64:
        b0, b1, b2, b3, b4, b5, b6, b7, b8 = DOUBLE

        def in64(x: Any) -> Any:
            y = x * x
            high = b4 + y * (b5 + y * (b6 + y * (b7 + y * b8)))
            return x * (b0 + y * (b1 + y * (b2 + y * (b3 + y * high))))

        return in64
    return None


# Of a signed sum as an index numba asks whether it is negative, which keeps a loop from being
# vectorised: hence the unsigned ones.


@njit(cache=True, nogil=True, fastmath={"contract"})
def cosines(
    seconds: float, rate: Float64, offset: Float64, out: Floats, row: int, first: int
) -> None:
    """cos of `rate` turns a second and an `offset` in turns, into `out[row, first:]`."""
    widen()
    for c in range(len(rate)):
        turns = seconds * rate[c] + offset[c]
        out[row, np.uint64(first + c)] = 0.25 - abs(turns - np.floor(turns + 0.5))
    for c in range(len(rate)):
        out[row, np.uint64(first + c)] = quarter_sine(out[row, np.uint64(first + c)])


@njit(cache=True, nogil=True, fastmath={"contract"})
def cosines_and_sines(
    seconds: float,
    rate: Float64,
    offset: Float64,
    out: Floats,
    row: int,
    first: int,
    sine: Floats,
) -> None:
    """The same cosines, to the bit, and the sines into `sine[row]`."""
    widen()
    quarter, zero = out.dtype.type(0.25), out.dtype.type(0)
    for c in range(len(rate)):
        turns = seconds * rate[c] + offset[c]
        turns -= np.floor(turns + 0.5)
        out[row, np.uint64(first + c)] = 0.25 - abs(turns)
        sine[row, c] = turns
    for c in range(len(rate)):
        x = out[row, np.uint64(first + c)]
        y = quarter - abs(x)
        sine[row, c] = quarter_sine(-y if sine[row, c] < zero else y)
        out[row, np.uint64(first + c)] = quarter_sine(x)


@njit(cache=True, nogil=True)
def encode_times(seconds: Float64, rate: Float64, offset: Float64, code: Floats) -> None:
    """The cosines of `seconds` (n,) as rows of `code` (n, width)."""
    widen()
    for i in range(len(seconds)):
        cosines(seconds[i], rate, offset, code, i, 0)


@njit(cache=True, nogil=True)
def slopes_of_times(
    seconds: Float64,  # (n,)
    rate: Float64,  # (width,) turns a second
    offset: Float64,  # (width,) turns
    grad: Floats,  # (n, width) of the code
    by_phase: Float64,  # out, (width,) of the phase in radians, summed
    by_frequency: Float64,  # out, the same times the seconds; (0,) if it is not wanted
) -> None:
    """The gradient of a code of times with respect to phases and frequencies."""
    widen()
    cosine, sine = np.empty((1, len(rate)), grad.dtype), np.empty((1, len(rate)), grad.dtype)
    for i in range(len(seconds)):
        cosines_and_sines(seconds[i], rate, offset, cosine, 0, 0, sine)
        for c in range(len(rate)):
            by_phase[c] -= sine[0, c] * grad[i, c]
        for c in range(len(by_frequency)):
            by_frequency[c] -= seconds[i] * (sine[0, c] * grad[i, c])

"""exp, sigmoid and tanh in loops that vectorise: no branch, no call, a fixed polynomial.

x = k log 2 + r with |r| <= log(2) / 2; exp(r) is its Taylor series, cut where the next term is
below half a unit in the last place, and 2^k is made of its bits.  Errors are a few units in the
last place; arguments are held where the result is a normal number.

In a loop over float32 every constant must be float32 too, as `array.dtype.type(1)` makes one: an
integer beside a float32 turns both into float64.  And the kernel around it must be compiled with
`error_model="numpy"`: a division that might raise is not vectorised.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

LOG2_E = 1.0 / math.log(2.0)
# log 2 in two parts, the first with so few digits that k times it is exact
HIGH64, LOW64 = 6.93147180369123816490e-01, 1.90821492927058770002e-10
HIGH32, LOW32 = np.float32(0.693359375), np.float32(-2.12194440e-4)


def exponential(x: Any) -> Any:
    """e^x of a float32 or float64, in its own type; x is held in [-87, 88] or [-708, 709]."""
    low, high = (-87.0, 88.0) if isinstance(x, np.float32) else (-708.0, 709.0)
    return type(x)(math.exp(low if x < low else (high if x > high else x)))


@overload(exponential)
def _exponential(x: Any) -> Callable[..., Any] | None:
    if x == types.float32:
        f = np.float32
        low, high, log2e = f(-87.0), f(88.0), f(LOG2_E)
        a7, a6, a5, a4, a3, a2 = (f(1.0 / math.factorial(n)) for n in (7, 6, 5, 4, 3, 2))
        one, half = f(1.0), f(0.5)

        def in32(x: Any) -> Any:
            x = low if x < low else (high if x > high else x)  # NaN stays
            k = np.floor(x * log2e + half)
            r = (x - k * HIGH32) - k * LOW32
            p = a7
            p = p * r + a6
            p = p * r + a5
            p = p * r + a4
            p = p * r + a3
            p = p * r + a2
            p = p * r + one
            p = p * r + one
            return p * np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)

        return in32
    if x == types.float64:
        b13, b12, b11, b10, b9, b8, b7, b6, b5, b4, b3, b2 = (
            1.0 / math.factorial(n) for n in range(13, 1, -1)
        )

        def in64(x: Any) -> Any:
            x = -708.0 if x < -708.0 else (709.0 if x > 709.0 else x)  # NaN stays
            k = np.floor(x * LOG2_E + 0.5)
            r = (x - k * HIGH64) - k * LOW64
            p = b13
            p = p * r + b12
            p = p * r + b11
            p = p * r + b10
            p = p * r + b9
            p = p * r + b8
            p = p * r + b7
            p = p * r + b6
            p = p * r + b5
            p = p * r + b4
            p = p * r + b3
            p = p * r + b2
            p = p * r + 1.0
            p = p * r + 1.0
            return p * np.int64((np.int64(k) + np.int64(1023)) << np.int64(52)).view(np.float64)

        return in64
    return None


def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x) of a float32 or float64, in its own type."""
    one = type(x)(1)
    return one / (one + exponential(-x))


@overload(sigmoid)
def _sigmoid(x: Any) -> Callable[..., Any] | None:
    if x not in (types.float32, types.float64):
        return None
    one = np.float32(1) if x == types.float32 else np.float64(1)

    def of(x: Any) -> Any:
        return one / (one + exponential(-x))

    return of


def hyperbolic_tangent(x: Any) -> Any:
    """tanh of a float32 or float64, in its own type, to a unit in the last place of 1."""
    one, two = type(x)(1), type(x)(2)
    return one - two / (exponential(two * x) + one)


@overload(hyperbolic_tangent)
def _hyperbolic_tangent(x: Any) -> Callable[..., Any] | None:
    if x not in (types.float32, types.float64):
        return None
    of_type = np.float32 if x == types.float32 else np.float64
    one, two = of_type(1), of_type(2)

    def of(x: Any) -> Any:
        return one - two / (exponential(two * x) + one)

    return of

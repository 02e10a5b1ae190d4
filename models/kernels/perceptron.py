"""Rows through two layers with ELU and a layer norm, forward and backward.

Invariant: a row has the same bits whatever rows are computed beside it; sums over its entries may
be taken in any order, but in the same one for every row.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit, types
from numba.extending import overload

from ...stream import Float64
from .elementary import HIGH64, LOG2_E, LOW64
from .tiles import add_rows, widen

Floats = npt.NDArray[np.floating]

EPSILON = 1e-5
"""What the layer norm adds to a variance; torch's default."""


class Layers(NamedTuple):
    """The weights; of a perceptron without a norm, `scale` and `shift` are not read."""

    first: Floats  # (inputs, width)
    first_bias: Floats  # (width,)
    second: Floats  # (width, width)
    second_bias: Floats  # (width,)
    scale: Floats  # (width,)
    shift: Floats  # (width,)


class BackLayers(NamedTuple):
    """What the way back needs of them."""

    first: Floats  # (width, inputs)
    second: Floats  # (width, width), as (outputs, inputs)
    scale: Floats  # (width,)


def elu(x: Any) -> Any:
    """x where it is positive, e^x - 1 elsewhere, of a float32 or float64 in its own type.

    Not for functions compiled with "reassoc": they would undo a rounding that is meant.
    """
    return type(x)(x if x > 0 else math.expm1(x))


@overload(elu, inline="always")
def _elu(x: Any) -> Callable[..., Any] | None:
    # e^x - 1 = 2^k (e^r - 1) + (2^k - 1), with the series of e^r without its 1: nothing cancels,
    # and of 0 it is 0, so that no branch is needed
    if x == types.float32:
        # of float32 a polynomial through Chebyshev nodes, two terms shorter than the series; k is
        # rounded by an addition that leaves it in the last bits, and k log 2 is fused, not rounded
        f = np.float32
        low, log2e, log2, zero, one = f(-87.0), f(LOG2_E), f(math.log(2.0)), f(0.0), f(1.0)
        shift = f(1.5 * 2.0**23)
        a6, a5, a4, a3, a2 = (
            f(0.00139345445),
            f(0.00836377647),
            f(0.0416664568),
            f(0.166665734),
            f(0.500000001),
        )

        def in32(x: Any) -> Any:
            y = max(min(x, zero), low)
            t = y * log2e + shift
            r = y - (t - shift) * log2
            p = a6
            p = p * r + a5
            p = p * r + a4
            p = p * r + a3
            p = p * r + a2
            p = p * (r * r) + r
            bits = (np.float32(t).view(np.int32) << np.int32(23)) + np.int32(127 << 23)
            power = np.int32(bits).view(np.float32)
            return max(x, zero) + (power * p + (power - one))

        return in32
    if x == types.float64:
        series = tuple(1.0 / math.factorial(n) for n in range(13, 1, -1))
        b13, b12, b11, b10, b9, b8, b7, b6, b5, b4, b3, b2 = series

        def in64(x: Any) -> Any:
            y = max(min(x, 0.0), -708.0)
            k = np.floor(y * LOG2_E + 0.5)
            r = (y - k * HIGH64) - k * LOW64
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
            power = np.int64((np.int64(k) + np.int64(1023)) << np.int64(52)).view(np.float64)
            return max(x, 0.0) + (power * (p * r) + (power - 1.0))

        return in64
    return None


@njit(cache=True, nogil=True)
def spread(row: Floats, rows: Floats, count: int) -> None:
    """Set the first `count` of `rows` to `row`."""
    widen()
    for r in range(count):
        for c in range(rows.shape[1]):
            rows[r, c] = row[c]


@njit(cache=True, nogil=True)
def clear(rows: Floats, count: int) -> None:
    """Set the first `count` of `rows` to 0."""
    widen()
    for r in range(count):
        for c in range(rows.shape[1]):
            rows[r, c] = 0.0


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def activate(rows: Floats, count: int) -> None:
    """ELU of the first `count` of `rows`, in place."""
    widen()
    for r in range(count):
        for c in range(rows.shape[1]):
            rows[r, c] = elu(rows[r, c])


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def by_activation(active: Floats, slope: Floats, count: int) -> None:
    """Multiply `slope` by the derivative of ELU, of which `active` is the result."""
    widen()
    zero, one = active.dtype.type(0), active.dtype.type(1)
    for r in range(count):
        for c in range(active.shape[1]):
            slope[r, c] *= min(active[r, c], zero) + one


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def measure(rows: Floats, moments: Floats, count: int) -> None:
    """The mean of each row and one over its standard deviation, as `moments` (rows, 2)."""
    widen()
    of = rows.dtype.type
    width = rows.shape[1]
    share = of(1) / of(width)
    for r in range(count):
        total, square = of(0), of(0)
        for c in range(width):
            total += rows[r, c]
        mean = total * share
        for c in range(width):
            square += (rows[r, c] - mean) * (rows[r, c] - mean)
        moments[r, 0] = mean
        moments[r, 1] = of(1) / np.sqrt(square * share + of(EPSILON))


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def pass_layers(w: Layers, inner: Floats, outer: Floats, count: int) -> None:
    """From what the first layer gives to what its ELU gives, and to the result of the second."""
    activate(inner, count)
    spread(w.second_bias, outer, count)
    add_rows(w.second, inner, outer, count)
    activate(outer, count)


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def normalise(
    outer: Floats, moments: Floats, scale: Floats, shift: Floats, result: Floats, count: int
) -> None:
    """The layer norm of the first `count` rows, whose `moments` (rows, 2) are given."""
    widen()
    for r in range(count):
        mean, inverse = moments[r, 0], moments[r, 1]
        for c in range(outer.shape[1]):
            result[r, c] = (outer[r, c] - mean) * inverse * scale[c] + shift[c]


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def by_norm(
    scale: Floats,  # (width,)
    by_result: Floats,  # (rows, width)
    outer: Floats,
    moments: Floats,
    slope: Floats,  # out, (rows, width): by the result of the second layer, before its ELU
    count: int,
    by_scale: Float64,  # (width,), added to
    by_shift: Float64,
) -> None:
    """The way back through the layer norm and the ELU before it."""
    widen()
    of = outer.dtype.type
    zero, one, width = of(0), of(1), outer.shape[1]
    share = one / of(width)
    for r in range(count):
        mean, inverse = moments[r, 0], moments[r, 1]
        total, along = zero, zero
        for c in range(width):
            given = by_result[r, c] * scale[c]
            total += given
            along += given * (outer[r, c] - mean)
        total, along = total * share, along * share * inverse * inverse
        for c in range(width):
            by_scale[c] += by_result[r, c] * ((outer[r, c] - mean) * inverse)
            by_shift[c] += by_result[r, c]
        for c in range(width):
            given = by_result[r, c] * scale[c] - total - (outer[r, c] - mean) * along
            slope[r, c] = given * inverse * (min(outer[r, c], zero) + one)


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def by_second(w: BackLayers, slope: Floats, inner: Floats, first_slope: Floats, count: int) -> None:
    """From the slope of the second layer to that of the first, before its ELU."""
    clear(first_slope, count)
    add_rows(w.second, slope, first_slope, count)
    by_activation(inner, first_slope, count)

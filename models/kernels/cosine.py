"""Cosines of phases in turns, in whole vectors.

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
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

from ...stream import Float64
from .tiles import INT, Matrix, function, load, splat, steps, store, widen

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


def cosines(
    seconds: float, rate: Float64, offset: Float64, out: Floats, row: int, first: int
) -> None:
    """cos of `rate` turns a second and an `offset` in turns, into `out[row, first:]`."""
    cosines_and_sines(seconds, rate, offset, out, row, first, np.empty((row + 1, len(rate))))


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
    one = out.dtype.type
    for c in range(len(rate)):
        turns = seconds * rate[c] + offset[c]
        rest = one(turns - np.rint(turns))
        x = one(0.25) - abs(rest)
        y = one(0.25) - abs(x)
        out[row, first + c] = quarter_sine(x)
        sine[row, c] = quarter_sine(np.copysign(y, rest))


@overload(cosines)
def _cosines(
    seconds: Any, rate: Any, offset: Any, out: Any, row: Any, first: Any
) -> Callable[..., None]:
    def of(seconds: Any, rate: Any, offset: Any, out: Any, row: Any, first: Any) -> None:
        _turn(seconds, rate, offset, out, row, first, out)

    return of


@overload(cosines_and_sines)
def _cosines_and_sines(
    seconds: Any, rate: Any, offset: Any, out: Any, row: Any, first: Any, sine: Any
) -> Callable[..., None]:
    def of(seconds: Any, rate: Any, offset: Any, out: Any, row: Any, first: Any, sine: Any) -> None:
        _turn_both(seconds, rate, offset, out, row, first, sine)

    return of


def _emit(with_sines: bool, *given: Any) -> Any:
    """Vectors of turns in float64, then their sines in the type of `out`."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        rate, offset = (
            context.make_array(signature.args[i])(context, builder, args[i]) for i in (1, 2)
        )
        starts = [builder.ptrtoint(array.data, INT) for array in (rate, offset)]
        out = Matrix(context, builder, signature.args[3], args[3])
        sine = Matrix(context, builder, signature.args[6], args[6])
        row, bits = args[4], out.bits
        end = builder.add(out.row(builder, row), builder.mul(args[5], out.size))
        end_too = sine.row(builder, row)
        place = INT(0)
        for lanes in (16, 8, 4, 1) if bits == 32 else (8, 4, 1):
            wide, vector = ir.VectorType(ir.DoubleType(), lanes), ir.VectorType(out.entry, lanes)

            def same(value: float, of: Any) -> Any:
                return ir.Constant(of, [value] * of.count)

            def call(name: str, *values: Any) -> Any:
                of = values[0].type
                size = 64 if of.element == ir.DoubleType() else 32
                full = f"llvm.{name}.v{of.count}f{size}"
                return builder.call(function(builder, full, of, [of] * len(values)), values)

            def rounded(value: Any, vector: Any = vector) -> Any:
                return value if bits == 64 else builder.fptrunc(value, vector)

            def quarter(x: Any, vector: Any = vector) -> Any:
                *others, p = (same(a, vector) for a in (SINGLE if bits == 32 else DOUBLE))
                y = builder.fmul(x, x)
                for a in reversed(others):
                    p = call("fma", p, y, a)
                return builder.fmul(x, p)

            def span(c: Any, lanes: int = lanes, wide: Any = wide, vector: Any = vector) -> None:
                at = builder.mul(c, INT(8))
                rates, offsets = (load(builder, builder.add(s, at), wide, 64) for s in starts)
                turns = call("fma", splat(builder, args[0], lanes), rates, offsets)
                whole = call("rint", turns)
                rest = rounded(builder.fsub(turns, whole))
                x = builder.fsub(same(0.25, vector), call("fabs", rest))
                across = builder.mul(c, out.size)
                store(builder, quarter(x), builder.add(end, across), bits)
                if with_sines:
                    y = builder.fsub(same(0.25, vector), call("fabs", x))
                    signed = call("copysign", y, rest)
                    store(builder, quarter(signed), builder.add(end_too, across), bits)

            place = steps(builder, place, lanes, builder.extract_value(rate.shape, 0), span)
        return context.get_dummy_value()

    kinds = (types.float64, *given[:3], types.intp, types.intp, given[3])
    return types.void(*kinds), generate


def _emit_cosines(
    typing: Any, seconds: Any, rate: Any, offset: Any, out: Any, row: Any, first: Any, sine: Any
) -> Any:
    return _emit(False, rate, offset, out, sine)


def _emit_both(
    typing: Any, seconds: Any, rate: Any, offset: Any, out: Any, row: Any, first: Any, sine: Any
) -> Any:
    return _emit(True, rate, offset, out, sine)


_turn: Any = intrinsic(_emit_cosines)
_turn_both: Any = intrinsic(_emit_both)


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

"""Rows and products of rows in whole vectors, for loops too short for a compiler to vectorise well.

A loop over a hundred columns is unrolled to four vectors at once, which leaves a third of them to
be done one by one.  As in `tiles` every entry is computed the same way, alone and among others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from .tiles import INT, Floats, Matrix, function, load, steps, store

VECTOR = {32: 16, 64: 8}  # the widest vector's numbers, by their bits
SPANS = {32: (16, 4, 1), 64: (8, 4, 1)}


def dots(x: Floats, read: Floats, out: Floats, count: int) -> None:
    """out[h, j] = x[h] . read[j] of all rows of x and the first `count` of `read`.

    There are as many columns as make whole vectors (a multiple of 16).
    """
    out[: len(x), :count] = x @ read[:count].T


def copy_row(source: Floats, i: int, target: Floats, j: int, size: int) -> None:
    """target[j, :size] = source[i, :size]."""
    target[j, :size] = source[i, :size]


def add_row(source: Floats, i: int, target: Floats, j: int, size: int) -> None:
    """target[j, :size] += source[i, :size]."""
    target[j, :size] += source[i, :size]


def clear(values: Floats) -> None:
    """Set all of what stands in memory without gaps to 0."""
    values[...] = 0


@overload(clear)
def _clear(values: Any) -> Callable[..., None]:
    def of(values: Any) -> None:
        _fill(values)

    return of


@overload(dots)
def _dots(x: Any, read: Any, out: Any, count: Any) -> Callable[..., None]:
    def of(x: Any, read: Any, out: Any, count: Any) -> None:
        _multiply(x, read, out, count)

    return of


@overload(copy_row)
def _copy_row(source: Any, i: Any, target: Any, j: Any, size: Any) -> Callable[..., None]:
    def of(source: Any, i: Any, target: Any, j: Any, size: Any) -> None:
        _copy(source, i, target, j, size)

    return of


@overload(add_row)
def _add_row(source: Any, i: Any, target: Any, j: Any, size: Any) -> Callable[..., None]:
    def of(source: Any, i: Any, target: Any, j: Any, size: Any) -> None:
        _add(source, i, target, j, size)

    return of


def _emit_rows(
    combine: Callable[[Any, Any, Any], Any], source: Any, i: Any, target: Any, j: Any, size: Any
) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        x = Matrix(context, builder, signature.args[0], args[0])
        y = Matrix(context, builder, signature.args[2], args[2])
        at_x, at_y = x.row(builder, args[1]), y.row(builder, args[3])
        column = INT(0)
        for lanes in SPANS[x.bits]:
            vector = ir.VectorType(x.entry, lanes)

            def span(c: Any, vector: Any = vector) -> None:
                across = builder.mul(c, x.size)
                end = builder.add(at_y, across)
                value = load(builder, builder.add(at_x, across), vector, x.bits)
                store(builder, combine(builder, value, (end, vector, x.bits)), end, x.bits)

            column = steps(builder, column, lanes, args[4], span)
        return context.get_dummy_value()

    return types.void(source, types.intp, target, types.intp, types.intp), generate


def _emit_clear(typing: Any, values: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        byte = ir.IntType(8)
        size = INT(signature.args[0].dtype.bitwidth // 8)
        for place in range(signature.args[0].ndim):
            size = builder.mul(size, builder.extract_value(array.shape, place))
        given = [byte.as_pointer(), byte, INT, ir.IntType(1)]
        fill = function(builder, "llvm.memset.p0i8.i64", ir.VoidType(), given)
        start = builder.bitcast(array.data, byte.as_pointer())
        builder.call(fill, [start, byte(0), size, ir.IntType(1)(0)])
        return context.get_dummy_value()

    return types.void(values), generate


def _emit_copy(typing: Any, source: Any, i: Any, target: Any, j: Any, size: Any) -> Any:
    return _emit_rows(lambda builder, value, at: value, source, i, target, j, size)


def _emit_sum(typing: Any, source: Any, i: Any, target: Any, j: Any, size: Any) -> Any:
    def combine(builder: ir.IRBuilder, value: Any, at: Any) -> Any:
        return builder.fadd(load(builder, *at), value)

    return _emit_rows(combine, source, i, target, j, size)


def _emit_dots(typing: Any, x: Any, read: Any, out: Any, count: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        a, b, y = (
            Matrix(context, builder, of, value)
            for of, value in zip(signature.args[:3], args[:3], strict=True)
        )
        row = INT(0)
        for across in (2, 1):

            def heads(h: Any, across: int = across) -> None:
                column = INT(0)
                for down in (4, 2, 1):

                    def tile(j: Any, down: int = down) -> None:
                        lefts = [a.row(builder, builder.add(h, INT(r))) for r in range(across)]
                        rights = [b.row(builder, builder.add(j, INT(r))) for r in range(down)]
                        sums = _products(builder, a, lefts, rights)
                        for r in range(across):
                            end = y.row(builder, builder.add(h, INT(r)))
                            for s in range(down):
                                place = builder.mul(builder.add(j, INT(s)), y.size)
                                total = _total(builder, sums[r * down + s])
                                store(builder, total, builder.add(end, place), y.bits)

                    column = steps(builder, column, down, args[3], tile)

            row = steps(builder, row, across, a.shape[0], heads)
        return context.get_dummy_value()

    return types.void(x, read, out, types.intp), generate


def _products(builder: ir.IRBuilder, of: Any, lefts: list[Any], rights: list[Any]) -> list[Any]:
    """Of every left row with every right one, as vectors yet to be summed."""
    lanes = VECTOR[of.bits]
    vector = ir.VectorType(of.entry, lanes)
    fma = function(builder, f"llvm.fma.v{lanes}f{of.bits}", vector, [vector] * 3)
    entered = builder.block
    loop, done = builder.append_basic_block("columns"), builder.append_basic_block("summed")
    size = builder.mul(of.shape[1], of.size)  # bytes, at least one vector
    builder.branch(loop)
    builder.position_at_end(loop)
    at = builder.phi(INT)
    sums = [builder.phi(vector) for _ in range(len(lefts) * len(rights))]
    xs = [load(builder, builder.add(left, at), vector, of.bits) for left in lefts]
    ys = [load(builder, builder.add(right, at), vector, of.bits) for right in rights]
    pairs = [(x, y) for x in xs for y in ys]
    after = [builder.call(fma, [*p, total]) for p, total in zip(pairs, sums, strict=True)]
    following = builder.add(at, INT(lanes * of.bits // 8))
    at.add_incoming(INT(0), entered)
    at.add_incoming(following, loop)
    for total, value in zip(sums, after, strict=True):
        total.add_incoming(ir.Constant(vector, None), entered)
        total.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed("<", following, size), loop, done)
    builder.position_at_end(done)
    return after


def _total(builder: ir.IRBuilder, value: Any) -> Any:
    """The sum of a vector's numbers, halves added to halves."""
    lanes = value.type.count
    index = ir.IntType(32)
    while lanes > 1:
        lanes //= 2
        nothing = ir.Constant(value.type, ir.Undefined)
        places = ir.VectorType(index, lanes)
        low = ir.Constant(places, list(range(lanes)))
        high = ir.Constant(places, list(range(lanes, 2 * lanes)))
        value = builder.fadd(
            builder.shuffle_vector(value, nothing, low),
            builder.shuffle_vector(value, nothing, high),
        )
    return builder.extract_element(value, index(0))


_multiply: Any = intrinsic(_emit_dots)
_fill: Any = intrinsic(_emit_clear)
_copy: Any = intrinsic(_emit_copy)
_add: Any = intrinsic(_emit_sum)

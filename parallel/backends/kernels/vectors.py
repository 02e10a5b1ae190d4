"""Sums of rows, some columns at a time, in registers from the first entry to the last.

A plain loop writes its sum to memory after every entry, since a compiler cannot know that the rows
it reads are others; so this one is written in LLVM's vectors.  Multiplications and additions are
rounded apart, as in plain loops.  A product of 870,000 entries takes 1.0, 1.5, 2.6 and 6.1 ms at
widths 8, 16, 32 and 64 on one core with AVX-512, float32; a plain loop 3.2, 4.1, 5.3 and 9.6;
torch's sparse CSR 0.9, 1.6, 2.9 and 6.9, but there a slice of the columns may have other bits than
the whole.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core.errors import TypingError
from numba.extending import intrinsic, overload

from ....storage.sparse import Int32

Floats = npt.NDArray[np.floating]

INT = ir.IntType(64)


def sum_entries(
    indices: Int32,  # (nnz,)
    weight: Floats,  # (nnz, h)
    head: int,
    first: int,
    last: int,  # entries [first, last)
    x: Floats,  # (columns, c)
    start: int,
    lanes: int,  # columns [start, start + lanes); a number that stands in the code
    out: Floats,  # out, (rows, c)
    row: int,
) -> None:
    """out[row] = sum of weight[entry, head] x[indices[entry]] in order, in some columns.

    The arrays must be contiguous.
    """
    columns = slice(start, start + lanes)
    out[row, columns] = 0
    for entry in range(first, last):
        out[row, columns] += weight[entry, head] * x[indices[entry], columns]


@overload(sum_entries, inline="always", prefer_literal=True)
def _sum_entries(
    indices: Any,
    weight: Any,
    head: Any,
    first: Any,
    last: Any,
    x: Any,
    start: Any,
    lanes: Any,
    out: Any,
    row: Any,
) -> Callable[..., None]:
    for array in (indices, weight, x, out):
        if array.layout != "C":
            raise TypingError("the arrays of `sum_entries` must be contiguous")

    def of(
        indices: Any,
        weight: Any,
        head: Any,
        first: Any,
        last: Any,
        x: Any,
        start: Any,
        lanes: Any,
        out: Any,
        row: Any,
    ) -> None:
        _sum(indices, weight, x, out, head, first, last, start, row, lanes)

    return of


def _emit_sum(
    typing: Any,
    indices: Any,
    weight: Any,
    x: Any,
    out: Any,
    head: Any,
    first: Any,
    last: Any,
    start: Any,
    row: Any,
    lanes: Any,
) -> Any:
    if not isinstance(lanes, types.IntegerLiteral):
        raise TypingError("`lanes` must be a number that stands in the code")
    vector = ir.VectorType(
        {32: ir.FloatType(), 64: ir.DoubleType()}[x.dtype.bitwidth], lanes.literal_value
    )

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        arrays = [
            context.make_array(of)(context, builder, value)
            for of, value in zip(signature.args[:4], args[:4], strict=True)
        ]
        _emit(builder, vector, x.dtype.bitwidth // 8, arrays, args[4:9])
        return context.get_dummy_value()

    places = [types.intp] * 5
    return types.void(indices, weight, x, out, *places, lanes), generate


_sum: Any = intrinsic(prefer_literal=True)(_emit_sum)


def _emit(builder: ir.IRBuilder, vector: Any, align: int, arrays: Any, places: Any) -> None:
    """The loop over the entries."""
    indices, weight, x, out = arrays
    head, first, last, start, row = places

    def width(array: Any) -> Any:
        return builder.extract_value(array.shape, 1)

    def pointer(array: Any, at: Any, column: Any) -> Any:
        return builder.gep(array.data, [builder.add(builder.mul(at, width(array)), column)])

    def as_vector(address: Any) -> Any:
        return builder.bitcast(address, vector.as_pointer())

    entered = builder.block
    test, inside, done = (builder.append_basic_block(name) for name in ("test", "entry", "sum"))
    builder.branch(test)

    builder.position_at_end(test)
    entry, total = builder.phi(INT), builder.phi(vector)
    builder.cbranch(builder.icmp_signed("<", entry, last), inside, done)

    builder.position_at_end(inside)
    source = builder.sext(builder.load(builder.gep(indices.data, [entry])), INT)
    one = builder.load(pointer(weight, entry, head))
    values = builder.load(as_vector(pointer(x, source, start)), align=align)
    empty = ir.Constant(vector, ir.Undefined)
    first_lane = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None)
    same = builder.shuffle_vector(builder.insert_element(empty, one, INT(0)), empty, first_lane)
    after = builder.fadd(total, builder.fmul(same, values))
    for place, before, following in (
        (entry, first, builder.add(entry, INT(1))),
        (total, ir.Constant(vector, None), after),
    ):
        place.add_incoming(before, entered)
        place.add_incoming(following, inside)
    builder.branch(test)

    builder.position_at_end(done)
    builder.store(total, as_vector(pointer(out, row, start)), align=align)

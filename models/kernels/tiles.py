"""Matrix products at the rate of the machine, whose rows do not depend on what else is computed.

Every entry of a product is one chain of fused multiply-adds over the inputs, in order: a row has
the same bits alone and among a hundred others, which products of a library do not promise.  Tiles
of four rows and 256 bytes of columns stand in registers while the inputs go by.  Compilers do not
find this form by themselves, so it is written in LLVM's vectors; two rows of width 64 run at about
70 multiply-adds a nanosecond on one core with AVX-512, three times the rate of a plain loop.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

Floats = npt.NDArray[np.floating]

ROWS = (4, 2, 1)
LANES = {32: (64, 16, 1), 64: (32, 8, 1)}  # columns of a tile, by the bits of a number
INT = ir.IntType(64)


def widen() -> None:
    """Let the loops of the function that calls this use the machine's widest vectors.

    Compilers hold back from 512 bits, for the sake of processors that slow down under them.
    """


def add_rows(weight: Floats, x: Floats, y: Floats, rows: int) -> None:
    """Add x W to the first `rows` rows of y: x (n, inputs), W (inputs, outputs), y (n, outputs).

    The entries of a row must stand side by side in memory.
    """
    y[:rows] += x[:rows] @ weight


def add_outer(x: Floats, d: Floats, total: Floats, rows: int) -> None:
    """Add x^T d over the first `rows` rows to `total` (inputs, outputs): a weight's gradient."""
    total += x[:rows].T @ d[:rows]


@overload(widen, inline="always")
def _widen() -> Callable[[], None]:
    return lambda: _prefer()


@overload(add_rows)
def _add_rows(weight: Any, x: Any, y: Any, rows: Any) -> Callable[..., None]:
    def of(weight: Any, x: Any, y: Any, rows: Any) -> None:
        _multiply(weight, x, y, rows)

    return of


@overload(add_outer)
def _add_outer(x: Any, d: Any, total: Any, rows: Any) -> Callable[..., None]:
    def of(x: Any, d: Any, total: Any, rows: Any) -> None:
        _multiply_across(d, x, total, rows)

    return of


def _emit_preference(typing: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        # past the check of llvmlite's own set, which knows only attributes without a value
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), generate


def _emit_product(typing: Any, weight: Any, x: Any, y: Any, rows: Any) -> Any:
    """y[r] += sum over c of x[r, c] weight[c], for r below `rows`."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        w, x, y = _matrices(context, builder, signature, args)
        _emit(builder, w, x, y, args[3], w.shape[0], x.stride, w.size)
        return context.get_dummy_value()

    return types.void(weight, x, y, types.intp), generate


def _emit_product_across(typing: Any, weight: Any, x: Any, y: Any, rows: Any) -> Any:
    """y[r] += sum over c of x[c, r] weight[c], for c below `rows`."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        w, x, y = _matrices(context, builder, signature, args)
        _emit(builder, w, x, y, x.shape[1], args[3], w.size, x.stride)
        return context.get_dummy_value()

    return types.void(weight, x, y, types.intp), generate


_prefer: Any = intrinsic(_emit_preference)
_multiply: Any = intrinsic(_emit_product)
_multiply_across: Any = intrinsic(_emit_product_across)


def _matrices(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
    pairs = zip(signature.args[:3], args[:3], strict=True)
    return [_Matrix(context, builder, *pair) for pair in pairs]


class _Matrix:
    """Where the rows of an array (rows, columns) stand; addresses are integers, in bytes."""

    def __init__(self, context: Any, builder: ir.IRBuilder, of: Any, value: Any) -> None:
        array = context.make_array(of)(context, builder, value)
        self.start = builder.ptrtoint(array.data, INT)
        self.shape = _pair(builder, array.shape)
        self.stride = _pair(builder, array.strides)[0]
        self.size = INT(of.dtype.bitwidth // 8)
        self.entry = context.get_data_type(of.dtype)
        self.bits = of.dtype.bitwidth


def _pair(builder: ir.IRBuilder, values: Any) -> Any:
    return [builder.extract_value(values, place) for place in range(2)]


def _emit(
    builder: ir.IRBuilder,
    weight: _Matrix,
    x: _Matrix,
    y: _Matrix,
    rows: Any,
    inputs: Any,
    row_step: Any,  # bytes from a row of the product to the next, in x
    input_step: Any,  # bytes from an input to the next, in x
) -> None:
    """The loops over all tiles: columns by the widest tile that fits, then rows likewise."""
    column = INT(0)
    for lanes in LANES[weight.bits]:

        def strip(o: Any, lanes: int = lanes) -> None:
            across = builder.mul(o, weight.size)
            row = INT(0)
            for height in ROWS:

                def tile(r: Any, height: int = height) -> None:
                    at_y = builder.add(builder.add(y.start, across), builder.mul(r, y.stride))
                    at_x = builder.add(x.start, builder.mul(r, row_step))
                    at_w = builder.add(weight.start, across)
                    ends = [builder.add(at_y, builder.mul(INT(j), y.stride)) for j in range(height)]
                    starts = [
                        builder.add(at_x, builder.mul(INT(j), row_step)) for j in range(height)
                    ]
                    _emit_tile(
                        *(builder, weight.entry, weight.bits, lanes, ends, starts, at_w),
                        *(weight.stride, input_step, inputs),
                    )

                row = _steps(builder, row, height, rows, tile)

        column = _steps(builder, column, lanes, weight.shape[1], strip)


def _emit_tile(
    builder: ir.IRBuilder,
    entry: Any,
    bits: int,
    lanes: int,
    ends: list[Any],  # where the rows of the tile stand in y
    starts: list[Any],  # where their inputs begin in x
    weight: Any,
    weight_step: Any,
    input_step: Any,
    inputs: Any,
) -> None:
    """One tile: its rows stand in registers while the inputs go by."""
    vector, align = ir.VectorType(entry, lanes), bits // 8
    name = f"llvm.fma.v{lanes}f{bits}"
    fma = builder.module.globals.get(name)
    if fma is None:
        fma = ir.Function(builder.module, ir.FunctionType(vector, [vector] * 3), name)

    def load(address: Any, of: Any) -> Any:
        return builder.load(builder.inttoptr(address, of.as_pointer()), align=align)

    before = [load(end, vector) for end in ends]
    entered = builder.block
    loop, done = builder.append_basic_block("inputs"), builder.append_basic_block("tile")
    builder.cbranch(builder.icmp_signed(">", inputs, INT(0)), loop, done)

    builder.position_at_end(loop)
    count, at_w, at_x = builder.phi(INT), builder.phi(INT), builder.phi(INT)
    sums = [builder.phi(vector) for _ in ends]
    row = load(at_w, vector)
    first = ir.Constant(ir.VectorType(ir.IntType(32), lanes), None)
    after = []
    for start, total in zip(starts, sums, strict=True):
        one = builder.insert_element(
            ir.Constant(vector, ir.Undefined), load(builder.add(start, at_x), entry), INT(0)
        )
        same = builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), first)
        after.append(builder.call(fma, [same, row, total]))
    steps = [(count, INT(0), INT(1)), (at_w, weight, weight_step), (at_x, INT(0), input_step)]
    for place, start, step in steps:
        place.add_incoming(start, entered)
        place.add_incoming(builder.add(place, step), loop)
    for total, start, value in zip(sums, before, after, strict=True):
        total.add_incoming(start, entered)
        total.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed("<", builder.add(count, INT(1)), inputs), loop, done)

    builder.position_at_end(done)
    results = [builder.phi(vector) for _ in ends]
    for result, start, value in zip(results, before, after, strict=True):
        result.add_incoming(start, entered)
        result.add_incoming(value, loop)
    for result, end in zip(results, ends, strict=True):
        builder.store(result, builder.inttoptr(end, vector.as_pointer()), align=align)


def _steps(
    builder: ir.IRBuilder, start: Any, step: int, stop: Any, body: Callable[[Any], None]
) -> Any:
    """`body` of start, start + step, ... while a whole step fits before `stop`; where it ended."""
    entered = builder.block
    test, inside, after = (builder.append_basic_block(name) for name in ("test", "step", "after"))
    builder.branch(test)
    builder.position_at_end(test)
    at = builder.phi(INT)
    at.add_incoming(start, entered)
    following = builder.add(at, INT(step))
    builder.cbranch(builder.icmp_signed("<=", following, stop), inside, after)
    builder.position_at_end(inside)
    body(at)
    at.add_incoming(following, builder.block)
    builder.branch(test)
    builder.position_at_end(after)
    return at

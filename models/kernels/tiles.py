"""Matrix products at the rate of the machine, whose rows do not depend on what else is computed.

Every entry of a product is one chain of fused multiply-adds over the inputs, in order: a row has
the same bits alone and among a hundred others, which products of a library do not promise.  Tiles
of eight rows and 128 bytes of columns, or four and 256, stand in registers while the inputs go by.
Compilers do not find this form by themselves, so it is written in LLVM's vectors; 32 rows run at 75
to 90 multiply-adds a nanosecond on one core with AVX-512, three times the rate of a plain loop.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

Floats = npt.NDArray[np.floating]

# rows of tiles and their columns, by the bits of a number: eight rows first, then what is left
BANDS = {
    32: (((8,), (32, 16, 4, 1)), ((4, 2, 1), (64, 32, 16, 1))),
    64: (((8,), (16, 8, 4, 1)), ((4, 2, 1), (32, 16, 8, 1))),
}
INT = ir.IntType(64)
UNCOUNTED: dict[str, Any] = {"_nrt": False}
"""Of loops that make no arrays: parts of arrays are taken without counting who refers to them."""
WIDE = '"prefer-vector-width"="512"'


def widen() -> None:
    """Let the loops of the function that calls this use the machine's widest vectors.

    Compilers hold back from 512 bits, for the sake of processors that slow down under them.
    """


def add_rows(weight: Floats, x: Floats, y: Floats, rows: int) -> None:
    """Add x W to the first `rows` rows of y: x (n, inputs), W (inputs, outputs), y (n, outputs).

    The entries of a row must stand side by side in memory.  Of x and y the first columns are taken
    if they have more.
    """
    inputs, outputs = weight.shape
    y[:rows, :outputs] += x[:rows, :inputs] @ weight


def add_outer(x: Floats, d: Floats, total: Floats, rows: int) -> None:
    """Add x^T d over the first `rows` rows to `total` (inputs, outputs): a weight's gradient.

    It may have more rows and columns.
    """
    total[: x.shape[1], : d.shape[1]] += x[:rows].T @ d[:rows]


def set_rows(weight: Floats, x: Floats, y: Floats, rows: int) -> None:
    """The same product as `add_rows`, in place of what stood there."""
    y[:rows, : weight.shape[1]] = x[:rows, : len(weight)] @ weight


def set_outer(x: Floats, d: Floats, total: Floats, rows: int) -> None:
    """The same product as `add_outer`, in place of what stood there."""
    total[: x.shape[1], : d.shape[1]] = x[:rows].T @ d[:rows]


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


@overload(set_rows)
def _set_rows(weight: Any, x: Any, y: Any, rows: Any) -> Callable[..., None]:
    def of(weight: Any, x: Any, y: Any, rows: Any) -> None:
        _multiply_anew(weight, x, y, rows)

    return of


@overload(set_outer)
def _set_outer(x: Any, d: Any, total: Any, rows: Any) -> Callable[..., None]:
    def of(x: Any, d: Any, total: Any, rows: Any) -> None:
        _multiply_across_anew(d, x, total, rows)

    return of


def _emit_preference(typing: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        # past the check of llvmlite's own set, which knows only attributes without a value
        set.add(builder.function.attributes, WIDE)
        return context.get_dummy_value()

    return types.void(), generate


def _emit_product(anew: bool, weight: Any, x: Any, y: Any) -> Any:
    """y[r] += sum over c of x[r, c] weight[c], for r below `rows`; or is that sum, `anew`."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        w, x, y = _matrices(context, builder, signature, args)
        _emit(builder, w, x, y, args[3], w.shape[0], x.stride, w.size, anew)
        return context.get_dummy_value()

    return types.void(weight, x, y, types.intp), generate


def _emit_product_across(anew: bool, weight: Any, x: Any, y: Any) -> Any:
    """y[r] += sum over c of x[c, r] weight[c], for c below `rows`; or is that sum, `anew`."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        w, x, y = _matrices(context, builder, signature, args)
        _emit(builder, w, x, y, x.shape[1], args[3], w.size, x.stride, anew)
        return context.get_dummy_value()

    return types.void(weight, x, y, types.intp), generate


def _emit_sum(typing: Any, weight: Any, x: Any, y: Any, rows: Any) -> Any:
    return _emit_product(False, weight, x, y)


def _emit_anew(typing: Any, weight: Any, x: Any, y: Any, rows: Any) -> Any:
    return _emit_product(True, weight, x, y)


def _emit_sum_across(typing: Any, weight: Any, x: Any, y: Any, rows: Any) -> Any:
    return _emit_product_across(False, weight, x, y)


def _emit_anew_across(typing: Any, weight: Any, x: Any, y: Any, rows: Any) -> Any:
    return _emit_product_across(True, weight, x, y)


_prefer: Any = intrinsic(_emit_preference)
_multiply: Any = intrinsic(_emit_sum)
_multiply_anew: Any = intrinsic(_emit_anew)
_multiply_across: Any = intrinsic(_emit_sum_across)
_multiply_across_anew: Any = intrinsic(_emit_anew_across)


def _matrices(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
    pairs = zip(signature.args[:3], args[:3], strict=True)
    return [Matrix(context, builder, *pair) for pair in pairs]


class Matrix:
    """Where the rows of an array (rows, columns) stand; addresses are integers, in bytes."""

    def __init__(self, context: Any, builder: ir.IRBuilder, of: Any, value: Any) -> None:
        array = context.make_array(of)(context, builder, value)
        self.start = builder.ptrtoint(array.data, INT)
        self.shape = _pair(builder, array.shape)
        self.stride = _pair(builder, array.strides)[0]
        self.size = INT(of.dtype.bitwidth // 8)
        self.entry = context.get_data_type(of.dtype)
        self.bits = of.dtype.bitwidth

    def row(self, builder: ir.IRBuilder, i: Any) -> Any:
        """The address of a row."""
        return builder.add(self.start, builder.mul(i, self.stride))


def _pair(builder: ir.IRBuilder, values: Any) -> Any:
    return [builder.extract_value(values, place) for place in range(2)]


def _emit(
    builder: ir.IRBuilder,
    weight: Matrix,
    x: Matrix,
    y: Matrix,
    rows: Any,
    inputs: Any,
    row_step: Any,  # bytes from a row of the product to the next, in x
    input_step: Any,  # bytes from an input to the next, in x
    anew: bool,
) -> None:
    """The loops of a product of these matrices."""
    # in place: as a function of its own, called with addresses, it left wrong gradients in kernels
    # that are compiled without reference counting
    sizes = rows, weight.shape[1], inputs
    strides = y.stride, row_step, input_step, weight.stride
    _emit_loops(
        builder, weight.entry, weight.bits, y.start, x.start, weight.start, *sizes, *strides, anew
    )


def _emit_loops(
    builder: ir.IRBuilder,
    entry: Any,
    bits: int,
    y: Any,  # addresses
    x: Any,
    weight: Any,
    rows: Any,
    columns: Any,
    inputs: Any,
    y_step: Any,  # bytes
    row_step: Any,
    input_step: Any,
    weight_step: Any,
    anew: bool,
) -> None:
    """The loops over all tiles: rows by the bands, in each columns by the widest tile that fits."""
    begin = INT(0)
    for heights, widths in BANDS[bits]:
        stop = rows if 1 in heights else builder.and_(rows, INT(-heights[0]))
        column = INT(0)
        for lanes in widths:

            def strip(o: Any, lanes: int = lanes, band: Any = (heights, begin, stop)) -> None:
                across = builder.mul(o, INT(bits // 8))
                heights, row, stop = band
                for height in heights:

                    def tile(r: Any, height: int = height) -> None:
                        at_y = builder.add(builder.add(y, across), builder.mul(r, y_step))
                        at_x = builder.add(x, builder.mul(r, row_step))
                        ends, starts = (
                            [builder.add(at, builder.mul(INT(j), step)) for j in range(height)]
                            for at, step in ((at_y, y_step), (at_x, row_step))
                        )
                        _emit_tile(
                            *(builder, entry, bits, lanes, ends, starts),
                            *(builder.add(weight, across), weight_step, input_step, inputs, anew),
                        )

                    row = steps(builder, row, height, stop, tile)

            column = steps(builder, column, lanes, columns, strip)
        begin = stop


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
    anew: bool,
) -> None:
    """One tile: its rows stand in registers while the inputs go by."""
    vector = ir.VectorType(entry, lanes)
    fma = function(builder, f"llvm.fma.v{lanes}f{bits}", vector, [vector] * 3)
    nothing = ir.Constant(vector, None)
    before = [nothing if anew else load(builder, end, vector, bits) for end in ends]
    entered = builder.block
    loop, done = builder.append_basic_block("inputs"), builder.append_basic_block("tile")
    builder.cbranch(builder.icmp_signed(">", inputs, INT(0)), loop, done)

    builder.position_at_end(loop)
    count, at_w, at_x = builder.phi(INT), builder.phi(INT), builder.phi(INT)
    sums = [builder.phi(vector) for _ in ends]
    row = load(builder, at_w, vector, bits)
    after = []
    for start, total in zip(starts, sums, strict=True):
        one = load(builder, builder.add(start, at_x), entry, bits)
        after.append(builder.call(fma, [splat(builder, one, lanes), row, total]))
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
        store(builder, result, end, bits)


def load(builder: ir.IRBuilder, address: Any, of: Any, bits: int) -> Any:
    """The number or vector at an address."""
    return builder.load(builder.inttoptr(address, of.as_pointer()), align=bits // 8)


def store(builder: ir.IRBuilder, value: Any, address: Any, bits: int) -> None:
    """Put a number or vector at an address."""
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=bits // 8)


def splat(builder: ir.IRBuilder, value: Any, lanes: int) -> Any:
    """A vector of the same number."""
    nothing = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    first = ir.Constant(ir.VectorType(ir.IntType(32), lanes), None)
    return builder.shuffle_vector(builder.insert_element(nothing, value, INT(0)), nothing, first)


def function(builder: ir.IRBuilder, name: str, result: Any, given: list[Any]) -> Any:
    """One of LLVM's own functions."""
    found = builder.module.globals.get(name)
    return found or ir.Function(builder.module, ir.FunctionType(result, given), name)


def steps(
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

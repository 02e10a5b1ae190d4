"""Transposes in blocks of eight rows and columns, which stand in registers while they are turned.

Three times, vector i is interleaved with vector i + 4: each time the eight bits of an entry's
place, row before column, turn by one.  A plain loop would take one entry at a time.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from .tiles import INT, Matrix, load, steps, store

Floats = npt.NDArray[np.floating]
BLOCK = 8


def turn(source: Floats, target: Floats) -> None:
    """target[:columns, :rows] = source^T, of source (rows, columns)."""
    target[: source.shape[1], : source.shape[0]] = source.T


def add_turned(source: Floats, target: Floats) -> None:
    """target[:columns, :rows] += source^T, of source (rows, columns)."""
    target[: source.shape[1], : source.shape[0]] += source.T


@overload(turn)
def _turn(source: Any, target: Any) -> Callable[..., None]:
    def of(source: Any, target: Any) -> None:
        rows, columns = source.shape
        whole = rows - rows % BLOCK
        _turn_blocks(source, target)
        for r in range(rows):
            for c in range(columns - columns % BLOCK if r < whole else 0, columns):
                target[c, r] = source[r, c]

    return of


@overload(add_turned)
def _add_turned(source: Any, target: Any) -> Callable[..., None]:
    def of(source: Any, target: Any) -> None:
        rows, columns = source.shape
        whole = rows - rows % BLOCK
        _add_blocks(source, target)
        for r in range(rows):
            for c in range(columns - columns % BLOCK if r < whole else 0, columns):
                target[c, r] += source[r, c]

    return of


def _emit(adds: bool, source: Any, target: Any) -> Any:
    """All whole blocks."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        a, b = (Matrix(context, builder, *pair) for pair in zip(signature.args, args, strict=True))
        vector = ir.VectorType(a.entry, BLOCK)
        index = ir.VectorType(ir.IntType(32), BLOCK)
        mixed = [i // 2 + BLOCK * (i % 2) for i in range(2 * BLOCK)]
        low, high = (ir.Constant(index, mixed[at : at + BLOCK]) for at in (0, BLOCK))

        def rows(r: Any) -> None:
            def columns(c: Any) -> None:
                across = builder.mul(c, a.size)
                places = [builder.add(r, INT(i)) for i in range(BLOCK)]
                found = [
                    load(builder, builder.add(a.row(builder, place), across), vector, a.bits)
                    for place in places
                ]
                for _ in range(3):
                    pairs = [(found[i], found[i + BLOCK // 2]) for i in range(BLOCK // 2)]
                    found = [
                        builder.shuffle_vector(*pair, part)
                        for pair in pairs
                        for part in (low, high)
                    ]
                down = builder.mul(r, b.size)
                for i, value in enumerate(found):
                    end = builder.add(b.row(builder, builder.add(c, INT(i))), down)
                    if adds:
                        value = builder.fadd(load(builder, end, vector, b.bits), value)
                    store(builder, value, end, b.bits)

            steps(builder, INT(0), BLOCK, a.shape[1], columns)

        steps(builder, INT(0), BLOCK, a.shape[0], rows)
        return context.get_dummy_value()

    return types.void(source, target), generate


def _emit_turn(typing: Any, source: Any, target: Any) -> Any:
    return _emit(False, source, target)


def _emit_sum(typing: Any, source: Any, target: Any) -> Any:
    return _emit(True, source, target)


_turn_blocks: Any = intrinsic(_emit_turn)
_add_blocks: Any = intrinsic(_emit_sum)

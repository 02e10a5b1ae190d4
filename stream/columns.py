"""Columns of ids, kinds, weights, labels and features, parsed all at once.

Invariant: what cannot be a value is marked in `bad`, never dropped or replaced; the caller decides
what becomes of its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .errors import LogError
from .events import Bool, Float32, Float64, Int64, UInt8
from .sources import is_text

INTEGER = r"^(0|-?[1-9]\d*)$"
WHOLE_FLOAT = r"^(0|-?[1-9]\d*)(\.0*)?([eE]\+?\d+)?$"
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
NO_VALUE = r"(?i)^(nan|na|n/a|null|none|<na>)?$"
EXACT = 2.0**53  # floats up to here tell whole numbers apart


@dataclass(frozen=True, slots=True)
class Ids:
    """Columns of ids in one type, int64 or text; `bad` marks what is missing."""

    columns: list[pa.Array]
    bad: list[Bool]


def parse_ids(columns: Sequence[pa.Array]) -> Ids:
    """The ids of several columns, as int64 if all of them are whole numbers, else as text.

    Whole numbers may be written 5 or 5.0; a text with leading zeros (007) is no number, since the
    id could not be given back.  Missing are empty values and, among numbers, nan, null and the
    like.
    """
    ints = [_int_ids(column) for column in columns]
    if all(column is not None for column in ints):
        both = [column for column in ints if column is not None]
        bad = [_mask(column.is_null()) for column in both]
        return Ids([column.fill_null(0) for column in both], bad)
    texts = [column if is_text(column) else column.cast(pa.string()) for column in columns]
    texts = [pc.fill_null(column, "").cast(pa.string()) for column in texts]
    return Ids(texts, [_mask(pc.equal(column, "")) for column in texts])


def _int_ids(column: pa.Array) -> pa.Array | None:
    """The column as int64, null where the id is missing, or None if it is not one of numbers."""
    if pa.types.is_null(column.type):
        return column.cast(pa.int64())
    try:
        if pa.types.is_integer(column.type):
            return column.cast(pa.int64())
        if is_text(column):
            if _all_match(column, INTEGER):
                return column.cast(pa.int64())
            missing = pc.match_substring_regex(column, NO_VALUE)
            column = pc.if_else(missing, pa.scalar(None, column.type), column)
            if column.null_count == len(column) or not _all_match(column, WHOLE_FLOAT):
                return None
            if _all_match(column, INTEGER):
                return column.cast(pa.int64())
            column = column.cast(pa.float64())
    except pa.ArrowInvalid:  # beyond int64
        return None
    if not pa.types.is_floating(column.type):
        return None
    column = column.cast(pa.float64())
    column = pc.if_else(pc.is_nan(column), pa.scalar(None, pa.float64()), column)
    values = column.fill_null(0.0).to_numpy(zero_copy_only=False)
    if not ((values == np.rint(values)) & (np.abs(values) < EXACT)).all():
        return None
    return column.cast(pa.int64())


def _all_match(column: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(column, pattern), min_count=0).as_py())


def _mask(column: pa.Array) -> Bool:
    mask: Bool = column.to_numpy(zero_copy_only=False).astype(np.bool_)
    return mask


def keep_apart(users: Sequence[pa.Array], items: Sequence[pa.Array]) -> tuple[list[pa.Array], str]:
    """The ids of items, so that none is a user's, and a note that says how.

    Whole numbers are shifted by the largest user's id plus one: items are numbered after the
    users, as the published sets do.  Texts, only if one is a user's and an item's, become
    "item:..." (users keep theirs).
    """
    if pa.types.is_integer(users[0].type):
        most = max((pc.max(column).as_py() for column in users if len(column)), default=-1)
        least = min((pc.min(column).as_py() for column in items if len(column)), default=0)
        last = max((pc.max(column).as_py() for column in items if len(column)), default=0)
        shift = most + 1 - min(0, least)
        if last + shift < 2**63:
            moved = [pc.add(column, pa.scalar(shift, pa.int64())) for column in items]
            return moved, f"users and items are apart: item i has the id i + {shift}"
        raise LogError("ids of users are too large to number the items after them")
    known = pc.unique(pa.concat_arrays(users))
    shared = any(pc.any(pc.is_in(column, known)).as_py() for column in items)
    if not shared:
        return list(items), ""
    moved = [pc.binary_join_element_wise("item:", column, "") for column in items]
    if any(pc.any(pc.is_in(column, known)).as_py() for column in moved):
        raise LogError('ids of users start with "item:", so items cannot be told apart from them')
    return moved, 'users and items are apart: item i has the id "item:i"'


def as_text(column: pa.Array) -> tuple[pa.Array, Bool]:
    """A column as text, and where it has no value."""
    if pa.types.is_floating(column.type):
        whole = _int_ids(column)
        column = column if whole is None else whole
    column = pc.fill_null(column.cast(pa.string()), "")
    return column, _mask(pc.equal(column, ""))


def parse_kinds(column: pa.Array) -> tuple[UInt8, tuple[str, ...]]:
    """The code of each text and the texts, in order of first appearance.

    Raises:
        LogError: if there are more than 256.
    """
    encoded = column.dictionary_encode()
    kinds = tuple(encoded.dictionary.to_pylist())
    if len(kinds) > 256:
        raise LogError(
            f"at most 256 kinds of event are supported, the column has {len(kinds)}; name another "
            "column, or none with ",
            kind='""',
        )
    codes: UInt8 = encoded.indices.to_numpy(zero_copy_only=False).astype(np.uint8)
    return codes, kinds


def parse_floats(column: pa.Array) -> tuple[Float64, Bool]:
    """A column as float64, and where it is not a finite number."""
    if is_text(column):
        fits = pc.match_substring_regex(column, NUMBER)
        column = pc.if_else(fits, column, pa.scalar(None, column.type))
    elif not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        column = column.cast(pa.string())
        return parse_floats(column)
    values = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return values, ~np.isfinite(values)


def parse_labels(column: pa.Array) -> tuple[Int64, Bool]:
    """A column as int64, and where it is not a whole number."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if pa.types.is_integer(column.type) and not column.null_count:
        return column.cast(pa.int64()).to_numpy(), np.zeros(len(column), np.bool_)
    values, bad = parse_floats(column)
    with np.errstate(invalid="ignore"):
        bad = bad | (values != np.rint(values)) | (np.abs(values) >= EXACT)
    return np.where(bad, 0, values).astype(np.int64), bad


def stack_features(columns: Sequence[pa.Array]) -> tuple[Float32, list[Bool]]:
    """Columns as one float32 matrix, and where each is not a finite number."""
    matrix = np.empty((len(columns[0]), len(columns)), np.float32)
    bad = []
    for place, column in enumerate(columns):
        if pa.types.is_float32(column.type) and not column.null_count:
            matrix[:, place] = column.to_numpy()
        else:
            values, _ = parse_floats(column)
            with np.errstate(over="ignore"):
                matrix[:, place] = values
        bad.append(~np.isfinite(matrix[:, place]))
    return matrix, bad

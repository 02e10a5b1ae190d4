"""Columns of times to int64 ticks of a named unit.

Invariant: order and distinctness of the times in the source are kept, or there is an error; a
float32 or float64 never stores a time.  Numbers are ticks of the unit that the caller names, else
of the one their size suggests; a fraction takes the next finer unit that holds it.  Dates without
an offset are UTC.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .errors import LogError
from .events import Bool, Float64, Int64, TimeUnit
from .sources import is_text

UNITS: tuple[TimeUnit, ...] = ("s", "ms", "us", "ns")  # each a thousandth of the one before
SIZES = (1e11, 1e14, 1e17)  # medians below are seconds, ms, us: 5138 in seconds, 1973 in ms
LAST = 2**63 - 1

WHOLE = r"^[+-]?\d+$"
DECIMAL = r"^[+-]?(\d+\.?\d*|\.\d+)$"
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
DATE = r"^\d{4}[-/]\d\d?[-/]\d\d?([T ].*)?$"
OFFSET = r":\d\d(\.\d+)?(Z|[+-]\d\d(:?\d\d)?)$"


@dataclass(frozen=True, slots=True)
class Times:
    """A column of times, parsed; `ticks` mean nothing where `bad` is true."""

    ticks: Int64  # (n,)
    unit: TimeUnit
    bad: Bool | None = None  # (n,) values that are no times; None: there are none
    notes: tuple[str, ...] = ()


def parse_times(column: pa.Array, unit: TimeUnit | None = None) -> Times:
    """The ticks of a column of ints, floats, timestamps or texts of numbers or ISO dates.

    `unit` is the unit of numbers and, for dates, the unit to give; without it, numbers are seconds
    unless their median is 10^11 or more (ms), 10^14 (us), 10^17 (ns), and dates take the coarsest
    unit that holds them all.

    Raises:
        LogError: if times would become equal, or do not fit `unit` or int64.
    """
    if column.null_count == len(column) and len(column):
        return Times(np.zeros(len(column), np.int64), unit or "s", np.ones(len(column), np.bool_))
    kind = column.type
    if pa.types.is_decimal(kind):
        column = column.cast(pa.string())
    if is_text(column):
        return _texts(column, unit)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        fine = kind.unit if pa.types.is_timestamp(kind) else "s"
        ticks = column.cast(pa.timestamp(fine)).cast(pa.int64())
        return _dates(_filled(ticks), UNITS.index(fine), unit, _nulls(column), ())
    if pa.types.is_floating(kind):
        values = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
        times = _floats(values, unit)
        if pa.types.is_float64(kind):
            return times
        note = f"the source holds times as {kind}, which may have merged some of them"
        return replace(times, notes=(*times.notes, note))
    if pa.types.is_integer(kind):
        if pa.types.is_uint64(kind):
            return _texts(column.cast(pa.string()), unit)
        return _whole(_filled(column.cast(pa.int64())), unit, _nulls(column))
    if pa.types.is_null(kind):
        return Times(np.empty(0, np.int64), unit or "s")
    raise LogError(f"times must be numbers, dates or texts of them: got a column of {kind}")


def _texts(column: pa.Array, unit: TimeUnit | None) -> Times:
    ways: list[tuple[str, Callable[[pa.Array, TimeUnit | None], Times]]]
    ways = [(WHOLE, _whole_texts), (DECIMAL, _decimals), (NUMBER, _number_texts), (DATE, _iso)]
    fits = []
    for pattern, parse in ways:
        match = pc.match_substring_regex(column, pattern).fill_null(False)
        fits.append(match.to_numpy(zero_copy_only=False))
        if fits[-1].all():
            return parse(column, unit)
    if fits[2].sum() >= fits[3].sum():
        return Times(np.zeros(len(column), np.int64), unit or "s", ~fits[2])
    return Times(np.zeros(len(column), np.int64), unit or "s", ~fits[3])


def _whole_texts(column: pa.Array, unit: TimeUnit | None) -> Times:
    column = pc.utf8_ltrim(column, "+")
    try:
        return _whole(_filled(column.cast(pa.int64())), unit)
    except pa.ArrowInvalid:
        bad = [not -LAST <= int(text) <= LAST for text in column.to_pylist()]
        return Times(np.zeros(len(column), np.int64), unit or "s", np.array(bad))


def _whole(ticks: Int64, unit: TimeUnit | None, bad: Bool | None = None) -> Times:
    unit, notes = _unit_of(ticks, unit)
    return Times(ticks, unit, bad, notes)


def _decimals(column: pa.Array, unit: TimeUnit | None) -> Times:
    """Texts like -12.5, exactly: float64 would blur nanoseconds."""
    minus = pc.starts_with(column, "-").to_numpy(zero_copy_only=False)
    column = pc.utf8_ltrim(column, "+-")
    whole = pc.replace_substring_regex(column, r"^\.", "0.")
    whole = pc.replace_substring_regex(whole, r"\..*$", "")
    part = pc.utf8_rtrim(pc.replace_substring_regex(column, r"^\d*\.?", ""), "0")
    digits = pc.max(pc.utf8_length(part)).as_py() or 0
    try:
        high = whole.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        bad = [int(text) > LAST for text in whole.to_pylist()]
        return Times(np.zeros(len(column), np.int64), unit or "s", np.array(bad))
    unit, notes = _unit_of(high, unit)
    if digits == 0:
        return Times(np.where(minus, -high, high), unit, None, notes)
    levels = min(-(-digits // 3), _finer(unit))
    if digits > 3 * levels:
        return _floats(column.cast(pa.float64()).to_numpy() * np.where(minus, -1, 1), unit)
    scale = 1000**levels
    bad = high >= LAST // scale
    low = pc.utf8_rpad(part, 3 * levels, "0").cast(pa.int64()).to_numpy()
    ticks = np.where(bad, 0, high) * scale + low
    fine = UNITS[UNITS.index(unit) + levels]
    return Times(np.where(minus, -ticks, ticks), fine, bad if bad.any() else None, notes)


def _number_texts(column: pa.Array, unit: TimeUnit | None) -> Times:
    return _floats(column.cast(pa.float64()).to_numpy(), unit)


def _floats(values: Float64, unit: TimeUnit | None) -> Times:
    """Floats: whole ones as they are, others in the unit that gives the same float back."""
    bad = ~(np.abs(values) < 2.0**63)  # nan and infinities too
    if bad.any():
        return Times(np.zeros(len(values), np.int64), unit or "s", bad)
    unit, notes = _unit_of(values, unit)
    if (values == np.rint(values)).all():
        return Times(values.astype(np.int64), unit, None, notes)
    ticks: Int64 = np.empty(0, np.int64)
    for level in range(_finer(unit) + 1):
        fine, scale = UNITS[UNITS.index(unit) + level], 1000.0**level
        bad = np.abs(values) * scale >= 2.0**63
        if bad.any():
            break
        ticks = np.rint(values * scale).astype(np.int64)
        if (ticks / scale == values).all():
            return Times(ticks, fine, None, notes)
    if bad.any():
        return Times(ticks, unit, bad, notes)
    if len(np.unique(ticks)) != len(np.unique(values)):
        raise LogError(
            f"times differ by less than one {fine}, the finest unit that is left, and would "
            "become equal; multiply them, or round them in the source"
        )
    note = f"times are rounded to whole {fine}; their order and distinctness are kept"
    return Times(ticks, fine, None, (*notes, note))


def _finer(unit: TimeUnit) -> int:
    """How many units are finer."""
    if unit == "step":
        raise LogError("times counted in steps must be whole numbers; name another `unit`")
    return len(UNITS) - 1 - UNITS.index(unit)


def _unit_of(values: Any, unit: TimeUnit | None) -> tuple[TimeUnit, tuple[str, ...]]:
    """The unit of numbers: the caller's, else the one their size suggests."""
    if unit is not None or not len(values):
        return unit or "s", ()
    median = float(np.median(np.abs(values.astype(np.float64))))
    place = int(np.searchsorted(SIZES, median, side="right"))
    if place == 0:
        return "s", ()
    note = f"times of about {median:.0e} are taken as {UNITS[place]} by their size"
    return UNITS[place], (note,)


def _iso(column: pa.Array, unit: TimeUnit | None) -> Times:
    try:
        ticks = column.cast(pa.timestamp("ns"))
        return _dates(_filled(ticks.cast(pa.int64())), 3, unit, None, ("naive",))
    except pa.ArrowInvalid:
        pass
    column = pc.replace_substring_regex(column, r"^(\d{4})/(\d\d?)/", r"\1-\2-")
    column = pc.replace_substring_regex(column, r"^(\d{4})-(\d)-", r"\1-0\2-")
    column = pc.replace_substring_regex(column, r"^(\d{4}-\d\d)-(\d)([T ]|$)", r"\1-0\2\3")
    column = pc.replace_substring_regex(column, r"\s*(UTC|GMT|Z|z)$", "Z")
    column = pc.replace_substring_regex(column, r"(\d)\s+([+-]\d\d(:?\d\d)?)$", r"\1\2")
    offset = pc.match_substring_regex(column, OFFSET)
    with_offset, naive = column.filter(offset), column.filter(pc.invert(offset))
    has_offset = offset.to_numpy(zero_copy_only=False)
    for fine in ("ns", "us"):
        try:
            there = with_offset.cast(pa.timestamp(fine, "UTC")).cast(pa.int64())
            here = naive.cast(pa.timestamp(fine)).cast(pa.int64())
        except pa.ArrowInvalid:
            continue
        ticks = np.empty(len(column), np.int64)
        ticks[has_offset], ticks[~has_offset] = there.to_numpy(), here.to_numpy()
        notes = ("naive",) if len(naive) else ()
        return _dates(ticks, UNITS.index(fine), unit, None, notes)
    bad = np.zeros(len(column), np.bool_)
    for mask, values, zone in ((has_offset, with_offset, "UTC"), (~has_offset, naive, None)):
        rows = np.flatnonzero(mask)
        bad[rows[_not_dates(values, zone)]] = True
    if not bad.any():
        raise LogError("dates before 1678 or after 2261 cannot stand beside nanoseconds")
    return Times(np.zeros(len(column), np.int64), unit or "s", bad)


def _not_dates(values: pa.Array, zone: str | None) -> list[int]:
    """The rows that are no dates, found by halving."""
    for fine in ("ns", "us"):
        try:
            values.cast(pa.timestamp(fine, zone))
            return []
        except pa.ArrowInvalid:
            pass
    if len(values) == 1:
        return [0]
    half = len(values) // 2
    rest = _not_dates(values.slice(half), zone)
    return _not_dates(values.slice(0, half), zone) + [half + row for row in rest]


def _dates(
    ticks: Int64, place: int, unit: TimeUnit | None, bad: Bool | None, notes: tuple[str, ...]
) -> Times:
    """Instants in `unit`, or in the coarsest unit that holds them all."""
    if unit == "step":
        raise LogError("dates have no steps: `unit` must be s, ms, us or ns")
    while place > 0 and (ticks % 1000 == 0).all():
        ticks, place = ticks // 1000, place - 1
    aim = place if unit is None else UNITS.index(unit)
    if aim < place:
        raise LogError(f"dates have parts of a second that `unit` {unit} does not hold")
    scale = 1000 ** (aim - place)
    if len(ticks) and int(np.abs(ticks).max()) > LAST // scale:
        raise LogError(f"dates lie too far from 1970 to count in {unit}")
    said = ("times without an offset are taken as UTC",) if notes else ()
    return Times(ticks * scale, UNITS[aim], bad, said)


def _filled(column: pa.Array) -> Int64:
    filled: Int64 = column.fill_null(0).to_numpy()
    return filled


def _nulls(column: pa.Array) -> Bool | None:
    return column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None

"""Times keep their order and distinctness in int64, whatever they look like."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neutronstream.stream import EventLog, LogError, read_log
from neutronstream.stream.times import parse_times

TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def ticks(values: Any, unit: Any = None, kind: Any = None) -> tuple[list[int], str]:
    times = parse_times(pa.array(values, kind), unit)
    assert times.bad is None or not times.bad.any()
    assert times.ticks.dtype == np.int64
    return times.ticks.tolist(), times.unit


def test_whole_numbers_are_seconds_however_they_are_written() -> None:
    for values in (
        ["5", "-7"],
        ["+5", "-7"],
        ["5.0", "-7.000"],
        ["5.", "-7"],
        [5, -7],
        [5.0, -7.0],
    ):
        assert ticks(values) == ([5, -7], "s")
    assert ticks(["5e0", "-7e0"]) == ([5, -7], "s")
    assert ticks([str(2**63 - 1), "0"], "s") == ([2**63 - 1, 0], "s")
    assert ticks([], kind=pa.string()) == ([], "s")


def test_fractions_take_the_coarsest_unit_that_holds_them() -> None:
    assert ticks(["1.5", "-0.25"]) == ([1500, -250], "ms")
    assert ticks(["1289241911.72836", "0"]) == ([1289241911728360, 0], "us")
    assert ticks(["1700000000.123456789", ".5"]) == ([1700000000123456789, 500000000], "ns")
    assert ticks([1289241911.72836, 0.0]) == ([1289241911728360, 0], "us")
    assert ticks(["1.5e-3", "2"]) == ([1500, 2000000], "us")
    assert ticks([1.5, 2.0], "ms") == ([1500, 2000], "us")
    assert ticks(["0.5"], "us") == ([500], "ns")
    assert ticks(["0.7", "3"], "ns") == ([1, 3], "ns")


def test_fractions_finer_than_nanoseconds_are_rounded_but_never_merged() -> None:
    values = [str(i / 26) for i in range(25)]
    times = parse_times(pa.array(values))
    assert times.unit == "ns" and (np.diff(times.ticks) > 0).all()
    assert "rounded to whole ns" in times.notes[0]
    with pytest.raises(LogError, match=r"less than one ns.*would become equal"):
        parse_times(pa.array(["0.00000000011", "0.00000000012"]))
    with pytest.raises(LogError, match="counted in steps must be whole"):
        parse_times(pa.array([0.5]), "step")


def test_large_epochs_are_taken_as_finer_units_with_a_note_unless_told() -> None:
    assert ticks(["1700000000", "1700000010"]) == ([1700000000, 1700000010], "s")
    assert ticks(["1700000000000", "1700000010000"]) == ([1700000000000, 1700000010000], "ms")
    assert ticks([1700000000000000]) == ([1700000000000000], "us")
    assert ticks([1700000000000000000]) == ([1700000000000000000], "ns")
    assert "taken as ms by their size" in parse_times(pa.array([1700000000000])).notes[0]
    assert ticks([1700000000000], "s") == ([1700000000000], "s")
    assert ticks([1700000000], "ms") == ([1700000000], "ms")


def test_gaps_in_milliseconds_are_a_thousand_times_those_in_seconds() -> None:
    fine, _ = ticks([1700000000000, 1700000010000, 1700000030000], "ms")
    coarse, _ = ticks([1700000000, 1700000010, 1700000030], "s")
    assert np.diff(fine).tolist() == [1000 * gap for gap in np.diff(coarse).tolist()]


def test_seconds_since_1970_are_not_squeezed_into_float32() -> None:
    log = read_log(
        pa.table(
            {"src": [0, 0, 0], "dst": [1, 2, 3], "t": [1_700_000_000 + i * 10 for i in range(3)]}
        )
    )
    assert (1_700_000_030 - log.events.time).tolist() == [30, 20, 10]
    squeezed = parse_times(pa.array([1.0, 2.0], pa.float32()))
    assert "may have merged" in squeezed.notes[-1]


DATES = {
    "2008-09-11 03:16:14": 1221102974,
    "2008-09-11T03:16:14": 1221102974,
    "2008-09-11 03:16:14Z": 1221102974,
    "2008-09-11 03:16:14 UTC": 1221102974,
    "2008-09-11T05:16:14+02:00": 1221102974,
    "2008-09-11 05:16:14 +0200": 1221102974,
    "2008-09-10T22:16:14-05": 1221102974,
    "2008/09/11 03:16:14": 1221102974,
    "2008-9-11 03:16:14": 1221102974,
    "2008-09-11 03:16": 1221102960,
    "2008-09-11": 1221091200,
    "1969-12-31 23:59:59": -1,
    "1500-01-01": -14831769600,
}


@pytest.mark.parametrize("text", DATES)
def test_dates_are_seconds_and_utc_without_an_offset(text: str) -> None:
    assert ticks([text]) == ([DATES[text]], "s")


def test_dates_with_and_without_offsets_may_be_mixed() -> None:
    assert ticks(list(DATES)) == (list(DATES.values()), "s")


def test_dates_take_the_unit_that_holds_them_or_the_one_asked_for() -> None:
    assert ticks(["1970-01-01 00:00:01.5"]) == ([1500], "ms")
    assert ticks(["1970-01-01 00:00:01.000001Z"]) == ([1000001], "us")
    assert ticks(["1970-01-01 00:00:01.000000001"]) == ([1000000001], "ns")
    assert ticks(["1970-01-01 00:00:01"], "ms") == ([1000], "ms")
    with pytest.raises(LogError, match="parts of a second that `unit` s does not hold"):
        parse_times(pa.array(["1970-01-01 00:00:01.5"]), "s")
    with pytest.raises(LogError, match="dates have no steps"):
        parse_times(pa.array(["1970-01-01"]), "step")
    with pytest.raises(LogError, match="too far from 1970 to count in ns"):
        parse_times(pa.array(["1500-01-01"]), "ns")
    with pytest.raises(LogError, match="cannot stand beside nanoseconds"):
        parse_times(pa.array(["1500-01-01", "2000-01-01 00:00:00.000000001"]))


def test_typed_dates_read_like_texts() -> None:
    second = pa.array([1221102974], pa.timestamp("s"))
    for kind in (pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("us", "Europe/Berlin")):
        assert ticks(second.cast(kind)) == ([1221102974], "s")
    assert ticks(pa.array([14133], pa.date32())) == ([1221091200], "s")
    assert ticks(pa.array([Decimal("1.50")], pa.decimal128(9, 2))) == ([1500], "ms")
    assert ticks(pa.array([7], pa.uint64())) == ([7], "s")
    with pytest.raises(LogError, match=r"must be numbers, dates or texts of them: .* bool"):
        parse_times(pa.array([True]))


@pytest.mark.parametrize(
    ("values", "bad"),
    [
        (["1", "x", "3"], [1]),
        (["1", "", "3.5"], [1]),
        (["1", "nan", "inf"], [1, 2]),
        (["1", "1e300"], [1]),
        (["1", "9" * 19], [1]),
        (["1.5", "2", "9" * 18 + ".0"], [2]),
        (["1.5", "2", "9" * 25 + ".0"], [2]),
        (["2008-01-02", "2008-02-30", "soon"], [2]),
        (["2008-01-02", "2008-02-30", "2008-01-01 25:00"], [1, 2]),
        (["2008-01-02T00:00Z", "2008-02-30T00:00Z"], [1]),
    ],
)
def test_values_that_are_no_times_are_marked(values: list[str], bad: list[int]) -> None:
    times = parse_times(pa.array(values))
    assert times.bad is not None and np.flatnonzero(times.bad).tolist() == bad


def test_floats_and_nulls_that_are_no_times_are_marked() -> None:
    for column in (
        pa.array([1.5, float("nan"), float("inf"), -1e300]),
        pa.array([1.0, None, float("inf"), 1e19]),
    ):
        times = parse_times(column)
        assert times.bad is not None and times.bad.tolist() == [False, True, True, True]
    for column in (pa.array([1, None]), pa.array(["1", None]), pa.array([None, None])):
        assert parse_times(column).bad is not None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "-", "+"]),
            st.integers(0, 10**9),
            st.text("0123456789", max_size=9),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_decimal_texts_are_exact(parts: list[tuple[str, int, str]]) -> None:
    texts = [f"{sign}{whole}.{fraction}" for sign, whole, fraction in parts]
    values, unit = ticks(texts)
    exact = [Decimal(text) for text in texts]
    assert values == [int(value * TICKS[unit]) for value in exact]
    coarser = {"s": None, "ms": "s", "us": "ms", "ns": "us"}[unit]
    if coarser is not None:
        assert any(value * TICKS[coarser] % 1 for value in exact)


@given(st.lists(st.floats(-1e9, 1e9, allow_subnormal=False), min_size=1, max_size=20))
def test_floats_keep_their_order_and_distinctness(values: list[float]) -> None:
    try:
        times = parse_times(pa.array(values))
    except LogError:
        return  # closer than a nanosecond
    assert times.bad is None or not times.bad.any()
    order = np.argsort(times.ticks, kind="stable")
    assert np.array(values)[order].tolist() == sorted(values)
    assert len(np.unique(times.ticks)) == len(set(values))


def test_a_log_refuses_times_that_are_not_whole() -> None:
    with pytest.raises(ValueError, match=r"`time` must be whole ticks of `unit`: got 0.5"):
        EventLog.from_arrays([0], [1], [0.5])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="`time` must be finite and fit int64: got nan"):
        EventLog.from_arrays([0], [1], [float("nan")])  # type: ignore[list-item]

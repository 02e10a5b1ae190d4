"""Windows hold every event, and every event is predicted exactly once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neutronstream.stream import EventLog, Window, adapt, grow, slide, suggest_window, tumble
from neutronstream.stream.windows import to_ticks


def log_of(times: list[int], unit: Any = "s") -> EventLog:
    """A log of (i, i + 1) at these times."""
    ends = np.arange(len(times))
    return EventLog.from_arrays(ends, ends + 1, times, unit=unit)


def spans(windows: Any) -> list[tuple[int, int, int]]:
    return [(w.start, w.stop, w.test_start) for w in windows]


# ---- by count ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "size", "stride", "count"),
    [(39_264, 600, 100, 388), (59_835, 600, 100, 594), (20_726, 120, 20, 1_032)],
)
def test_fixed_windows_have_the_published_geometry(
    n: int, size: int, stride: int, count: int
) -> None:
    windows = list(slide(n, size, stride))
    assert len(windows) == count
    assert windows[-1].stop == n


def test_an_event_at_the_stop_belongs_to_the_next_window() -> None:
    first, second = tumble(10, 5)
    assert (first.train, second.train) == (range(0, 5), range(5, 10))


def test_the_last_window_may_be_shorter_and_ends_the_log() -> None:
    assert spans(slide(10, 6, 3)) == [(0, 6, 0), (3, 9, 6), (6, 10, 9)]
    assert spans(slide(9, 6, 3)) == [(0, 6, 0), (3, 9, 6)]
    assert spans(slide(4, 6, 3)) == [(0, 4, 0)]
    assert spans(slide(1, 1)) == [(0, 1, 0)]


def test_a_log_without_events_has_no_windows() -> None:
    empty = log_of([])
    for windows in (slide(0, 5), tumble(0, 5), grow(0, 5, 5), grow(0, 0.5, 1), adapt(empty, 1, 2)):
        assert list(windows) == []
    assert list(slide(empty, "1h")) == [] and list(grow(empty, "1h", "1h")) == []


def test_the_part_to_predict_is_what_no_earlier_window_held() -> None:
    window = list(slide(10, 6, 3))[1]
    assert (window.train, window.test, len(window)) == (range(3, 9), range(6, 9), 6)


def test_windows_come_one_at_a_time() -> None:
    assert next(slide(10**15, 600, 100)) == Window(0, 600, 0)
    assert next(grow(10**15, 600, 100)) == Window(0, 600, 0)


@pytest.mark.parametrize(
    ("size", "stride", "message"),
    [
        (5, 6, "`stride` must not exceed `size`, or events between windows are lost: got 6 > 5"),
        (0, None, "`size` must be at least 1: got 0"),
        (5, 0, "`stride` must be at least 1: got 0"),
        (5, -1, "`stride` must be at least 1: got -1"),
        (2.5, 1, "`size` must be a whole number of events: got 2.5"),
        (float("inf"), 1, "`size` must be a whole number of events: got inf"),
        (5, float("nan"), "`stride` must be a whole number of events: got nan"),
    ],
)
def test_sizes_that_lose_events_are_refused_before_the_first_window(
    size: Any, stride: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        slide(10, size, stride)


def test_a_growing_window_starts_at_the_start() -> None:
    assert spans(grow(10, 4, 3)) == [(0, 4, 0), (0, 7, 4), (0, 10, 7)]
    assert spans(grow(20, 0.1, 9)) == [(0, 2, 0), (0, 11, 2), (0, 20, 11)]
    with pytest.raises(ValueError, match="`initial` must be a number of events, or a part"):
        grow(10, 0, 3)
    with pytest.raises(ValueError, match="`initial` must be a number of events, or a part"):
        grow(10, 1.5, 3)
    with pytest.raises(ValueError, match="a part between 0 and 1: got inf"):
        grow(10, float("inf"), 3)
    with pytest.raises(ValueError, match="`step` must be at least 1: got 0"):
        grow(10, 4, 0)


def test_a_window_is_in_order() -> None:
    with pytest.raises(ValueError, match="must not decrease: got 3, 2, 5"):
        Window(3, 5, 2)
    with pytest.raises(ValueError, match="a log has no negative number of events: got -1"):
        slide(-1, 5)


# ---- by duration ---------------------------------------------------------------------------------


def test_windows_by_duration_are_half_open_from_the_first_event() -> None:
    log = log_of([100, 105, 109, 110, 119, 120])
    assert spans(slide(log, 10, by="duration")) == [(0, 3, 0), (3, 5, 3), (5, 6, 5)]
    assert spans(slide(log, 10, 5, by="duration")) == [
        (0, 3, 0),
        (1, 4, 3),
        (3, 5, 4),
        (4, 6, 5),
    ]


def test_empty_windows_are_skipped_or_yielded_by_choice() -> None:
    log = log_of([1, 10])
    assert spans(slide(log, 1, by="duration")) == [(0, 1, 0), (1, 2, 1)]
    kept = list(slide(log, 1, by="duration", keep_empty=True))
    assert len(kept) == 10
    assert [len(w) for w in kept] == [1, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    assert spans(kept)[1] == (1, 1, 1)


def test_a_long_gap_is_jumped_over() -> None:
    log = log_of([0, 10**15, 10**15 + 1])
    assert spans(slide(log, 2, 1, by="duration")) == [(0, 1, 0), (1, 2, 1), (1, 3, 2)]
    assert spans(grow(log, "2s", "1s")) == [(0, 1, 0), (0, 2, 1), (0, 3, 2)]
    extreme = log_of([-(2**63) + 1, 2**63 - 1])
    assert spans(slide(extreme, 2**62, by="duration")) == [(0, 1, 0), (1, 2, 1)]


def test_lengths_of_time_are_read_in_the_unit_of_the_log() -> None:
    assert to_ticks("size", "7d", "s") == 604_800
    assert to_ticks("size", "1h30m", "s") == 5_400
    assert to_ticks("size", "1h 30min", "ms") == 5_400_000
    assert to_ticks("size", "1.5s", "ms") == 1_500
    assert to_ticks("size", "2w", "us") == 1_209_600_000_000
    assert to_ticks("size", "250", "step") == 250
    day = list(slide(log_of([0, 86_399, 86_400]), "1d"))
    assert spans(day) == [(0, 2, 0), (2, 3, 2)]
    with pytest.raises(
        ValueError, match=r'`size` must be ticks or a length .* "7d".* got \'soon\''
    ):
        slide(log_of([1]), "soon")
    with pytest.raises(ValueError, match="a step of this log has no length in seconds, got '1d'"):
        slide(log_of([1], "step"), "1d")
    with pytest.raises(ValueError, match=r"`size` is no whole number of the log's s: got '1\.5s'"):
        slide(log_of([1]), "1.5s")
    with pytest.raises(ValueError, match="`stride` must not exceed `size`"):
        slide(log_of([1]), "1h", "2h")
    with pytest.raises(TypeError, match="windows by duration need an `EventLog`: got int"):
        slide(10, "1h")
    with pytest.raises(ValueError, match='`by` must be "count" or "duration": got \'time\''):
        slide(10, 5, by="time")  # type: ignore[arg-type]


def slow_slide(times: list[int], size: int, stride: int, keep_empty: bool) -> list[Any]:
    """The rule of windows by duration, window by window and event by event."""
    result, seen, k = [], 0, 0
    while times:
        begin = times[0] + k * stride
        start = sum(t < begin for t in times)
        stop = sum(t < begin + size for t in times)
        if stop > start or keep_empty:
            result.append((start, stop, max(start, seen)))
            seen = stop
        if begin + size > times[-1]:
            break
        k += 1
    return result


gaps = st.lists(st.integers(0, 30), max_size=25)


@given(gaps, st.integers(1, 20), st.integers(1, 20), st.booleans())
def test_windows_by_duration_equal_the_slow_ones(
    gaps: list[int], size: int, stride: int, keep_empty: bool
) -> None:
    stride = min(stride, size)
    times = np.cumsum(gaps).tolist() if gaps else []
    fast = spans(slide(log_of(times), size, stride, by="duration", keep_empty=keep_empty))
    assert fast == slow_slide(times, size, stride, keep_empty)


# ---- adaptive ------------------------------------------------------------------------------------


def chain(pairs: list[tuple[int, int]]) -> EventLog:
    return EventLog.from_arrays([p[0] for p in pairs], [p[1] for p in pairs], range(len(pairs)))


def test_a_core_is_extended_while_events_touch_its_nodes() -> None:
    log = chain([(0, 1), (1, 2), (2, 9), (9, 1), (9, 8), (0, 1)])
    assert spans(adapt(log, 2, 6)) == [(0, 4, 0), (4, 6, 4)]  # (9, 8) touches no node of the core


def test_the_largest_adaptive_window_is_inclusive() -> None:
    log = chain([(0, 1)] * 10)
    assert spans(adapt(log, 2, 4)) == [(0, 4, 0), (4, 8, 4), (8, 10, 8)]
    assert spans(adapt(log, 4, 4, rate=0.2))[:2] == [(0, 4, 0), (1, 5, 4)]
    assert spans(adapt(log, 3, 6, stride=2))[:2] == [(0, 6, 0), (2, 8, 6)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"down": 5, "up": 4}, "`down` must not exceed `up`: got 5 and 4"),
        ({"down": 0, "up": 4}, "`down` must be at least 1: got 0"),
        ({"down": 2, "up": 4, "rate": 0.0}, "`rate` must be above 0 and at most 1: got 0.0"),
        ({"down": 2, "up": 4, "stride": 3}, "not exceed `down`, or events between windows are"),
        ({"down": 2, "up": 4, "stride": 1, "rate": 0.5}, "exclude each other: got 0.5 and 1"),
    ],
)
def test_adaptive_windows_refuse_what_they_cannot_do(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        adapt(chain([(0, 1)]), **arguments)


def slow_adapt(log: EventLog, down: int, up: int, rate: float) -> list[tuple[int, int, int]]:
    """The rule of adaptive windows, one event at a time."""
    pairs = list(zip(log.events.src.tolist(), log.events.dst.tolist(), strict=True))
    result, start, seen = [], 0, 0
    while seen < len(pairs):
        core: set[int] = set()
        stop = start
        while stop < len(pairs) and stop - start < up:
            if stop - start < down:
                core |= set(pairs[stop])
            elif not core & set(pairs[stop]):
                break
            stop += 1
        result.append((start, stop, min(stop, max(start, seen))))
        seen = max(seen, stop)
        start += max(1, int((stop - start) * rate))
    return result


nodes = st.integers(0, 12)


@given(
    st.lists(st.tuples(nodes, nodes), max_size=60),
    st.integers(1, 8),
    st.integers(0, 20),
    st.floats(0.05, 1.0),
)
def test_adaptive_windows_equal_the_slow_ones_and_predict_every_event_once(
    pairs: list[tuple[int, int]], down: int, more: int, rate: float
) -> None:
    log = chain(pairs)
    windows = list(adapt(log, down, down + more, rate=rate))
    assert spans(windows) == slow_adapt(log, down, down + more, rate)
    assert [i for w in windows for i in w.test] == list(range(len(pairs)))


@given(st.integers(0, 200), st.integers(1, 40), st.integers(1, 40))
def test_every_event_is_in_a_window_and_predicted_once(n: int, size: int, stride: int) -> None:
    for windows in (slide(n, size, min(size, stride)), tumble(n, size), grow(n, size, stride)):
        made = list(windows)
        assert [i for w in made for i in w.test] == list(range(n))
        assert {i for w in made for i in w.train} == set(range(n))


def test_a_window_is_suggested_by_a_simple_rule() -> None:
    assert suggest_window(0) == (1, 1)
    assert suggest_window(7) == (7, 3)
    assert suggest_window(150) == (100, 50)
    assert suggest_window(59_835) == (1_100, 550)
    assert suggest_window(10**9) == (10_000, 5_000)

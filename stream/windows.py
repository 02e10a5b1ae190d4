"""Windows over a log.  A window is half-open: the event at `stop` belongs to the next one.

Invariant: every event stands in at least one window, and the `test` parts of all windows, in
order, are every event exactly once.  After NeutronStream (Chen et al., PVLDB 17(3), 2023), whose
fixed, adaptive and growing windows count events; windows by duration are added here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from typing import Literal

import numpy as np

from .events import TICKS_PER_SECOND, Bool, EventLog, TimeUnit

SECONDS = {
    "w": Fraction(604_800),
    "d": Fraction(86_400),
    "h": Fraction(3_600),
    "m": Fraction(60),
    "min": Fraction(60),
    "s": Fraction(1),
    "ms": Fraction(1, 10**3),
    "us": Fraction(1, 10**6),
    "ns": Fraction(1, 10**9),
}
PART = r"(\d+(?:\.\d+)?)\s*(ms|us|ns|min|w|d|h|m|s)\s*"


@dataclass(frozen=True, slots=True)
class Window:
    """The span `[start, stop)` of log positions; all of it is trained on.

    What no earlier window held, `[test_start, stop)`, is predicted before it is learned.
    """

    start: int
    stop: int
    test_start: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.test_start <= self.stop:
            raise ValueError(
                "`start`, `test_start`, `stop` must not decrease: "
                f"got {self.start}, {self.test_start}, {self.stop}"
            )

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def train(self) -> range:
        """The positions to learn from: all of the window."""
        return range(self.start, self.stop)

    @property
    def test(self) -> range:
        """The positions to predict first: those that no earlier window held."""
        return range(self.test_start, self.stop)


def slide(
    log: EventLog | int,
    size: int | str,
    stride: int | str | None = None,
    *,
    by: Literal["count", "duration"] = "count",
    keep_empty: bool = False,
) -> Iterator[Window]:
    """Windows of one size, each starting `stride` after the one before (default: `size`).

    By count, sizes are numbers of events, and the last window may be shorter.  By duration they
    are ticks of the log's unit or texts like "7d" or "1h30m" (w, d, h, m or min, s, ms, us, ns),
    which imply `by="duration"`: window k holds the times in `[t0 + k * stride, + size)`, where t0
    is the first event's; windows without events are skipped unless `keep_empty`.

    A log without events has no windows.  `log` may be a number of events where `by` is "count".

    Raises:
        ValueError: if `size` or `stride` is less than 1, or `stride` exceeds `size`.

    >>> [(w.start, w.stop, w.test_start) for w in slide(10, size=6, stride=3)]
    [(0, 6, 0), (3, 9, 6), (6, 10, 9)]
    """
    if by not in ("count", "duration"):
        raise ValueError(f'`by` must be "count" or "duration": got {by!r}')
    if by == "duration" or isinstance(size, str) or isinstance(stride, str):
        time_log = _timed(log)
        span = to_ticks("size", size, time_log.unit)
        step = span if stride is None else to_ticks("stride", stride, time_log.unit)
        _check(span, step)
        return _slide_time(time_log, span, step, keep_empty)
    count = _whole("size", size)
    step = count if stride is None else _whole("stride", stride)
    _check(count, step)
    return _slide_count(_length(log), count, step)


def tumble(
    log: EventLog | int, size: int | str, *, by: Literal["count", "duration"] = "count"
) -> Iterator[Window]:
    """Windows that follow each other without overlap: `slide` with a stride of `size`.

    >>> [(w.start, w.stop) for w in tumble(10, 4)]
    [(0, 4), (4, 8), (8, 10)]
    """
    return slide(log, size, by=by)


def grow(log: EventLog | int, initial: int | float | str, step: int | str) -> Iterator[Window]:
    """Windows that all start at 0 and grow by `step`: learning again from everything.

    `initial` is the first size, a number of events or, below 1, a part of the log.  Both may be
    lengths of time like "7d" (see `slide`); windows that would add no event are skipped.

    >>> [(w.start, w.stop, w.test_start) for w in grow(10, 4, 3)]
    [(0, 4, 0), (0, 7, 4), (0, 10, 7)]
    """
    if isinstance(initial, str) or isinstance(step, str):
        if isinstance(initial, float):
            raise ValueError(f"`initial` must be a length of time as `step` is: got {initial}")
        time_log = _timed(log)
        unit = time_log.unit
        first, more = to_ticks("initial", initial, unit), to_ticks("step", step, unit)
        _check_least("initial", first)
        _check_least("step", more)
        return _grow_time(time_log, first, more)
    length = _length(log)
    if not 0 < initial < inf or (initial >= 1 and initial != int(initial)):
        raise ValueError(
            f"`initial` must be a number of events, or a part between 0 and 1: got {initial}"
        )
    first = int(initial) if initial >= 1 else max(1, int(initial * length))
    return _grow(length, first, _whole("step", step))


def adapt(
    log: EventLog,
    down: int,
    up: int,
    *,
    rate: float | None = None,
    stride: int | None = None,
) -> Iterator[Window]:
    """Windows that follow what belongs together: NeutronStream's adaptive windows.

    A core of `down` events is extended while the next event touches a node of the core, to at most
    `up` events in all (inclusive).  The next window starts `max(1, int(size * rate))` events
    later, or `stride` events later, or, without both, where this one stops.

    Raises:
        ValueError: if `down` is below 1 or above `up`, `rate` is not in (0, 1], `stride` is not in
            [1, `down`], or both are given.
    """
    down, up = _whole("down", down), _whole("up", up)
    if down > up:
        raise ValueError(f"`down` must not exceed `up`: got {down} and {up}")
    if rate is not None and stride is not None:
        raise ValueError(f"`rate` and `stride` exclude each other: got {rate} and {stride}")
    if rate is not None and not 0 < rate <= 1:
        raise ValueError(f"`rate` must be above 0 and at most 1: got {rate}")
    if stride is not None and not 1 <= stride <= down:
        raise ValueError(
            "`stride` must be at least 1 and not exceed `down`, or events between windows are "
            f"lost: got {stride} and `down` {down}"
        )
    return _adapt(log, down, up, rate, stride)


def suggest_window(log: EventLog | int) -> tuple[int, int]:
    """A (size, stride) to start with: a fiftieth of the log, at least 100 and at most 10,000
    events, rounded down to hundreds, and half of that, so that every event is trained on twice (a
    shorter log is one window).

    >>> suggest_window(59_835)
    (1100, 550)
    """
    length = _length(log)
    size = min(10_000, max(100, length // 50 // 100 * 100), max(length, 1))
    return size, max(1, size // 2)


def to_ticks(argument: str, length: int | str, unit: TimeUnit) -> int:
    """A length of time in ticks, from ticks or a text like "1h30m"."""
    if not isinstance(length, str):
        return int(length)
    if length.strip().isdecimal():
        return int(length)
    if not re.fullmatch(f"\\s*(?:{PART})+", length):
        raise ValueError(
            f'`{argument}` must be ticks or a length of time like "7d" or "1h30m": got {length!r}'
        )
    if unit == "step":
        raise ValueError(
            f"`{argument}` must be in ticks: a step of this log has no length in seconds, "
            f"got {length!r}"
        )
    parts = re.findall(PART, length)
    seconds = sum((Fraction(number) * SECONDS[part] for number, part in parts), Fraction(0))
    ticks = seconds * TICKS_PER_SECOND[unit]
    if ticks.denominator != 1:
        raise ValueError(f"`{argument}` is no whole number of the log's {unit}: got {length!r}")
    return int(ticks)


def _length(log: EventLog | int) -> int:
    length = len(log) if isinstance(log, EventLog) else int(log)
    if length < 0:
        raise ValueError(f"a log has no negative number of events: got {length}")
    return length


def _timed(log: EventLog | int) -> EventLog:
    if not isinstance(log, EventLog):
        raise TypeError(f"windows by duration need an `EventLog`: got {type(log).__name__}")
    return log


def _whole(argument: str, value: int) -> int:
    if not -inf < value < inf or value != int(value):
        raise ValueError(f"`{argument}` must be a whole number of events: got {value}")
    _check_least(argument, value)
    return int(value)


def _check_least(argument: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"`{argument}` must be at least 1: got {value}")


def _check(size: int, stride: int) -> None:
    _check_least("size", size)
    _check_least("stride", stride)
    if stride > size:
        raise ValueError(
            "`stride` must not exceed `size`, or events between windows are lost: "
            f"got {stride} > {size}"
        )


def _slide_count(length: int, size: int, stride: int) -> Iterator[Window]:
    seen = 0
    for start in range(0, length, stride):
        stop = min(start + size, length)
        yield Window(start, stop, max(start, seen))
        seen = stop
        if stop == length:
            return


def _slide_time(log: EventLog, size: int, stride: int, keep_empty: bool) -> Iterator[Window]:
    time = log.events.time
    if not len(time):
        return
    first, last = int(time[0]), int(time[-1])
    seen = k = 0
    while True:
        begin = first + k * stride
        # Python ints: near the ends of int64 a window may reach beyond it
        start = int(np.searchsorted(time, begin))
        end = begin + size
        stop = len(time) if end > last else int(np.searchsorted(time, end))
        if start < stop or keep_empty:
            yield Window(start, stop, max(start, seen))
            seen = stop
        if end > last:
            return
        k += 1
        if start == stop and not keep_empty:  # jump to the first window that holds the next event
            k = max(k, (int(time[stop]) - first - size) // stride + 1)


def _grow(length: int, first: int, step: int) -> Iterator[Window]:
    seen = 0
    while seen < length:
        stop = min(first if seen == 0 else seen + step, length)
        yield Window(0, stop, seen)
        seen = stop


def _grow_time(log: EventLog, first: int, step: int) -> Iterator[Window]:
    time, seen, k = log.events.time, 0, 0
    while seen < len(time):
        end = int(time[0]) + first + k * step
        stop = len(time) if end > int(time[-1]) else int(np.searchsorted(time, end))
        yield Window(0, stop, seen)
        seen = stop
        if seen < len(time):  # the next window that holds one more event
            k = max(k, (int(time[seen]) - int(time[0]) - first) // step) + 1


def _adapt(
    log: EventLog, down: int, up: int, rate: float | None, stride: int | None
) -> Iterator[Window]:
    length, start, seen = len(log), 0, 0
    while seen < length:
        stop = min(start + down, length)
        core = np.concatenate([log.events.src[start:stop], log.events.dst[start:stop]])
        limit = min(start + up, length)
        while stop < limit:  # a core's length at a time: the cost is that of the window
            reach = min(stop + down, limit)
            touching = _touches(log, stop, reach, core)
            stop += int(np.argmin(touching)) if not touching.all() else len(touching)
            if not touching.all():
                break
        yield Window(start, stop, min(stop, max(start, seen)))
        seen = max(seen, stop)  # a window may stop before an earlier one did
        size = stop - start
        start += max(1, int(size * rate)) if rate is not None else stride or size


def _touches(log: EventLog, start: int, stop: int, core: np.typing.NDArray[np.int64]) -> Bool:
    events = log.events[start:stop]
    touching: Bool = np.isin(events.src, core) | np.isin(events.dst, core)
    return touching

"""An event log cut into snapshots: what happened in a period, as a graph.

Invariants: the periods are half-open and of even length from the first event on, so an event at a
border belongs to the later one; every event stands in exactly one period, and a period without any
gives an empty snapshot, so that time stays even.  A snapshot knows what its own events and earlier
ones say, never a later one, and node v is node v in all of them.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np

from ..stream.events import EventBatch, EventLog, Int64
from ..stream.windows import to_ticks
from .snapshot import Float32, Snapshot
from .sparse import SparseMatrix

Traits: TypeAlias = Literal["degree", "history", "none"]

LIMIT = 10_000
"""Most snapshots; a period in the wrong unit makes millions."""


def discretise(
    log: EventLog,
    period: int | str | None = None,
    count: int | None = None,
    *,
    cumulative: bool = False,
    window: int | None = None,
    features: Traits = "degree",
    limit: int = LIMIT,
) -> list[Snapshot]:
    """The snapshots of a log, one a period; the weight of an edge is its number of events.

    `period` is in ticks of the log's unit or a text like "7d": snapshot k holds the events whose
    time is in `[t0 + k period, t0 + (k + 1) period)`, where t0 is the first event's.  `count` cuts
    the events, in log order, into so many parts that differ by one event at most.

    A snapshot holds one period, the last `window` of them, or, if `cumulative`, all so far and the
    log's initial links.  Its `start` and `stop` are the positions of the events in it; `present`
    are the nodes that the log has named by then.

    `features` are logarithms of 1 + a number of events: "degree" into a node and out of it in this
    snapshot (V, 2), "history" these and the same of all events so far (V, 4), "none" nothing.

    A log without events has no snapshots.

    Raises:
        ValueError: if not exactly one of `period` and `count` is given, one is below 1 or makes
            more than `limit` snapshots, or `window` and `cumulative` are both given.

    >>> log = EventLog.from_arrays([0, 1, 0, 2], [1, 2, 1, 0], [0, 9, 10, 35])
    >>> [(s.start, s.stop, s.adjacency.num_edges) for s in discretise(log, period=10)]
    [(0, 2, 2), (2, 3, 1), (3, 3, 0), (3, 4, 1)]
    """
    if (period is None) == (count is None):
        raise ValueError(
            f"give `period` or `count`, and not both: got period={period!r} and count={count!r}"
        )
    if window is not None and (cumulative or window < 1):
        raise ValueError(
            "`window` must be a number of periods, at least 1, and goes without `cumulative`: got "
            f"{window}"
        )
    if features not in get_args(Traits):
        raise ValueError(
            f"`features` must be one of {', '.join(get_args(Traits))}: got {features!r}"
        )
    if period is not None:
        ends, times = _by_period(log, to_ticks("period", period, log.unit), period, limit)
    else:
        assert count is not None
        ends, times = _by_count(log, count, limit)
    held = len(ends) if cumulative else window or 1
    found = []
    past = _counts(log.num_nodes, log.initial if cumulative else None)
    for place in range(len(ends) - 1):
        first = max(0, place + 1 - held)
        start, stop = int(ends[first]), int(ends[place + 1])
        events = log[start:stop]
        now = _counts(log.num_nodes, events)
        past = past + _counts(log.num_nodes, log[int(ends[place]) : stop])
        traits = None if features == "none" else np.log1p(past if cumulative else now)
        if traits is not None and features == "history":
            traits = np.concatenate((traits, np.log1p(past)), axis=1)
        src, dst = events.src, events.dst
        if cumulative and log.initial is not None:
            src = np.concatenate((log.initial.src, src))
            dst = np.concatenate((log.initial.dst, dst))
        found.append(
            Snapshot(
                SparseMatrix.from_edges(src, dst, log.num_nodes),
                None if traits is None else traits.astype(np.float32),
                None,
                np.arange(log.num_nodes) < log.nodes_before(stop),
                start,
                stop,
                int(times[first]),
                int(times[place + 1]),
            )
        )
    return found


def _by_period(
    log: EventLog, length: int, given: int | str, limit: int
) -> tuple[list[int], list[int]]:
    """Positions and times of the borders, (T + 1,) each."""
    if length < 1:
        raise ValueError(f"`period` must be at least 1 tick: got {given!r}")
    if not len(log):
        return [], []
    time = log.events.time
    first, last = int(time[0]), int(time[-1])
    count = (last - first) // length + 1  # Python's ints: no border overflows
    if count > limit:
        least = -(-(last - first + 1) // limit)
        raise ValueError(
            f"`period` of {given!r} cuts this log into {count:,} snapshots, more than {limit:,}: "
            f"take at least {least} ticks ({log.unit})"
        )
    borders = [first + place * length for place in range(count + 1)]
    ends = np.searchsorted(time, np.array(borders[:-1], np.int64), side="left")
    return [*ends.tolist(), len(log)], borders


def _by_count(log: EventLog, count: int, limit: int) -> tuple[list[int], list[int]]:
    """The same for equal numbers of events; a border's time is that of the event after it."""
    if not 1 <= count <= limit:
        raise ValueError(
            f"`count` must be from 1 to {limit:,} snapshots (see `limit`): got {count}"
        )
    if not len(log):
        return [], []
    if count > len(log):
        raise ValueError(
            f"`count` must not exceed the events, or snapshots are empty: got {count} for "
            f"{len(log)}"
        )
    ends = [place * len(log) // count for place in range(count + 1)]
    time = log.events.time
    return ends, [*(int(time[end]) for end in ends[:-1]), int(time[-1]) + 1]


def _counts(num_nodes: int, events: EventBatch | None) -> Float32:
    """(V, 2) the events into each node and out of it."""
    out = np.zeros((num_nodes, 2), np.float32)
    if events is not None:
        ends: tuple[Int64, Int64] = events.dst, events.src
        for column, nodes in enumerate(ends):
            out[:, column] = np.bincount(nodes, minlength=num_nodes)
    return out

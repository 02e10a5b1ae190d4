"""The figures of a log: how many, how long, how often again; all that `inspect` says.

All figures come from whole-column operations; nothing is trained and no graph is built.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np

from ..stream import TICKS_PER_SECOND, EventLog, Int64

_EARLIEST = 315_532_800  # 1980-01-01: smaller numbers are taken as times since some start
_LATEST = 4_102_444_800  # 2100-01-01
_SPANS = (
    (31_557_600.0, "years"),
    (86_400.0, "days"),
    (3600.0, "hours"),
    (60.0, "minutes"),
    (1.0, "seconds"),
)


def profile_log(log: EventLog) -> dict[str, Any]:
    """The figures of `log` in plain types; those that need an event are None for an empty log.

    `ties` counts the events whose time equals that of the event just before.  `repeat_share` is the
    part of the events whose directed pair stood in an earlier event (initial links do not count).
    `bipartite` says that no node is both a source and a destination.

    >>> log = EventLog.from_arrays(["a", "a", "b"], ["b", "b", "b"], [5, 5, 9])
    >>> figures = profile_log(log)
    >>> figures["events"], figures["ties"], figures["self_loops"], figures["pairs"]
    (3, 1, 1, 2)
    """
    from ..stream import suggest_window

    events, some = log.events, len(log) > 0
    pairs = len(np.unique(events.src * np.int64(log.num_nodes) + events.dst)) if some else 0
    start, end = (int(events.time[0]), int(events.time[-1])) if some else (None, None)
    codes = np.bincount(events.kind, minlength=len(log.kinds))
    return {
        "name": log.name,
        "events": len(log),
        "nodes": log.num_nodes,
        "initial_links": 0 if log.initial is None else len(log.initial),
        "pairs": pairs,
        "repeat_share": 1 - pairs / len(log) if some else None,
        "self_loops": int((events.src == events.dst).sum()),
        "ties": int((np.diff(events.time) == 0).sum()),
        "ties_are": "events whose time equals that of the event just before",
        "sorted": log.was_sorted,
        "time_unit": log.unit,
        "start": start,
        "end": end,
        "start_utc": _date(start, log.unit),
        "end_utc": _date(end, log.unit),
        "span": end - start if start is not None and end is not None else None,
        "span_text": _span(start, end, log.unit),
        "median_gap": float(np.median(np.diff(events.time))) if len(log) > 1 else None,
        "max_degree": _max_degree(events.src, events.dst),
        "bipartite": some and len(np.intersect1d(events.src, events.dst)) == 0,
        "kinds": {kind: int(count) for kind, count in zip(log.kinds, codes, strict=True)},
        "features": 0 if events.features is None else events.features.shape[1],
        "weights": events.weight is not None,
        "labels": events.label is not None,
        "quarantined": log.quarantined,
        "checksum": log.checksum,
        "suggested_window": dict(zip(("size", "stride"), suggest_window(log), strict=True))
        if some
        else None,
        "notes": list(log.notes),
    }


def _max_degree(src: Int64, dst: Int64) -> int:
    """The most events of one node; a self loop counts once, as in the graph."""
    if not len(src):
        return 0
    size = 1 + int(max(src.max(), dst.max()))
    loops = src == dst
    degrees = np.bincount(src, minlength=size) + np.bincount(dst[~loops], minlength=size)
    return int(degrees.max())


def _date(ticks: int | None, unit: str) -> str | None:
    """The UTC date of a time that reads as seconds since 1970, else None."""
    if ticks is None or unit == "step":
        return None
    seconds = ticks // TICKS_PER_SECOND[unit]
    if not _EARLIEST <= seconds <= _LATEST:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _span(start: int | None, end: int | None, unit: str) -> str | None:
    if start is None or end is None:
        return None
    if unit == "step":
        return f"{end - start + 1} steps"
    seconds = (end - start) / TICKS_PER_SECOND[unit]
    size, word = next((pair for pair in _SPANS if seconds >= 2 * pair[0]), (1.0, "seconds"))
    return f"{seconds / size:.4g} {word}"

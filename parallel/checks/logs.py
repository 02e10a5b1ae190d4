"""Small logs on which a model is tried: random ones, and those at which models like to break.

They are like a given log where that matters to a model: its kinds, its unit and usual gap, whether
events have weights, labels and features, and which ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...stream import EventBatch, EventLog, Int64

KINDS = ("association", "communication")
NUM_FEATURES = 4
LENGTH = 36  # events of the longest log


def like_nothing(kinds: tuple[str, ...] = ("event",), num_features: int = NUM_FEATURES) -> EventLog:
    """A random log with weights and features, for a model that comes without one."""
    rng = np.random.default_rng(0)
    n = LENGTH
    src, dst = rng.integers(0, 9, (2, n))
    log = EventLog.from_arrays(
        *(src, dst, np.cumsum(rng.integers(0, 500, n))),
        weight=rng.uniform(0.5, 1.5, n),
        features=rng.normal(size=(n, num_features)).astype(np.float32) if num_features else None,
    )
    return replace(log, kinds=kinds)


def trial_logs(template: EventLog) -> dict[str, EventLog]:
    """Logs like `template` by the name of what is special about them."""
    late = np.array([*_pairs(1, 15, 6).ravel(), 6, 7, 7, 0, 8, 8]).reshape(-1, 2)
    return {
        "random": _log(template, 0, _pairs(0, LENGTH, 10, loops=0.1)),
        "ties": _log(template, 2, _pairs(2, 16, 6), ties=1.0),
        "one node, self loops": _log(template, 3, np.zeros((6, 2), np.int64)),
        "late new nodes": _log(template, 1, late),
        "many nodes": _log(template, 4, _pairs(4, 24, 60)),
        "initial links": _log(template, 5, _pairs(5, 18, 8), initial=_pairs(6, 12, 8)),
    }


def _pairs(seed: int, num_events: int, num_nodes: int, *, loops: float = 0.0) -> Int64:
    """Random ends (n, 2)."""
    rng = np.random.default_rng(seed)
    src = rng.integers(0, num_nodes, num_events)
    dst = (src + rng.integers(1, num_nodes, num_events)) % num_nodes
    return np.stack([src, np.where(rng.random(num_events) < loops, src, dst)], axis=1)


def _log(
    template: EventLog, seed: int, ends: Int64, *, ties: float = 0.3, initial: Int64 | None = None
) -> EventLog:
    """The log of these ends, with times, kinds, weights and features as in the template."""
    rng, n = np.random.default_rng(seed), len(ends)
    gaps = np.diff(template.events.time)
    usual = float(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 60.0
    drawn = np.ceil(usual * np.exp(rng.normal(0.0, 1.5, n))).astype(np.int64)
    time = np.cumsum(np.where(rng.random(n) < ties, 0, drawn))
    first = None if initial is None else (initial[:, 0].tolist(), initial[:, 1].tolist())
    log = EventLog.from_arrays(ends[:, 0], ends[:, 1], time, initial=first, unit=template.unit)
    rows = rng.integers(0, len(template), n)
    given = template.events
    events = replace(
        log.events,
        kind=rng.permutation(np.arange(n) % len(template.kinds)).astype(np.uint8),
        weight=None if given.weight is None else given.weight[rows],
        label=None if given.label is None else given.label[rows],
        features=None if given.features is None else given.features[rows],
    )
    return replace(log, events=events, kinds=template.kinds)


def with_event(log: EventLog, position: int, **columns: object) -> EventLog:
    """The log with other values of the event at `position`."""
    events = log.events
    new = {}
    for name, value in columns.items():
        column = getattr(events, name).copy()
        column[position] = value
        new[name] = column
    return replace(log, events=replace(events, **new))


def head(log: EventLog, length: int) -> EventLog:
    """The first events, with the same nodes as the whole log."""
    events: EventBatch = log.events[:length]
    return replace(log, events=events)


def changes(log: EventLog, i: int) -> Iterator[tuple[str, EventLog]]:
    """Logs that are another one at or after event `i`, and in what."""
    events, known = log.events, log.nodes_before(i)
    yield "the rest", head(log, i + 1)
    for what, column in (("the destination", "dst"), ("the source", "src")):
        for step in (1, 2):
            new = (int(getattr(events, column)[i]) + step) % max(known, 1)
            yield what, with_event(log, i, **{column: new})
    if len(log.kinds) > 1:
        yield "the kind", with_event(log, i, kind=(int(events.kind[i]) + 1) % len(log.kinds))
    if events.weight is not None:
        yield "the weight", with_event(log, i, weight=events.weight[i] * 3 + 1)
    if events.features is not None:
        yield "the features", with_event(log, i, features=events.features[i] * 3 + 1)

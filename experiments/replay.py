"""A log fed through the dynamic graph: how fast it goes in, what stands there, and is it right.

With `check`, the neighbourhoods of both ends of every event, as of that event, are compared with
those of the plain-Python oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..storage import DynamicGraph
from ..storage.oracle import OracleGraph, compare
from ..stream import EventBatch, EventLog

Progress = Callable[[dict[str, Any]], None]


def replay(
    log: EventLog,
    *,
    clock: Callable[[], float],
    chunk: int = 10_000,
    check: bool = False,
    k: int = 10,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Applies `log` to a new graph, `chunk` events at a time, and returns the figures.

    Args:
        clock: seconds, such as `time.perf_counter`; only the time in `apply` is counted.
        check: compare the `k` latest neighbours of both ends of each event with the oracle's.
        progress: called after each chunk with `done_events` and `total_events`.

    Raises:
        LeakError: if `check` is on and a neighbourhood differs.
    """
    graph = DynamicGraph(log.initial)
    oracle = OracleGraph(log.initial) if check else None
    DynamicGraph().apply(log[:1])  # compiles the kernels: the first chunk must not pay for that
    seconds = 0.0
    for start in range(0, len(log), chunk):
        batch = log[start : start + chunk]
        begin = clock()
        graph.apply(batch)
        seconds += clock() - begin
        if oracle is not None:
            _check(graph, oracle, batch, k)
        if progress is not None:
            progress({"done_events": graph.position, "total_events": len(log)})
    nodes = np.arange(graph.num_nodes)
    degrees = graph.degree(nodes, graph.position)
    return {
        "name": log.name,
        "events": graph.position,
        "nodes": graph.num_nodes,
        "links": graph.num_links,
        "max_degree": int(degrees.max()) if len(degrees) else 0,
        "seconds": seconds,
        "events_per_second": graph.position / seconds if seconds > 0 else None,
        "checked_samples": 2 * graph.position if check else None,
        "quarantined": log.quarantined,
        "checksum": log.checksum,
        "notes": list(log.notes),
    }


def _check(graph: DynamicGraph, oracle: OracleGraph, batch: EventBatch, k: int) -> None:
    """Compares what both ends of each latest event saw, as of that event."""
    start = oracle.position
    positions = np.arange(start, start + len(batch))
    oracle.apply(batch)
    for nodes in (batch.src, batch.dst):
        compare(
            graph.sample(nodes, positions, k), oracle.sample(nodes, positions, k), nodes, positions
        )

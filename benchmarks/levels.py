"""How many events of a real log can be processed together, and is the schedule exact about it?

The first 20,000 events of the six logs of the NeutronStream paper are cut into chunks; the width is
events / levels.  DyRep writes the two ends of an event; DyGNN writes every linked neighbour of both
too, starts from an empty graph and links the ends of every event.  Beside the widths stand the
exact ones that were measured with pairwise conflict tests of the published code's read and write
sets; `read` is the number of nodes that an event reads.

    python benchmarks/levels.py [--events N] [--chunks N ...]

Answer (2026-11-30): the widths are the exact ones in all 30 published cells: DyRep below 2 on four
logs, up to 3.2 on slashdot_reply and 4.7 on reality_call; DyGNN below 2 on all.  Larger chunks
hardly help: hubs make the levels.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

import numpy as np

from neutronstream.datasets import load
from neutronstream.models import DyRep
from neutronstream.parallel import LevelExecutor, Replay, schedule
from neutronstream.storage import DynamicGraph
from neutronstream.stream import EventLog, Int64

CHUNKS = (50, 200, 1000)
EVENTS = 20_000
EXACT = {  # log: model: widths for the CHUNKS of the first EVENTS
    "social_evolution": {"DyRep": (1.34, 1.40, 1.43), "DyGNN": (1.11, 1.13, 1.13)},
    "github": {"DyRep": (1.32, 1.33, 1.33), "DyGNN": (1.04, 1.04, 1.04)},
    "dnc": {"DyRep": (1.32, 1.33, 1.34), "DyGNN": (1.10, 1.10, 1.10)},
    "uci": {"DyRep": (1.77, 1.79, 1.80), "DyGNN": (1.06, 1.06, 1.06)},
    "reality_call": {"DyRep": (3.83, 4.41, 4.65), "DyGNN": (1.87, 1.90, 1.91)},
    "slashdot_reply": {},
}


def dyrep_widths(log: EventLog, chunks: Sequence[int]) -> tuple[list[float], float]:
    """Events / levels of the executor's own schedules for each chunk, and nodes read an event."""
    replay = Replay(log, DyRep(1, log.kinds, num_negatives=1))
    executor = LevelExecutor(replay)
    widths = []
    for chunk in chunks:
        levels = 0
        for start in range(0, len(log), chunk):
            plan = executor.prepare(replay.resolve(start, min(len(log), start + chunk)))
            levels += plan.schedule.num_levels
        widths.append(len(log) / levels)
    whole = replay.resolve(0, len(log))
    return widths, mean_reads(whole.ends, whole.neighbors.indptr, whole.neighbors.node)


def dygnn_widths(log: EventLog, chunks: Sequence[int]) -> tuple[list[float], float]:
    """The same for events that write whatever they read."""
    graph = DynamicGraph(num_nodes=log.num_nodes)
    graph.apply(log[:])
    ends = np.stack([log.events.src, log.events.dst], axis=1)
    links = graph.links(ends.ravel(), np.repeat(np.arange(len(log)), 2) + 1)
    lengths = np.diff(links.indptr).reshape(-1, 2).sum(1)
    owner = np.repeat(np.arange(len(log)), lengths)
    first = np.concatenate([[0], np.cumsum(2 + lengths)])
    nodes = np.empty(first[-1], np.int64)
    nodes[first[:-1, None] + np.arange(2)] = ends
    nodes[np.arange(len(owner)) + 2 * (owner + 1)] = links.node
    widths = []
    for chunk in chunks:
        levels = 0
        for start in range(0, len(log), chunk):
            part = first[start : start + chunk + 1]
            used, starts = nodes[part[0] : part[-1]], part - part[0]
            levels += schedule(starts, used, starts, used).num_levels
        widths.append(len(log) / levels)
    return widths, mean_reads(ends, links.indptr, links.node)


def mean_reads(ends: Int64, indptr: Int64, neighbors: Int64) -> float:
    """How many distinct nodes an event reads: its ends (n, 2) and their lists, (2 n + 1,)."""
    event = np.repeat(np.arange(len(ends)), 2)
    owner = np.repeat(event, np.diff(indptr))
    pairs = np.concatenate([event << 32 | ends.ravel(), owner << 32 | neighbors])
    pairs.sort()  # faster than np.unique here
    return (np.count_nonzero(np.diff(pairs)) + 1) / len(ends)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--chunks", type=int, nargs="+", default=list(CHUNKS))
    given = parser.parse_args()
    result: dict[str, dict[str, list[float]]] = {}
    print(f"{'log':<18}{'model':<7}{'read':>7}", *(f"{c:>7}{'exact':>7}" for c in given.chunks))
    for name, published in EXACT.items():
        log = load(name, limit=given.events)
        for model, measure in (("DyRep", dyrep_widths), ("DyGNN", dygnn_widths)):
            widths, read = measure(log, given.chunks)
            known = published.get(model, ()) if given.events == EVENTS else ()
            exact = dict(zip(CHUNKS, (f"{width:.2f}" for width in known), strict=False))
            cells = [
                f"{width:>7.2f}{exact.get(chunk, '-'):>7}"
                for chunk, width in zip(given.chunks, widths, strict=True)
            ]
            print(f"{name:<18}{model:<7}{read:>7.1f}", *cells)
            result.setdefault(name, {})[model] = [round(width, 4) for width in widths]
    print(json.dumps(result | {"events": given.events, "chunks": given.chunks}))


if __name__ == "__main__":
    main()

"""Does the memory of a run grow with the number of windows, or only with the graph?

The second run of a process over uci in several hundred windows, its resident memory read after
each; the first one fills the heap.  The line through the second half of the readings gives MB a
hundred windows.  Beside it stands what must grow: the graph and node state of the same events
applied without any window, and 16 bytes an event and scorer for AP and AUC.

    python benchmarks/memory.py [--windows N] [--executor NAME]

Answer (2026-11-30, width 16, levels, 300 windows, one of two cores): 1.0 MB a hundred fixed
windows and 0.9 MB a hundred tumbling ones, below the 1.2 MB that graph and scores of their events
need.
"""

from __future__ import annotations

import argparse
import gc
from typing import Any

import numpy as np
from common import finish, resident, slope  # type: ignore  # beside this file

from neutronstream import TrainConfig, fit
from neutronstream.datasets import load
from neutronstream.models import DyRep
from neutronstream.parallel import Replay
from neutronstream.stream import EventLog

SEED, SCORERS = 0, 5


def readings(log: EventLog, config: TrainConfig) -> list[float]:
    """MiB after each window of a run."""
    seen: list[float] = []

    def note(figures: dict[str, Any]) -> None:
        if len(seen) % 10 == 0:  # often would be slow
            gc.collect()
        seen.append(resident())

    fit(log, config, progress=note)
    return seen


def needed(log: EventLog, first: int, width: int) -> float:
    """MiB that graph, state and scores of the events from `first` on need without windows."""
    replay = Replay(log, DyRep(width, log.kinds), seed=SEED)
    replay.apply(first)
    links = replay.graph.num_links
    replay.apply(len(log))
    words = 5 + 2 * 2  # of an event: its record, and a word in the list of each end, doubling
    grown = (len(log) - first) * words + (replay.graph.num_links - links) * (3 + 2 * 2 + 4)
    attention = (replay.graph.num_links - links) * 2 * 4
    return (8 * grown + attention + 2 * 16 * SCORERS * (len(log) - first)) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=300)
    parser.add_argument("--executor", default="levels")
    given = parser.parse_args()
    result: dict[str, dict[str, float]] = {}
    ways: dict[str, dict[str, Any]] = {
        "fixed": {"size": 100, "stride": 50},
        "tumbling": {"window": "tumbling", "size": 50},
    }
    for way, settings in ways.items():
        log = load("uci", limit=50 * given.windows + 50)
        config = TrainConfig(
            width=16, batch_size=50, candidates=5, executor=given.executor, **settings
        )
        readings(log, config)  # the first run of a process also fills the heap's free lists
        seen = readings(log, config)
        half = len(seen) // 2
        result[way] = {
            "windows": len(seen),
            "start_mb": round(seen[0], 1),
            "end_mb": round(seen[-1], 1),
            "mb_per_100_windows": round(100 * slope(seen[half:]), 2),
            "needed_mb_per_100_windows": round(
                100 * needed(log, 50 * half, config.width) / (len(seen) - half), 2
            ),
            "spread_mb": round(float(np.ptp(seen[half:])), 2),
        }
        print(f"{way:9}", "  ".join(f"{k} {v}" for k, v in result[way].items()), flush=True)
    finish({"executor": given.executor, "runs": result}, SEED)


if __name__ == "__main__":
    main()

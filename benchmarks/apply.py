"""How many events a second does the graph store take, and give back, on one thread?

A skewed random log (one million events, 100,000 nodes) is applied in batches, every event making a
link if it can, then undone.  The best of several rounds counts: the first one pays for the pages.

    python benchmarks/apply.py [--events N] [--nodes N]

Answer (2026-11-30, one of two shared cores): 4 to 5 million applied events a second in batches of
1,000 and more, 2 million in batches of 100; 30 million undone.
"""

from __future__ import annotations

import argparse
import json
from time import perf_counter

import numpy as np

from neutronstream.storage import DynamicGraph
from neutronstream.stream import EventBatch


def skewed_log(num_events: int, num_nodes: int, seed: int = 0) -> EventBatch:
    """Events between nodes of Zipf-like popularity; a tenth has the time of the one before."""
    rng = np.random.default_rng(seed)
    ends = (num_nodes ** rng.random((2, num_events))).astype(np.int64) - 1  # log-uniform
    src, dst = rng.permutation(num_nodes)[ends]
    time = np.cumsum((rng.random(num_events) < 0.9).astype(np.int64))
    return EventBatch(src, dst, time, np.zeros(num_events, np.uint8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    log = skewed_log(given.events, given.nodes)
    DynamicGraph().apply(log[:10])  # compiles
    result: dict[str, float] = {"events": given.events, "nodes": given.nodes}
    for size in (100, 1_000, 10_000, given.events):
        apply, undo = [], []
        for _ in range(given.rounds):
            graph = DynamicGraph()
            start = perf_counter()
            for first in range(0, len(log), size):
                graph.apply(log[first : first + size])
            middle = perf_counter()
            graph.undo(0)
            apply.append(middle - start)
            undo.append(perf_counter() - middle)
        rates = len(log) / min(apply), len(log) / min(undo)
        print(f"batches of {size:>9,}: {rates[0]:>12,.0f} applied/s {rates[1]:>12,.0f} undone/s")
        result[f"applied_per_second_batch_{size}"] = round(rates[0])
        result["undone_per_second"] = round(rates[1])
    print(json.dumps(result))


if __name__ == "__main__":
    main()

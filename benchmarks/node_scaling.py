"""Does an event cost more in a large graph than in a small one?

At a fixed mean degree of 10 the number of nodes grows from a thousand to a million.  Measured are
the next 20,000 events and as many queries on a graph that stands already; what is left of a growth
is the price of memory that no longer fits the caches, not of work that grows with the graph.

    python benchmarks/node_scaling.py [--nodes 1000 10000 ...]

Answer (2026-11-30, one of two shared cores): a thousand times the nodes costs 4 times as much an
event (80 ns to apply and undo one at 1,000 nodes, 340 ns at a million) and as much a query (100 ns
to sample ten neighbours, 370 ns); between 1,000 and 10,000 nodes, which both fit the caches, the
time is flat within a quarter, `last_time` aside.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from time import perf_counter

import numpy as np

from neutronstream.storage import DynamicGraph
from neutronstream.stream import EventBatch

DEGREE = 10
ASKED = 20_000


def uniform_log(num_events: int, num_nodes: int, start: int, seed: int) -> EventBatch:
    """Events between any two nodes, one a tick."""
    src, dst = np.random.default_rng(seed).integers(0, num_nodes, (2, num_events))
    time = np.arange(start, start + num_events)
    return EventBatch(src, dst, time, np.zeros(num_events, np.uint8))


def best(act: Callable[[int], object]) -> float:
    """Nanoseconds an event or query, the best of rounds 0, 1, ... 6."""
    seconds = []
    for number in range(7):
        start = perf_counter()
        act(number)
        seconds.append(perf_counter() - start)
    return min(seconds) / ASKED * 1e9


def measure(num_nodes: int) -> dict[str, float]:
    """Nanoseconds of each operation on a graph of `num_nodes` nodes."""
    built = DEGREE * num_nodes // 2
    log = uniform_log(built, num_nodes, 0, seed=0)
    graph = DynamicGraph()
    start = perf_counter()
    graph.apply(log)
    result = {"build": (perf_counter() - start) / built * 1e9}
    # the degree of a small graph must stay what it is: undo often.  Every round has its own events
    # and nodes, or the large graph would answer from the caches too
    size = min(ASKED, built // 5)
    more = [uniform_log(size, num_nodes, built, seed) for seed in range(7 * ASKED // size)]
    rng = np.random.default_rng(2)
    nodes = rng.integers(0, num_nodes, (7, ASKED))
    positions = rng.integers(0, built, (7, ASKED))

    def apply(number: int) -> None:
        for batch in more[number::7]:
            graph.apply(batch)
            graph.undo(built)

    result["apply_and_undo"] = best(apply)
    result["sample_10"] = best(lambda i: graph.sample(nodes[i], positions[i], 10))
    result["links"] = best(lambda i: graph.links(nodes[i], positions[i]))
    result["last_time"] = best(lambda i: graph.last_time(nodes[i], positions[i], 0))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    sizes = [10**3, 10**4, 10**5, 10**6]
    parser.add_argument("--nodes", type=int, nargs="+", default=sizes)
    given = parser.parse_args()
    measure(1000)  # compiles
    results = {}
    for num_nodes in given.nodes:
        results[num_nodes] = measure(num_nodes)
        shown = "  ".join(f"{name} {value:5.0f}" for name, value in results[num_nodes].items())
        print(f"{num_nodes:>9,} nodes, ns each:  {shown}")
    first, last = results[given.nodes[0]], results[given.nodes[-1]]
    growth = {name: round(last[name] / first[name], 2) for name in first}
    rounded = {n: {k: round(v, 1) for k, v in row.items()} for n, row in results.items()}
    print(json.dumps({"nanoseconds": rounded, "growth": growth}))


if __name__ == "__main__":
    main()

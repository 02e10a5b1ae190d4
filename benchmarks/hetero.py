"""Does mapping by a tree of resources, with copies and relays, pay on unlike workers and links?

A two-layer GCN on a degree-sorted power-law graph and on a graph with communities, on the clusters
of `hetero.PROFILES`; one rung after the other: METIS with equal parts, with parts by speed, the
tree, with feedback, with single nodes moved, with copies, with relays.  Tensor parallelism with
rows and columns by speed stands beside them.  Times are virtual: the planner's (nothing overlaps)
and that of the clocks (links do not delay each other); bytes and operations are those that the
backend executes, which the tests hold it to.

    python benchmarks/hetero.py [--nodes N] [--edges E] [--widths 64,64,16]
"""

from __future__ import annotations

import argparse
import json
from time import perf_counter
from typing import Any

import numpy as np

from neutronstream.parallel.backends.hetero import (
    PROFILES,
    Epoch,
    Load,
    Mapping,
    Plan,
    Resources,
    busy_times,
    make_plan,
    map_by_shares,
    map_by_tree,
    map_equal,
    profile,
    refined,
    run,
    tensor_parallel,
    vertex_parallel,
    with_feedback,
)
from neutronstream.parallel.backends.partition import imbalance
from neutronstream.storage import SparseMatrix


def hubs(num_nodes: int, num_edges: int) -> SparseMatrix:
    """Directed, power law, ids by falling degree; with self loops."""
    random = np.random.default_rng(0)
    share = np.arange(1, num_nodes + 1) ** -0.8
    ends = random.choice(num_nodes, (2, num_edges), p=share / share.sum())
    return SparseMatrix.from_edges(ends[0], ends[1], num_nodes).normalised("loops")


def communities(num_nodes: int, num_edges: int) -> SparseMatrix:
    """64 groups; nine of ten edges stay within one, half of the others go to the next."""
    random = np.random.default_rng(0)
    src = random.integers(0, num_nodes, num_edges)
    size = num_nodes // 64
    step = random.choice(3, num_edges, p=[0.9, 0.05, 0.05])
    home = src // size * size + np.where(step == 1, size, 0)
    anywhere = random.integers(0, num_nodes, num_edges)
    dst = np.where(step == 2, anywhere, home + random.integers(0, size, num_edges)) % num_nodes
    return SparseMatrix.from_edges(src, dst, num_nodes).normalised("loops")


def row(
    name: str,
    busy: float,
    even: float,
    epoch: Epoch,
    resources: Resources,
    copies: int,
    took: float,
) -> dict[str, Any]:
    """What is told of a rung; times in ms, bytes in kB."""
    slow = sum(epoch.sent[pair] for pair in resources.slow_links())
    return {
        "rung": name,
        "planned": round(1e3 * busy, 2),
        "clock": round(1e3 * epoch.time, 2),
        "imbalance": round(even, 2),
        "slow_kB": round(slow / 1e3),
        "all_kB": round(float(epoch.sent.sum()) / 1e3),
        "copies": copies,
        "planning": round(took, 2),
    }


def of_plan(
    name: str, plan: Plan, matrix: SparseMatrix, resources: Resources, load: Load, took: float
) -> dict[str, Any]:
    busy = busy_times(plan.stages, load, resources, matrix.degree)
    epoch = run(vertex_parallel(plan.stages, load, matrix.degree), resources)
    return row(name, busy.max(), imbalance(busy), epoch, resources, plan.copies, took)


def rungs(matrix: SparseMatrix, resources: Resources, load: Load) -> list[dict[str, Any]]:
    """One after the other; `planning` is seconds from the start of each rung's own work."""
    found = []

    def tell(name: str, mapping: Mapping, start: float, **options: bool) -> None:
        migrates = {"copies": False, "relays": False} | options
        plan = make_plan(matrix, mapping.ownership, resources, load, layers=load.hops, **migrates)
        found.append(of_plan(name, plan, matrix, resources, load, perf_counter() - start))

    start = perf_counter()
    tell("equal parts", map_equal(matrix, resources, load), start)
    start = perf_counter()
    tell("parts by speed", map_by_shares(matrix, resources, load, resources.speed), start)
    start = perf_counter()
    tell("tree", map_by_tree(matrix, resources, load), start)
    start = perf_counter()
    fed = with_feedback(matrix, resources, load)
    tell("+ feedback", fed, start)
    moved = refined(matrix, fed, resources, load)
    tell("+ single nodes", moved, start)
    tell("+ copies", moved, start, copies=True)
    tell("+ copies, relays", moved, start, copies=True, relays=True)
    start = perf_counter()
    steps = tensor_parallel(matrix.num_rows, matrix.num_edges, load, resources.speed)
    epoch = run(steps, resources)
    alone = epoch.sent.T / resources.bandwidth + epoch.sent / resources.bandwidth
    busy = epoch.computing + alone.sum(0) / 1
    found.append(
        row("tensor", busy.max(), imbalance(busy), epoch, resources, 0, perf_counter() - start)
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--edges", type=int, default=100_000)
    parser.add_argument("--widths", default="64,64,16")
    arguments = parser.parse_args()
    load = Load(tuple(int(width) for width in arguments.widths.split(",")))
    refined(
        hubs(64, 200),
        map_equal(hubs(64, 200), profile("homogeneous"), load),
        profile("homogeneous"),
        load,
    )
    told: dict[str, Any] = {}
    for make in (hubs, communities):
        matrix = make(arguments.nodes, arguments.edges)
        for name in PROFILES:
            table = rungs(matrix, profile(name), load)
            told[f"{make.__name__}, {name}"] = table
            print(f"\n{make.__name__}, {name} (ms, kB, s)")
            print(f"{'':18}" + "".join(f"{column:>11}" for column in list(table[0])[1:]))
            for line in table:
                values = list(line.values())
                print(f"{values[0]:18}" + "".join(f"{value:>11}" for value in values[1:]))
    print(json.dumps(told))


if __name__ == "__main__":
    main()

"""Does mapping by a tree of resources, with copies and relays, pay on unlike workers and links?

A two-layer GCN on a degree-sorted power-law graph and on one with communities, on the clusters of
`hetero.PROFILES`, rung by rung: METIS with equal parts, with parts by speed, the tree, with
feedback and (a) copies, relays; then the tree with single nodes moved, which is what the backend
does, and (b) copies, relays.  Tensor parallelism with rows and columns by speed stands beside them.
Times are virtual: the planner's, and the clocks' with links that do not delay each other or one
port a worker; bytes and operations are those that the backend executes (the tests hold it to that).

    python benchmarks/hetero.py [--nodes N] [--edges E] [--widths 64,64,16]

Answer (2026-11-30, 10,000 nodes, 100,000 edges, widths 64, 64, 16, ms an epoch by the clocks, equal
parts -> parts by speed -> what the backend does -> tensor): homogeneous 50 -> 50 -> 50 -> 43 with
hubs and 43 -> 43 -> 43 -> 44 with communities, as it must be; fast GPU, slow net 64 -> 30 -> 23 ->
28 and 44 -> 21 -> 22 -> 28; one straggler link 64 -> 64 -> 50 -> 83 and 57 -> 57 -> 45 -> 83; mixed
3-level 32 -> 31 -> 16 -> 21 and 22 -> 12.5 -> 12.4 -> 21; fast worker behind slow link 97 -> 74 ->
43 -> 80 and 49 -> 42 -> 33 -> 80.  So it pays where links are uneven, and where hubs are cut;
where METIS by speed cuts little already it does not (communities on the second and fourth
cluster: copies spare 37% and 27% of the slow bytes, and the clocks do not gain from it).  Most
comes from moving single nodes; copies matter behind the one slow link (39 -> 33 ms, slow bytes
1667 -> 382 kB), relays hardly ever (mixed 3-level with hubs: 19.6 -> 19.1 with one port).  The tree
alone gains nothing over METIS by speed if workers are numbered rack by rack, and on one straggler
link with hubs it is worse (115) until nodes are moved.  Feedback costs a METIS run or more a round
and ends hardly better anywhere.  CPU time of planning in real epochs of one process here (11 ms at
these widths, 58 at 256, 256, 40), mapping alone and all of it: 9 to 11 and 13 to 15 on 4 workers,
14 and 35 on 8; at the larger widths 1 to 2 and 2 to 3, 2 to 3 and 5 to 8.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from time import process_time
from typing import Any

import numpy as np
import torch
from common import finish  # type: ignore  # beside this file

from neutronstream.models.snapshots import GCN
from neutronstream.parallel.backends import FullGraph, make_propagator
from neutronstream.parallel.backends.hetero import (
    PROFILES,
    Load,
    Mapping,
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
from neutronstream.parallel.backends.hetero.simulate import Step
from neutronstream.parallel.backends.partition import imbalance
from neutronstream.storage import Snapshot, SparseMatrix
from neutronstream.storage.sparse import Float64

SEED = 0


def hubs(num_nodes: int, num_edges: int) -> SparseMatrix:
    """Directed, power law, ids by falling degree; with self loops."""
    random = np.random.default_rng(SEED)
    share = np.arange(1, num_nodes + 1) ** -0.8
    ends = random.choice(num_nodes, (2, num_edges), p=share / share.sum())
    return SparseMatrix.from_edges(ends[0], ends[1], num_nodes).normalised("loops")


def communities(num_nodes: int, num_edges: int) -> SparseMatrix:
    """64 groups; nine of ten edges stay within one, half of the others go to the next."""
    random = np.random.default_rng(SEED)
    src = random.integers(0, num_nodes, num_edges)
    size = num_nodes // 64
    step = random.choice(3, num_edges, p=[0.9, 0.05, 0.05])
    home = src // size * size + np.where(step == 1, size, 0)
    anywhere = random.integers(0, num_nodes, num_edges)
    dst = np.where(step == 2, anywhere, home + random.integers(0, size, num_edges)) % num_nodes
    return SparseMatrix.from_edges(src, dst, num_nodes).normalised("loops")


def measured(
    steps: Sequence[Step], busy: Float64, resources: Resources, copies: int, took: float
) -> dict[str, Any]:
    """What is told of a rung; times in ms, bytes in kB, planning in s of CPU."""
    epoch = run(steps, resources)
    slow = sum(epoch.sent[pair] for pair in resources.slow_links())
    return {
        "planned": round(1e3 * float(busy.max()), 1),
        "clock": round(1e3 * epoch.time, 1),
        "one port": round(1e3 * run(steps, resources, one_port=True).time, 1),
        "max/mean": round(imbalance(busy), 2),
        "slow kB": round(slow / 1e3),
        "all kB": round(float(epoch.sent.sum()) / 1e3),
        "copies": copies,
        "planning": round(took, 2),
    }


def rungs(matrix: SparseMatrix, resources: Resources, load: Load) -> dict[str, dict[str, Any]]:
    """One after the other."""
    speed = resources.speed

    def moved(mapping: Mapping) -> Mapping:
        return refined(matrix, mapping, resources, load)

    ways: dict[str, tuple[Callable[[], Mapping], bool, bool]] = {
        "equal parts": (lambda: map_equal(matrix, resources, load), False, False),
        "parts by speed": (lambda: map_by_shares(matrix, resources, load, speed), False, False),
        "tree": (lambda: map_by_tree(matrix, resources, load), False, False),
        "+ feedback": (lambda: with_feedback(matrix, resources, load), False, False),
        "+ copies (a)": (lambda: with_feedback(matrix, resources, load), True, False),
        "+ relays (a)": (lambda: with_feedback(matrix, resources, load), True, True),
        "tree + moves": (lambda: moved(map_by_tree(matrix, resources, load)), False, False),
        "+ copies (b)": (lambda: moved(map_by_tree(matrix, resources, load)), True, False),
        "+ relays (b)": (lambda: moved(map_by_tree(matrix, resources, load)), True, True),
        "moves, relays": (lambda: moved(map_by_tree(matrix, resources, load)), False, True),
    }
    found = {}
    for name, (mapped, copies, relays) in ways.items():
        start = process_time()
        owners = mapped().ownership
        layers = load.hops
        plan = make_plan(
            matrix, owners, resources, load, layers=layers, copies=copies, relays=relays
        )
        took = process_time() - start
        busy = busy_times(plan.stages, load, resources, matrix.degree)
        steps = vertex_parallel(plan.stages, load, matrix.degree)
        found[name] = measured(steps, busy, resources, plan.copies, took)
    steps = tensor_parallel(matrix.num_rows, matrix.num_edges, load, speed)
    alone = run(steps, resources)
    moving = (alone.sent * resources.pace + alone.sent.T * resources.pace).sum(1) / 2
    found["tensor by speed"] = measured(steps, alone.computing + moving, resources, 0, 0.0)
    return found


def epoch_seconds(matrix: SparseMatrix, load: Load) -> float:
    """CPU seconds of a real epoch on one process here: what planning is compared with."""
    num_nodes = matrix.num_rows
    features = np.ones((num_nodes, load.widths[0]), np.float32)
    snapshot = Snapshot(matrix, features, np.zeros(num_nodes, np.int64))
    model = GCN(load.widths)
    optimiser = torch.optim.Adam(model.parameters())
    single = make_propagator("single", [snapshot])
    graph = FullGraph(single, model, snapshot, np.ones(num_nodes, bool), optimiser)
    graph.step()
    start = process_time()
    for _ in range(5):
        graph.step()
    return (process_time() - start) / 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--edges", type=int, default=100_000)
    parser.add_argument("--widths", default="64,64,16")
    given = parser.parse_args()
    torch.set_num_threads(1)
    load = Load(tuple(int(width) for width in given.widths.split(",")))
    rungs(hubs(64, 300), profile("fast GPU, slow net"), load)  # compiled
    told: dict[str, Any] = {"widths": load.widths, "nodes": given.nodes, "edges": given.edges}
    for make in (hubs, communities):
        matrix = make(given.nodes, given.edges)
        seconds = epoch_seconds(matrix, load)
        told[f"{make.__name__}, CPU ms of an epoch here"] = round(1e3 * seconds, 1)
        for name in PROFILES:
            table = rungs(matrix, profile(name), load)
            told[f"{make.__name__}, {name}"] = table
            print(f"\n{make.__name__}, {name}; a real epoch takes {1e3 * seconds:.0f} ms here")
            print(f"{'':16}" + "".join(f"{column:>10}" for column in table["tree"]))
            for rung, line in table.items():
                print(f"{rung:16}" + "".join(f"{value:>10}" for value in line.values()))
    finish(told, SEED)


if __name__ == "__main__":
    main()

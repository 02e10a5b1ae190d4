"""How much faster does a whole graph learn when columns are divided and not nodes?

Two ranks of mpiexec, one thread each, on the directed power law whose ids fall by degree: runs of
nodes then give one rank most of the edges.  A GCN takes its epochs on either backend in turn, A B A
B, in the same processes; the answer is the median of the ratios of neighbouring epochs, first over
second, by the clock.  Beside it, in ms: what the busier rank was at work (`thread_time`, without
the looks of a rank that waits, in which MPI moves the bytes), and in sparse products alone; bytes
an epoch over all ranks; how far the losses are apart.

    mpiexec -n 2 python benchmarks/tensor_speed.py [--backends halo tensor] [--nodes N] [--edges N]
        [--widths N N N] [--pairs N] [--cached] [--decoupled] [--chunks N]
        [--shuffled]

Answer (2026-11-30, two cores with nothing else to do, 15 pairs, losses apart by 1e-6 at most):
1.31 by the clock with 20,000 nodes, 1.0 M entries and widths 64 64 64, where the busier rank is at
work for 33 ms over halo and 27 over tensor; 1.46 with 10,000 nodes and 1.1 M entries (23 and 17
ms); 1.68 for `--decoupled` and widths 64 64 64 64, where all hops go between one split and one
gather. On the same cores with ten other jobs the first was 1.14. Products alone are 1.5 to 1.8
times as quick, as the edges are uneven; what nodes cost by themselves is the same on both, and in
a coupled layer the ranks meet twice as often.
"""

from __future__ import annotations

import argparse
import os
from statistics import median
from time import perf_counter, thread_time
from typing import Any

import numpy as np
import torch
from common import finish  # type: ignore  # beside this file
from graphs import dressed, power_law  # type: ignore  # beside this file

from neutronstream.models.snapshots import GCN
from neutronstream.parallel.backends import FullGraph, kernels, make_propagator
from neutronstream.parallel.comm import connect
from neutronstream.parallel.ranks import Comm
from neutronstream.storage import Snapshot

WARM_UP, SEED = 3, 0


class Clock:
    """Seconds at work in something, counted at its door."""

    def __init__(self, home: Any, name: str) -> None:
        self.seconds = 0.0
        inner = getattr(home, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            began = thread_time()
            found = inner(*arguments, **named)
            self.seconds += thread_time() - began
            return found

        setattr(home, name, timed)


class Run:
    """A backend at work; `epoch` takes one and notes what it took."""

    def __init__(
        self, name: str, snapshot: Snapshot, comm: Comm, given: argparse.Namespace
    ) -> None:
        torch.manual_seed(SEED)
        options = {"chunks": given.chunks} if name == "tensor" else {}
        model = GCN(given.widths, cached=given.cached, decoupled=given.decoupled)
        train = np.arange(snapshot.num_nodes) % 2 == 0
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        propagator = make_propagator(name, [snapshot], comm, **options)
        self.graph = FullGraph(propagator, model, snapshot, train, optimiser)
        self.comm = comm
        self.losses: list[float] = []
        self.clock: list[float] = []
        self.work: list[float] = []
        self.products: list[float] = []
        self.sent = 0

    def epoch(self, products: Clock, waits: Clock) -> None:
        self.comm.barrier()
        self.comm.bytes.clear()
        multiplied, waited = products.seconds, waits.seconds
        worked, began = thread_time(), perf_counter()
        self.losses.append(self.graph.step())
        self.clock.append(perf_counter() - began)
        self.work.append(thread_time() - worked - (waits.seconds - waited))
        self.products.append(products.seconds - multiplied)
        self.sent = sum(traffic.sent for traffic in self.comm.bytes.values())

    def told(self) -> dict[str, float]:
        """Medians in ms, of the busier rank where ranks differ; MB over all ranks."""
        own = [median(times[WARM_UP:]) for times in (self.work, self.products)]
        everyone = self.comm.gather_objects([*own, self.sent], "results")
        return {
            "epoch": round(1e3 * median(self.clock[WARM_UP:]), 2),
            "quickest epoch": round(1e3 * min(self.clock[WARM_UP:]), 2),
            "work": round(1e3 * max(other[0] for other in everyone), 2),
            "products": round(1e3 * max(other[1] for other in everyone), 2),
            "megabytes": round(sum(other[2] for other in everyone) / 1e6, 3),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backends", nargs=2, default=["halo", "tensor"])
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument(
        "--edges",
        type=int,
        default=1_460_000,
        help="drawn; of 1,460,000 some 1,000,000 are distinct",
    )
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 64, 64])
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--chunks", type=int, default=1)
    parser.add_argument("--cached", action="store_true", help="keep A X of the first layer")
    parser.add_argument("--decoupled", action="store_true", help="all products after all layers")
    parser.add_argument("--shuffled", action="store_true", help="ids in no order")
    given = parser.parse_args()
    torch.set_num_threads(1)
    adjacency = power_law(given.nodes, given.edges, is_sorted=not given.shuffled, seed=SEED)
    snapshot = dressed(adjacency, given.widths[0], given.widths[-1], SEED)
    with connect(os.environ) as comm:
        products, waits = Clock(kernels, "multiply"), Clock(type(comm), "_wait")
        runs = {name: Run(name, snapshot, comm, given) for name in given.backends}
        for _ in range(WARM_UP + given.pairs):
            for run in runs.values():
                run.epoch(products, waits)
        first, second = runs.values()
        ratios = [a / b for a, b in zip(first.clock, second.clock, strict=True)][WARM_UP:]
        told = {name: run.told() for name, run in runs.items()}
        gap = float(np.abs(np.subtract(first.losses, second.losses)).max())
        if comm.rank == 0:
            for name, medians in told.items():
                print(f"{name:>10}: {medians}")
            print(f"{given.backends[0]} / {given.backends[1]}: {median(ratios):.2f} by the clock")
            figures: dict[str, Any] = {"ratio": median(ratios), "ratios": ratios, "gap": gap}
            nnz = snapshot.matrix("gcn").num_edges
            finish(
                {**figures, "backend": told, "ranks": comm.size, "entries": nnz, **vars(given)},
                SEED,
            )


if __name__ == "__main__":
    main()

"""What does each backend move, compute, keep and take, graph by graph; and what on more ranks?

A GCN learns full graphs over 2 and 4 ranks of mpiexec.  All backends take their epochs in turn (A B
C ... A B C ...), one thread a rank.  Told of an epoch are: bytes over all ranks and messages a rank
by the ledger; the busiest rank's multiply-adds of sparse products over the mean; computing time
(`thread_time`) of the busiest rank; how far the losses are from those of one process; bytes kept
for the way back.  Seconds by the clock only where each rank has a core.  Then the model: epochs of
2 to 16 ranks from measured rates of products, matrix products and messages.

    python benchmarks/backends.py [--graphs NAME ...] [--ranks N ...] [--epochs N] [--nodes N]

Answer (2026-11-30, 20,000 nodes, 500,000 edges, 2 ranks on two cores with nothing else to do, ms
an epoch by the clock; one process 18.1, 23.7 and 10.9): power law sorted by degree: halo by runs
16.2 (busiest rank 1.70 of the mean), by METIS 19.4, tensor 16.2, with A X kept 9.7, in 4 chunks
23.4, decoupled 12.8, broadcast 19.5, task 34.1, hetero 18.5; communities: halo by METIS 14.5,
tensor 17.5, kept 9.8; grid: halo 7.6 to 8.6 with 0.2 MiB an epoch, tensor 12.4 with 12. Losses
within 5e-7 of one process. Chunks lose by the clock, task loses where nothing streams, and on a
grid tensor loses. Modelled for 16 ranks, 4 layers, 128 wide: tensor 8.5 ms, halo 18.4 by METIS and
43.0 by runs. 4 ranks, bytes, balance and computing time: docs/backends.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from typing import Any

import numpy as np
import torch
from common import finish  # type: ignore  # beside this file
from graphs import communities, dressed, grid, power_law  # type: ignore  # beside this file

from neutronstream.models.snapshots import GCN
from neutronstream.parallel.backends import FullGraph, Propagator, make_propagator
from neutronstream.parallel.backends.choose import Rates, choose
from neutronstream.parallel.backends.halo import wanted
from neutronstream.parallel.backends.partition import edges_of, imbalance
from neutronstream.parallel.backends.sparse import product
from neutronstream.parallel.comm import connect
from neutronstream.parallel.ranks import Comm
from neutronstream.storage import Snapshot

FEATURES, HIDDEN, CLASSES, WARM_UP = 64, 64, 16, 2
GRAPHS: dict[str, Callable[[int], Any]] = {
    "power law, sorted": lambda n: power_law(n, 25 * n),
    "power law, shuffled": lambda n: power_law(n, 25 * n, is_sorted=False),
    "communities": lambda n: communities(n, 25 * n),
    "grid": lambda n: grid(int(n**0.5)),
}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "broadcast": ("broadcast", {}, {"cached": False}),
    "halo, chunk": ("halo", {"partition": "chunk"}, {"cached": False}),
    "halo, metis": ("halo", {"partition": "metis"}, {"cached": False}),
    "tensor": ("tensor", {}, {"cached": False}),
    "tensor, A X kept": ("tensor", {}, {"cached": True}),
    "tensor, 4 chunks": ("tensor", {"chunks": 4}, {"cached": False}),
    "task": ("task", {}, {"cached": False}),
    "hetero": ("hetero", {}, {"cached": False}),
    "tensor, decoupled": ("tensor", {}, {"decoupled": True}),
}


class Case:
    """A backend at work on a graph; `epoch` takes one, on all ranks together."""

    def __init__(self, label: str, snapshot: Snapshot, comm: Comm | None) -> None:
        name, options, of_model = CASES.get(label, ("single", {}, {"cached": False}))
        torch.manual_seed(0)
        self.model = GCN([FEATURES, HIDDEN, CLASSES], **of_model)
        optimiser = torch.optim.Adam(self.model.parameters(), lr=0.01)
        train = np.arange(snapshot.num_nodes) % 2 == 0
        given = {} if comm is None else {"comm": comm}
        began = perf_counter()
        self.propagator = make_propagator(name, [snapshot], **given, **options)
        self.graph = FullGraph(self.propagator, self.model, snapshot, train, optimiser)
        self.planned = perf_counter() - began
        self.losses: list[float] = []
        self.clock: list[float] = []
        self.work: list[float] = []

    def epoch(self) -> None:
        began, worked = perf_counter(), thread_time()
        self.losses.append(self.graph.step())
        self.clock.append(perf_counter() - began)
        self.work.append(thread_time() - worked)


def kept_bytes(case: Case) -> int:
    """What an epoch keeps for its way back, without parameters; this rank's."""
    seen: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, torch.nn.Parameter):
            seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        case.epoch()
    return sum(seen.values())


def edge_work(propagator: Propagator, snapshot: Snapshot, ranks: int) -> float | None:
    """The busiest rank's share of a product's multiply-adds, over the mean."""
    if propagator.name in ("tensor", "task"):
        columns = np.diff(np.linspace(0, HIDDEN, ranks + 1).astype(int))
        return imbalance(columns) if propagator.name == "tensor" else None
    return imbalance(edges_of(snapshot.matrix("gcn"), propagator.ownership))


def job(comm: Comm, given: argparse.Namespace) -> dict[str, Any]:
    """On every rank: all cases of one graph in turn; what was found, over all ranks."""
    snapshot = dressed(GRAPHS[given.graph](given.nodes), FEATURES, CLASSES, 0)
    cases = {label: Case(label, snapshot, comm) for label in CASES}
    alone = Case("single", snapshot, None)
    traffic: dict[str, dict[str, list[int]]] = {}
    for epoch in range(WARM_UP + given.epochs):
        if comm.rank == 0:
            alone.epoch()
        for label, case in cases.items():
            comm.barrier()
            comm.bytes.clear()
            case.epoch()
            if epoch == WARM_UP:
                traffic[label] = {
                    purpose: [moved.calls, moved.sent] for purpose, moved in comm.bytes.items()
                }
    found: dict[str, Any] = {}
    if comm.rank == 0:
        found["single"] = {
            "work_ms": 1e3 * median(alone.work[WARM_UP:]),
            "clock_ms": 1e3 * median(alone.clock[WARM_UP:]),
        }
    for label, case in cases.items():
        everyone = comm.gather_objects(
            {
                "traffic": traffic[label],
                "work": median(case.work[WARM_UP:]),
                "clock": median(case.clock[WARM_UP:]),
                "kept": kept_bytes(case),
                "planned": case.planned,
                "balance": edge_work(case.propagator, snapshot, comm.size),
            },
            "result",
        )
        if comm.rank:
            continue
        sent = [sum(s for p, (_, s) in one["traffic"].items() if p != "totals") for one in everyone]
        purposes = sorted({purpose for one in everyone for purpose in one["traffic"]})
        differs = max(abs(a - b) for a, b in zip(case.losses, alone.losses, strict=False))
        found[label] = {
            "bytes": sum(sent),
            "by_purpose": {
                p: sum(one["traffic"].get(p, [0, 0])[1] for one in everyone) for p in purposes
            },
            "messages": max(sum(calls for calls, _ in one["traffic"].values()) for one in everyone),
            "bytes_balance": imbalance(sent),
            "edge_balance": everyone[0]["balance"],
            "work_ms": 1e3 * max(one["work"] for one in everyone),
            "work_mean_ms": 1e3 * float(np.mean([one["work"] for one in everyone])),
            "clock_ms": 1e3 * max(one["clock"] for one in everyone),
            "kept_mib": max(one["kept"] for one in everyone) / 2**20,
            "planned_ms": 1e3 * max(one["planned"] for one in everyone),
            "loss_difference": None if "decoupled" in label else differs,
            "halo_rows": halo_rows(case.propagator, snapshot),
        }
    return found


def halo_rows(propagator: Propagator, snapshot: Snapshot) -> float | None:
    """Rows that are needed where they are not held, over the nodes."""
    if propagator.name != "halo":
        return None
    rows = propagator.ownership.rows
    return sum(map(len, wanted(snapshot.matrix("gcn"), rows, rows))) / snapshot.num_nodes


def rates() -> tuple[Rates, float]:
    """Of this machine, one thread: sparse multiply-adds and dense ones a second."""
    matrix = power_law(10_000, 250_000).normalised("gcn")
    x, w = torch.randn(10_000, 32), torch.randn(64, 64)
    y = torch.randn(10_000, 64)
    for _ in range(2):
        product(matrix, x)
    sparse = [timed(lambda: product(matrix, x)) for _ in range(7)]
    dense = [timed(lambda: y @ w) for _ in range(7)]
    return Rates(product=matrix.num_edges * 32 / min(sparse)), 10_000 * 64 * 64 / min(dense)


def timed(act: Callable[[], object]) -> float:
    """Seconds of computing."""
    began = thread_time()
    act()
    return thread_time() - began


def modelled(nodes: int) -> dict[str, dict[str, dict[str, float]]]:
    """Predicted ms an epoch for 2 to 16 ranks, by setting and backend."""
    measured, dense = rates()
    snapshot = dressed(power_law(nodes, 25 * nodes), FEATURES, CLASSES, 0)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for layers, hidden in ((2, 32), (2, 128), (4, 32), (4, 128)):
        widths = [hidden] * (layers - 1) + [CLASSES]
        inputs = [FEATURES, *widths[:-1]]
        flops = 3 * nodes * sum(a * b for a, b in zip(inputs, widths, strict=True))
        by_ranks: dict[str, dict[str, float]] = {}
        for ranks in (2, 4, 8, 16):
            choice = choose([snapshot], ranks, widths, rates=measured)
            by_ranks[str(ranks)] = {
                estimate.label: round(1e3 * (estimate.seconds + flops / ranks / dense), 2)
                for estimate in choice.estimates
            }
        found[f"{layers} layers, {hidden} wide"] = by_ranks
    found["rates"] = {
        "sparse": {"multiply-adds a second": measured.product},
        "dense": {"multiply-adds a second": dense},
    }
    return found


def over(count: int, graph: str, given: argparse.Namespace) -> dict[str, Any]:
    """The job, on so many ranks."""
    beside = Path(sys.executable).parent
    mpiexec = shutil.which("mpiexec", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    command = [str(mpiexec), "-n", str(count), sys.executable, __file__, "--graph", graph]
    command += ["--nodes", str(given.nodes), "--epochs", str(given.epochs)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def show(found: Mapping[str, Any], ranks: int) -> None:
    head = ("KiB", "calls", "edges", "work ms", "mean ms", "clock ms", "kept MiB", "loss off")
    print(f"{'':20}" + "".join(f"{name:>10}" for name in head))
    for label, row in found.items():
        if label == "single":
            blank = " " * 30
            print(f"{label:20}{blank}{row['work_ms']:10.2f}{'':10}{row['clock_ms']:10.2f}")
            continue
        off = row["loss_difference"]
        clock = f"{row['clock_ms']:10.2f}" if ranks <= (os.cpu_count() or 1) else f"{'-':>10}"
        print(
            f"{label:20}{row['bytes'] / 1024:10.0f}{row['messages']:10}"
            + (f"{row['edge_balance']:10.2f}" if row["edge_balance"] else f"{'-':>10}")
            + f"{row['work_ms']:10.2f}{row['work_mean_ms']:10.2f}{clock}{row['kept_mib']:10.1f}"
            + (f"{off:10.1e}" if off is not None else f"{'another':>10}"),
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS))
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--graph", help="what each rank does")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.graph:
        with connect(os.environ) as comm:
            found = job(comm, given)
            if comm.rank == 0:
                print(json.dumps(found))
        return
    result: dict[str, Any] = {}
    for graph in given.graphs:
        for ranks in given.ranks:
            print(f"\n{graph}, {ranks} ranks", flush=True)
            result[f"{graph}, {ranks} ranks"] = over(ranks, graph, given)
            show(result[f"{graph}, {ranks} ranks"], ranks)
    model = modelled(given.nodes)
    for setting, by_ranks in model.items():
        if setting != "rates":
            for count, times in by_ranks.items():
                told = ", ".join(f"{name} {ms} ms" for name, ms in times.items())
                print(f"model, {setting}, {count} ranks: {told}")
    finish({"nodes": given.nodes, "measured": result, "model": model}, seed=0)


if __name__ == "__main__":
    main()

"""Is a window of snapshots trained faster if one is transformed while another is propagated?

One rank transforms (the layers of a decoupled GCN), one propagates (its hops): the pipelined form
against its serial form, which gives the same bits, in turn on the same two ranks; then one process
that does both.  With tasks of like length, without and with a GRU on the rows that come back, and
with much more of one of them.

    mpiexec -n 2 python benchmarks/task_pipeline.py [--pairs 7]

Answer (2026-11-30, two cores with nothing else to do, 5 pairs): yes where the tasks are of like
length, 1.75 times as fast as the serial form and 1.46 times as fast as one process; with a GRU,
whose way back must wait for the window's end, 1.56 and 1.45 times. With one task more than five
times the other it is 1.15 to 1.19 times as fast as the serial form, and hardly faster than one
process (1.13, 1.01).
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from statistics import median
from typing import TypeAlias

import numpy as np
import torch
from common import finish, seconds  # type: ignore  # beside this file

from neutronstream.models.snapshots import GCN, GCNGRU
from neutronstream.parallel.backends import make_propagator
from neutronstream.parallel.backends.task import SnapshotPipeline
from neutronstream.parallel.backends.task.schedule import sum_work
from neutronstream.parallel.comm import connect
from neutronstream.parallel.ranks import Comm
from neutronstream.storage import Snapshot, SparseMatrix

Kind: TypeAlias = type[GCN] | type[GCNGRU]
Shape: TypeAlias = tuple[int, int, tuple[int, ...], Kind]

SHAPES: dict[
    str, Shape
] = {  # nodes, mean degree, widths; 12 snapshots, of which 5 % of the edges change each time
    "balanced": (20_000, 36, (64, 128, 32), GCN),
    "balanced, with a GRU": (20_000, 80, (64, 64, 16), GCNGRU),
    "more to transform": (20_000, 4, (128, 192, 16), GCN),
    "more to propagate": (20_000, 80, (32, 32, 32), GCN),
}
SNAPSHOTS = 12


def window(num_nodes: int, degree: int, width: int, classes: int) -> list[Snapshot]:
    """Directed power-law graphs with churn; targets by chance."""
    random, num_edges = np.random.default_rng(0), num_nodes * degree
    share = np.arange(1, num_nodes + 1) ** -0.7
    share = random.permutation(share / share.sum())
    ends = random.choice(num_nodes, (2, num_edges), p=share)
    found = []
    for _ in range(SNAPSHOTS):
        new = random.random(num_edges) < 0.05
        ends[:, new] = random.choice(num_nodes, (2, int(new.sum())), p=share)
        features = random.normal(size=(num_nodes, width)).astype(np.float32)
        target = random.integers(0, classes, num_nodes)
        found.append(
            Snapshot(SparseMatrix.from_edges(ends[0], ends[1], num_nodes), features, target)
        )
    return found


class Alone:
    """The same steps on one process."""

    def __init__(self, snapshots: list[Snapshot], model: GCN | GCNGRU) -> None:
        self._snapshots, self._model = snapshots, model
        self._optimiser = torch.optim.Adam(model.parameters())
        self._propagator = make_propagator("single", snapshots)
        total = sum(snapshot.num_nodes for snapshot in snapshots)
        self._scale = 1 / total

    def step(self) -> float:
        """Without a GRU each snapshot's way back is taken at once, as the ranks do."""
        self._optimiser.zero_grad()
        total, state, losses = 0.0, (), []
        for snapshot in self._snapshots:
            x, target = self._propagator.inputs(snapshot), torch.from_numpy(snapshot.target)
            output, state = self._model(self._propagator, snapshot, x, state)
            loss = torch.nn.functional.cross_entropy(output, target, reduction="sum")
            losses.append(self._scale * loss)
            if not state:
                losses.pop().backward()  # type: ignore[no-untyped-call]
            total += self._scale * float(loss.detach())
        if losses:
            torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()
        return total


def new_model(kind: Kind, widths: tuple[int, ...]) -> GCN | GCNGRU:
    torch.manual_seed(0)
    return GCN(widths, decoupled=True) if kind is GCN else GCNGRU(widths, widths[-1])


def measure(comm: Comm, shape: Shape, pairs: int) -> dict[str, float]:
    """Seconds a window in each form, and the median of the pairs' ratios."""
    num_nodes, degree, widths, kind = shape
    snapshots = window(num_nodes, degree, widths[0], widths[-1])
    make_model, everyone = partial(new_model, kind, widths), np.ones(num_nodes, bool)
    forms = [
        SnapshotPipeline(
            comm,
            snapshots,
            [everyone] * SNAPSHOTS,
            make_model,
            torch.optim.Adam,
            recompute=False,
            is_pipelined=is_pipelined,
        )
        for is_pipelined in (True, False)
    ]
    alone = Alone(snapshots, make_model())
    losses = [[form.step() for form in forms] + [alone.step()] for _ in range(2)]  # compiles
    worst = max(max(found) - min(found) for found in losses)
    assert worst < 1e-4, losses
    before = forms[0].side.clock.seconds
    rows = []
    for _ in range(pairs):
        row = []
        for form in forms:
            comm.barrier()
            row.append(seconds(form.step))
        comm.barrier()
        row.append(seconds(alone.step) if comm.rank == 0 else 0.0)  # the other rank sleeps
        comm.barrier()
        rows.append(row)
    work = sum_work(comm, forms[0].roles, (forms[0].side.clock.seconds - before) / pairs)
    return {
        "pipelined": median(row[0] for row in rows),
        "serial": median(row[1] for row in rows),
        "one process": median(row[2] for row in rows),
        "serial / pipelined": median(row[1] / row[0] for row in rows),
        "one process / pipelined": median(row[2] / row[0] for row in rows),
        "transform, CPU": work.transform,
        "propagate, CPU": work.propagate,
        "loss apart": worst,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    given = parser.parse_args()
    torch.set_num_threads(1)
    with connect(os.environ) as comm:
        results = {}
        for name in given.shapes:
            results[name] = found = measure(comm, SHAPES[name], given.pairs)
            if comm.rank == 0:
                shown = ", ".join(f"{what} {value:.3g}" for what, value in found.items())
                print(f"{name}: {shown}", flush=True)
        if comm.rank == 0:
            rounded = {
                name: {what: float(f"{value:.3g}") for what, value in found.items()}
                for name, found in results.items()
            }
            finish({"results": rounded}, seed=0)


if __name__ == "__main__":
    main()

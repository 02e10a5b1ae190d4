"""How much faster is a level at a time than an event at a time, forward, backward and step?

DyRep, width 64, 200 events a step, one thread.  Both executors train on the same events in turn, A
B A B; the answer is the median of the pairs' ratios of seconds.  The first events of each run only
warm up.  Beside it stands the mean width of a level, which would bound a speed-up that came from
parallel events alone; and, with --nodes, what a step costs an event in larger and larger graphs of
the same degree, in `Replay.resolve` and in the executor.

    python benchmarks/speed.py [--events N] [--pairs N] [--logs NAME ...] [--nodes N ...]

Answer (2026-11-30, 2,000 events, 5 pairs, one of two shared cores, seed 0): median ratios 4.3
social_evolution, 4.8 github, 4.6 dnc, 4.7 uci, 10.5 reality_call, 7.9 slashdot_reply, single pairs
from 3.7 up.  A step in a graph of a million nodes takes 8 us an event to resolve (5 at a thousand)
and 88 us to run (129: there levels are narrower).
"""

from __future__ import annotations

import argparse
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from common import SIX, finish, paired  # type: ignore  # beside this file

from neutronstream.datasets import load
from neutronstream.models import DyRep
from neutronstream.parallel import EXECUTORS, Executor, Replay
from neutronstream.stream import EventBatch, EventLog

WIDTH, BATCH, SEED, DEGREE = 64, 200, 0, 10


class Run:
    """One training run over a log: `step` learns the next `BATCH` events."""

    def __init__(self, log: EventLog, executor: str) -> None:
        torch.manual_seed(SEED)
        self.replay = Replay(log, DyRep(WIDTH, log.kinds), seed=SEED)
        self.executor: Executor[Any] = EXECUTORS[executor](self.replay)
        self.optimiser = torch.optim.Adam(self.replay.model.parameters())
        self.position = 0
        self.levels: list[int] = []
        self.resolving: list[float] = []  # seconds of each step
        self.running: list[float] = []

    def step(self) -> None:
        stop = min(self.position + BATCH, len(self.replay.log))
        begin = perf_counter()
        segment = self.replay.resolve(self.position, stop)
        resolved = perf_counter()
        plan = self.executor.prepare(segment)
        self.optimiser.zero_grad(set_to_none=True)
        outcome = self.executor.run(plan)
        outcome.losses.mean().backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        self.replay.model.constrain()
        outcome.commit()
        self.running.append(perf_counter() - resolved)
        self.resolving.append(resolved - begin)
        self.levels.append(len(self.executor.widths(plan)))
        self.position = stop

    def advance(self, events: int) -> None:
        """Learn the next `events`, which must be whole batches."""
        for _ in range(events // BATCH):
            self.step()


def compare(name: str, events: int, pairs: int) -> dict[str, float | list[float]]:
    """Events a second of both executors on the first events of a log."""
    chunk = events // pairs // BATCH * BATCH
    log = load(name, limit=chunk * (pairs + 1))
    one, levels = Run(log, "sequential"), Run(log, "levels")
    chunk = min(chunk, len(log) // (pairs + 1) // BATCH * BATCH)
    for run in (one, levels):
        run.step()  # warms up
        run.levels.clear()
    slow, fast, ratios = paired(lambda: one.advance(chunk), lambda: levels.advance(chunk), pairs)
    return {
        "sequential_per_second": round(chunk / slow, 1),
        "levels_per_second": round(chunk / fast, 1),
        "ratio": round(median(ratios), 2),
        "ratios": [round(ratio, 2) for ratio in ratios],
        "width": round(pairs * chunk / sum(levels.levels), 2),
        "events": pairs * chunk,
    }


def node_scaling(num_nodes: int, steps: int = 15) -> dict[str, float]:
    """Median microseconds an event of the next steps; every node has about `DEGREE` events."""
    built, rng = DEGREE * num_nodes // 2, np.random.default_rng(SEED)
    total = built + (steps + 2) * BATCH
    src, dst = rng.integers(0, num_nodes, (2, total))
    batch = EventBatch(src, dst, np.arange(total), np.zeros(total, np.uint8))
    log = EventLog(batch, pa.array(np.arange(num_nodes)))
    run = Run(log, "levels")
    run.replay.apply(built)
    run.position = built
    run.advance(2 * BATCH)  # warms up
    run.resolving.clear()
    run.running.clear()
    run.levels.clear()
    run.advance(steps * BATCH)
    return {
        "resolve_us": round(median(run.resolving) / BATCH * 1e6, 2),
        "run_us": round(median(run.running) / BATCH * 1e6, 1),
        "width": round(steps * BATCH / sum(run.levels), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=3000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--logs", nargs="*", default=list(SIX))
    parser.add_argument("--nodes", type=int, nargs="*", default=[10**3, 10**4, 10**5, 10**6])
    given = parser.parse_args()
    torch.set_num_threads(1)
    logs, nodes = {}, {}
    for name in given.logs:
        logs[name] = compare(name, given.events, given.pairs)
        print(f"{name:18}", "  ".join(f"{k} {v}" for k, v in logs[name].items()), flush=True)
    for count in given.nodes:
        nodes[count] = node_scaling(count)
        print(f"{count:>9,} nodes ", "  ".join(f"{k} {v}" for k, v in nodes[count].items()))
    finish({"logs": logs, "nodes": nodes}, SEED)


if __name__ == "__main__":
    main()

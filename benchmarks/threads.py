"""What does a second thread gain: exact TGN in one process of one thread and of two, step by step?

Two models take the same optimiser steps in turn (A B A B ...), the first with one thread and the
second with `--threads`; the answer is the median of the pairs' ratios by the clock, and what the
second spends in seconds of processors to what the first does.  TGN is 100 wide with 10 neighbours,
2 heads and one negative, as in `throughput.py`.

    python benchmarks/threads.py [--logs NAME ...] [--generated PATH] [--model NAME] [--threads N]

Answer: not measured yet.
"""

from __future__ import annotations

import argparse
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from common import finish  # type: ignore  # beside this file

from neutronstream.datasets import load
from neutronstream.models import build
from neutronstream.models.threads import using_threads
from neutronstream.parallel import EXECUTORS, Executor, Replay
from neutronstream.stream import EventLog, read_log

BATCHES, SEED = (200, 1_000), 0


class Run:
    """A model that learns with a number of threads."""

    def __init__(self, log: EventLog, name: str, width: int, threads: int) -> None:
        torch.manual_seed(SEED)
        options = {"time_from": "neighbor"} if name == "tgn" else {}
        model = build(name, width=width, kinds=log.kinds, options=options)
        self.threads, self.replay = threads, Replay(log, model)
        self.executor: Executor[Any] = EXECUTORS["auto"](self.replay)
        self.optimiser = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

    def step(self, start: int, stop: int) -> tuple[float, float]:
        """Seconds of the clock and of processors, of all threads."""
        with using_threads(self.threads):
            work, begin = process_time(), perf_counter()
            self._learn(start, stop)
            return perf_counter() - begin, process_time() - work

    def _learn(self, start: int, stop: int) -> None:
        plan = self.executor.prepare(self.replay.resolve(start, stop))
        self.optimiser.zero_grad()
        outcome = self.executor.run(plan)
        outcome.losses.mean().backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        self.replay.model.constrain()
        outcome.commit()


def measure(log: EventLog, batch: int, given: argparse.Namespace) -> dict[str, float]:
    """Events a second of both, and the second in units of the first."""
    runs = [Run(log, given.model, given.width, threads) for threads in (1, given.threads)]
    count = min(given.steps, len(log) // batch)
    times = np.array(
        [[run.step(i * batch, (i + 1) * batch) for run in runs] for i in range(count)]
    )[count // 6 :]  # (steps, 2, clock and work); the first ones warm up
    clock, work = times[:, :, 0], times[:, :, 1]
    return {
        "one": round(batch / median(clock[:, 0])),
        "more": round(batch / median(clock[:, 1])),
        "faster": round(median(clock[:, 0] / clock[:, 1]), 3),
        "work": round(median(work[:, 1] / work[:, 0]), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", nargs="+", default=["wikipedia"])
    parser.add_argument("--generated", help="a file of a generated log of a million events")
    parser.add_argument("--model", default="tgn")
    parser.add_argument("--width", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    torch.set_num_threads(1)
    logs = {name: load(name) for name in given.logs}
    if given.generated:
        logs["generated"] = read_log(given.generated)
    result: dict[str, Any] = {}
    print(f"{'':24}{'events/s':>10}{f'{given.threads} threads':>12}{'faster':>9}{'work':>7}")
    for name, log in logs.items():
        for batch in BATCHES:
            found = measure(log, batch, given)
            result[f"{name} {batch}"] = found
            rates = f"{found['one']:>10,}{found['more']:>12,}"
            print(f"{name:16}{batch:>8,}{rates}{found['faster']:>9.2f}{found['work']:>7.2f}")
    finish({"model": given.model, "threads": given.threads, "steps": given.steps, **result}, SEED)


if __name__ == "__main__":
    main()

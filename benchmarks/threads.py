"""What does a second thread gain: one process of one thread and of two, the same steps in turn?

Two models take the same optimiser steps (A B A B ...), the first on one thread and the second on
`--threads`; the answer is the median of the pairs' ratios by the clock, and what the second spends
of processors to what the first does.  TGN is 100 wide with 10 neighbours, 2 heads and one negative,
as in `throughput.py`, the other models 64.  On a machine that does other work no core is free for a
second thread; `busiest` is what the clock would say if one were: where threads work side by side it
counts the processor seconds of the busiest alone.  It leaves out how long a thread takes to wake.

    python benchmarks/threads.py [--logs NAME ...] [--generated PATH] [--model NAME] [--threads N]

Answer (2026-12-01, 40 steps, two cores with nothing else to do), exact TGN on two threads by the
clock: wikipedia 1.05 times as fast in steps of 200 events and 1.39 of 1,000 (38,693 events/s); a
generated log of a million 1.06 and 1.33; uci, where nearly all events hang together, 0.96 and
1.29. They spend 1.24 to 1.30 times the work in steps of 200, 1.10 to 1.14 in steps of 1,000.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter, process_time, thread_time
from typing import Any

import numpy as np
import torch
from common import finish  # type: ignore  # beside this file
from ours import Ours  # type: ignore  # beside this file

from neutronstream.datasets import load
from neutronstream.models import attention, threads
from neutronstream.models.scans import attention as pairs
from neutronstream.models.scans import dyrep, memory, point_process
from neutronstream.stream import EventLog, read_log

BATCHES = (200, 1_000)


class Beside:
    """Counts the seconds of processors in which threads work beside a busier one."""

    def __init__(self) -> None:
        self.seconds = 0.0
        for module in (attention, pairs, dyrep, memory, point_process):
            vars(module)["together"] = self.together

    def together(self, tasks: Sequence[Callable[[], object]]) -> None:
        """As `threads.together`."""
        taken = [0.0 for _ in tasks]

        def timed(place: int) -> None:
            begin = thread_time()
            tasks[place]()
            taken[place] = thread_time() - begin

        threads.together([lambda place=place: timed(place) for place in range(len(tasks))])  # type: ignore[misc]
        self.seconds += sum(taken) - max(taken)


class Run:
    """A model that learns on a number of threads."""

    def __init__(self, log: EventLog, name: str, count: int) -> None:
        self.count, self.ours = count, Ours(log, name)

    def step(self, start: int, stop: int, beside: Beside) -> tuple[float, float, float]:
        """Seconds of the clock, of processors, and of the busiest thread alone."""
        with threads.using_threads(self.count):
            beside.seconds, work, begin = 0.0, process_time(), perf_counter()
            self.ours.step(start, stop)
            clock, work = perf_counter() - begin, process_time() - work
            return clock, work, work - beside.seconds


def measure(log: EventLog, batch: int, given: argparse.Namespace, beside: Beside) -> dict[str, Any]:
    """Events a second on one thread and on more, and what more gain and spend."""
    runs = [Run(log, given.model, count) for count in (1, given.threads)]
    count = min(given.steps, len(log) // batch)
    spans = [(i * batch, (i + 1) * batch) for i in range(count)]
    steps = np.array([[run.step(*span, beside) for run in runs] for span in spans])
    clock, work, path = steps[count // 6 :].transpose(2, 0, 1)  # (steps, 2); first ones warm up
    return {
        "one": round(batch / median(clock[:, 0])),
        "more": round(batch / median(clock[:, 1])),
        "faster": round(median(clock[:, 0] / clock[:, 1]), 3),
        "busiest": round(median(path[:, 0] / path[:, 1]), 3),
        "work": round(median(work[:, 1] / work[:, 0]), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", nargs="+", default=["wikipedia"])
    parser.add_argument("--generated", help="a file of a generated log of a million events")
    parser.add_argument("--model", default="tgn")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    torch.set_num_threads(1)
    logs = {name: load(name) for name in given.logs}
    if given.generated:
        logs["generated"] = read_log(given.generated)
    beside = Beside()
    result: dict[str, Any] = {}
    titles = ("1 thread", f"{given.threads} threads", "faster", "busiest", "work")
    print(f"{given.model:16}{'events':>8}" + "".join(f"{title:>11}" for title in titles))
    for name, log in logs.items():
        for batch in BATCHES:
            found = measure(log, batch, given, beside)
            result[f"{name} {batch}"] = found
            rates = f"{found['one']:>11,}{found['more']:>11,}"
            ratios = "".join(f"{found[key]:>11.2f}" for key in ("faster", "busiest", "work"))
            print(f"{name:16}{batch:>8,}{rates}{ratios}", flush=True)
    finish({"model": given.model, "with": given.threads, "steps": given.steps, **result}, seed=0)


if __name__ == "__main__":
    main()

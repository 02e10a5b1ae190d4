"""How much faster is a fused scan than levels or an event at a time, and how near to its bound?

Forward, backward and optimiser step, width 64, 200 events a step, one thread, in seconds that the
thread was at work: the machine is shared.  All executors learn the same events in turn, A B C A B
C; the answer is the median of the ratios step by step.  The first step only warms up.  The fused
run then goes on alone, and its steps are told stage by stage, in microseconds an event.  The
arithmetic bound of a scan is that of its matrix products, each done forward and twice backward (by
inputs and by weights), at the rate of such products in torch.

    python benchmarks/scans.py [--models NAME ...] [--logs NAME ...] [--pairs N] [--steps N]

`dyrep` has the published intensity, a sum over both ends; `dyrep-bilinear` the one of `train`.

Answer (2026-11-30, 5 pairs, 25 steps, one of two cores). DyRep: 89 times an event at a time on
social_evolution, 86 github, 88 dnc, 88 uci, 90 reality_call, 84 slashdot_reply (360 to 430 events a
second); 7 to 22 times levels. Alone 37,100 (github) to 47,900 events a second (social_evolution).
The scan takes 6.5 to 8.9 us an event, forward and backward; its products would take 1.0, which is
10 to 15 %: attention, maxima, sigmoids and the way to the kernels are the rest. TGN with its GRU
memory: 46 to 50 times an event at a time, 2.4 to 7.8 times levels, 21,400 to 24,000 events a second
alone; its scan takes 12 us, 29 to 32 % of the rate of its products (before it went level by level;
now two thirds of that). JODIE: 44 to 46 times, 47,500 to 50,400 events a second, 9 to 11 %. On a
quiet core of an AMD EPYC (Zen 5, 2026-12-01): DyRep 68 to 82 times, alone 68,400 to 73,100; TGN's
memory 53 to 62 times, 64,600 to 73,800; JODIE 57 to 66 times, 104,000 to 107,800. There torch's
products are slower than the scan's own, which is at 133 to 154 % of their rate.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from time import thread_time
from typing import Any

import torch
from common import SIX, finish, seconds  # type: ignore  # beside this file
from torch.utils.flop_counter import FlopCounterMode

from neutronstream.datasets import load
from neutronstream.models import build, rows
from neutronstream.parallel import EXECUTORS, STAGES, Executor, Replay, stages
from neutronstream.stream import EventLog

WIDTH, BATCH, SEED = 64, 200, 0
COMPARED = ("sequential", "levels", "fused")
OPTIONS = {"dyrep": {"intensity": "linear"}, "dyrep-bilinear": {"intensity": "bilinear"}}


class Run:
    """One training run over a log: `step` learns the next `BATCH` events."""

    def __init__(self, log: EventLog, name: str, executor: str) -> None:
        torch.manual_seed(SEED)
        options = OPTIONS.get(name)
        model = build(name.split("-")[0], width=WIDTH, kinds=log.kinds, options=options)
        self.replay = Replay(log, model, seed=SEED)
        self.executor: Executor[Any] = EXECUTORS[executor](self.replay)
        self.optimiser = torch.optim.Adam(model.parameters(), fused=True)
        self.position = 0

    def step(self) -> None:
        replay, clock = self.replay, self.replay.stages
        stop = min(self.position + BATCH, len(replay.log))
        plan = self.executor.prepare(replay.resolve(self.position, stop))
        self.optimiser.zero_grad(set_to_none=True)
        outcome = self.executor.run(plan)
        clock.enter("backward score")
        outcome.losses.mean().backward()  # type: ignore[no-untyped-call]
        clock.enter("step")
        self.optimiser.step()
        replay.model.constrain()
        clock.enter("commit")
        outcome.commit()
        clock.pause()
        self.position = stop


@contextmanager
def unpadded() -> Iterator[None]:
    """Rows are computed as many as there are, so that products can be counted."""
    padded, rows.ROWS = rows.ROWS, 1
    try:
        yield
    finally:
        rows.ROWS = padded


def products(log: EventLog, name: str) -> float:
    """Multiply-adds an event of the updates, forward and backward, over the second batch."""
    run = Run(log, name, "levels")
    run.step()
    plan = run.executor.prepare(run.replay.resolve(BATCH, 2 * BATCH, score=False))
    with unpadded(), FlopCounterMode(display=False) as counter:
        run.executor.run(plan)
    return float(3 * counter.get_total_flops() / 2 / BATCH)


def busy(act: Callable[[], object]) -> float:
    """How long this thread worked at one call."""
    start = thread_time()
    act()
    return thread_time() - start


def product_rate() -> float:
    """Multiply-adds a second of a product of the size that a segment allows, at best."""
    x, weight = torch.randn(2 * BATCH, WIDTH), torch.randn(WIDTH, WIDTH)
    best: float = min(seconds(lambda: torch.mm(x, weight)) for _ in range(200))
    return x.numel() * WIDTH / best


def compare(log: EventLog, name: str, pairs: int, steps: int) -> dict[str, Any]:
    """Rates of all executors on the first events of a log, and where the fused one's time goes."""
    runs = {executor: Run(log, name, executor) for executor in COMPARED}
    for run in runs.values():
        run.step()
    times = [[busy(run.step) for run in runs.values()] for _ in range(pairs)]
    fused = runs["fused"]
    alone: list[float] = []
    shares: list[dict[str, float]] = []
    fused.replay.stages.take({})
    while len(alone) < steps and fused.position + BATCH <= len(log):
        alone.append(busy(fused.step))
        shares.append(fused.replay.stages.take({}))
    told = {
        stage: round(median(share.get(stage, 0.0) for share in shares) / BATCH * 1e6, 2)
        for stage in STAGES
        if any(stage in share for share in shares)
    }
    scan = told["scan"] + told["backward scan"]
    bound = products(log, name) / product_rate() * 1e6
    return {
        **{e: round(BATCH / median(t[i] for t in times)) for i, e in enumerate(COMPARED)},
        "over sequential": round(median(t[0] / t[2] for t in times), 1),
        "over levels": round(median(t[1] / t[2] for t in times), 1),
        "alone": round(BATCH / median(alone)),
        "scan": round(scan, 2),
        "bound": round(bound, 2),
        "fraction": round(bound / scan, 3),
        "stages": told,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["dyrep"])
    parser.add_argument("--logs", nargs="+", default=list(SIX))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    given = parser.parse_args()
    torch.set_num_threads(1)
    vars(stages)["perf_counter"] = thread_time  # the clock of the stages too
    result: dict[str, dict[str, Any]] = {}
    rate = product_rate()
    print(f"products: {rate / 1e9:.0f} multiply-adds a nanosecond")
    for name in given.models:
        for log_name in given.logs:
            log = load(log_name, limit=(given.pairs + given.steps + 1) * BATCH)
            found = compare(log, name, given.pairs, given.steps)
            result.setdefault(name, {})[log_name] = found
            told = "  ".join(f"{k} {v}" for k, v in found.items() if k != "stages")
            print(f"{name:15}{log_name:18}{told}")
            print(" " * 33 + "  ".join(f"{k} {v}" for k, v in found["stages"].items()), flush=True)
    finish({"models": result, "products_per_second": rate}, SEED)


if __name__ == "__main__":
    main()

"""How fast does every model train, exact and stale, beside TGN of torch_geometric and of TGM?

Events/s of forward, backward and optimiser step (torch's fused Adam for all), sampling included, on
one log in batches of 200, one thread.  All take the same batches in turn (A B C ... A B C ...), so
that what else the machine does meets all; the answer is the median over the batches, and the median
of the ratios batch by batch to the peers.  With `--turn 20` each takes twenty batches before the
next has its turn, and finds its own work in the caches, as it would alone.  TGN is 100 wide with 10
neighbours, 2 heads and one negative, as in torch_geometric's example; the other models 64 wide with
their own negatives.  Peak memory is that of a process of its own that trains on the same batches.

    python benchmarks/throughput.py [--log NAME] [--batches N] [--turn N] [--only NAME ...]

Answer (2026-12-01, 60 batches, torch_geometric 2.8.1, tgm-lib 0.1.0b1, one of two cores), events/s
of exact TGN, and times torch_geometric's and TGM's: uci 18,852 (1.98, 2.85), github 18,780 (1.68,
2.65), social_evolution 18,607 (0.97, 2.12), a generated log of a million events 19,575 (3.49,
4.98). In turns of 20 (100 batches): uci 20,643 (2.48, 3.42), github 21,282 (1.76, 2.88),
social_evolution 20,538 (0.97, 2.21), messages 22,832 (3.99, 5.90). Another run half an hour apart
differed by 0.02 to 0.27 of torch_geometric's. On two quiet cores of an AMD EPYC (Zen 5), in turns
of one and of 20 batches: uci 28,154 (2.57, 3.38) and 34,981 (3.36, 4.37), github 27,561 (2.26,
3.31) and 37,806 (2.96, 4.53), social_evolution 30,546 (1.20, 2.48) and 33,592 (1.32, 3.16),
messages 30,198 (4.66, 5.84) and 43,146 (6.28, 7.98). On social_evolution torch_geometric's stale
batch renews the memories of at most 83 nodes, the exact one those of the 400 ends of 200 events
(docs/performance.md). The others, exact, uci, a day before: jodie 50,466, dyrep 29,789 (36,719
without drift), dygnn 13,733, ldg 9,652; tgn stale 15,536, less than the exact scan. Peak memory on
uci, MiB: torch_geometric 142, TGM 163, exact tgn 171.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from common import finish, seconds  # type: ignore  # beside this file
from ours import Ours  # type: ignore  # beside this file
from peers import TGMTGN, Peer, PyGTGN  # type: ignore  # beside this file

from neutronstream.datasets import load, messages
from neutronstream.stream import EventLog

BATCH, WARM_UP = 200, 20


def contestants(log: EventLog) -> dict[str, Callable[[], Peer]]:
    """All that can be timed, by name."""
    found: dict[str, Callable[[], Peer]] = {
        "torch_geometric tgn": lambda: PyGTGN(log),
        "tgm tgn": lambda: TGMTGN(log),
    }
    for model in ("tgn", "jodie", "dyrep", "ldg", "dygnn"):
        for consistency in ("batch", "exact"):
            found[f"{model} {consistency}"] = (
                lambda model=model, consistency=consistency: Ours(log, model, consistency)  # type: ignore[misc]
            )
    return found


def high_water() -> float:
    """MiB that this process has held at most (Linux; `getrusage` would count its parent's too)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def peak_of(name: str, log: str, batches: int) -> float:
    """MiB that a process of its own holds at most, beyond what it holds before it begins."""
    command = [sys.executable, __file__, "--log", log, "--batches", str(batches), "--peak", name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", default="uci", help="a data set, or messages: a million events")
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--turn", type=int, default=1, help="batches of one before the next's turn")
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--peak", help="print the memory of one of them and end")
    given = parser.parse_args()
    torch.set_num_threads(1)
    log = messages(1_000_000) if given.log == "messages" else load(given.log)
    known = contestants(log)
    spans = [(i * BATCH, i * BATCH + BATCH) for i in range(given.batches)]
    if given.peak:
        torch.zeros(1, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
        before = high_water()
        peer = known[given.peak]()
        for span in spans:
            peer.step(*span)
        print(high_water() - before)
        return
    names = given.only or list(known)
    running = {name: known[name]() for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    for first in range(0, len(spans), given.turn):
        for name, peer in running.items():
            for span in spans[first : first + given.turn]:
                times[name].append(seconds(lambda peer=peer, span=span: peer.step(*span)))
    peers = [name for name in ("torch_geometric tgn", "tgm tgn") if name in names]
    result: dict[str, Any] = {}
    print(f"{'':22}{'events/s':>10}{'MiB':>8}" + "".join(f"  x {peer:20}" for peer in peers))
    for name in names:
        own = times[name][WARM_UP:]
        ratios = {
            peer: median(b / a for a, b in zip(own, times[peer][WARM_UP:], strict=True))
            for peer in peers
        }
        rate, memory = BATCH / median(own), peak_of(name, given.log, given.batches)
        result[name] = {"events_per_second": round(rate), "peak_mib": round(memory)} | {
            f"times {peer}": round(ratio, 3) for peer, ratio in ratios.items()
        }
        columns = "".join(f"  {ratio:<22.2f}" for ratio in ratios.values())
        print(f"{name:22}{rate:>10,.0f}{memory:>8,.0f}{columns}", flush=True)
    finish({"log": given.log, "batch": BATCH, **result}, seed=0)


if __name__ == "__main__":
    main()

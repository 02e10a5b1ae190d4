"""How far does exact training scale over ranks: seconds and bytes a step for 1 to 256 of them.

For each log two ranks of mpiexec take the same optimiser steps, spread over the log, in turn: the
first alone; the first as one of four, with zeros for what the others would send; each for itself at
the same time, which shows what the machine gives to two at most; and both together.
From the first two come the rates: of a stage, what every rank does and what is split; of updates,
seconds an event.  From the schedules of the same steps come levels, components and bytes for any
number of ranks; from messages between the two ranks latency and bandwidth.  Together these predict
every number of ranks, and the two real ranks say how far off the prediction is.

What no machine here could show is assumed: that N ranks have N cores, that each two of them talk
as these two do, and that an exchange of N ranks takes log2 N rounds.  On a machine that does other
work `--cpu` counts seconds of computing in place of the clock's; then what two ranks compute is
checked, and not how long they wait for each other.

    python benchmarks/scale_model.py [--logs NAME ...] [--million] [--batch N] [--cpu] [--costs]

Answer (2026-12-01, TGN 100 wide), bytes as predicted, to the byte. By the clock, two cores with
nothing else to do: wikipedia, steps of 200 events 1.13 times one rank (predicted 1.30), of 1,000
1.54 (1.68), of 2,000 1.65 (1.79); a million nodes, of 1,000 1.51 (1.64), of 2,000 1.60 (1.71), of
4,000 1.61 (1.77). Two ranks that do not talk do 2.0 times the work of one. On an AMD EPYC (Zen 5):
wikipedia 1.16, 1.50 and 1.66 (52,700 to 85,200 events/s), a million 1.51, 1.51. Predicted for 1,000
on wikipedia: 2.6 on 4 ranks, 3.9 on 16. Updates of an event, us, fused and by levels, 64 wide, when
scans were a third slower: jodie 7 and 104, dyrep 12 and 424, tgn 16 and 159, dygnn 46 and 2,519,
ldg 88 and 2,298.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from time import perf_counter, process_time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from common import SIX, finish, seconds  # type: ignore  # beside this file

from neutronstream.datasets import load, messages
from neutronstream.models import build
from neutronstream.parallel import EXECUTORS, STAGES, Executor, Replay, stages
from neutronstream.parallel.comm import connect
from neutronstream.parallel.explain import Supposed, adds_to_losses, plan_segment
from neutronstream.parallel.ranks import Comm
from neutronstream.stream import EventLog, read_log

RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FEW = 4  # ranks that are supposed to tell what is split from what is not
UPDATE = ("hoist", "scan", "backward scan", "backward hoist")
SIZES = (1 << 8, 1 << 12, 1 << 16, 1 << 20, 1 << 22)  # bytes of messages


@dataclass(frozen=True, slots=True)
class Link:
    """What an exchange between two ranks takes, one way."""

    latency: float  # seconds
    byte: float  # seconds a byte that arrives

    def takes(self, calls: float, arriving: float, ranks: int) -> float:
        """Seconds of so many exchanges among `ranks` and the bytes that arrive at each."""
        return calls * self.latency * math.ceil(math.log2(ranks)) + arriving * self.byte


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds of a step: a + b / ranks for stages, c + e x events for updates."""

    everywhere: Mapping[str, float]  # a
    split: Mapping[str, float]  # b
    fixed: float  # c
    event: float  # e
    packing: float  # what messages take beside their way, from two ranks on


def rates_of(
    alone: Mapping[str, float],
    less: Mapping[str, float],
    less_by_half: float,
    events: float,
    packing: float = 0.0,
) -> Rates:
    """Rates from the stages of one rank, and how much `less` it is as one of `FEW`.

    `less_by_half` is by how much the updates of half the events take less.

    >>> rates = rates_of({"score": 8.0, "scan": 4.0, "all": 12.0}, {"score": 3.0}, 1.5, 200)
    >>> rates.everywhere, rates.split, rates.fixed, rates.event
    ({'score': 4.0}, {'score': 4.0}, 1.0, 0.015)
    """
    split = {}
    for name in (n for n in alone if n not in (*UPDATE, "exchange", "all")):
        split[name] = min(max(less.get(name, 0.0) * FEW / (FEW - 1), 0.0), alone[name])
    everywhere = {name: alone[name] - part for name, part in split.items()}
    whole = sum(alone.get(name, 0.0) for name in UPDATE)
    each = min(max(2 * less_by_half, 0.0), whole) / events
    return Rates(everywhere, split, whole - each * events, each, packing)


def predict(
    rates: Rates, link: Link, plans: Mapping[str, float], ranks: int, *, waits: bool = True
) -> float:
    """Seconds of a step on so many ranks; `plans` are the means of their schedules."""
    total = sum(rates.everywhere.values()) + sum(rates.split.values()) / ranks
    total += rates.fixed + rates.event * plans["updated"]
    if ranks == 1:
        return total
    told = link.takes(plans["calls"], plans["bytes"], ranks) if waits else 0.0
    return total + rates.packing + told


class Walk:
    """A model that takes the same steps as others, on its own store."""

    def __init__(self, log: EventLog, given: argparse.Namespace, comm: Comm | None) -> None:
        torch.manual_seed(0)
        features = log.events.features
        model = build(
            *(given.model,),
            width=given.width,
            kinds=log.kinds,
            num_features=0 if features is None else features.shape[1],
            options={},
        )
        self.clock = process_time if given.cpu else perf_counter
        self.replay = Replay(log, model, comm=comm)
        self.executor: Executor[Any] = EXECUTORS[given.executor](self.replay)
        self.optimiser = torch.optim.Adam(model.parameters(), lr=0.0, fused=True)

    def warm(self, start: int, batch: int) -> None:
        """All before `start`; the last batch is learned, so that no rank comes from its sleep."""
        self.replay.apply(max(start - batch, 0))
        if start:
            self.step(max(start - batch, 0), start)

    def step(self, start: int, stop: int) -> tuple[Any, dict[str, float]]:
        """The prepared segment, and the seconds of a step by stage."""
        self.replay.apply(start)
        executor, began = self.executor, self.clock()
        plan = executor.prepare(self.replay.resolve(start, stop))
        self.optimiser.zero_grad()
        outcome = executor.run(plan)
        executor.stages.enter("backward score")
        outcome.losses.mean().backward()  # type: ignore[no-untyped-call]
        executor.add_up_gradients()
        executor.stages.enter("step")
        self.optimiser.step()
        self.replay.model.constrain()
        executor.stages.enter("commit")
        outcome.commit()
        taken = executor.stages.take({})
        return plan, taken | {"all": self.clock() - began}


def middle(taken: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median seconds of each stage."""
    return {
        name: median(one.get(name, 0.0) for one in taken)
        for name in (*STAGES, "all")
        if any(name in one for one in taken)
    }


def spans_of(log: EventLog, batch: int, count: int) -> list[tuple[int, int]]:
    """Steps spread evenly over a log."""
    steps = max(1, len(log) // batch)
    kept = min(count, steps)
    places = [(2 * i + 1) * steps // (2 * kept) for i in range(kept)]
    return [(place * batch, min(len(log), (place + 1) * batch)) for place in places]


def shapes(walk: Walk, plans: Sequence[Any]) -> dict[str, Any]:
    """What the schedules say, means of a step; by number of ranks what they would share."""
    has_penalty = adds_to_losses(walk.replay)
    found: dict[str, Any] = {}
    for ranks in RANKS:
        seen = [
            plan_segment(walk.executor, plan, ranks, has_penalty=has_penalty)  # type: ignore[arg-type]
            for plan in plans
        ]
        found[str(ranks)] = {
            "shared": mean(p.is_shared for p in seen),
            "updated": mean(p.longest if p.is_shared else p.stop - p.start for p in seen),
            "calls": mean(sum(t.calls for t in p.traffic.values()) for p in seen),
            "bytes": mean(sum(t.received for t in p.traffic.values()) for p in seen) / ranks,
        }
        if ranks == 1:
            found["shape"] = {
                "events": mean(p.stop - p.start for p in seen),
                "levels": mean(len(p.widths) for p in seen),
                "components": mean(len(p.components) for p in seen),
                "largest": mean(int(p.components[0]) for p in seen),
            }
    return found


def take_turns(comm: Comm, given: argparse.Namespace) -> dict[str, Any]:
    """On both ranks: the steps alone, as one of few and together; what the first rank found."""
    log = read_log(given.job) if os.path.exists(given.job) else load(given.job, limit=given.limit)
    walks: dict[str, Walk] = {}
    if comm.rank == 0:
        walks = {"alone": Walk(log, given, None), "half": Walk(log, given, None)}
        walks["few"] = Walk(log, given, Supposed(0, FEW))
    beside, together = Walk(log, given, None), Walk(log, given, comm)
    turns: list[dict[str, dict[str, float]]] = []
    plans: list[Any] = []
    moved = 0
    spans = spans_of(log, given.batch, given.steps)
    for turn, (start, stop) in enumerate([spans[0], spans[0], *spans]):
        taken = {}
        for name, walk in walks.items():
            walk.warm(start, given.batch)
            plan, taken[name] = walk.step(start, (start + stop) // 2 if name == "half" else stop)
            if name == "alone" and turn > 1:
                plans.append(plan)
        beside.warm(start, given.batch)
        comm.barrier()
        _, taken["beside"] = beside.step(start, stop)
        together.warm(start, given.batch)
        comm.barrier()
        comm.bytes.clear()
        _, taken["together"] = together.step(start, stop)
        if turn > 1:  # the first two turns compile and load
            moved += sum(traffic.received for traffic in comm.bytes.values())
            turns.append(taken)
    received = mean(comm.gather_objects(moved / len(spans), "result"))
    totals = comm.gather_objects([turn["together"]["all"] for turn in turns], "result")
    for times, of_ranks in zip(turns, zip(*totals, strict=True), strict=True):
        times["together"] |= {"all": max(of_ranks)}  # of the slower rank
    if not walks:
        return {}
    names = (*walks, "beside", "together")
    found: dict[str, Any] = {name: middle([times[name] for times in turns]) for name in names}
    return found | {
        "nodes": log.num_nodes,
        "events": len(log),
        "received": received,
        "plans": shapes(walks["alone"], plans),
        "less": middle([difference(times["alone"], times["few"]) for times in turns]),
        "less_by_half": median(
            sum(difference(times["alone"], times["half"]).get(name, 0.0) for name in UPDATE)
            for times in turns
        ),
        "speed_up": median(times["alone"]["all"] / times["together"]["all"] for times in turns),
        "ceiling": median(2 * times["alone"]["all"] / times["beside"]["all"] for times in turns),
    }


def difference(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
    """How many seconds less `b` is, by stage."""
    return {name: value - b.get(name, 0.0) for name, value in a.items()}


def time_messages(comm: Comm) -> dict[str, Any]:
    """On both ranks: seconds of an exchange of rows there, and of one back, by their bytes."""
    found = {}
    for size in SIZES:
        rows = torch.zeros(size // 4, 1)
        whole, sizes = torch.cat([rows, rows]), [len(rows)] * 2
        pairs = []
        for _ in range(300):
            comm.barrier()
            pairs.append(
                (
                    seconds(lambda rows=rows, sizes=sizes: comm.all_gather_rows(rows, sizes, "")),
                    seconds(lambda w=whole, sizes=sizes: comm.reduce_scatter_rows(w, sizes, "")),
                )
            )
        # the fastest tenth: what else the machine does delays the rest
        found[str(size)] = [float(np.quantile(o, 0.1)) for o in zip(*pairs[10:], strict=True)]
    return found


def link_of(found: Mapping[str, Sequence[float]]) -> Link:
    """Latency and seconds a byte of messages: of the smallest, and between small and largest."""
    least, most = str(SIZES[0]), str(SIZES[-1])
    low, high = (sum(found[size]) / 2 for size in (least, most))
    return Link(low, (high - low) / (SIZES[-1] - SIZES[0]))


def costs_of(given: argparse.Namespace) -> dict[str, float]:
    """Microseconds of the updates of an event, there and back, by model and executor, on uci."""
    found = {}
    log = load("uci", limit=10_000)
    for model in ("tgn", "jodie", "dyrep", "ldg", "dygnn"):
        for executor in ("fused", "levels"):
            args = argparse.Namespace(model=model, width=64, executor=executor, cpu=given.cpu)
            walk = Walk(log, args, None)
            spans = spans_of(log, 200, 8)
            taken = [walk.step(*span)[1] for span in (*spans[:2], *spans)][2:]
            each = median((t["scan"] + t["backward scan"]) / 200 for t in taken)
            found[f"{model} {executor}"] = round(1e6 * each, 1)
    return found


def start_two(*arguments: object) -> dict[str, Any]:
    """What the first of two ranks of this script prints."""
    beside = Path(sys.executable).parent
    mpiexec = shutil.which("mpiexec", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if mpiexec is None:
        raise SystemExit("mpiexec is missing: pip install 'neutronstream[mpi]'")
    command = [mpiexec, "-n", "2", sys.executable, __file__, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def report(name: str, found: Mapping[str, Any], link: Link, *, cpu: bool) -> dict[str, Any]:
    """The predictions of one log, printed and returned."""
    plans, shape = found["plans"], found["plans"]["shape"]
    rates = rates_of(
        *(found["alone"], found["less"], found["less_by_half"], shape["events"]),
        packing=found["few"].get("exchange", 0.0),
    )
    times = {ranks: predict(rates, link, plans[str(ranks)], ranks) for ranks in RANKS}
    bytes_of = {ranks: plans[str(ranks)]["bytes"] for ranks in RANKS}
    print(
        f"\n{name}: {found['events']:,} events, {found['nodes']:,} nodes; a step: "
        f"{shape['events']:.0f} events, {shape['levels']:.1f} levels, "
        f"{shape['components']:.1f} components, {shape['largest']:.0f} events in the largest"
    )
    print(f"{'ranks':16}" + "".join(f"{r:>9}" for r in RANKS))
    for title, row in (
        ("ms a step", (f"{1e3 * times[r]:.2f}" for r in RANKS)),
        ("events/s", (f"{shape['events'] / times[r]:,.0f}" for r in RANKS)),
        ("speed-up", (f"{times[1] / times[r]:.2f}" for r in RANKS)),
        ("KiB to a rank", (f"{bytes_of[r] / 1024:,.0f}" for r in RANKS)),
        ("steps shared", (f"{plans[str(r)]['shared']:.0%}" for r in RANKS)),
        ("events updated", (f"{plans[str(r)]['updated']:.0f}" for r in RANKS)),
    ):
        print(f"{title:16}" + "".join(f"{cell:>9}" for cell in row))
    one, two = found["alone"]["all"], found["together"]["all"]
    expected = predict(rates, link, plans["2"], 2, waits=not cpu)
    check = {
        "measured_seconds": two,
        "predicted_seconds": expected,
        "off": expected / two - 1,
        "measured_bytes": found["received"],
        "predicted_bytes": bytes_of[2],
        "measured_speed_up": found["speed_up"],
        "predicted_speed_up": times[1] / expected,
        "ceiling": found["ceiling"],
    }
    print(
        f"two real ranks: {1e3 * two:.2f} ms a step, predicted {1e3 * expected:.2f} "
        f"({check['off']:+.0%}); {found['received']:,.0f} bytes, predicted {bytes_of[2]:,.0f}; "
        f"{found['speed_up']:.2f} times one rank ({1e3 * one:.2f} ms), "
        f"predicted {times[1] / expected:.2f}" + (" (computing alone)" if cpu else "")
    )
    print(
        f"two ranks that do a step each, without a message: {found['ceiling']:.2f} times the work "
        "of one in the same time"
    )
    whole = ", ".join(f"{n} {1e3 * t:.2f}" for n, t in found["alone"].items() if n != "all")
    print(f"one rank, ms a step: {whole}")
    left = ", ".join(f"{n} {1e3 * t:.2f}" for n, t in rates.everywhere.items())
    print(
        f"every rank, ms a step: {left}, updates {1e3 * rates.fixed:.2f} and "
        f"{1e6 * rates.event:.1f} us an event, packing {1e3 * rates.packing:.2f}"
    )
    sys.stdout.flush()
    return {
        "shape": shape,
        "nodes": found["nodes"],
        "events": found["events"],
        "seconds": {str(r): times[r] for r in RANKS},
        "bytes": {str(r): bytes_of[r] for r in RANKS},
        "shared": {str(r): plans[str(r)]["shared"] for r in RANKS},
        "rates": asdict(rates),
        "two_ranks": check,
        "stages": {name: found[name] for name in ("alone", "half", "few", "beside", "together")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", nargs="*", default=[*SIX, "wikipedia"])
    parser.add_argument("--million", action="store_true", help="a generated log of so many nodes")
    parser.add_argument("--generated", help="the file of that log, if it is there already")
    parser.add_argument("--model", default="tgn")
    parser.add_argument("--width", type=int, default=100)
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--cpu", action="store_true", help="seconds of computing, not the clock's")
    parser.add_argument("--costs", action="store_true", help="time the updates of all models too")
    parser.add_argument("--job", help="what the two ranks do: a log, or `messages`")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.cpu:
        vars(stages)["perf_counter"] = process_time  # the clock of all stages
    if given.job is not None:
        with connect(os.environ) as comm:
            messages_only = given.job == "messages"
            result = time_messages(comm) if messages_only else take_turns(comm, given)
            if comm.rank == 0:
                print(json.dumps(result))
        return
    timed = start_two("--job", "messages")
    link = link_of(timed)
    print(f"two ranks: {1e6 * link.latency:.0f} us a message, {1e9 * link.byte:.2f} ns a byte")
    logs: dict[str, Any] = {}
    same = [
        *("--model", given.model, "--width", given.width, "--executor", given.executor),
        *("--batch", given.batch, "--steps", given.steps),
    ]
    if given.cpu:
        same.append("--cpu")
    if given.limit is not None:
        same += ["--limit", given.limit]
    with tempfile.TemporaryDirectory() as folder:
        named = {name: name for name in given.logs}
        if given.million:
            named["generated"] = given.generated or str(write_million(Path(folder)))
        for name, place in named.items():
            logs[name] = report(name, start_two("--job", place, *same), link, cpu=given.cpu)
    costs = costs_of(given) if given.costs else {}
    if costs:
        print("\nupdates of an event, us:", ", ".join(f"{n} {c:.1f}" for n, c in costs.items()))
    names = ("model", "width", "batch", "executor", "steps", "cpu")
    setting = {name: getattr(given, name) for name in names}
    finish({**setting, "link": asdict(link), "messages": timed, "costs": costs, "logs": logs})


def write_million(folder: Path) -> Path:
    """A generated log of more than a million nodes, who meet in conversations."""
    log = messages(3_000_000, 3_000_000)
    path = folder / "generated.parquet"
    columns = {"src": log.events.src, "dst": log.events.dst, "time": log.events.time}
    pq.write_table(pa.table({n: np.asarray(values) for n, values in columns.items()}), path)
    return path


if __name__ == "__main__":
    main()

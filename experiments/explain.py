"""What a run would do, and why, before it is done: `train --explain`.

A sample of the run's optimiser steps, evenly over the log, is planned for the number of ranks and
timed: once on one rank, and once as the first of these ranks, with zeros for what others send.
Nothing is kept.  The seconds are the clock's; what is exchanged is predicted by the cost model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

import numpy as np
import torch
from rich.console import Console
from rich.text import Text

from ..parallel.costs import Costs
from ..parallel.explain import (
    SegmentPlan,
    Supposed,
    adds_to_losses,
    exchange_seconds,
    plan_segment,
    why_executor,
)
from ..parallel.scheduled import ScheduledExecutor
from ..parallel.stages import STAGES
from ..stream import EventLog
from .config import TrainConfig
from .learn import make_executor, make_model, make_optimiser, step, threads_of
from .runs import check_device
from .split.parts import split_log, training_log
from .tables import ruled
from .trainer import segments
from .windows import windows_of

SAMPLE = 40  # optimiser steps


def explain(
    log: EventLog, config: TrainConfig, ranks: int = 1, *, sample: int = SAMPLE
) -> dict[str, Any]:
    """The shape of a run's steps, bytes by purpose, seconds by stage, and why it is done so.

    At most `sample` steps are looked at.  Figures are means over them, seconds by stage medians.

    Raises:
        ValueError: if the log is empty, or the configuration does not fit it or this machine, or
            has no schedule.
    """
    if not len(log):
        raise ValueError("the log holds no event: there is nothing to explain")
    if config.consistency == "batch" or config.executor == "sequential":
        what = "a stale batch" if config.consistency == "batch" else "the executor 'sequential'"
        raise ValueError(f"{what} has no schedule to be explained: leave it out")
    check_device(config.device)
    part, spans = steps_of(log, config)
    chosen = [spans[i] for i in evenly(len(spans), sample)]
    with threads_of(config):
        plans, why, costs, seconds = _look(part, config, ranks, chosen)
    shape = shape_of(plans)
    return {
        "ranks": ranks,
        "steps": len(spans) * config.epochs,
        "steps_looked_at": len(plans),
        "executor": why,
        "shape": shape,
        "updates": updates_of(plans, ranks, costs),
        "traffic": traffic_of(plans, ranks),
        "costs": asdict(costs),
        "seconds": seconds,
        "events_per_second": {n: shape["events"] / sum(t.values()) for n, t in seconds.items()},
    }


def steps_of(log: EventLog, config: TrainConfig) -> tuple[EventLog, list[tuple[int, int]]]:
    """The log that is trained on, and the span of each optimiser step of an epoch, in order."""
    size = config.batch_size
    if config.protocol == "split":
        split = split_log(log, config.val_ratio, config.test_ratio, seed=config.split_seed)
        part, _ = training_log(log, split)
        return part, list(segments(0, len(part), size))
    windows = list(windows_of(log, config))
    cuts = [*(window.start for window in windows[1:]), windows[-1].stop]
    spans = [
        span
        for window, cut in zip(windows, cuts, strict=True)
        for first, last in ((window.start, cut), (cut, window.stop))
        for span in segments(first, last, size)
    ]
    return log, spans


def evenly(count: int, sample: int) -> list[int]:
    """The places of at most `sample` among `count`, each in the middle of its part.

    >>> evenly(10, 3), evenly(2, 3)
    ([1, 5, 8], [0, 1])
    """
    kept = min(count, sample)
    return [(2 * place + 1) * count // (2 * kept) for place in range(kept)]


def _look(
    log: EventLog, config: TrainConfig, ranks: int, spans: Sequence[tuple[int, int]]
) -> tuple[list[SegmentPlan], dict[str, str], Costs, dict[str, dict[str, float]]]:
    """Plans, why the executor, its costs, and seconds a step by stage: on one rank, on each."""
    frozen = config.model_copy(update={"learning_rate": 0.0})
    comms = [None] if ranks == 1 else [None, Supposed(0, ranks)]
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        model = make_model(log, frozen)
    executors = [make_executor(log, model, frozen, comm) for comm in comms]
    optimiser = make_optimiser(model, frozen)
    first = cast("ScheduledExecutor[Any]", executors[0])  # others have been refused
    has_penalty = adds_to_losses(first.replay)
    plans: list[SegmentPlan] = []
    times: list[list[dict[str, float]]] = [[] for _ in executors]
    for turn, (start, stop) in enumerate([spans[0], *spans]):
        for executor, taken in zip(executors, times, strict=True):
            executor.replay.apply(start)  # what lies between the steps looked at
            plan = executor.prepare(executor.replay.resolve(start, stop))
            step(executor, plan, optimiser, frozen, f"the step [{start}, {stop})")
            found = executor.stages.take({})
            if turn == 0:  # in the first turn things are compiled and loaded
                continue
            taken.append(found)
            if executor is first:
                plans.append(plan_segment(first, plan, ranks, has_penalty=has_penalty))
                first.stages.pause()
    one, each = middle(times[0]), middle(times[-1])
    if ranks > 1:
        told = [exchange_seconds(p.traffic, ranks, first.costs) for p in plans]
        each["exchange"] = float(np.mean(told))
    kind = type(first).__name__.removesuffix("Executor").lower()
    why = {"name": kind, "why": why_executor(first, config.executor)}
    return plans, why, first.costs, {"one_rank": one, "each_rank": each}


def middle(times: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each stage, as other work on the machine delays some steps.

    >>> middle([{"scan": 1.0}, {"scan": 2.0}, {"scan": 9.0, "sample": 3.0}])
    {'sample': 0.0, 'scan': 2.0}
    """
    names = [name for name in STAGES if any(name in taken for taken in times)]
    return {n: float(np.median([taken.get(n, 0.0) for taken in times])) for n in names}


def shape_of(plans: Sequence[SegmentPlan]) -> dict[str, float]:
    """Levels and components of the steps."""
    events = sum(p.stop - p.start for p in plans)
    levels = sum(len(p.widths) for p in plans)
    return {
        "events": events / len(plans),
        "levels": levels / len(plans),
        "events_a_level": events / levels,
        "widest_level": max(int(p.widths.max()) for p in plans),
        "components": float(np.mean([len(p.components) for p in plans])),
        "largest_component": float(np.mean([p.components[0] for p in plans])),
    }


def updates_of(plans: Sequence[SegmentPlan], ranks: int, costs: Costs) -> dict[str, Any]:
    """How many steps share their updates, and what the cost model said of both ways."""
    shared = sum(p.is_shared for p in plans)
    if ranks == 1:
        why = "one rank makes all updates"
    else:
        ways = ("shared where that is faster", "an update takes {:.3g} us, an exchange {:.3g} us")
        why = f"{ways[0]}: {ways[1].format(1e6 * costs.event, 1e6 * costs.message)}"
    return {
        "shared_steps": shared,
        "redundant_steps": len(plans) - shared,
        "events_of_the_busiest_rank": float(np.mean([p.longest for p in plans])),
        "seconds_redundant": float(np.mean([p.redundant for p in plans])),
        "seconds_shared": float(np.mean([p.shared for p in plans])),
        "why": why,
    }


def traffic_of(plans: Sequence[SegmentPlan], ranks: int) -> dict[str, dict[str, float]]:
    """By purpose, exchanges and bytes of a rank in a step, steps without any among them."""
    names = list(dict.fromkeys(name for p in plans for name in p.traffic))
    found = {}
    for name in names:
        given = [p.traffic[name] for p in plans if name in p.traffic]
        found[name] = {
            "exchanges": sum(t.calls for t in given) / len(plans),
            "bytes_sent": sum(t.sent for t in given) / len(plans) / ranks,
        }
    return found


def print_explanation(console: Console, found: Mapping[str, Any]) -> None:
    """Prints it for a person."""
    for line in _lines(found):
        console.print(Text(line))
    ranks = found["ranks"]
    if found["traffic"]:
        table = ruled(["purpose"], ["exchanges a step", "bytes that a rank sends"])
        for name, figures in found["traffic"].items():
            table.add_row(name, f"{figures['exchanges']:.3g}", f"{figures['bytes_sent']:,.0f}")
        total = sum(figures["bytes_sent"] for figures in found["traffic"].values())
        table.add_section()
        table.add_row("all", "", f"{total:,.0f}")
        console.print(table)
    columns = ["one rank"] if ranks == 1 else ["one rank", f"each of {ranks}"]
    ways = list(found["seconds"].values())[: len(columns)]
    table = ruled(["stage"], (f"ms a step, {name}" for name in columns))
    for stage in (name for name in STAGES if any(name in way for way in ways)):
        told = stage + (", predicted" if stage == "exchange" else "")
        table.add_row(told, *(f"{1e3 * way.get(stage, 0.0):.3f}" for way in ways))
    table.add_section()
    table.add_row("all", *(f"{1e3 * sum(way.values()):.3f}" for way in ways))
    console.print(table)
    rates = list(found["events_per_second"].values())
    on_ranks = f", {rates[1]:,.0f} on {ranks} ranks" if ranks > 1 else ""
    console.print(Text(f"predicted: {rates[0]:,.0f} events/s on one rank{on_ranks}"))


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    shape, updates, ranks = found["shape"], found["updates"], found["ranks"]
    yield f"{found['steps']:,} optimiser steps, {found['steps_looked_at']} of them looked at"
    yield (
        f"a step: {shape['events']:.4g} events in {shape['levels']:.4g} levels, "
        f"{shape['events_a_level']:.3g} events a level (the widest {shape['widest_level']}); "
        f"{shape['components']:.4g} components, {shape['largest_component']:.4g} events in the "
        "largest"
    )
    yield f"executor {found['executor']['name']}: {found['executor']['why']}"
    if ranks == 1:
        yield f"updates: {updates['why']}"
        return
    yield (
        f"updates: shared in {updates['shared_steps']} steps, made on every rank in "
        f"{updates['redundant_steps']}; {updates['why']}"
    )
    yield (
        f"    shared would take {1e3 * updates['seconds_shared']:.3g} ms "
        f"({updates['events_of_the_busiest_rank']:.4g} events on the busiest rank, and the "
        f"exchange of rows), on every rank {1e3 * updates['seconds_redundant']:.3g} ms"
    )

"""What the ranks of a job would do with a segment, what they would tell each other, and why.

Invariant: a plan is that of the executor itself, so what is shared here is what a run shares, and
the bytes, which follow from the plan, are those that `Comm` counts.  Nothing is run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..models import DynamicGNN, can_scan
from ..stream import Int64
from .costs import Costs
from .executor import Executor
from .fused import FusedExecutor
from .levels import LevelExecutor
from .ranks import Comm, Traffic
from .replay import Replay
from .scheduled import Plan, ScheduledExecutor, reads_of
from .segment import Segment
from .sharing import Shares, components, share_events
from .spans import span_of

SHARED_ANYHOW = Costs(event=0.0, message=-math.inf, byte=0.0)
"""With these, sharing always pays: to see what it would be."""


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """How a number of ranks would take one optimiser step."""

    start: int
    stop: int
    widths: Int64  # (levels,) events of each
    components: Int64  # (c,) events of each that hang together, the most first
    longest: int  # events on the busiest rank, were the updates shared
    redundant: float  # seconds of updates where every rank makes all of them
    shared: float  # the same where they are shared, the exchange of rows there and back included
    is_shared: bool
    traffic: Mapping[str, Traffic]  # by purpose; calls of a rank, bytes of all ranks together


def plan_segment(
    executor: ScheduledExecutor[Any], plan: Plan[Any], ranks: int, *, has_penalty: bool
) -> SegmentPlan:
    """What `ranks` ranks would do with a segment, forward and backward.

    `plan` was prepared by an executor on one rank; `has_penalty` says whether updates add to the
    losses (`adds_to_losses`).
    """
    if executor.replay.comm.size > 1:
        raise ValueError(
            f"`executor` must be alone to plan for others: it is one of {executor.replay.comm.size}"
        )
    segment, n, costs = plan.segment, len(plan.segment), executor.costs
    (reads, _), members = reads_of(segment)[0], segment.members
    writes = np.arange(0, 2 * n + 1, 2) if members is None else members.indptr
    _, sizes = np.unique(components(plan.schedule, reads, writes), return_counts=True)
    row_bytes = executor.row_bytes  # what the executor decides by

    def shares(costs: Costs) -> Shares | None:
        return share_events(plan.schedule, reads, writes, ranks, row_bytes, costs)

    decided, anyhow = shares(costs), shares(SHARED_ANYHOW)
    longest = n if anyhow is None else int(np.bincount(anyhow.rank_of).max())
    return SegmentPlan(
        segment.start,
        segment.stop,
        plan.schedule.widths(),
        np.sort(sizes)[::-1],
        longest,
        n * costs.event,
        costs.shared(longest, len(plan.schedule.write_row) * row_bytes, ranks),
        decided is not None,
        traffic_of(executor, plan, decided, ranks, has_penalty),
    )


def traffic_of(
    executor: ScheduledExecutor[Any],
    plan: Plan[Any],
    shares: Shares | None,
    ranks: int,
    has_penalty: bool,
) -> dict[str, Traffic]:
    """What a step costs by purpose: whatever a rank has made goes to each of the others."""
    found: dict[str, Traffic] = {}
    if ranks == 1:
        return found
    n, model, number = len(plan.segment), executor.model, executor.replay.dtype.itemsize

    def tell(purpose: str, made: int, calls: int = 1) -> None:
        sent = (ranks - 1) * made
        found[purpose] = Traffic(calls, sent, sent)

    learned = [p for p in model.parameters() if p.requires_grad]
    is_level = isinstance(executor, LevelExecutor)
    if shares is not None:
        widths = dict(model.tables)
        if is_level and not executor.derives_late:
            widths |= dict(model.derived)
        rows = len(shares.rows) * sum(widths.values()) * number
        tell("rows", rows)
        if learned:
            tell("row gradients", rows)
        if model.link_tables:
            links = links_by_rank(plan.segment, shares, ranks)
            tell("link values", sum(map(len, links)) * len(model.link_tables) * number)
        if has_penalty or is_level:
            tell("penalties", n * number)
        if (has_penalty or is_level) and learned:
            tell("penalties, gradients", n * number)
    expects = type(model).expected_idle is not DynamicGNN.expected_idle
    tell("scores", n * number * (1 + expects), 1 + expects)
    if learned:  # a sum over ranks, then the gathering of its parts
        tell("gradients", 2 * sum(p.numel() * p.itemsize for p in learned), 2)
    return found


def links_by_rank(segment: Segment, shares: Shares, ranks: int) -> list[Int64]:
    """The links on which the events of each rank set values."""
    lists = segment.neighbors
    of_link = np.repeat(np.repeat(shares.rank_of, 2), np.diff(lists.indptr))
    return [np.unique(lists.link[of_link == rank]) for rank in range(ranks)]


def exchange_seconds(traffic: Mapping[str, Traffic], ranks: int, costs: Costs) -> float:
    """How long a rank exchanges in a step, by constants that count there and back together."""
    calls = sum(t.calls for t in traffic.values())
    arriving = sum(t.received for t in traffic.values()) / ranks
    return (calls * costs.message + arriving * costs.byte) / 2


@torch.no_grad()
def adds_to_losses(replay: Replay, position: int = 0) -> bool:
    """Whether updates themselves add to the losses, found by making that of an event."""
    executor = LevelExecutor(replay)
    plan = executor.prepare(replay.resolve(position, position + 1, score=False))
    segment, work, model = plan.segment, plan.work, replay.model
    executor.touch_links(segment.neighbors.link)
    base = executor.base(plan)
    states = base | dict(model.derive(base))
    piece = work.pieces[0]
    known = {name: values[work.order] for name, values in executor.encode(segment.events).items()}

    def read(reads: Any) -> list[Tensor]:
        return [states[name][rows] for name, rows in reads]

    return model.update(piece.level(model, replay.state, known, read)).penalty is not None


def why_executor(executor: Executor[Any], asked: str) -> str:
    """Why this executor runs the model, where `asked` is the setting ("auto", "levels" ...)."""
    name, model = type(executor.model).__name__, executor.model
    if asked != "auto":
        return f"asked for by the executor {asked!r}"
    if isinstance(executor, FusedExecutor):
        return f"{name} has a fused scan for its options, and states are on a CPU"
    if not model.scans:
        owner = next(c for c in type(model).__mro__ if "scan" in vars(c))
        if owner is DynamicGNN:
            return f"{name} defines no fused scan"
        return f"the fused scan of {owner.__name__} does not serve {name} with these options"
    if can_scan(model):
        return f"a fused scan runs on a CPU, and states are on {str(executor.replay.device)!r}"
    if any(m._forward_hooks or m._forward_pre_hooks for m in model.modules()):
        return f"a layer of {name} has hooks, which a fused scan would not call"
    owner = next(c for c in type(model).__mro__ if "scan" in vars(c))
    return f"{name} changes an update for which the fused scan of {owner.__name__} would stand"


class Supposed(Comm):
    """A rank of a job whose other ranks are not there: zeros stand for what they would send.

    It does this rank's share of the work and counts its bytes; what it computes is of no use.
    """

    def _gather(self, own: Tensor, whole: Tensor, counts: list[int], label: str) -> None:
        whole.zero_()
        whole[span_of(self.rank, counts)] = own

    def _scatter(self, whole: Tensor, counts: list[int], found: Tensor, label: str) -> None:
        self._start_exchange(whole, counts, found, [counts[self.rank]] * self.size, label)

    def _start_exchange(
        self, whole: Tensor, sent: list[int], found: Tensor, received: list[int], label: str
    ) -> Callable[[], object]:
        found.zero_()
        found[span_of(self.rank, received)] = whole[span_of(self.rank, sent)]
        return lambda: None

    def abort(self, code: int) -> None:
        raise SystemExit(code)

    def close(self) -> None:
        """Nothing is shared."""

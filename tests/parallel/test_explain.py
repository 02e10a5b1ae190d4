"""What is foreseen of ranks is what they do: shares, bytes by purpose, and why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from neutronstream.models import JODIE, TGN, DynamicGNN, Events, Level, Nodes, Reads, build
from neutronstream.parallel import EXECUTORS, LevelExecutor, Replay
from neutronstream.parallel.costs import Costs
from neutronstream.parallel.explain import (
    SegmentPlan,
    Supposed,
    adds_to_losses,
    exchange_seconds,
    plan_segment,
    why_executor,
)
from neutronstream.parallel.ranks import Traffic
from neutronstream.parallel.scheduled import ScheduledExecutor
from neutronstream.stream import EventLog

from ..ranks import finish, start
from . import plans_on_ranks

# (a, b) and (b, c) hang together, the others do not
LOG = EventLog.from_arrays([0, 1, 3, 5], [1, 2, 4, 6], [0, 1, 2, 3])


def scheduled(model: DynamicGNN, executor: str = "auto", log: EventLog = LOG) -> Any:
    found = EXECUTORS[executor](Replay(log, model))
    assert isinstance(found, ScheduledExecutor)
    return found


def plan_of(ranks: int, costs: Costs) -> SegmentPlan:
    """Of the four events, with states of four numbers."""
    executor = scheduled(TGN(4, embedding="identity"))
    executor.costs = costs
    plan = executor.prepare(executor.replay.resolve(0, 4))
    return plan_segment(executor, plan, ranks, has_penalty=False)


def test_components_are_shared_where_that_is_faster() -> None:
    plan = plan_of(2, Costs(event=1.0, message=0.5, byte=0.0))
    assert (plan.start, plan.stop, plan.widths.tolist()) == (0, 4, [3, 1])
    assert plan.components.tolist() == [2, 1, 1]
    assert (plan.longest, plan.redundant, plan.shared, plan.is_shared) == (2, 4.0, 2.5, True)
    dear = plan_of(2, Costs(event=1.0, message=2.0, byte=0.0))
    assert (dear.longest, dear.redundant, dear.shared, dear.is_shared) == (2, 4.0, 4.0, False)


def test_what_a_rank_makes_goes_to_each_of_the_others() -> None:
    weights = sum(p.numel() for p in TGN(4, embedding="identity").parameters())
    for ranks in (2, 4):
        plan = plan_of(ranks, Costs(event=1.0, message=0.5, byte=0.0))
        rows = (ranks - 1) * 8 * 4 * 4  # two rows an event of four numbers, of four bytes
        scores, sums = (ranks - 1) * 4 * 4, (ranks - 1) * 2 * 4 * weights
        assert plan.traffic == {
            "rows": Traffic(1, rows, rows),
            "row gradients": Traffic(1, rows, rows),
            "scores": Traffic(1, scores, scores),
            "gradients": Traffic(2, sums, sums),
        }
    dear = plan_of(2, Costs(event=1.0, message=9.0, byte=0.0))
    assert list(dear.traffic) == ["scores", "gradients"]


def test_one_rank_sends_nothing() -> None:
    plan = plan_of(1, Costs(event=1.0, message=0.5, byte=0.0))
    assert (plan.traffic, plan.is_shared, plan.longest) == ({}, False, 4)


def test_an_exchange_takes_a_message_and_what_arrives() -> None:
    traffic = {"rows": Traffic(1, 800, 800), "gradients": Traffic(2, 400, 400)}
    there_and_back = Costs(event=0.0, message=2.0, byte=0.02)
    assert exchange_seconds(traffic, 4, there_and_back) == pytest.approx(3 * 1.0 + 300 * 0.01)


def test_a_plan_for_others_is_made_alone() -> None:
    executor = EXECUTORS["levels"](Replay(LOG, TGN(4), comm=Supposed(0, 2)))
    assert isinstance(executor, LevelExecutor)
    plan = executor.prepare(executor.replay.resolve(0, 4))
    with pytest.raises(ValueError, match="must be alone to plan for others: it is one of 2"):
        plan_segment(executor, plan, 2, has_penalty=False)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [("tgn", {}, False), ("ldg", {}, True), ("jodie", {"decoder": "distance"}, True)],
)
def test_whether_updates_add_to_losses_is_known(
    name: str, options: dict[str, Any], expected: bool
) -> None:
    assert (
        adds_to_losses(Replay(LOG, build(name, width=4, kinds=LOG.kinds, options=options)))
        is expected
    )


class Changed(TGN):
    def renew(self, states: Any, message: Tensor) -> dict[str, Tensor]:
        return {name: 2 * state for name, state in super().renew(states, message).items()}


class Plain(DynamicGNN):
    """A state of two numbers that an event adds 1 to."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = {"state": 2}
        self.reads = Reads(ends=("state",), scored=("state",))

    def message(self, level: Level) -> Tensor:
        return level.ends["state"] + 1.0

    def renew(self, states: Mapping[str, Tensor], message: Tensor) -> dict[str, Tensor]:
        return {"state": message}

    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        return (src.embedding * dst.embedding).sum(-1)


class Hooked(TGN):
    def __init__(self) -> None:
        super().__init__(4)
        self.cell.register_forward_hook(lambda *_: None)


def test_the_reason_for_an_executor_is_named() -> None:
    assert why_executor(scheduled(TGN(4)), "auto").startswith("TGN has a fused scan")
    for model, reason in (
        (JODIE(4, decoder="distance"), "the fused scan of JODIE does not serve JODIE with these"),
        (Changed(4), "Changed changes an update for which the fused scan of TGN would stand"),
        (Hooked(), "a layer of Hooked has hooks"),
        (Plain(), "Plain defines no fused scan"),
    ):
        executor = scheduled(model)
        assert isinstance(executor, LevelExecutor)
        assert why_executor(executor, "auto").startswith(reason)
    assert why_executor(scheduled(TGN(4), "levels"), "levels") == (
        "asked for by the executor 'levels'"
    )


def test_a_supposed_rank_gets_zeros_from_the_others() -> None:
    comm = Supposed(1, 3)
    found = comm.all_gather_rows(torch.ones(2, 1), [1, 2, 1], "rows")
    assert found.tolist() == [[0.0], [1.0], [1.0], [0.0]]
    assert comm.reduce_scatter_rows(torch.ones(4, 1), [1, 2, 1], "row gradients").tolist() == (
        [[1.0], [1.0]]
    )
    assert comm.bytes == {"rows": Traffic(1, 16, 8), "row gradients": Traffic(1, 8, 16)}


def test_real_ranks_send_what_was_foreseen() -> None:
    script = Path(plans_on_ranks.__file__)
    code, out, err = finish(start("mpiexec", 2, script), 240)
    assert code == 0, err
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["name"] for line in lines] == list(plans_on_ranks.RUNS)
    for line in lines:
        assert line["shared"] is True, line["name"]
        ranks = [bytes_of for bytes_of, _ in line["every"]]
        assert all(alike for _, alike in line["every"]), line["name"]  # as a supposed rank counts
        for purpose, (calls, sent, received) in line["plan"].items():
            found = [rank[purpose] for rank in ranks]
            assert {c for c, _, _ in found} == {calls}, (line["name"], purpose)
            assert sum(s for _, s, _ in found) == sent, (line["name"], purpose)
            assert sum(r for _, _, r in found) == received, (line["name"], purpose)
        assert all(rank.keys() == line["plan"].keys() for rank in ranks), line["name"]

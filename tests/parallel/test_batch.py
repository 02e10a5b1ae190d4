"""A stale batch is what a plain loop over dictionaries makes of it, and what its name says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from neutronstream.models import TGN, DynamicGNN, DyRep
from neutronstream.parallel import BatchExecutor, LevelExecutor, Replay
from neutronstream.stream import EventLog

from ..data import real_log
from ..models.small import Attentive, Counter, Drawn, GruMemory, RecentMean, Spread
from ..naive import random_log

LOGS = {
    "ties and a hub": random_log(1, 60, 10, ties=0.5, loops=0.0),
    "self loops": random_log(2, 60, 8, loops=0.4),
    "one node": random_log(3, 15, 1),
    "many nodes": random_log(4, 60, 200, hub=0.0),
    "one event": random_log(5, 1, 3),
}


def new_replay(log: EventLog, model: DynamicGNN, **more: object) -> Replay:
    return Replay(log, model.double(), dtype=torch.float64, consistency="batch", **more)  # type: ignore[arg-type]


class Loop:
    """GruMemory in stale batches: memories and what is pending, in dictionaries."""

    def __init__(self, log: EventLog, model: GruMemory | Attentive, mean: bool) -> None:
        self.log, self.model, self.mean = log, model, mean
        self.memory: dict[int, Tensor] = {}
        self.pending: dict[int, list[tuple[int, int]]] = {}  # node -> (event, side) of its batch
        self.batch_of: dict[int, int] = {}  # event -> first event of its batch
        self.zero = torch.zeros(5, dtype=torch.float64)

    def gap(self, event: int, node: int) -> float:
        """Seconds since the node's last event before the batch."""
        events = self.log.events
        for earlier in range(self.batch_of[event] - 1, -1, -1):
            if node in (events.src[earlier], events.dst[earlier]):
                return float(events.time[event] - events.time[earlier])
        return float(events.time[event] - events.time[0])

    def renewed(self, node: int) -> Tensor:
        old = self.memory.get(node, self.zero)
        if node not in self.pending:
            return old
        told = []
        for event, side in self.pending[node] if self.mean else self.pending[node][-1:]:
            ends = (int(self.log.events.src[event]), int(self.log.events.dst[event]))
            other = self.memory.get(ends[1 - side], self.zero) + self.model.first
            gap = torch.tensor([self.gap(event, ends[side])], dtype=torch.float64)
            extra = [torch.log1p(gap)]
            if isinstance(self.model, Attentive):
                other = other + self.model.kinds.weight.sum()
            else:
                extra.append(self.model.kinds.weight[int(self.log.events.kind[event])])
                old = self.memory.get(node, self.zero) + self.model.first
            told.append(torch.cat([other, *extra]))
        after: Tensor = self.model.cell(torch.stack(told).mean(0)[None], old[None])[0]
        return after

    def commit(self, start: int, stop: int) -> None:
        for event in range(start, stop):
            self.batch_of[event] = start
        src, dst = self.log.events.src.tolist(), self.log.events.dst.tolist()
        batch = [(e, s, (src[e], dst[e])[s]) for e in range(start, stop) for s in range(2)]
        self.memory |= {node: self.renewed(node).detach() for _, _, node in batch}
        for _, _, node in batch:
            self.pending[node] = []
        for event, side, node in batch:
            self.pending[node].append((event, side))


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("size", [1, 7, 25])
@pytest.mark.parametrize("name", LOGS)
def test_memories_and_scores_are_those_of_a_loop(name: str, size: int, mean: bool) -> None:
    log = LOGS[name]
    torch.manual_seed(0)
    model: GruMemory | Attentive = Attentive(k=1) if mean else GruMemory()
    if mean:
        model.aggregation = "mean"
    replay = new_replay(log, model)
    executor, loop = BatchExecutor(replay), Loop(log, model, mean)
    for start in range(0, len(log), size):
        stop = min(start + size, len(log))
        segment = replay.resolve(start, stop, num_candidates=3)
        outcome = executor.run(executor.prepare(segment))
        if not mean and outcome.scores is not None:
            for i in range(start, stop):
                loop.batch_of[i] = start
                nodes = [segment.ends[i - start, 1], *segment.candidates.node[i - start]]
                own = loop.renewed(int(segment.ends[i - start, 0])) + model.first
                others = torch.stack([loop.renewed(int(node)) + model.first for node in nodes])
                gaps = [loop.gap(i, int(node)) for node in nodes]
                expected = (own * others).sum(-1) - torch.log1p(torch.tensor(gaps).double()) / 10
                valid = [True, *segment.candidates.valid[i - start]]
                torch.testing.assert_close(
                    *(each[torch.tensor(valid)] for each in (expected, outcome.scores[i - start])),
                    rtol=1e-12,
                    atol=1e-12,
                )
        loop.commit(start, stop)
        outcome.commit()
        expected = torch.stack(
            [loop.memory.get(node, loop.zero).detach() for node in range(log.num_nodes)]
        )
        torch.testing.assert_close(replay.state["memory"], expected, rtol=1e-12, atol=1e-12)


MODELS: list[Callable[[], DynamicGNN]] = [
    GruMemory, RecentMean, Attentive, Spread, Drawn, Counter, lambda: DyRep(4),
]  # fmt: skip


@pytest.mark.parametrize("new_model", MODELS)
@pytest.mark.parametrize("name", LOGS)
def test_every_kind_of_model_runs_stale_and_all_its_weights_learn(
    name: str, new_model: Callable[[], DynamicGNN]
) -> None:
    log = LOGS[name]
    torch.manual_seed(0)
    replay = new_replay(log, new_model())
    executor = BatchExecutor(replay)
    reached: set[str] = set()
    for start in range(0, len(log), 10):
        segment = replay.resolve(start, min(start + 10, len(log)), num_candidates=2)
        outcome = executor.run(executor.prepare(segment))
        replay.model.zero_grad()
        outcome.losses.sum().backward()  # type: ignore[no-untyped-call]
        for key, weight in replay.model.named_parameters():
            if weight.grad is not None:
                assert weight.grad.isfinite().all(), key
                if weight.grad.any():
                    reached.add(key)
        outcome.commit()
        assert all(replay.state[t].isfinite().all() for t in replay.model.tables)
    if name in ("ties and a hub", "self loops"):
        assert reached == {key for key, _ in replay.model.named_parameters()}


def test_the_first_batch_is_scored_from_the_states_at_its_start() -> None:
    log = real_log("uci", 60)
    torch.manual_seed(0)
    model = GruMemory()
    model.num_negatives = 0
    replay = new_replay(log, model)
    outcome = BatchExecutor(replay).run(BatchExecutor(replay).prepare(replay.resolve(0, 60)))
    alone = model.first.square().sum()
    gap = torch.from_numpy(np.asarray(log.events.time[:60] - log.events.time[0], np.float64))
    scores = alone - torch.log1p(gap) / 10  # nobody has learned anything yet
    expected = torch.nn.functional.softplus(-scores)
    torch.testing.assert_close(outcome.losses, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("new_model", MODELS)
def test_batches_of_one_event_and_memories_alone_differ_only_in_when_they_are_applied(
    new_model: Callable[[], DynamicGNN],
) -> None:
    """The losses of an endless line of strangers are those of one event at a time."""
    log = EventLog.from_arrays(range(0, 40, 2), range(1, 41, 2), range(20))
    losses = []
    for consistency, executor in (("exact", LevelExecutor), ("batch", BatchExecutor)):
        torch.manual_seed(0)
        replay = Replay(log, new_model().double(), dtype=torch.float64, consistency=consistency)  # type: ignore[arg-type]
        engine = executor(replay)
        if replay.model.corrupts == "both" or isinstance(replay.model, GruMemory):
            replay.model.num_negatives = 0
        for start in range(20):
            outcome = engine.run(engine.prepare(replay.resolve(start, start + 1)))  # type: ignore[arg-type]
            losses.append(float(outcome.losses.detach()))
            outcome.commit()
    if not isinstance(replay.model, Drawn):  # draws others, which have been renewed or not
        assert losses[:20] == pytest.approx(losses[20:], rel=1e-12)


@pytest.mark.parametrize("new_model", MODELS)
def test_going_back_and_on_gives_the_same_bits(new_model: Callable[[], DynamicGNN]) -> None:
    log = random_log(6, 80, 9)
    torch.manual_seed(0)
    replay = new_replay(log, new_model())
    executor = BatchExecutor(replay)

    def go(start: int, stop: int) -> list[Tensor]:
        found = []
        for first in range(start, stop, 10):
            plan = executor.prepare(replay.resolve(first, first + 10, num_candidates=2))
            with torch.no_grad():
                outcome = executor.run(plan)
            outcome.commit()
            assert outcome.scores is not None
            found += [outcome.losses, outcome.scores]
        return found + [replay.state[name].clone() for name in replay.state.names]

    go(0, 40)
    saved, mark = replay.state.to_arrays(), replay.state.snapshot()
    once = go(40, 80)
    replay.state.undo(mark)
    twice = go(40, 80)
    replay.state.from_arrays(saved)
    thrice = go(40, 80)
    for other in (twice, thrice):
        assert all(torch.equal(a, b) for a, b in zip(once, other, strict=True))


def test_links_of_the_batch_are_not_seen_by_its_other_events() -> None:
    log = EventLog.from_arrays(["a", "a", "a", "a"], ["b", "c", "b", "d"], [1, 2, 3, 4])
    replay = new_replay(log, DyRep(2))
    replay.resolve(0, 1)
    neighbors = replay.resolve(1, 4).neighbors
    rows = [
        neighbors.node[a:b].tolist()
        for a, b in zip(neighbors.indptr[:-1], neighbors.indptr[1:], strict=True)
    ]
    assert rows == [
        [1, 2],
        [0],
        [1],
        [0],
        [1, 3],
        [0],
    ]  # b was there, c and d are their own event's
    assert neighbors.before.tolist() == [True, False, False, True, True, True, False, False]


def test_a_link_that_is_made_twice_in_its_first_batch_gets_its_value() -> None:
    pairs = [(0, 1), (0, 1), (0, 2), (0, 2), (0, 1), (0, 1), (0, 2), (0, 2)]
    log = EventLog.from_arrays([a for a, _ in pairs], [b for _, b in pairs], range(8))
    torch.manual_seed(0)
    replay = new_replay(log, DyRep(4))
    executor = BatchExecutor(replay)
    for start in range(0, 8, 2):
        executor.run(executor.prepare(replay.resolve(start, start + 2))).commit()
    links = replay.graph.links(np.arange(3), 8)
    attention = replay.state["attention"][:, 0]
    for node in range(1, 3):  # one link each, which holds all
        row = links.link[links.indptr[node] : links.indptr[node + 1]]
        assert attention[torch.from_numpy(row + 1)].tolist() == pytest.approx([1.0])


def test_an_executor_refuses_a_replay_of_the_other_kind() -> None:
    log = LOGS["one event"]
    with pytest.raises(ValueError, match="`consistency` 'exact' cannot be run by BatchExecutor"):
        BatchExecutor(Replay(log, GruMemory()))
    with pytest.raises(ValueError, match="'batch' cannot be run by LevelExecutor"):
        LevelExecutor(Replay(log, GruMemory(), consistency="batch"))
    with pytest.raises(ValueError, match="must be 'exact' or 'batch': got 'stale'"):
        Replay(log, GruMemory(), consistency="stale")  # type: ignore[arg-type]


@pytest.mark.parametrize("embedding", ["attention", "sum", "identity"])
def test_embedding_each_node_once_changes_nothing(embedding: str) -> None:
    log = real_log("uci", 120)
    found = []
    for timeless in (True, False):
        torch.manual_seed(0)
        model = TGN(8, time_from="neighbor", embedding=embedding, num_negatives=3, k=4)  # type: ignore[arg-type]
        assert model.timeless
        model.timeless = timeless
        replay = new_replay(log, model)
        executor = BatchExecutor(replay)
        for start in range(0, 120, 40):
            plan = executor.prepare(replay.resolve(start, start + 40, num_candidates=3))
            outcome = executor.run(plan, embed=True)
            assert outcome.scores is not None and outcome.embedded is not None
            model.zero_grad()
            outcome.losses.sum().backward()  # type: ignore[no-untyped-call]
            found += [outcome.losses.detach(), outcome.scores, outcome.embedded]
            found += [w.grad.clone() for w in model.parameters() if w.grad is not None]
            outcome.commit()
    half = len(found) // 2
    for once, each in zip(found[:half], found[half:], strict=True):
        torch.testing.assert_close(once, each, rtol=1e-10, atol=1e-10)

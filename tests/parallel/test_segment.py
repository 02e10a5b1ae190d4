"""A segment shows the store as of each event, can be checked, and costs no more than its events."""

from __future__ import annotations

import tracemalloc
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
import torch

from neutronstream.models import DyRep
from neutronstream.parallel import EXECUTORS, LevelExecutor, Replay, Segment
from neutronstream.storage import OracleGraph
from neutronstream.stream import EventLog, LeakError

from ..data import real_log
from ..models.small import Attentive, Drawn, GruMemory, RecentMean, Spread
from ..naive import random_log
from .runs import run


def same(a: Any, b: Any) -> bool:
    """Whether two values hold the same arrays, through dataclasses."""
    if is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else a == b


@pytest.mark.parametrize("new_model", [DyRep, GruMemory, RecentMean])
def test_a_segment_does_not_depend_on_what_was_applied_after_it(new_model: Any) -> None:
    log = random_log(0, 90, 12, num_initial=8)
    early, late = Replay(log, new_model(4)), Replay(log, new_model(4))
    late.apply(90)
    for start, stop in ((0, 30), (30, 31), (31, 60)):
        first = early.resolve(start, stop, num_candidates=3)
        assert same(first, late.resolve(start, stop, num_candidates=3))


def test_a_segment_is_that_of_its_events_one_by_one() -> None:
    log = random_log(1, 40, 9, kinds=("AE", "talk"), num_initial=5)
    replay = Replay(log, DyRep(4, log.kinds))
    whole = replay.resolve(0, 40, num_candidates=3)
    for i in range(40):
        one = replay.resolve(i, i + 1, num_candidates=3)
        both = zip(whole.groups, one.groups, strict=True)
        assert whole.ends[i].tolist() == one.ends[0].tolist()
        for many, single in ((whole.shown.columns(a), one.shown.columns(b)) for a, b in both):
            for name in ("node", "valid", "gap", "idle"):
                assert np.array_equal(getattr(many, name)[i : i + 1], getattr(single, name))
        span = slice(*whole.neighbors.indptr[[2 * i, 2 * i + 2]])
        assert np.array_equal(whole.neighbors.node[span], one.neighbors.node)
        assert np.array_equal(whole.neighbors.link[span], one.neighbors.link)


def test_gaps_count_from_the_latest_event_and_for_new_nodes_from_the_first_of_the_log() -> None:
    log = EventLog.from_arrays(["a", "b", "a"], ["b", "c", "c"], [5_000, 8_000, 8_500], unit="ms")
    segment = Replay(log, DyRep(2)).resolve(0, 3)
    gap, idle = (
        np.hstack([getattr(segment.src, name), getattr(segment.dst, name)])
        for name in ("gap", "idle")
    )
    assert gap.tolist() == segment.events.gap.tolist() == [[0.0, 0.0], [3.0, 3.0], [3.5, 0.5]]
    # events since, times 2 / nodes known before the event: 0 (counted as 1), 2 and 3
    expected = [[2.0, 2.0], [1.0, 2.0], [2 * 2 / 3, 1 * 2 / 3]]
    assert idle.tolist() == [pytest.approx(row) for row in expected]


def test_all_known_destinations_but_the_ends_can_be_candidates() -> None:
    log = EventLog.from_arrays(["a", "b", "a", "d"], ["b", "c", "b", "b"], [1, 2, 3, 4])
    segment = Replay(log, DyRep(2)).resolve(0, 4, num_candidates=0)
    assert listed(segment) == [[], [], [2], [2]]  # of b (1) and c (2), who takes no part


def listed(segment: Segment) -> list[list[int]]:
    beside = segment.candidates
    return [row[ok].tolist() for row, ok in zip(beside.node, beside.valid, strict=True)]


def test_no_candidate_stands_twice_and_few_destinations_are_all_candidates() -> None:
    src, dst = np.random.default_rng(0).integers(0, 30, (2, 300))
    replay = Replay(EventLog.from_arrays(src, 100 + dst % 7, range(300)), DyRep(2))
    known = [set(row) for row in listed(replay.resolve(0, 300, num_candidates=0))]
    for count in (3, 50):
        for row, all_of_them in zip(
            listed(replay.resolve(0, 300, num_candidates=count)), known, strict=True
        ):
            assert len(row) == len(set(row)) == min(count, len(all_of_them))
            assert set(row) <= all_of_them


def test_the_first_candidate_is_the_same_draw_however_many_there_are() -> None:
    src, dst = np.random.default_rng(0).integers(0, 30, (2, 300))
    replay = Replay(EventLog.from_arrays(src, dst, range(300)), DyRep(2))
    first = [
        [row[0] for row in listed(replay.resolve(100, 300, num_candidates=count))]
        for count in (1, 5, 200, 0)
    ]
    assert first[0] == first[1] == first[2] == first[3]
    assert len(set(first[0])) > 25  # of 30: a draw, and not the node that appeared first


def test_only_associations_link_where_the_log_names_them() -> None:
    log = EventLog.from_arrays(
        ["a", "a", "a"], ["b", "c", "b"], [1, 2, 3], kind=["talk", "AE", "talk"]
    )
    replay = Replay(log, DyRep(2, log.kinds))
    neighbors = replay.resolve(0, 3).neighbors
    rows = [
        neighbors.node[start:stop].tolist()
        for start, stop in zip(neighbors.indptr[:-1], neighbors.indptr[1:], strict=True)
    ]
    assert rows == [[], [], [2], [0], [2], []]
    assert neighbors.before.tolist() == [False, False, True]
    assert replay.graph.num_links == 1


@pytest.mark.parametrize("new_model", [DyRep, GruMemory, RecentMean])
def test_the_check_passes_on_a_real_log_and_changes_nothing(new_model: Any) -> None:
    log = real_log("uci", 300)
    checked, plain = (run(log, new_model, "levels", check=check) for check in (True, False))
    assert checked.equals(plain)


def test_the_check_passes_with_two_kinds_and_initial_links() -> None:
    log = real_log("github", 200)
    replay = Replay(log, DyRep(2, log.kinds), check=True)
    for start in range(0, 200, 50):
        replay.resolve(start, start + 50)
    assert isinstance(replay.oracle, OracleGraph)
    assert replay.oracle.position == 200


@pytest.mark.parametrize(("new_model", "column"), [(DyRep, "_made"), (RecentMean, "_record")])
def test_a_wrong_answer_of_the_store_is_caught_and_named(new_model: Any, column: str) -> None:
    log = random_log(2, 60, 8, loops=0.0)
    replay = Replay(log, new_model(4), check=True)
    replay.resolve(0, 30)
    getattr(replay.graph, column)[:30, :2] += 1  # every link or event now has other ends
    with pytest.raises(LeakError, match=r"node \d+ as of position \d+: the graph answers"):
        replay.resolve(30, 60)


def test_without_the_check_no_oracle_is_kept() -> None:
    assert Replay(random_log(2, 10, 8), DyRep(2)).oracle is None


def test_no_segment_does_work_in_proportion_to_the_nodes() -> None:
    """Beside 300,000 idle nodes a segment takes the memory that it takes beside none."""
    peaks = []
    for idle in (0, 300_000):
        others = list(range(100, 100 + idle)), list(range(100, 100 + idle))
        log = random_log(0, 60, 20)
        names = log.name_of(log.events.src), log.name_of(log.events.dst)
        log = EventLog.from_arrays(*names, log.events.time, initial=others)
        executor = LevelExecutor(Replay(log, GruMemory(4)))
        prepared = executor.prepare(executor.replay.resolve(0, 30))
        executor.run(prepared).commit()  # imports and caches
        tracemalloc.start()
        mark = executor.state.snapshot()
        with torch.no_grad():
            executor.run(
                executor.prepare(executor.replay.resolve(30, 60, num_candidates=3))
            ).commit()
        executor.state.undo(mark)
        executor.state.forget(mark)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 100_000  # bytes; one byte a node would be 300,000


@pytest.mark.parametrize("executor", ["levels", "sequential", "batch"])
@pytest.mark.parametrize("new_model", [DyRep, GruMemory, Attentive, Spread, Drawn])
def test_states_come_forward_without_scoring_as_they_do_with_it(
    executor: str, new_model: Any
) -> None:
    log = random_log(3, 60, 9)
    states = []
    for score in (True, False):
        torch.manual_seed(0)
        consistency = "batch" if executor == "batch" else "exact"
        replay = Replay(log, new_model(4), consistency=consistency)  # type: ignore[arg-type]
        engine = EXECUTORS[executor](replay)
        for start in range(0, 60, 20):
            with torch.no_grad():
                outcome = engine.run(engine.prepare(replay.resolve(start, start + 20, score=score)))
            outcome.commit()
            assert outcome.scores is None
            assert len(outcome.losses) == 20
            if score:
                assert outcome.losses.any()
        states.append(replay.state.to_arrays())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])

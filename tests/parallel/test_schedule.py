"""A schedule orders two events exactly where one reads what the other wrote.

The first cases are the counter-examples to the published scheduler, which searches conflicts from
the newest events and stops at the first one it finds.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutronstream.models import DyRep
from neutronstream.parallel import LevelExecutor, Replay, Schedule, schedule
from neutronstream.stream import Int64

from ..data import SIX, real_log
from ..naive import (
    Sets,
    Version,
    hazard_levels,
    naive_levels,
    naive_versions,
    order_violations,
    random_log,
)


def flat(lists: Sets) -> tuple[Int64, Int64]:
    """Ragged lists as (starts, values)."""
    values = [node for nodes in lists for node in nodes]
    return np.cumsum([0, *map(len, lists)]), np.array(values, np.int64)


def scheduled(reads: Sets, writes: Sets | None = None, scored: Int64 | None = None) -> Schedule:
    """The schedule of events that read and write those nodes; by default they write all."""
    return schedule(*flat(reads), *flat(reads if writes is None else writes), scored)


def levels(*events: tuple[int, int]) -> list[int]:
    """The levels of events that read and write their two ends."""
    result: list[int] = scheduled(events).level.tolist()
    return result


def decode(plan: Schedule, writes: Sets, rows: Int64) -> list[Version]:
    """What stands in each row: the event and place of a write, or (-1, node)."""
    names: dict[int, Version] = {row: (-1, node) for row, node in enumerate(plan.base.tolist())}
    slots = [(event, place) for event, nodes in enumerate(writes) for place in range(len(nodes))]
    names |= dict(zip(plan.write_row.tolist(), slots, strict=True))
    assert len(names) == plan.num_rows  # no two of them share a row
    return [names[row] for row in rows.tolist()]


def test_independent_events_share_a_level_and_conflicting_ones_do_not() -> None:
    assert levels((0, 1), (1, 2), (3, 4)) == [0, 1, 0]


def test_a_conflict_with_an_event_that_is_not_the_newest_is_seen() -> None:
    a, b, c, d, x, y = range(6)
    assert levels((a, b), (b, c), (c, d), (x, y), (b, x)) == [0, 1, 2, 0, 2]


def test_conflicts_inside_a_chunk_count_whatever_the_chunk_before_ended_with() -> None:
    m, n, p, q = range(4)
    assert levels((p, q)) == [0]
    assert levels((m, n), (m, p)) == [0, 1]


def test_equal_times_keep_their_order_in_the_log() -> None:
    assert levels((0, 1), (1, 2), (2, 3)) == [0, 1, 2]  # a schedule is not shown any time
    log = random_log(0, 60, 8, ties=1.0)
    assert set(log.events.time.tolist()) == {0}
    executor = LevelExecutor(Replay(log, DyRep(2)))
    plan = executor.prepare(executor.replay.resolve(0, 60))
    reads = reads_of(executor.replay, 0, 60)
    assert plan.schedule.level.tolist() == naive_levels(reads, ends_of(executor.replay, 0, 60))


def test_a_self_loop_waits_for_its_node_and_its_last_write_stands() -> None:
    events = [[0, 0], [0, 1], [2, 2]]
    plan = scheduled(events)
    assert plan.level.tolist() == [0, 1, 0]
    assert decode(plan, events, plan.read_row)[2:4] == [(0, 1), (-1, 1)]


def test_a_hub_makes_a_chain() -> None:
    assert levels(*((0, leaf) for leaf in range(1, 6))) == [0, 1, 2, 3, 4]


def test_two_readers_of_one_neighbour_are_independent() -> None:
    plan = scheduled([[0, 1, 9], [2, 3, 9]], [[0, 1], [2, 3]])
    assert plan.level.tolist() == [0, 0]


def test_a_write_that_is_not_read_orders_nothing() -> None:
    plan = scheduled([[0], [0], [1]], [[0], [1], [0]])
    assert plan.level.tolist() == [0, 1, 2]
    plan = scheduled([[0], [], [0]], [[0], [0], [0]])  # the second writes blindly
    assert plan.level.tolist() == [0, 0, 1]
    assert decode(plan, [[0], [0], [0]], plan.last_row) == [(2, 0)]


def test_scored_nodes_are_seen_before_the_event_and_order_nothing() -> None:
    events = [[0, 1], [2, 3], [0, 4]]
    plan = scheduled(events, scored=np.array([[0, 5], [0, 2], [0, 3]]))
    assert plan.level.tolist() == [0, 0, 1]
    seen = decode(plan, events, plan.score_row.ravel())
    assert seen == [(-1, 0), (-1, 5), (0, 0), (-1, 2), (0, 0), (1, 1)]


def test_the_order_is_level_by_level_and_in_log_order_inside_one() -> None:
    plan = scheduled([[0, 1], [1, 2], [3, 4], [2, 5], [6, 7]])
    assert plan.order.tolist() == [0, 2, 4, 1, 3]
    assert plan.widths().tolist() == [3, 1, 1]
    assert plan.write_row.reshape(-1, 2)[plan.order, 0].tolist() == [8, 10, 12, 14, 16]


def test_no_event_makes_an_empty_schedule() -> None:
    plan = scheduled([])
    assert (len(plan), plan.num_levels, plan.num_rows) == (0, 0, 0)
    assert plan.widths().tolist() == []


def test_the_scratch_is_left_as_it_was_found() -> None:
    scratch = np.full(1_000_000, -1)
    events = [[5, 999_999], [5, 7]]
    plan = schedule(*flat(events), *flat(events), scratch=scratch)
    assert (scratch == -1).all()
    assert plan.base.tolist() == [5, 999_999, 7]
    assert plan.base.base is None  # a copy of its own size, not a view of a table of all nodes


nodes = st.lists(st.integers(0, 6), max_size=4)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(nodes, nodes, st.integers(0, 8)), max_size=20))
def test_every_read_sees_the_latest_earlier_write(
    program: list[tuple[list[int], list[int], int]],
) -> None:
    reads, writes = [list(r) for r, _, _ in program], [list(w) for _, w, _ in program]
    scored = np.array([[s] for _, _, s in program], np.int64).reshape(-1, 1)
    plan = scheduled(reads, writes, scored)
    seen = naive_versions(reads, writes)
    assert decode(plan, writes, plan.read_row) == [v for versions in seen for v in versions]
    assert plan.level.tolist() == naive_levels(reads, writes)
    singles = [row.tolist() for row in scored]
    together = naive_versions([r + s for r, s in zip(reads, singles, strict=True)], writes)
    assert decode(plan, writes, plan.score_row.ravel()) == [versions[-1] for versions in together]
    final = naive_versions([*reads, plan.base.tolist()], [*writes, []])[-1]
    assert decode(plan, writes, plan.last_row) == final
    touched = {n for lists in (reads, writes, singles) for events in lists for n in events}
    assert sorted(plan.base.tolist()) == sorted(touched)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(nodes, nodes), max_size=20))
def test_no_event_comes_before_one_whose_write_it_reads(
    program: list[tuple[list[int], list[int]]],
) -> None:
    writes = [list(w) for _, w in program]
    reads = [w + r for r, w in program]  # what is written is read first, as in every model
    plan = scheduled(reads, writes)
    assert order_violations(reads, writes, plan.level.tolist()) == []


def ends_of(replay: Replay, start: int, stop: int) -> list[list[int]]:
    batch = replay.log[start:stop]
    return np.stack([batch.src, batch.dst], axis=1).tolist()  # type: ignore[no-any-return]


def reads_of(replay: Replay, start: int, stop: int) -> list[list[int]]:
    """What each event reads by the definition: its ends and the linked neighbours of both."""
    adjacent: dict[int, set[int]] = {}
    log, initial = replay.log, replay.log.initial
    links = replay.model.makes_link(log[:stop], log.kinds)
    first = [] if initial is None else zip(initial.src, initial.dst, strict=True)
    later = zip(log.events.src[:stop], log.events.dst[:stop], strict=True)
    pairs = [(-1, *pair) for pair in first] + [(i, *pair) for i, pair in enumerate(later)]
    reads = []
    for position, u, v in pairs:
        if position < 0 or links is None or links[position]:
            adjacent.setdefault(int(u), set()).add(int(v))
            adjacent.setdefault(int(v), set()).add(int(u))
        if position >= start:
            near = adjacent.get(int(u), set()) | adjacent.get(int(v), set())
            reads.append([int(u), int(v), *sorted(near)])
    return reads


@pytest.mark.parametrize("name", SIX)
def test_real_logs_have_no_order_violation_and_minimal_levels(name: str) -> None:
    log = real_log(name, 2000)
    replay = Replay(log, DyRep(2, log.kinds))
    executor = LevelExecutor(replay)
    for start in range(0, 2000, 200):
        found = executor.prepare(replay.resolve(start, start + 200)).schedule.level.tolist()
        reads, writes = reads_of(replay, start, start + 200), ends_of(replay, start, start + 200)
        assert order_violations(reads, writes, found) == []
        assert found == naive_levels(reads, writes)
        # with all neighbours read, versions cannot widen the levels: nobody writes unread nodes
        assert found == hazard_levels(reads, writes)


def test_with_few_recent_neighbours_versions_make_wider_levels() -> None:
    log = real_log("uci", 4000)
    events = list(zip(log.events.src.tolist(), log.events.dst.tolist(), strict=True))
    recent: dict[int, list[int]] = {}
    reads, writes = [], [[u, v] for u, v in events]
    for u, v in events:
        reads.append([u, v, *recent.get(u, [])[-5:], *recent.get(v, [])[-5:]])
        recent.setdefault(u, []).append(v)
        recent.setdefault(v, []).append(u)
    versioned = unversioned = 0
    for start in range(0, 4000, 200):
        part = reads[start : start + 200], writes[start : start + 200]
        versioned += scheduled(*part).num_levels
        unversioned += max(hazard_levels(*part)) + 1
        assert order_violations(*part, scheduled(*part).level.tolist()) == []
    assert versioned < unversioned

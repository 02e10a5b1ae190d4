"""Events that hang together are updated on one rank; together the ranks update all of them."""

from __future__ import annotations

import numpy as np
import pytest

from neutronstream.models import DyGNN, DyRep
from neutronstream.parallel import LevelExecutor, Replay, schedule
from neutronstream.parallel.costs import Costs
from neutronstream.parallel.scheduled import reads_of
from neutronstream.parallel.sharing import components, share_events, share_rows
from neutronstream.stream import Int64

from ..naive import naive_versions, random_log

CHEAP = Costs(event=1.0, message=0.0, byte=0.0)


def scheduled(pairs: list[tuple[int, int]]) -> tuple[Int64, Int64]:
    """Where the ends of events begin, and the ends."""
    return np.arange(0, 2 * len(pairs) + 1, 2), np.array(pairs, np.int64).ravel()


def naive_components(reads: list[list[int]], writes: list[list[int]]) -> list[int]:
    """The first event of the group of each, by merging sets."""
    group = list(range(len(reads)))
    for event, versions in enumerate(naive_versions(reads, writes)):
        for writer, _ in versions:
            if writer >= 0:
                old, new = sorted((group[event], group[writer]), reverse=True)
                group = [new if g == old else g for g in group]
    return group


def test_events_of_disjoint_nodes_do_not_hang_together() -> None:
    starts, ends = scheduled([(0, 1), (2, 3), (1, 4), (5, 6), (3, 3)])
    plan = schedule(starts, ends, starts, ends)
    assert components(plan, starts, starts).tolist() == [0, 1, 0, 3, 1]


def test_reading_the_same_untouched_node_does_not_join_events() -> None:
    read_start, read = np.array([0, 2, 4]), np.array([0, 9, 1, 9])
    write_start, written = np.array([0, 1, 2]), np.array([0, 1])
    plan = schedule(read_start, read, write_start, written)
    assert components(plan, read_start, write_start).tolist() == [0, 1]


@pytest.mark.parametrize("seed", range(20))
def test_components_are_those_of_merged_sets(seed: int) -> None:
    draw = np.random.default_rng(seed)
    n = int(draw.integers(1, 40))
    reads = [draw.integers(0, 60, draw.integers(1, 4)).tolist() for _ in range(n)]
    writes = [draw.integers(0, 60, draw.integers(0, 3)).tolist() for _ in range(n)]
    read_start = np.cumsum([0, *map(len, reads)])
    write_start = np.cumsum([0, *map(len, writes)])
    read, written = (
        np.array([node for part in lists for node in part], np.int64) for lists in (reads, writes)
    )
    plan = schedule(read_start, read, write_start, written)
    assert components(plan, read_start, write_start).tolist() == naive_components(reads, writes)


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
@pytest.mark.parametrize("model", [DyRep(2), DyGNN(2, k=2)], ids=["ends", "neighbors"])
def test_every_row_is_written_on_one_rank_and_read_where_it_was_written(
    ranks: int, model: DyRep | DyGNN
) -> None:
    log = random_log(3, 60, 200, hub=0.0)
    segment = Replay(log, model).resolve(0, 60)
    plan = LevelExecutor(Replay(log, model)).prepare(segment).schedule
    (read_start, _), _ = reads_of(segment)
    members = segment.members
    write_start = np.arange(0, 121, 2) if members is None else members.indptr
    shares = share_events(plan, read_start, write_start, ranks, 8, CHEAP)
    assert shares is not None
    mine = [shares.mine(rank) for rank in range(ranks)]
    assert np.array_equal(np.sort(np.concatenate(mine)), np.arange(60))
    assert np.array_equal(np.sort(shares.rows.numpy()), np.sort(plan.write_row))
    assert sum(shares.sizes) == len(plan.write_row)
    of_row = dict(zip(shares.rows.tolist(), np.repeat(range(ranks), shares.sizes), strict=True))
    for event in range(60):
        for row in plan.read_row[read_start[event] : read_start[event + 1]].tolist():
            assert of_row.get(row, shares.rank_of[event]) == shares.rank_of[event]


def test_the_largest_components_are_spread_first() -> None:
    starts, ends = scheduled([(0, 1), (1, 2), (2, 3), (10, 11), (20, 21), (30, 31)])
    plan = schedule(starts, ends, starts, ends)
    shares = share_events(plan, starts, starts, 2, 4, CHEAP)
    assert shares is not None
    assert shares.rank_of.tolist() == [0, 0, 0, 1, 1, 1]
    assert shares.sizes == (6, 6)


def test_what_is_not_worth_a_message_is_updated_by_all() -> None:
    starts, ends = scheduled([(0, 1), (2, 3), (4, 5), (6, 7)])
    plan = schedule(starts, ends, starts, ends)
    dear = Costs(event=1.0, message=2.5, byte=0.0)
    assert share_events(plan, starts, starts, 2, 4, dear) is None  # 2 + 2.5 is more than 4
    assert share_events(plan, starts, starts, 4, 4, dear) is not None  # 1 + 2.5
    wide = Costs(event=1.0, message=0.0, byte=0.3)  # a row of 4 bytes, 8 rows
    assert share_events(plan, starts, starts, 2, 4, wide) is None  # 2 + 4.8
    chain, nodes = scheduled([(0, 1), (1, 2), (2, 3), (3, 4)])
    assert share_events(schedule(chain, nodes, chain, nodes), chain, chain, 2, 4, CHEAP) is None


def test_one_rank_and_no_event_are_not_shared() -> None:
    starts, ends = scheduled([(0, 1), (2, 3)])
    assert share_events(schedule(starts, ends, starts, ends), starts, starts, 1, 4, CHEAP) is None
    nothing, none = np.zeros(1, np.int64), np.empty(0, np.int64)
    empty = schedule(nothing, none, nothing, none)
    assert share_events(empty, nothing, nothing, 4, 4, CHEAP) is None


@pytest.mark.parametrize("count", [0, 1, 3, 200])
@pytest.mark.parametrize("size", [1, 2, 4, 7])
def test_scored_events_are_cut_evenly_and_completely(count: int, size: int) -> None:
    spans = [share_rows(count, rank, size) for rank in range(size)]
    assert [i for start, stop in spans for i in range(start, stop)] == list(range(count))
    assert max(b - a for a, b in spans) - min(b - a for a, b in spans) <= 1

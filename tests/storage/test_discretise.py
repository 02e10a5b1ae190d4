"""Logs are cut into snapshots: periods, borders, ties, windows, features that know no future."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neutronstream.storage import discretise
from neutronstream.stream import EventLog
from tests.data import real_log


def known(values: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
    """What a snapshot has."""
    assert values is not None
    return values


def log_of(*events: tuple[int, int, int], **more: Any) -> EventLog:
    """The events (src, dst, time)."""
    src, dst, time = np.array(events, np.int64).reshape(-1, 3).T.copy()
    return EventLog.from_arrays(src, dst, time, **more)


FIVE = log_of((0, 1, 100), (1, 2, 109), (0, 1, 110), (2, 3, 135), (0, 1, 135))


def test_an_event_at_a_border_belongs_to_the_next_and_empty_periods_are_kept() -> None:
    found = discretise(FIVE, 10)
    assert [(s.start, s.stop) for s in found] == [(0, 2), (2, 3), (3, 3), (3, 5)]
    assert [(s.start_time, s.stop_time) for s in found] == [
        (100, 110),
        (110, 120),
        (120, 130),
        (130, 140),
    ]
    assert found[2].adjacency.num_edges == 0
    assert {s.num_nodes for s in found} == {4}


def test_the_weight_of_an_edge_is_its_number_of_events() -> None:
    (whole,) = discretise(FIVE, 1_000)
    assert whole.adjacency.dense().tolist() == [
        [0, 0, 0, 0],
        [3, 0, 0, 0],  # 0 -> 1 three times: row 1
        [0, 1, 0, 0],
        [0, 0, 1, 0],
    ]


def test_count_cuts_in_log_order_even_between_equal_times() -> None:
    log = log_of((0, 1, 5), (1, 2, 5), (2, 0, 5), (0, 2, 5), (1, 0, 6))
    found = discretise(log, count=2)
    assert [(s.start, s.stop) for s in found] == [(0, 2), (2, 5)]
    assert [(s.start_time, s.stop_time) for s in found] == [(5, 5), (5, 7)]
    assert [(s.start, s.stop) for s in discretise(log, period=1)] == [(0, 4), (4, 5)]


def test_nodes_are_present_from_their_first_event_on() -> None:
    assert [known(s.present).tolist() for s in discretise(FIVE, 10)] == [
        [True, True, True, False],
        [True, True, True, False],
        [True, True, True, False],
        [True, True, True, True],
    ]


def test_a_snapshot_holds_its_period_or_the_last_ones_or_all_so_far() -> None:
    assert [(s.start, s.stop) for s in discretise(FIVE, 10, window=2)] == [
        (0, 2),
        (0, 3),
        (2, 3),
        (3, 5),
    ]
    assert [s.start_time for s in discretise(FIVE, 10, window=2)] == [100, 100, 110, 120]
    found = discretise(FIVE, 10, cumulative=True)
    assert [(s.start, s.stop) for s in found] == [(0, 2), (0, 3), (0, 3), (0, 5)]
    assert [int(s.adjacency.weight.sum()) for s in found] == [2, 3, 3, 5]


def test_initial_links_are_in_cumulative_snapshots_alone() -> None:
    log = log_of((0, 1, 0), (1, 2, 10), initial=([0, 7], [2, 0]))
    names = log.name_of(list(range(log.num_nodes)))
    seven, zero, two = names.index(7), names.index(0), names.index(2)
    apart, together = discretise(log, 10), discretise(log, 10, cumulative=True)
    assert [s.adjacency.num_edges for s in apart] == [1, 1]
    assert [s.adjacency.num_edges for s in together] == [3, 4]
    assert together[0].adjacency.dense()[zero, seven] == 1
    assert known(together[0].present)[[seven, zero, two]].all() and known(apart[0].present)[seven]
    assert known(together[0].features)[seven].tolist() == [0, np.log1p(np.float32(1))]


def test_features_are_logarithms_of_events_in_and_out() -> None:
    found = discretise(FIVE, 10, features="history")
    log = np.log1p(np.arange(4, dtype=np.float32))
    assert known(found[0].features)[1].tolist() == [log[1], log[1], log[1], log[1]]
    assert known(found[1].features)[1].tolist() == [log[1], 0, log[2], log[1]]
    assert known(found[2].features)[1].tolist() == [0, 0, log[2], log[1]]
    assert known(found[3].features)[1].tolist() == [log[1], 0, log[3], log[1]]
    assert np.array_equal(known(found[3].features)[:, :2], known(discretise(FIVE, 10)[3].features))
    assert discretise(FIVE, 10, features="none")[0].features is None
    assert known(found[0].features).dtype == np.float32


EVENTS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 60)), min_size=1, max_size=40
).map(lambda events: sorted(events, key=lambda event: event[2]))


@given(EVENTS, st.integers(1, 25), st.sampled_from(["plain", "cumulative", "window"]))
def test_a_snapshot_is_that_of_a_loop_over_the_events(
    events: list[tuple[int, int, int]], period: int, how: str
) -> None:
    log = log_of(*events)
    held = {"plain": 1, "cumulative": 10**6, "window": 3}[how]
    found = discretise(
        log, period, cumulative=how == "cumulative", window=3 if how == "window" else None
    )
    first = events[0][2]
    place = [(time - first) // period for _, _, time in events]
    assert len(found) == place[-1] + 1
    for number, snapshot in enumerate(found):
        expected = np.zeros((log.num_nodes, log.num_nodes))
        for src, dst, at in zip(log.events.src, log.events.dst, place, strict=True):
            if number - held < at <= number:
                expected[dst, src] += 1
        assert np.array_equal(snapshot.adjacency.dense(), expected)
        degrees = np.stack([expected.sum(1), expected.sum(0)], 1).astype(np.float32)
        np.testing.assert_allclose(known(snapshot.features), np.log1p(degrees), rtol=1e-6)


@given(EVENTS, st.integers(1, 25), st.booleans())
def test_what_comes_later_changes_no_earlier_snapshot(
    events: list[tuple[int, int, int]], period: int, cumulative: bool
) -> None:
    log, last = log_of(*events), events[-1][2]
    more = log_of(*events, (0, 9, last + 3 * period), (9, 8, last + 3 * period))
    for old, new in zip(
        discretise(log, period, cumulative=cumulative, features="history"),
        discretise(more, period, cumulative=cumulative, features="history"),
        strict=False,
    ):
        assert np.array_equal(
            old.adjacency.dense(), new.adjacency.dense()[: old.num_nodes, : old.num_nodes]
        )
        assert np.array_equal(known(old.features), known(new.features)[: old.num_nodes])
        assert (
            not known(new.features)[old.num_nodes :].any()
            and not known(new.present)[old.num_nodes :].any()
        )


def test_a_real_log_loses_no_event() -> None:
    log = real_log("uci")
    weeks = discretise(log, "7d")
    assert len(weeks) == 28
    assert sum(int(s.adjacency.weight.sum()) for s in weeks) == len(log) == 59_835
    assert [s.stop for s in weeks[:-1]] == [s.start for s in weeks[1:]]
    assert all(s.stop_time - s.start_time == 7 * 86_400 for s in weeks)
    parts = discretise(log, count=40)
    assert {s.stop - s.start for s in parts} == {1495, 1496}
    every = discretise(log, "7d", cumulative=True)[-1]
    assert every.adjacency.num_edges == 20_296 and known(every.present).all()


def test_times_near_the_ends_of_int64_do_not_overflow() -> None:
    low, high = -(2**63) + 1, 2**63 - 1
    found = discretise(log_of((0, 1, low), (1, 0, high)), 2**63)
    assert [(s.start, s.stop) for s in found] == [(0, 1), (1, 2)]


def test_a_log_without_events_has_no_snapshots() -> None:
    empty = EventLog.from_arrays([], [], [])
    assert discretise(empty, "1d") == discretise(empty, count=3) == []


def test_wrong_arguments_are_named() -> None:
    for period, count in ((None, None), (5, 2)):
        with pytest.raises(ValueError, match="give `period` or `count`, and not both"):
            discretise(FIVE, period, count)
    with pytest.raises(ValueError, match="`period` must be at least 1 tick: got 0"):
        discretise(FIVE, 0)
    with pytest.raises(ValueError, match=r"`period` must be ticks or a length of time .*'7x'"):
        discretise(FIVE, "7x")
    with pytest.raises(
        ValueError, match=r"of 1 cuts this log into 36 snapshots, more than 20: take at least 2 t"
    ):
        discretise(FIVE, 1, limit=20)
    assert len(discretise(FIVE, 2, limit=20)) == 18
    with pytest.raises(ValueError, match="`count` must be from 1 to 10,000 snapshots"):
        discretise(FIVE, count=0)
    with pytest.raises(ValueError, match=r"`count` must not exceed the events.*got 6 for 5"):
        discretise(FIVE, count=6)
    for window, cumulative in ((0, False), (2, True)):
        with pytest.raises(ValueError, match="`window` must be a number of periods"):
            discretise(FIVE, 10, window=window, cumulative=cumulative)
    with pytest.raises(ValueError, match="`features` must be one of degree, history, none"):
        discretise(FIVE, 10, features="all")  # type: ignore[arg-type]

"""The split cuts where its sources cut, and keeps new nodes from training."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as rules
from hypothesis import strategies as st

from neutronstream.experiments.split.parts import Split, split_log, training_log
from neutronstream.stream import EventLog

from ..small import hourly_log


def ends(log: EventLog, mask: slice | np.typing.NDArray[np.bool_] = slice(None)) -> set[int]:
    part = log.events[mask]
    return {*part.src.tolist(), *part.dst.tolist()}


# -- where it cuts ---------------------------------------------------------------------------------


def test_the_parts_are_70_15_and_15_of_the_events() -> None:
    log = EventLog.from_arrays([0, 1] * 50, [1, 0] * 50, range(100))
    split = split_log(log)
    assert [split.val_time, split.test_time] == pytest.approx([69.3, 84.15])
    assert split.spans == {"val": (70, 85), "test": (85, 100)}


def test_events_of_one_time_stay_together_on_the_earlier_side() -> None:
    """The 60 % quantile of these ten times is 5, as three of them are; the 90 % quantile 6.3."""
    log = EventLog.from_arrays([0, 1] * 5, [1, 0] * 5, [0, 1, 2, 3, 4, 5, 5, 5, 6, 9])
    split = split_log(log, 0.3, 0.1)
    assert split.val_time == 5.0 and split.test_time == pytest.approx(6.3)
    assert split.spans == {"val": (8, 9), "test": (9, 10)}
    with pytest.raises(ValueError, match=r"no event to validate on: the log has 10 events at 8 t"):
        split_log(log, 0.2, 0.2)


@rules(deadline=None)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=60),
    st.sampled_from([(15, 15), (10, 30), (40, 5)]),
)
def test_the_cuts_are_those_of_the_exact_quantiles(
    times: list[int], parts: tuple[int, int]
) -> None:
    times = sorted(times)
    starts = []
    for share in (Fraction(100 - sum(parts), 100), Fraction(100 - parts[1], 100)):
        place = (len(times) - 1) * share
        low = int(place)
        high = min(low + 1, len(times) - 1)
        cut = times[low] + (times[high] - times[low]) * (place - low)
        # floats round the place, which matters where it is that of an event
        starts.append({sum(t <= cut + e for t in times) for e in (Fraction(-1, 10**9), 0)})
    log = EventLog.from_arrays([0] * len(times), [1] * len(times), times)
    try:
        split = split_log(log, parts[0] / 100, parts[1] / 100)
    except ValueError as error:
        assert "leaves no event to" in str(error)
        assert min(starts[0]) == 0 or starts[0] & starts[1] or len(times) in starts[1]
    else:
        assert split.val_start in starts[0] and split.test_start in starts[1]


@pytest.mark.parametrize(
    ("times", "part"),
    [([5] * 20, "validate"), ([1], "validate"), ([*range(16), 17, 17, 17, 17], "test")],
)
def test_a_part_without_events_is_refused_with_what_to_do(times: list[int], part: str) -> None:
    log = EventLog.from_arrays([0] * len(times), [1] * len(times), times)
    with pytest.raises(ValueError, match=f"no event to {part} on.*or take the prequential proto"):
        split_log(log)
    with pytest.raises(ValueError, match="holds no event"):
        split_log(log.head(0))


# -- new nodes -------------------------------------------------------------------------------------


def test_a_tenth_of_the_nodes_is_drawn_from_those_after_training() -> None:
    log = hourly_log(400, 40, seed=2)
    split = split_log(log)
    assert len(split.new_nodes) == len(ends(log)) // 10
    assert set(split.new_nodes.tolist()) <= ends(log, slice(split.val_start, None))
    assert split.new_nodes.tolist() == split_log(log).new_nodes.tolist()
    others = [split_log(log, seed=seed).new_nodes.tolist() for seed in range(200)]
    drawn = np.bincount(np.concatenate(others), minlength=40)
    assert drawn.sum() == 800 and drawn.max() < 50  # each about 20 times


def test_the_marks_are_those_of_the_definition() -> None:
    log = hourly_log(300, 50, seed=5)
    split = split_log(log, seed=3)
    new = set(split.new_nodes.tolist())
    pairs = list(zip(log.events.src.tolist(), log.events.dst.tolist(), strict=True))
    trained = [i for i, pair in enumerate(pairs) if i < split.val_start and not new & set(pair)]
    assert np.flatnonzero(split.trained).tolist() == trained
    known = {node for i in trained for node in pairs[i]}
    inductive = [i for i, p in enumerate(pairs) if i >= split.val_start and not known >= set(p)]
    assert np.flatnonzero(split.inductive).tolist() == inductive
    assert new & known == set() and 0 < len(inductive) < len(log) - split.val_start


def test_a_node_that_appears_late_is_new_without_being_drawn() -> None:
    log = EventLog.from_arrays([0, 1, 2] * 20 + [0, 9], [1, 2, 0] * 20 + [9, 1], range(62))
    split = split_log(log)
    assert len(split.new_nodes) == 0  # int(0.1 * 4)
    assert np.flatnonzero(split.inductive).tolist() == [60, 61]


def test_where_new_nodes_take_all_of_training_it_is_refused() -> None:
    hub = EventLog.from_arrays([0] * 40, [1 + i % 9 for i in range(40)], range(40))
    refused = 0
    for seed in range(30):
        try:
            assert 0 not in split_log(hub, seed=seed).new_nodes
        except ValueError as error:
            assert "no event to train on: each of the first 28 has one of 1 nodes" in str(error)
            refused += 1
    assert 0 < refused < 15


def test_what_happens_after_training_changes_no_mark_of_it() -> None:
    """Whoever appears there may be drawn; whom they meet does not matter."""
    log = hourly_log(300, 30, seed=1)
    split = split_log(log)
    dst = log.events.dst.copy()
    dst[split.val_start :] = np.roll(dst[split.val_start :], 7)
    other = split_log(replace(log, events=replace(log.events, dst=dst)))
    np.testing.assert_array_equal(other.trained, split.trained)


# -- the log to train on ---------------------------------------------------------------------------


def test_the_training_log_holds_the_trained_events_under_their_names() -> None:
    log = hourly_log(300, 30, seed=4)
    split = split_log(log)
    kept, nodes = training_log(log, split)
    assert len(kept) == split.trained.sum() and kept.kinds == log.kinds
    part = log.events[split.trained]
    for column in ("src", "dst"):
        assert kept.name_of(getattr(kept.events, column)) == log.name_of(getattr(part, column))
        np.testing.assert_array_equal(nodes[getattr(kept.events, column)], getattr(part, column))
    np.testing.assert_array_equal(kept.events.time, part.time)
    np.testing.assert_array_equal(kept.events.kind, part.kind)
    for position in range(len(kept) + 1):  # ids stand in order of first appearance
        seen = ends(kept, slice(0, position))
        assert seen == set(range(kept.nodes_before(position)))


def test_links_before_the_log_lose_the_new_nodes_too() -> None:
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 20, (2, 200))
    log = EventLog.from_arrays(src, dst, range(200), initial=([*range(20)], [*range(1, 20), 0]))
    split = split_log(log)
    kept, nodes = training_log(log, split)
    assert kept.initial is not None and log.initial is not None
    new = set(log.name_of(split.new_nodes))
    links = [(i, (i + 1) % 20) for i in range(20) if not {i, (i + 1) % 20} & new]
    named = (kept.name_of(kept.initial.src), kept.name_of(kept.initial.dst))
    assert list(zip(*named, strict=True)) == links
    assert new and not new & set(kept.name_of(np.arange(kept.num_nodes)))
    assert kept.name_of(np.arange(len(nodes))) == log.name_of(nodes)


def test_the_spans_of_a_split_are_its_parts() -> None:
    marks = np.zeros(9, np.bool_)
    split = Split(4, 6, 3.5, 5.5, np.empty(0, np.int64), marks, marks)
    assert split.spans == {"val": (4, 6), "test": (6, 9)}

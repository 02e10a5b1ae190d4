"""The split cuts where its sources cut, keeps new nodes from training, and draws what it says."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as rules
from hypothesis import strategies as st

from neutronstream.experiments.pairs import STRATEGIES, Pairs, draw_pairs, last_seen
from neutronstream.experiments.split import Split, split_log, training_log
from neutronstream.storage import uniform
from neutronstream.stream import EventBatch, EventLog, Int64

from .small import hourly_log


def batch(src: list[int], dst: list[int], time: list[int]) -> EventBatch:
    return EventBatch(
        np.array(src, np.int64),
        np.array(dst, np.int64),
        np.array(time, np.int64),
        np.zeros(len(src), np.uint8),
    )


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


# -- negatives -------------------------------------------------------------------------------------

#                  position  0  1  2  3  4  5  6  7
EIGHT = batch([0, 1, 0, 0, 2, 0, 1, 3], [5, 6, 6, 5, 7, 6, 5, 5], [1, 2, 3, 4, 5, 6, 7, 8])


def drawn(pairs: Pairs, row: int | slice, strategy: str) -> set[tuple[int, int]]:
    column = STRATEGIES.index(strategy)
    src, dst = np.atleast_1d(pairs.src[row, column]), np.atleast_1d(pairs.dst[row, column])
    return set(zip(src.tolist(), dst.tolist(), strict=True))


def test_historical_pairs_were_seen_before_the_batch_and_are_not_in_it() -> None:
    """Before (2, 7), (0, 6): seen are (0, 5), (1, 6) and (0, 6), of which the last is there."""
    for seed in range(20):
        pairs = draw_pairs(EIGHT, np.array([4, 5]), seen=2, batch_size=2, seed=seed)
        assert drawn(pairs, slice(None), "historical") == {(0, 5), (1, 6)}


def test_inductive_pairs_were_not_seen_in_training() -> None:
    """Before position 6 and after the first two events only (0, 6) and (2, 7) were new."""
    for seed in range(20):
        pairs = draw_pairs(EIGHT, np.array([6, 7]), seen=2, batch_size=2, seed=seed)
        assert drawn(pairs, slice(None), "inductive") == {(0, 6), (2, 7)}


def test_too_few_are_filled_up_with_random_pairs_outside_the_batch() -> None:
    """Before (2, 7), (0, 6), with all earlier ones trained on, no pair is left to be drawn."""
    grid = {(s, d) for s in (0, 1, 2, 3) for d in (5, 6, 7)}
    found = set()
    for seed in range(200):
        pairs = draw_pairs(EIGHT, np.array([4, 5]), seen=4, batch_size=2, seed=seed)
        two = drawn(pairs, slice(None), "inductive")
        assert len(two) == 2
        found |= two
    assert found == grid - {(2, 7), (0, 6)}


def test_what_happens_at_the_times_of_the_batch_is_no_negative() -> None:
    """An event of the time of the batch's last one counts as of the batch, here (1, 6)."""
    log = batch([0, 1, 0, 2, 1], [5, 6, 6, 7, 6], [1, 2, 3, 5, 5])
    for seed in range(20):
        pairs = draw_pairs(log, np.array([3]), seen=0, batch_size=1, seed=seed)
        assert drawn(pairs, 0, "historical") <= {(0, 5), (0, 6)}


def test_random_pairs_keep_the_source_and_may_hit_the_truth() -> None:
    found = set()
    for seed in range(100):
        pairs = draw_pairs(EIGHT, np.array([4]), seen=2, batch_size=1, seed=seed)
        found |= drawn(pairs, 0, "random")
    assert found == {(2, 5), (2, 6), (2, 7)}


def test_a_log_of_one_pair_has_no_negatives_but_the_random_one() -> None:
    pairs = draw_pairs(
        batch([0] * 4, [1] * 4, [1, 2, 3, 4]), np.array([2, 3]), seen=2, batch_size=2, seed=0
    )
    assert pairs.valid.tolist() == [[True, False, False]] * 2
    nothing = draw_pairs(EIGHT, np.empty(0, np.int64), seen=2, batch_size=2, seed=0)
    assert nothing.src.shape == nothing.dst.shape == nothing.valid.shape == (0, 3)


def naive_pairs(log: EventBatch, positions: Int64, seen: int, size: int, seed: int) -> list[object]:
    """All three strategies with sets and lists, from the definitions."""
    all_pairs = list(zip(log.src.tolist(), log.dst.tolist(), strict=True))
    time = log.time.tolist()
    sources, targets = sorted({s for s, _ in all_pairs}), sorted({d for _, d in all_pairs})
    draws = {s: uniform(seed, f"x {s}", positions, 2).tolist() for s in STRATEGIES}
    rows: list[list[tuple[int, int] | None]] = []
    for row, position in enumerate(positions.tolist()):
        other = targets[int(draws["random"][row][0] * len(targets))]
        rows.append([(all_pairs[position][0], other), None, None])
    for start in range(0, len(positions), size):
        part = positions[start : start + size].tolist()
        begin, end = time[part[0]], time[part[-1]]
        current = {p for p, t in zip(all_pairs, time, strict=True) if begin <= t <= end}
        own = {all_pairs[i] for i in part}
        for column, known in ((1, set()), (2, set(all_pairs[:seen]))):
            before = [p for p, t in zip(all_pairs, time, strict=True) if t <= begin]
            left = [p for p in dict.fromkeys(before) if p not in current | known]
            grid = [(s, d) for s in sources for d in targets if (s, d) not in own]
            fill = max(len(part) - len(left), 0)
            for first, last, pool, which in ((0, fill, grid, 1), (fill, len(part), left, 0)):
                pool = pool.copy()
                for i, row in enumerate(range(start + first, start + last)):
                    draw = draws[STRATEGIES[column]][row][which]
                    if len(pool) < last - first:  # too few even so: with repeats
                        rows[row][column] = pool[int(draw * len(pool))] if pool else None
                        continue
                    j = i + int(draw * (len(pool) - i))
                    pool[i], pool[j] = pool[j], pool[i]
                    rows[row][column] = pool[i]
    return rows  # type: ignore[return-value]


@rules(max_examples=150, deadline=None)
@given(st.integers(2, 60), st.integers(1, 9), st.integers(1, 12), st.integers(0, 10**6))
def test_the_draws_are_those_of_the_slow_twin(n: int, nodes: int, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    log = EventBatch(
        rng.integers(0, nodes, n),
        rng.integers(0, nodes, n),
        np.sort(rng.integers(0, max(n // 2, 1), n)),
        np.zeros(n, np.uint8),
    )
    start, seen = np.sort(rng.integers(0, n, 2))[::-1].tolist()
    positions = np.arange(start, n)
    pairs = draw_pairs(log, positions, seen=seen, batch_size=size, seed=seed, name="x")
    found = [
        [
            (int(pairs.src[row, c]), int(pairs.dst[row, c])) if pairs.valid[row, c] else None
            for c in range(3)
        ]
        for row in range(len(positions))
    ]
    assert found == naive_pairs(log, positions, seen, size, seed)


def test_draws_are_uniform_and_without_repeats_in_a_batch() -> None:
    n = 400
    src, dst = np.divmod(np.arange(n), 20)
    log = EventBatch(src, dst, np.arange(n), np.zeros(n, np.uint8))
    counts = np.zeros(300)
    for seed in range(200):
        pairs = draw_pairs(log, np.arange(300, 400), seen=100, batch_size=50, seed=seed)
        first = np.unique(pairs.src[:50, 1] * 20 + pairs.dst[:50, 1])
        assert len(first) == 50
        np.add.at(counts, first, 1)
    # each of 300 pairs 200 x 50 / 300 = 33.3 times; the variance is a little less than Poisson's
    assert abs(counts - 100 / 3).max() < 4.5 * np.sqrt(100 / 3)


def test_draws_are_those_of_the_seed_and_of_nothing_else() -> None:
    log = hourly_log(300, 30).events
    given = dict(seen=200, batch_size=25, name="test")
    one, again, other = (
        draw_pairs(log, np.arange(200, 300), seed=seed, **given)  # type: ignore[arg-type]
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one.src, again.src)
    np.testing.assert_array_equal(one.dst, again.dst)
    assert (one.dst[:, 0] != other.dst[:, 0]).mean() > 0.8


# -- when a pair was seen --------------------------------------------------------------------------


@rules(deadline=None)
@given(st.integers(0, 40), st.integers(1, 8), st.integers(0, 10**6))
def test_the_last_event_of_a_pair_is_found(n: int, nodes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, nodes, (2, n))
    log = EventBatch(src, dst, np.arange(n), np.zeros(n, np.uint8))
    wanted = rng.integers(0, nodes + 3, (2, 7, 2))
    before = rng.integers(0, n + 1, (7, 2))
    found = last_seen(log, wanted[0], wanted[1], before)
    for row in range(7):
        for column in range(2):
            pair = wanted[:, row, column]
            known = [
                i for i in range(before[row, column]) if src[i] == pair[0] and dst[i] == pair[1]
            ]
            assert found[row, column] == (known[-1] if known else -1)


def test_the_spans_of_a_split_are_its_parts() -> None:
    marks = np.zeros(9, np.bool_)
    split = Split(4, 6, 3.5, 5.5, np.empty(0, np.int64), marks, marks)
    assert split.spans == {"val": (4, 6), "test": (6, 9)}

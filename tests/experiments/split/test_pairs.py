"""The pairs that did not happen are drawn as they are said to be, and who was seen is found."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import settings as rules
from hypothesis import strategies as st

from neutronstream.experiments.split.pairs import STRATEGIES, Pairs, draw_pairs, last_seen
from neutronstream.storage import uniform
from neutronstream.stream import EventBatch, Int64

from ..small import hourly_log


def batch(src: list[int], dst: list[int], time: list[int]) -> EventBatch:
    return EventBatch(
        np.array(src, np.int64),
        np.array(dst, np.int64),
        np.array(time, np.int64),
        np.zeros(len(src), np.uint8),
    )


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

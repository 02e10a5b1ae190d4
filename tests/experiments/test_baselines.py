"""The baselines score each event from what came strictly before it, as their slow twins do."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutronstream.experiments import kernels
from neutronstream.experiments.baselines import (
    Baseline,
    EdgeBank,
    Popularity,
    RecentPartner,
    default_window,
)
from neutronstream.stream import EventBatch, Float64, Int64

KINDS: list[Callable[[], Baseline]] = [
    EdgeBank,
    lambda: EdgeBank(window=3),
    Popularity,
    RecentPartner,
]


def batch_of(*events: tuple[int, int, int]) -> EventBatch:
    src, dst, time = np.array(events, np.int64).reshape(-1, 3).T.copy()
    return EventBatch(src, dst, time, np.zeros(len(events), np.uint8))


def random_batch(n: int, nodes: int, seed: int) -> EventBatch:
    """A stream with many repeats, equal times, self loops and a hub that meets everyone."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, nodes, (2, n))
    src[rng.random(n) < 0.3] = 0
    return EventBatch(src, dst, np.sort(rng.integers(0, 1 + n // 3, n)), np.zeros(n, np.uint8))


def naive_edge_bank(batch: EventBatch, candidates: Int64, window: int | None) -> Float64:
    scores, seen = np.zeros(candidates.shape), dict[tuple[int, int], int]()
    for i, (src, dst, time) in enumerate(zip(batch.src, batch.dst, batch.time, strict=True)):
        for j, node in enumerate(candidates[i]):
            known = (src, node) in seen
            scores[i, j] = known and (window is None or time - seen[src, node] <= window)
        seen[src, dst] = time
    return scores


def naive_popularity(batch: EventBatch, candidates: Int64) -> Float64:
    scores = np.zeros(candidates.shape)
    for i in range(len(batch)):
        for j, node in enumerate(candidates[i]):
            scores[i, j] = list(batch.dst[:i]).count(node)
    return scores


def naive_recent_partner(batch: EventBatch, candidates: Int64) -> Float64:
    scores, partners = np.zeros(candidates.shape), dict[int, list[int]]()
    for i, (src, dst) in enumerate(zip(batch.src.tolist(), batch.dst.tolist(), strict=True)):
        latest = partners.setdefault(src, [])
        for j, node in enumerate(candidates[i]):
            if node in latest:
                scores[i, j] = 1 / (1 + latest.index(node))
        for node, other in {(src, dst), (dst, src)}:
            row = partners.setdefault(node, [])
            if other in row:
                row.remove(other)
            row.insert(0, other)
    return scores


TWINS: list[tuple[Callable[[], Baseline], Callable[[EventBatch, Int64], Float64]]] = [
    (EdgeBank, lambda b, c: naive_edge_bank(b, c, None)),
    (lambda: EdgeBank(window=0), lambda b, c: naive_edge_bank(b, c, 0)),
    (lambda: EdgeBank(window=3), lambda b, c: naive_edge_bank(b, c, 3)),
    (Popularity, naive_popularity),
    (RecentPartner, naive_recent_partner),
]


def test_edge_bank_remembers_directed_pairs() -> None:
    batch = batch_of((0, 1, 5), (0, 1, 6), (1, 0, 7), (0, 2, 8))
    scores = EdgeBank().score_and_learn(batch, np.array([[1, 2], [1, 2], [0, 2], [1, 2]]))
    assert scores.tolist() == [[0, 0], [1, 0], [0, 0], [1, 0]]


def test_a_pair_exactly_a_window_ago_still_counts() -> None:
    batch = batch_of((0, 1, 10), (0, 2, 13), (0, 2, 14))
    scores = EdgeBank(window=3).score_and_learn(batch, np.array([[1, 2]] * 3))
    assert scores.tolist() == [[0, 0], [1, 0], [0, 1]]


def test_a_window_starts_again_when_the_pair_is_seen_again() -> None:
    batch = batch_of((0, 1, 0), (0, 1, 9), (0, 1, 12))
    scores = EdgeBank(window=3).score_and_learn(batch, np.array([[1]] * 3))
    assert scores.ravel().tolist() == [0, 0, 1]


def test_an_event_at_the_same_time_but_earlier_in_the_log_counts() -> None:
    batch = batch_of((0, 1, 5), (0, 1, 5))
    for baseline in (EdgeBank(window=0), Popularity(), RecentPartner()):
        assert baseline.score_and_learn(batch, np.array([[1], [1]])).tolist() == [[0], [1]]


def test_popularity_counts_a_destination_and_not_a_source() -> None:
    batch = batch_of((0, 1, 0), (2, 1, 1), (1, 2, 2), (0, 2, 3))
    scores = Popularity().score_and_learn(batch, np.array([[0, 1, 2]] * 4))
    assert scores.tolist() == [[0, 0, 0], [0, 1, 0], [0, 2, 0], [0, 2, 1]]


def test_recent_partners_are_graded_by_their_latest_meeting_in_either_direction() -> None:
    batch = batch_of((0, 1, 0), (2, 0, 1), (0, 3, 2), (1, 0, 3), (0, 4, 4))
    scores = RecentPartner().score_and_learn(batch, np.array([[1, 2, 3, 4]] * 5))
    assert scores[2].tolist() == [1 / 2, 1, 0, 0]
    assert scores[4].tolist() == [1, 1 / 3, 1 / 2, 0]


def test_a_self_loop_makes_a_node_its_own_partner_once() -> None:
    batch = batch_of((3, 3, 0), (3, 4, 1), (3, 3, 2), (3, 4, 3))
    scores = RecentPartner().score_and_learn(batch, np.array([[3, 4]] * 4))
    assert scores.tolist() == [[0, 0], [1, 0], [1 / 2, 1], [1, 1 / 2]]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(TWINS), st.integers(0, 150), st.sampled_from([1, 3, 12, 60]), st.integers(0, 99)
)
def test_scores_equal_the_slow_twin_however_the_stream_is_cut(
    twin: Any, n: int, nodes: int, seed: int
) -> None:
    kind, naive = twin
    rng = np.random.default_rng(seed)
    batch = random_batch(n, nodes, seed)
    candidates = rng.integers(0, nodes + 2, (n, 5))  # some have never appeared
    expected = naive(batch, candidates)
    assert np.array_equal(kind().score_and_learn(batch, candidates), expected)
    cuts = [0, *sorted(rng.integers(0, n + 1, 3)), n]
    pieces, baseline = [], kind()
    for start, stop in pairwise(cuts):
        pieces.append(baseline.score_and_learn(batch[start:stop], candidates[start:stop]))
    assert np.array_equal(np.concatenate(pieces), expected)


@pytest.mark.parametrize("twin", TWINS)
def test_scores_equal_the_slow_twin_on_a_long_stream(twin: Any) -> None:
    kind, naive = twin
    batch = random_batch(3000, 300, seed=5)
    candidates = np.random.default_rng(6).integers(0, 300, (3000, 4))
    assert np.array_equal(kind().score_and_learn(batch, candidates), naive(batch, candidates))


@pytest.mark.parametrize("kind", KINDS)
def test_learning_without_scoring_leaves_the_same_memory(kind: Callable[[], Baseline]) -> None:
    batch = random_batch(400, 40, seed=2)
    candidates = np.random.default_rng(3).integers(0, 40, (400, 6))
    whole = kind().score_and_learn(batch, candidates)
    resumed = kind()
    resumed.learn(batch[:250])
    assert np.array_equal(resumed.score_and_learn(batch[250:], candidates[250:]), whole[250:])


@pytest.mark.parametrize("kind", KINDS)
def test_scores_do_not_depend_on_what_comes_later(kind: Callable[[], Baseline]) -> None:
    batch, other = random_batch(200, 20, seed=0), random_batch(200, 20, seed=1)
    dst = np.concatenate([batch.dst[:120], other.dst[120:]])
    changed = EventBatch(batch.src, dst, batch.time, batch.kind)
    candidates = np.random.default_rng(3).integers(0, 20, (200, 6))
    one, two = (kind().score_and_learn(b, candidates) for b in (batch, changed))
    assert np.array_equal(one[:121], two[:121])  # the event itself is not read either
    assert not np.array_equal(one, two)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_batch_and_no_candidates_are_fine(kind: Callable[[], Baseline]) -> None:
    baseline = kind()
    assert baseline.score_and_learn(batch_of(), np.zeros((0, 7), np.int64)).shape == (0, 7)
    baseline.learn(batch_of())
    assert baseline.score_and_learn(batch_of((0, 1, 2)), np.array([[1, 900]])).tolist() == [[0, 0]]


@pytest.mark.parametrize("kind", KINDS)
def test_candidates_that_do_not_fit_are_named(kind: Callable[[], Baseline]) -> None:
    batch = batch_of((0, 1, 2), (1, 2, 3))
    with pytest.raises(ValueError, match=r"`candidates` must be \(n, M\).*\(2,\) for 2 events"):
        kind().score_and_learn(batch, np.array([1, 2]))
    with pytest.raises(ValueError, match=r"got shape \(1, 2\) for 2 events"):
        kind().score_and_learn(batch, np.array([[1, 2]]))
    with pytest.raises(ValueError, match=r"node ids in `candidates` .*got -1 \.\. 2"):
        kind().score_and_learn(batch, np.array([[-1], [2]]))
    with pytest.raises(ValueError, match=r"node ids in `batch` .*got 2147483648 \.\. "):
        kind().learn(batch_of((0, 2**31, 0)))


def test_memory_grows_with_the_distinct_pairs_and_not_with_the_events() -> None:
    few = random_batch(50_000, 10, seed=0)
    for baseline in (EdgeBank(), RecentPartner()):
        baseline.learn(few)
        held = sum(a.size for a in vars(baseline).values() if isinstance(a, np.ndarray))
        assert held < 5000


def test_the_pair_table_keeps_its_probes_short() -> None:
    pairs = [(left, right) for left in range(200) for right in range(left, left + 40)]
    keys, values = kernels.empty_table(1 << 14)
    moved = 0
    for left, right in pairs:
        slot = kernels.slot_of(keys, left, right)
        keys[slot] = (left << 32) | right
    for left, right in pairs:
        alone = kernels.slot_of(np.full_like(keys, -1), left, right)
        moved += (kernels.slot_of(keys, left, right) - alone) % len(keys)
    assert moved / len(pairs) < 1.0  # a random hash at this load: about 0.25
    more, _ = kernels.empty_table(1 << 15)
    kernels.rehash(keys, values, more, np.zeros(1 << 15, np.int64))
    assert sorted(more[more >= 0]) == sorted(keys[keys >= 0])
    assert len(np.unique(keys[keys >= 0])) == len(pairs)


def test_the_default_window_is_the_duration_of_the_last_events() -> None:
    time = np.array([0, 1, 2, 3, 4, 5, 6, 7, 50, 60])
    assert default_window(time) == 10  # two of ten events
    assert default_window(time, share=1.0) == 60
    assert default_window(time, share=0.01) == 0
    assert default_window(time[:0]) == 0
    with pytest.raises(ValueError, match=r"`share` must lie in \(0, 1\]: got 0"):
        default_window(time, share=0)
    with pytest.raises(ValueError, match=r"`window` must not be negative.*got -1"):
        EdgeBank(window=-1)

"""The metrics are what their definitions say, whatever the ties, the cuts and the missing ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from neutronstream.experiments.metrics import (
    BinaryMetric,
    LinkMetrics,
    RankingMetric,
    average_precision,
)

Metric = RankingMetric | BinaryMetric | LinkMetrics
KINDS: list[Callable[[], Any]] = [RankingMetric, BinaryMetric, LinkMetrics]


def scored(n: int, m: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """Random scores with many ties and some invalid negatives; some events have none valid."""
    rng = np.random.default_rng(seed)
    valid = rng.random((n, m)) < rng.choice([0.0, 0.5, 1.0], (n, 1))
    return rng.integers(0, 5, n) / 4, rng.integers(0, 5, (n, m)) / 4, valid


def naive_ranks(positive: Any, negatives: Any, valid: Any) -> list[float]:
    ranks = []
    for score, others, counts in zip(positive, negatives, valid, strict=True):
        kept = [x for x, c in zip(others, counts, strict=True) if c]
        if kept:
            ranks.append(1 + sum(x > score for x in kept) + sum(x == score for x in kept) / 2)
    return ranks


def naive_auc(positive: list[float], negative: list[float]) -> float:
    wins = [(p > n) + (p == n) / 2 for p in positive for n in negative]
    return sum(wins) / len(wins)


def naive_ap(positive: list[float], negative: list[float]) -> float:
    """The sum over thresholds of (gain of recall) x precision."""
    total, before = 0.0, 0.0
    for threshold in sorted(set(positive + negative), reverse=True):
        hits = sum(p >= threshold for p in positive)
        recall = hits / len(positive)
        total += (recall - before) * hits / (hits + sum(n >= threshold for n in negative))
        before = recall
    return total


def test_ranks_count_what_is_above_and_half_of_what_is_equal() -> None:
    metric = RankingMetric()
    metric.update([0.9, 0.5, 0.1], [[0.1, 0.2], [0.9, 0.5], [0.8, 0.9]])  # ranks 1, 2.5, 3
    assert metric.value() == {
        "mrr": pytest.approx((1 + 1 / 2.5 + 1 / 3) / 3),
        "hits@10": 1.0,
        "mar": pytest.approx((0 + 1.5 + 2) / 3),
    }


def test_a_constant_score_gains_nothing_from_ties() -> None:
    metric = LinkMetrics()
    metric.update(np.full(7, 0.5), np.full((7, 999), 0.5))
    value = metric.value()
    assert value["mrr"] == pytest.approx(0.001998, abs=5e-7)
    assert (value["hits@10"], value["mar"]) == (0.0, 499.5)
    assert (value["ap"], value["auc"]) == (0.5, 0.5)


def test_a_hit_is_a_rank_of_ten_at_most() -> None:
    negatives = np.zeros((3, 30))
    negatives[0, :9] = 2.0  # rank 10
    negatives[1, :10] = 2.0  # rank 11
    negatives[2, :9] = 2.0
    negatives[2, 9] = 1.0  # a tie for the ranks 10 and 11
    metric = RankingMetric()
    metric.update(np.ones(3), negatives)
    assert metric.value()["hits@10"] == pytest.approx(1 / 3)


def test_binary_metrics_take_the_first_valid_negative() -> None:
    metric = BinaryMetric()
    metric.update(
        [0.9, 0.4], [[1.0, 0.5, 1.0], [0.1, 1.0, 1.0]], [[False, True, True], [True, True, True]]
    )
    assert metric.value() == {"ap": pytest.approx((1 + 2 / 3) / 2), "auc": 0.75}


@pytest.mark.parametrize("kind", KINDS)
def test_events_without_a_valid_negative_are_counted_apart(kind: Callable[[], Metric]) -> None:
    metric = kind()
    metric.update([0.5, 0.0], [[0.1, 0.9], [0.3, 0.3]], [[True, False], [False, False]])
    metric.update([0.5], np.zeros((1, 0)))
    assert (metric.events, metric.unscored) == (1, 2)
    alone = kind()
    alone.update([0.5], [[0.1, 0.9]], [[True, False]])
    assert metric.value() == alone.value()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_scored_has_no_value(kind: Callable[[], Metric]) -> None:
    metric = kind()
    metric.update([], np.zeros((0, 5)))
    value = metric.value()
    assert value.pop("events", 0) == 0
    assert np.isnan(list(value.values())).all()


@pytest.mark.parametrize("kind", KINDS)
def test_nan_is_refused_and_leaves_no_trace(kind: Callable[[], Metric]) -> None:
    metric = kind()
    with pytest.raises(ValueError, match=r"must not be NaN.*1 in `positive` and 0 in `negatives`"):
        metric.update([0.5, np.nan], [[0.1], [0.2]])
    with pytest.raises(ValueError, match="0 in `positive` and 1 in `negatives`"):
        metric.update([0.5, 0.5], [[0.1], [np.nan]])
    assert (metric.events, metric.unscored) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_in_an_invalid_place_does_not_matter(kind: Callable[[], Metric]) -> None:
    metric, other = kind(), kind()
    metric.update([0.5, 0.2], [[np.nan, 0.1], [0.4, np.inf]], [[False, True], [True, False]])
    other.update([0.5, 0.2], [[0.1], [0.4]])
    assert metric.value() == other.value()


def test_infinite_scores_are_ordered_like_others() -> None:
    metric, finite = LinkMetrics(), LinkMetrics()
    metric.update([np.inf, -np.inf], [[1.0], [1.0]])
    finite.update([2.0, 0.0], [[1.0], [1.0]])
    assert metric.value() == finite.value()


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_that_do_not_fit_are_named(kind: Callable[[], Metric]) -> None:
    with pytest.raises(ValueError, match=r"`positive` must be \(n,\).*\(2,\) and \(3, 1\)"):
        kind().update([0.5, 0.5], [[0.1], [0.2], [0.3]])
    with pytest.raises(ValueError, match=r"`positive` must be \(n,\)"):
        kind().update([0.5, 0.5], [0.1, 0.2])
    with pytest.raises(ValueError, match=r"`valid` must have the shape of `negatives`"):
        kind().update([0.5], [[0.1, 0.2]], [[True]])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 40), st.integers(0, 14), st.integers(0, 10**6))
def test_values_equal_the_slow_definitions(n: int, m: int, seed: int) -> None:
    positive, negatives, valid = scored(n, m, seed)
    metric = LinkMetrics()
    metric.update(positive, negatives, valid)
    ranks = np.array(naive_ranks(positive, negatives, valid))
    assert (metric.events, metric.unscored) == (len(ranks), n - len(ranks))
    if len(ranks):
        rows = np.flatnonzero(valid.any(axis=1))
        first = [negatives[row][valid[row]][0] for row in rows]
        assert metric.value() == pytest.approx(
            {
                "ap": naive_ap(list(positive[rows]), first),
                "auc": naive_auc(list(positive[rows]), first),
                "mrr": (1 / ranks).mean(),
                "hits@10": (ranks <= 10).mean(),
                "mar": (ranks - 1).mean(),
                "events": len(ranks),
            }
        )


@pytest.mark.parametrize("kind", KINDS)
def test_cuts_merges_and_a_checkpoint_change_no_bit(kind: Callable[[], Any]) -> None:
    columns = scored(300, 13, seed=1)
    whole = kind()
    whole.update(*columns)
    parts = []
    for cut in (slice(200, 300), slice(0, 7), slice(7, 7), slice(7, 200)):
        parts.append(kind())
        for half in (slice(cut.start, cut.stop, 2), slice(cut.start + 1, cut.stop, 2)):
            parts[-1].update(*(column[half] for column in columns))
    total = parts[0]
    for part in parts[1:]:
        total.merge(part)
    resumed = kind.from_arrays(total.to_arrays())  # type: ignore[attr-defined]
    for metric in (total, resumed):
        assert metric.value() == whole.value()
        assert (metric.events, metric.unscored) == (whole.events, whole.unscored)
    resumed.update(*columns)
    total.update(*columns)
    assert resumed.value() == total.value()
    assert resumed.events == 2 * whole.events


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 10**6))
def test_the_quick_ap_is_that_of_scikit_learn(n: int, m: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 9, n + m) / 3  # with ties
    scores[rng.random(n + m) < 0.1] = np.inf
    finite = np.where(np.isinf(scores), 99, scores)
    expected = average_precision_score(np.arange(n + m) < n, finite)
    assert average_precision(scores[:n], scores[n:]) == pytest.approx(expected)


def test_merging_leaves_the_other_as_it_was() -> None:
    one, other = LinkMetrics(), LinkMetrics()
    one.update([0.1], [[0.5]])
    other.update([0.9], [[0.5]])
    before = other.value()
    one.merge(other)
    one.update([0.3], [[0.5]])
    assert other.value() == before
    assert one.events == 3

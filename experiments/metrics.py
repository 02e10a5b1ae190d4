"""Metrics of link prediction: how far above its negatives each event's true end was scored.

Each metric has `update`, `merge` and `value`, so one object serves windows and ranks.  Invariant:
the value depends on the scored events only, not on how they were cut into updates or merged, to the
last bit.  A tie is worth the average of the places it spans (rank = 1 + greater + equal / 2), so a
model that scores everything alike gains nothing; NaN is refused, because it compares as false.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, final

import numpy as np
import numpy.typing as npt
from sklearn.metrics import average_precision_score, roc_auc_score

from ..stream import Bool, Float64, Int64


class _Metric(ABC):
    """What every metric takes in."""

    @final
    def update(
        self, positive: npt.ArrayLike, negatives: npt.ArrayLike, valid: npt.ArrayLike | None = None
    ) -> None:
        """Add events: scores `positive` (n,), `negatives` (n, m); `valid` (n, m), None for all.

        Raises:
            ValueError: if a score that counts is NaN, or the shapes do not fit.
        """
        self._add(*_checked(positive, negatives, valid))

    @abstractmethod
    def _add(self, positive: Float64, negatives: Float64, valid: Bool) -> None:
        """Add events that have been checked."""


class RankingMetric(_Metric):
    """MRR, HITS@10 and MAR of each positive among its valid negatives.

    Events without a valid negative are counted in `unscored` and not scored.  Kept is the number
    of events at each rank, so the memory is that of the longest list of negatives.

    >>> metric = RankingMetric()
    >>> metric.update([0.9, 0.1], [[0.5, 0.4], [0.3, 0.1]])
    >>> metric.value()["mrr"], metric.value()["mar"]  # ranks 1 and 2.5
    (0.7, 0.75)
    """

    def __init__(self) -> None:
        self.unscored = 0
        self._count = np.zeros(0, np.int64)  # events at rank place / 2; half ranks come from ties

    @property
    def events(self) -> int:
        """How many events were scored."""
        return int(self._count.sum())

    def _add(self, positive: Float64, negatives: Float64, valid: Bool) -> None:
        rows = np.flatnonzero(valid.any(axis=1))
        greater = ((negatives > positive[:, None]) & valid).sum(axis=1)  # (n,)
        equal = ((negatives == positive[:, None]) & valid).sum(axis=1)  # (n,)
        count = np.bincount((2 + 2 * greater + equal)[rows])
        self._count = _sum(self._count, count.astype(np.int64))
        self.unscored += len(positive) - len(rows)

    def merge(self, other: RankingMetric) -> None:
        """Add the events of `other`, for instance those of another rank or window."""
        self._count = _sum(self._count, other._count)
        self.unscored += other.unscored

    def value(self) -> dict[str, float]:
        """`mrr`, `hits@10`, `mar` (mean average rank from 0); NaN where nothing was scored."""
        if not self.events:
            return {"mrr": np.nan, "hits@10": np.nan, "mar": np.nan}
        places = np.flatnonzero(self._count)
        count, rank = self._count[places], places / 2
        return {
            "mrr": float((count / rank).sum() / self.events),
            "hits@10": int(count[rank <= 10].sum()) / self.events,
            "mar": float((count * (rank - 1)).sum() / self.events),
        }

    def to_arrays(self) -> dict[str, Int64]:
        """What `from_arrays` needs to go on, for a checkpoint."""
        return {"count": self._count.copy(), "unscored": np.array([self.unscored])}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> RankingMetric:
        """The metric that `to_arrays` was called on."""
        metric = cls()
        metric._count = np.array(arrays["count"], np.int64)
        metric.unscored = int(arrays["unscored"][0])
        return metric


class BinaryMetric(_Metric):
    """AP and AUC of the positives against the first valid negative of each event.

    So that one must be drawn at random, and not be the first of some order.  Events without a valid
    negative are counted in `unscored` and not scored.  Both metrics need all scores, so the memory
    is 16 bytes an event.

    >>> metric = BinaryMetric()
    >>> metric.update([0.9, 0.4], [[0.5], [0.1]])
    >>> metric.value()["auc"]  # three of the four pairs are in order
    0.75
    """

    def __init__(self) -> None:
        self.unscored = 0
        self._positive: list[Float64] = []
        self._negative: list[Float64] = []

    @property
    def events(self) -> int:
        """How many events were scored."""
        return sum(map(len, self._positive))

    def _add(self, positive: Float64, negatives: Float64, valid: Bool) -> None:
        rows = np.flatnonzero(valid.any(axis=1))
        if len(rows):
            self._positive.append(positive[rows])
            self._negative.append(negatives[rows, valid[rows].argmax(axis=1)])
        self.unscored += len(positive) - len(rows)

    def merge(self, other: BinaryMetric) -> None:
        """Add the events of `other`, for instance those of another rank or window."""
        self._positive += other._positive
        self._negative += other._negative
        self.unscored += other.unscored

    def value(self) -> dict[str, float]:
        """`ap` and `auc` as scikit-learn defines them; NaN where nothing was scored."""
        if not self.events:
            return {"ap": np.nan, "auc": np.nan}
        scores = np.concatenate([*self._positive, *self._negative])
        # Both metrics know only the order of the scores: its ranks let infinite scores pass.
        rank = np.unique(scores, return_inverse=True)[1]
        truth = np.arange(len(scores)) < len(scores) // 2
        return {
            "ap": float(average_precision_score(truth, rank)),
            "auc": float(roc_auc_score(truth, rank)),
        }

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` needs to go on, for a checkpoint."""
        return {
            "positive": np.concatenate([np.zeros(0), *self._positive]),
            "negative": np.concatenate([np.zeros(0), *self._negative]),
            "unscored": np.array([self.unscored]),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> BinaryMetric:
        """The metric that `to_arrays` was called on."""
        metric = cls()
        metric._positive = [np.array(arrays["positive"], np.float64)]
        metric._negative = [np.array(arrays["negative"], np.float64)]
        metric.unscored = int(arrays["unscored"][0])
        return metric


class LinkMetrics(_Metric):
    """`RankingMetric` and `BinaryMetric` of the same events, checked once: what a report holds."""

    def __init__(self) -> None:
        self.ranking = RankingMetric()
        self.binary = BinaryMetric()

    @property
    def events(self) -> int:
        """How many events were scored."""
        return self.ranking.events

    @property
    def unscored(self) -> int:
        """How many events had no valid negative."""
        return self.ranking.unscored

    def _add(self, positive: Float64, negatives: Float64, valid: Bool) -> None:
        self.ranking._add(positive, negatives, valid)
        self.binary._add(positive, negatives, valid)

    def merge(self, other: LinkMetrics) -> None:
        """Add the events of `other`, for instance those of another rank or window."""
        self.ranking.merge(other.ranking)
        self.binary.merge(other.binary)

    def value(self) -> dict[str, float]:
        """`ap`, `auc`, `mrr`, `hits@10`, `mar` (NaN where nothing was scored) and `events`."""
        return {**self.binary.value(), **self.ranking.value(), "events": self.events}

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` needs to go on, for a checkpoint."""
        parts = (("ranking", self.ranking.to_arrays()), ("binary", self.binary.to_arrays()))
        return {f"{part}.{key}": a for part, arrays in parts for key, a in arrays.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> LinkMetrics:
        """The metrics that `to_arrays` was called on."""

        def part(prefix: str) -> dict[str, npt.NDArray[Any]]:
            size = len(prefix)
            return {key[size:]: a for key, a in arrays.items() if key.startswith(prefix)}

        metrics = cls()
        metrics.ranking = RankingMetric.from_arrays(part("ranking."))
        metrics.binary = BinaryMetric.from_arrays(part("binary."))
        return metrics


def average_precision(positive: Float64, negative: Float64) -> float:
    """AP of scores (n,) against scores (m,), as scikit-learn defines it; many times faster on few.

    >>> average_precision(np.array([0.9, 0.4]), np.array([0.5, 0.1]))
    0.8333333333333333
    """
    scores = np.concatenate([positive, negative])
    rank = np.unique(scores, return_inverse=True)[1]
    found = np.bincount(rank[: len(positive)], minlength=len(scores))[::-1]  # from the highest
    seen = np.bincount(rank, minlength=len(scores))[::-1].cumsum()
    precision = found.cumsum() / np.maximum(seen, 1)
    return float((found * precision).sum() / len(positive))


def _checked(
    positive: npt.ArrayLike, negatives: npt.ArrayLike, valid: npt.ArrayLike | None
) -> tuple[Float64, Float64, Bool]:
    """The three as arrays of fitting shapes without a NaN that counts."""
    scores = np.asarray(positive, np.float64)
    others = np.asarray(negatives, np.float64)
    counts = np.ones(others.shape, np.bool_) if valid is None else np.asarray(valid, np.bool_)
    if scores.ndim != 1 or others.ndim != 2 or len(others) != len(scores):
        raise ValueError(
            "`positive` must be (n,) and `negatives` (n, m): "
            f"got shapes {scores.shape} and {others.shape}"
        )
    if counts.shape != others.shape:
        raise ValueError(
            f"`valid` must have the shape of `negatives`: got {counts.shape} for {others.shape}"
        )
    nan = (np.isnan(scores).sum(), (np.isnan(others) & counts).sum())
    if any(nan):
        raise ValueError(
            f"scores must not be NaN, which cannot be ranked: got {nan[0]} in `positive` and "
            f"{nan[1]} in `negatives`; the model has probably diverged, try a smaller learning rate"
        )
    return scores, others, counts


def _sum(left: Int64, right: Int64) -> Int64:
    """The sum of two counts of any lengths."""
    if len(left) < len(right):
        left, right = right, left
    total = left.copy()
    total[: len(right)] += right
    return total

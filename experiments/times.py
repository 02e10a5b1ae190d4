"""The time to the next event: how far the expected time was from the one that came.

An event's time is counted from the last event of either of its ends, in mean gaps of a node (events
since x 2 / known nodes), which is what `DynamicGNN.expected_idle` gives.  Invariant: the trivial
predictors know the events strictly before the one they speak of, like the model; the task is that
of DyRep (Trivedi et al., ICLR 2019), with errors in mean gaps where it has hours.  A loss need not
know of time, so what a model expects may be in a unit of its own: it is scored calibrated as well.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..stream import Bool, EventLog, Float64, Int64
from .report import PARTS

MEAN_GAP = 1.0  # what is expected before anything has been seen: the mean, by choice of the unit
SMALLEST = 1e-12  # expected, in mean gaps: its logarithm is taken


class TimeMetric:
    """Mean and median absolute error of expected times.

    The memory is 8 bytes an event, since a median needs all errors.

    >>> metric = TimeMetric()
    >>> metric.update([1.0, 2.0, 0.5], [1.0, 5.0, 1.0])
    >>> metric.value()
    {'mae': 1.1666666666666667, 'median_ae': 0.5, 'events': 3}
    """

    def __init__(self) -> None:
        self._errors: list[Float64] = []

    @property
    def events(self) -> int:
        """How many events were scored."""
        return sum(map(len, self._errors))

    def update(self, expected: npt.ArrayLike, realised: npt.ArrayLike) -> None:
        """Add events: the `expected` and the `realised` times (n,).

        Raises:
            ValueError: if a time is NaN, a realised one infinite, or the shapes do not fit.
        """
        guess, truth = np.asarray(expected, np.float64), np.asarray(realised, np.float64)
        if guess.ndim != 1 or guess.shape != truth.shape:
            raise ValueError(
                "`expected` and `realised` must both be (n,): "
                f"got shapes {guess.shape} and {truth.shape}"
            )
        wrong = (np.isnan(guess).sum(), (~np.isfinite(truth)).sum())
        if any(wrong):
            raise ValueError(
                f"times must be numbers: got {wrong[0]} NaN in `expected` and {wrong[1]} not "
                "finite in `realised`; the model has probably diverged, try a smaller learning rate"
            )
        if len(guess):
            self._errors.append(np.abs(guess - truth))

    def merge(self, other: TimeMetric) -> None:
        """Add the events of `other`, for instance those of another rank or window."""
        self._errors += other._errors

    def value(self) -> dict[str, float]:
        """`mae`, `median_ae` (NaN where nothing was scored) and `events`."""
        if not self.events:
            return {"mae": np.nan, "median_ae": np.nan, "events": 0}
        errors = np.sort(np.concatenate(self._errors))  # sorted: the sum knows of no cuts
        return {
            "mae": float(errors.mean()),
            "median_ae": float(np.median(errors)),
            "events": len(errors),
        }

    def to_arrays(self) -> dict[str, Float64]:
        """What `from_arrays` needs to go on, for a checkpoint."""
        return {"errors": np.concatenate([np.zeros(0), *self._errors])}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> TimeMetric:
        """The metric that `to_arrays` was called on."""
        metric = cls()
        metric._errors = [np.array(arrays["errors"], np.float64)]
        return metric


class Calibration:
    """A power of what a model expects, times a factor: both are those of the events before.

    With x what was expected and y what came, the exponent is the slope of log y by log x, held in
    [0, 1], and the factor the running median of y / x ** exponent.  So it can lose little to the
    running median of y, and is better where x knows anything of y, in whatever unit.

    >>> expected = np.exp(np.random.default_rng(0).normal(size=200))
    >>> calibrated = Calibration().calibrate(expected, realised := expected / 10)
    >>> bool(np.abs(calibrated / realised - 1)[100:].max() < 0.1)
    True
    """

    def __init__(self) -> None:
        self._seen: list[Float64] = []  # each (2, n): x and y
        self._count, self._mean = 0, np.zeros(2)  # of (log x, log y)
        self._squares = self._products = 0.0  # sums of squares of log x, and of products, centred
        self._factor = RunningMedian()

    def calibrate(self, expected: Float64, realised: Float64) -> Float64:
        """What to expect of each of the next events (n,), which then are learned from."""
        self._seen.append(np.stack([expected, realised]))
        logs = np.log(np.clip(self._seen[-1], SMALLEST, 1.0 / SMALLEST)).T  # (n, 2)
        found = np.empty(len(logs))
        for i, pair in enumerate(logs):
            power = 0.0
            if self._squares > 0.0:
                power = min(1.0, max(0.0, self._products / self._squares))
            shape = math.exp(power * (pair[0] - self._mean[0]))
            found[i] = self._factor.value * shape
            self._factor.add(math.exp(pair[1]) / shape)
            self._count += 1
            change = pair - self._mean
            self._mean = self._mean + change / self._count
            self._squares += change[0] * (pair[0] - self._mean[0])
            self._products += change[0] * (pair[1] - self._mean[1])
        return found

    def to_array(self) -> Float64:
        """What `from_array` needs to go on, (2, n)."""
        return np.concatenate([np.empty((2, 0)), *self._seen], axis=1)

    @classmethod
    def from_array(cls, seen: Float64) -> Calibration:
        """The calibration that `to_array` was called on."""
        calibration = cls()
        calibration.calibrate(*np.array(seen, np.float64))
        return calibration


class TimeEvaluation:
    """The expected times of a model, calibrated too, of the running mean and of the running median.

    Metrics of the window that is being predicted, of all events, of the last half.  An event whose
    ends both are new is not scored: nothing has begun from which its time could be counted.
    """

    def __init__(self, log: EventLog, model: str) -> None:
        self.log = log
        self.model = model
        self.names = (model, "calibrated", "running_mean", "running_median")
        self.calibration = Calibration()
        self.metrics = {part: {name: TimeMetric() for name in self.names} for part in PARTS}
        self._open_window()

    def _open_window(self) -> None:
        self.window = {name: TimeMetric() for name in self.names}

    @cached_property
    def _trivial(self) -> tuple[tuple[Float64, Float64, Float64], Bool]:
        """Of each event of the log: its time, the running mean and median; if it is scored."""
        idle, scored = realised_idle(self.log)
        mean, median = np.zeros(len(idle)), np.zeros(len(idle))
        mean[scored], median[scored] = running_mean(idle[scored]), running_median(idle[scored])
        return (idle, mean, median), scored

    def update(self, start: int, expected: Tensor | None) -> None:
        """Add the events from `start` on with their `expected` times (n,); None adds nothing."""
        if expected is None:
            return
        own = expected.detach().cpu().double().numpy()
        span = slice(start, start + len(own))
        idle, mean, median = (column[span] for column in self._trivial[0])
        scored = self._trivial[1][span]
        late = np.arange(span.start, span.stop) >= len(self.log) // 2

        def add(name: str, values: Float64) -> None:
            self.window[name].update(values[scored], idle[scored])
            self.metrics["last_half"][name].update(values[scored & late], idle[scored & late])

        add(self.model, own)  # first: it refuses NaN, which the calibration must not learn from
        calibrated = np.zeros(len(own))
        calibrated[scored] = self.calibration.calibrate(own[scored], idle[scored])
        for name, values in zip(self.names[1:], (calibrated, mean, median), strict=True):
            add(name, values)

    def close_window(self) -> dict[str, float]:
        """The mean absolute errors since the last call, `time_mae` and those of the trivial ones.

        Nothing for a model that expects no times.
        """
        figures = {}
        for name, metric in self.window.items():
            if metric.events:
                key = "time_mae" if name == self.model else f"time_mae_{name}"
                figures[key] = metric.value()["mae"]
            self.metrics["overall"][name].merge(metric)
        self._open_window()
        return figures

    def value(self) -> dict[str, Any]:
        """Predictor, part of the stream, metric; empty for a model that expects no times."""
        if not self.metrics["overall"][self.model].events:
            return {}
        return {
            name: {part: self.metrics[part][name].value() for part in PARTS} for name in self.names
        }

    def to_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps, between two windows."""
        return {
            f"{part}/{name}": torch.from_numpy(metric.to_arrays()["errors"])
            for part in PARTS
            for name, metric in self.metrics[part].items()
        } | {"calibration": torch.from_numpy(self.calibration.to_array())}

    def from_tensors(self, kept: Mapping[str, Tensor]) -> None:
        """Go on from what `to_tensors` gave."""
        self.calibration = Calibration.from_array(kept["calibration"].numpy())
        for part in PARTS:
            for name in self.names:
                errors = {"errors": kept[f"{part}/{name}"].numpy()}
                self.metrics[part][name] = TimeMetric.from_arrays(errors)


def realised_idle(log: EventLog) -> tuple[Float64, Bool]:
    """Each event's time since the last event of either end, in mean gaps of a node; who has one.

    Both (n,).  Where both ends are new the second is False, and the first counts from before the
    log.  It equals the smaller `idle` of a segment's two ends.

    >>> log = EventLog.from_arrays([0, 2, 0], [1, 3, 2], [5, 6, 9])
    >>> realised_idle(log)  # 1 event x 2 / 4 nodes known by then
    (array([2. , 2. , 0.5]), array([False, False,  True]))
    """
    last = _last_positions(log.events.src, log.events.dst)
    positions = np.arange(len(log))
    known = np.maximum(log.nodes_before(positions), 1)
    return (positions - last) * (2.0 / known), last >= 0


def _last_positions(src: Int64, dst: Int64) -> Int64:
    """The position of the latest earlier event of either end, -1 if both are new; (n,)."""
    nodes = np.stack([src, dst], axis=1).ravel()  # (2 n,)
    position = np.repeat(np.arange(len(src)), 2)
    order = np.argsort(nodes, kind="stable")  # by node, then by position
    node, at = nodes[order], position[order]
    starts = np.ones(len(at), np.bool_)  # a new node or a new event of it: not a loop's second end
    starts[1:] = (node[1:] != node[:-1]) | (at[1:] != at[:-1])
    run = np.cumsum(starts) - 1
    first_at, first_node = at[starts], node[starts]
    before = np.full(len(first_at), -1)
    before[1:] = np.where(first_node[1:] == first_node[:-1], first_at[:-1], -1)
    last = np.empty(len(at), np.int64)
    last[order] = before[run]
    latest: Int64 = last.reshape(-1, 2).max(axis=1, initial=-1)
    return latest


def running_mean(values: Float64) -> Float64:
    """The mean of the values before each (n,); `MEAN_GAP` before the first.

    >>> running_mean(np.array([4.0, 2.0, 9.0])).tolist()
    [1.0, 4.0, 3.0]
    """
    return np.concatenate([[MEAN_GAP], np.cumsum(values) / np.arange(1, len(values) + 1)])[
        : len(values)
    ]


def running_median(values: Float64) -> Float64:
    """The median of the values before each (n,); `MEAN_GAP` before the first.

    >>> running_median(np.array([4.0, 2.0, 9.0, 1.0])).tolist()
    [1.0, 4.0, 3.0, 4.0]
    """
    medians, running = np.empty(len(values)), RunningMedian()
    for index, value in enumerate(values.tolist()):
        medians[index] = running.value
        running.add(value)
    return medians


class RunningMedian:
    """The median of what was added; `MEAN_GAP` before."""

    def __init__(self) -> None:
        self._low: list[float] = []  # heap of the lower half, negated; as many as the other, or
        self._high: list[float] = []  # one more

    @property
    def value(self) -> float:
        """The median by now."""
        low, high = self._low, self._high
        if not low:
            return MEAN_GAP
        return -low[0] if len(low) > len(high) else (high[0] - low[0]) / 2

    def add(self, value: float) -> None:
        """Take in one more value."""
        if len(self._low) == len(self._high):
            heapq.heappush(self._low, -heapq.heappushpop(self._high, value))
        else:
            heapq.heappush(self._high, -heapq.heappushpop(self._low, -value))

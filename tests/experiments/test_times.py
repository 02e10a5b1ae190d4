"""Times to the next event are scored from what came before, whatever the windows."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st

from neutronstream.experiments.fit import fit
from neutronstream.experiments.learn import make_executor, make_model
from neutronstream.experiments.times import (
    Calibration,
    TimeEvaluation,
    TimeMetric,
    realised_idle,
    running_mean,
    running_median,
)
from neutronstream.models import DyRep
from neutronstream.parallel import Replay
from neutronstream.stream import EventLog, Float64

from .small import WINDOWS, hourly_log, settings


def naive_idle(log: EventLog) -> list[tuple[float, bool]]:
    """One event at a time with a dictionary of last positions."""
    last: dict[int, int] = {}
    found = []
    for position in range(len(log)):
        ends = (int(log.events.src[position]), int(log.events.dst[position]))
        latest = max(last.get(node, -1) for node in ends)
        known = max(log.nodes_before(position), 1)
        found.append(((position - latest) * (2.0 / known), latest >= 0))
        last.update(dict.fromkeys(ends, position))
    return found


def test_errors_are_absolute_and_their_median_is_that_of_all() -> None:
    metric = TimeMetric()
    metric.update([1.0, 2.0], [1.5, 6.0])
    metric.update([0.0], [1.0])
    assert metric.value() == {"mae": pytest.approx(5.5 / 3), "median_ae": 1.0, "events": 3}


def test_nothing_scored_has_no_value() -> None:
    metric = TimeMetric()
    metric.update([], [])
    value = metric.value()
    assert np.isnan(value["mae"]) and np.isnan(value["median_ae"]) and value["events"] == 0


def test_a_time_that_is_no_number_is_refused_and_leaves_no_trace() -> None:
    metric = TimeMetric()
    with pytest.raises(ValueError, match=r"1 NaN in `expected` and 0 not finite in `realised`"):
        metric.update([np.nan, 1.0], [1.0, 1.0])
    with pytest.raises(ValueError, match=r"0 NaN in `expected` and 1 not finite in `realised`"):
        metric.update([1.0], [np.inf])
    with pytest.raises(ValueError, match=r"must both be \(n,\): got shapes \(1,\) and \(2,\)"):
        metric.update([1.0], [1.0, 2.0])
    assert metric.events == 0


def test_cuts_merges_and_a_checkpoint_change_no_bit() -> None:
    expected, realised = np.random.default_rng(0).exponential(size=(2, 1000))
    whole = TimeMetric()
    whole.update(expected, realised)
    parts = []
    for cut in (slice(700, 1000), slice(0, 3), slice(3, 3), slice(3, 700)):
        parts.append(TimeMetric())
        parts[-1].update(expected[cut], realised[cut])
    total = parts[0]
    for part in parts[1:]:
        total.merge(part)
    assert total.value() == whole.value()
    assert TimeMetric.from_arrays(total.to_arrays()).value() == whole.value()
    assert parts[1].events == 3  # merging leaves the other as it was


@profile(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 100), max_size=40))
def test_running_predictors_know_the_values_before_and_no_others(values: list[float]) -> None:
    column: Float64 = np.array(values, np.float64)
    means = [statistics.fmean(values[:i]) if i else 1.0 for i in range(len(values))]
    medians = [statistics.median(values[:i]) if i else 1.0 for i in range(len(values))]
    assert running_mean(column).tolist() == pytest.approx(means)
    assert running_median(column).tolist() == pytest.approx(medians)


@profile(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=40))
def test_the_realised_time_equals_that_of_a_plain_loop(pairs: list[tuple[int, int]]) -> None:
    src, dst = [a for a, _ in pairs], [b for _, b in pairs]
    log = EventLog.from_arrays(src, dst, list(range(len(pairs))))
    idle, scored = realised_idle(log)
    assert list(zip(idle.tolist(), scored.tolist(), strict=True)) == naive_idle(log)


def test_the_realised_time_is_the_smaller_idle_of_a_segment() -> None:
    log = EventLog.from_arrays(
        [1, 1, 2, 3, 1], [2, 1, 5, 9, 2], [0, 0, 4, 7, 7], initial=([7, 1], [8, 3])
    )
    segment = Replay(log, DyRep(4)).resolve(0, len(log))
    assert (
        realised_idle(log)[0].tolist()
        == np.minimum(segment.src.idle, segment.dst.idle)[:, 0].tolist()
    )
    assert realised_idle(log)[1].tolist() == [False, True, True, False, True]


def _evaluated(log: EventLog, expected: Float64, cuts: list[int]) -> tuple[Any, list[Any]]:
    """The values of `expected` given segment by segment; windows close at `cuts`, with a resume."""
    evaluation, windows = TimeEvaluation(log, "dyrep"), []
    for start, stop in zip([0, *cuts], [*cuts, len(log)], strict=True):
        middle = (start + stop) // 2
        for span in (slice(start, middle), slice(middle, stop)):
            evaluation.update(span.start, torch.from_numpy(expected[span]))
        windows.append(evaluation.close_window())
        kept, evaluation = evaluation.to_tensors(), TimeEvaluation(log, "dyrep")
        evaluation.from_tensors(kept)
    return evaluation.value(), windows


def test_windows_and_resumes_do_not_change_the_figures() -> None:
    log = hourly_log(100)
    expected = np.random.default_rng(1).exponential(size=100)
    whole, _ = _evaluated(log, expected, [])
    cut, windows = _evaluated(log, expected, [10, 11, 60])
    assert cut == whole
    idle, scored = realised_idle(log)
    late = scored & (np.arange(100) >= 50)
    for part, rows in (("overall", scored), ("last_half", late)):
        errors = np.abs(expected - idle)[rows]
        assert whole["dyrep"][part] == {
            "mae": pytest.approx(errors.mean()),
            "median_ae": pytest.approx(np.median(errors)),
            "events": rows.sum(),
        }
    errors = np.abs(
        np.array([np.median(idle[scored][:i]) for i in range(1, scored.sum())]) - idle[scored][1:]
    )
    first = abs(1.0 - idle[scored][0])
    assert whole["running_median"]["overall"]["mae"] == pytest.approx(
        (errors.sum() + first) / scored.sum()
    )
    rivals = ("calibrated", "running_mean", "running_median")
    assert list(windows[0]) == ["time_mae", *(f"time_mae_{name}" for name in rivals)]


def naive_calibration(expected: list[float], realised: list[float]) -> list[float]:
    """From the definition, all that came before looked at anew for each event."""
    found: list[float] = []
    ratios: list[float] = []
    for i in range(len(expected)):
        x, y = (np.log(values[:i]) for values in (expected, realised))
        slope = 0.0
        if i and np.var(x) > 0.0:
            slope = float(np.clip(np.mean((x - x.mean()) * (y - y.mean())) / np.var(x), 0.0, 1.0))
        shape = np.exp(slope * (np.log(expected[i]) - (x.mean() if i else 0.0)))
        found.append((statistics.median(ratios) if ratios else 1.0) * shape)
        ratios.append(realised[i] / shape)
    return found


@pytest.mark.parametrize("sign", [1.0, -1.0, 0.0])
def test_what_is_expected_is_calibrated_by_the_events_before(sign: float) -> None:
    rng = np.random.default_rng(2)
    realised = rng.exponential(size=120)
    expected = 1e3 * realised**sign * np.exp(rng.normal(size=120))
    found = Calibration().calibrate(expected, realised)
    np.testing.assert_allclose(found, naive_calibration(expected.tolist(), realised.tolist()))
    cut = Calibration()
    parts = [cut.calibrate(expected[span], realised[span]) for span in (slice(50), slice(50, 90))]
    parts.append(Calibration.from_array(cut.to_array()).calibrate(expected[90:], realised[90:]))
    assert np.concatenate(parts).tolist() == found.tolist()
    errors = np.abs([found, running_median(realised)] - realised)[:, 60:].mean(1)
    if sign == 1.0:
        assert errors[0] < errors[1]
    elif sign == -1.0:  # what is expected tells less than nothing: the median is left
        assert found[60:].tolist() == pytest.approx(running_median(realised)[60:].tolist())


def test_times_of_nothing_or_without_end_are_calibrated_to_numbers() -> None:
    found = Calibration().calibrate(np.array([0.0, 1e300, 0.0, 1.0]), np.ones(4))
    assert np.isfinite(found).all()


def test_a_window_of_first_events_has_no_figures() -> None:
    log = EventLog.from_arrays([0, 2, 0], [1, 3, 2], [0, 1, 2])
    evaluation = TimeEvaluation(log, "dyrep")
    evaluation.update(0, torch.ones(2))
    assert evaluation.close_window() == {} and evaluation.value() == {}
    evaluation.update(2, torch.ones(1))
    assert evaluation.close_window()["time_mae"] == 0.5  # 1 event x 2 / 4 nodes, against 1


def test_a_model_without_times_has_no_figures() -> None:
    evaluation = TimeEvaluation(hourly_log(10), "tgn")
    evaluation.update(0, None)
    assert evaluation.close_window() == {} and evaluation.value() == {}


def test_the_future_of_the_log_changes_no_error_so_far() -> None:
    log = hourly_log(60)
    src, dst = log.events.src.copy(), log.events.dst.copy()
    src[30:], dst[30:] = src[30:][::-1], src[30:] + 100
    other = EventLog.from_arrays(src, dst, log.events.time)
    for predictor in (running_mean, running_median):
        one, two = (predictor(realised_idle(of)[0]) for of in (log, other))
        assert one[:31].tolist() == two[:31].tolist()  # event 30 is predicted before it is seen
        assert one[40:].tolist() != two[40:].tolist()


@pytest.mark.parametrize("window", ["fixed", "growing"])
def test_a_run_reports_the_times_that_the_model_expected(window: str) -> None:
    log, config = hourly_log(120), settings(learning_rate=0.0, seed=2, **WINDOWS[window])
    report = fit(log, config)
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        model = make_model(log, config)
    executor = make_executor(log, model, config)
    with torch.no_grad():
        outcome = executor.run(executor.prepare(executor.replay.resolve(0, len(log))))
    assert outcome.expected is not None
    idle, scored = realised_idle(log)
    errors = np.abs(outcome.expected.double().numpy() - idle)[scored]
    found = report["times"]["dyrep"]["overall"]
    assert found == {
        "mae": pytest.approx(errors.mean(), rel=1e-5),
        "median_ae": pytest.approx(np.median(errors), rel=1e-4),
        "events": scored.sum(),
    }
    assert {"time_mae", "time_mae_running_mean"} < set(report["windows"][-1])

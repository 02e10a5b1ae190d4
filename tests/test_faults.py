"""Faults that users of such systems reported, each with the test that keeps it away.

A row names its tests; the rows that none of the folders' tests covers whole are tested here.
"""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from neutronstream import EventLog, TrainConfig, fit
from neutronstream.models import DyRep
from neutronstream.parallel import Replay

TESTS = Path(__file__).resolve().parent
HERE = "test_faults.py"

FAULTS: dict[str, tuple[str, ...]] = {
    "equal times reordered or merged by an unstable sort": (
        "stream/test_read.py::test_the_sort_is_stable_for_many_equal_times",
    ),
    "unsorted times accepted, so the future leaks into training": (
        "stream/test_read.py::test_falling_times_are_sorted_with_a_note_or_refused",
        f"{HERE}::test_no_time_of_training_is_later_than_one_that_is_predicted_next",
    ),
    "a node's oldest neighbour is lost": (
        "storage/test_graph.py::test_the_oldest_neighbour_is_kept",
    ),
    "the event to be predicted is seen as its own neighbour": (
        "storage/test_graph.py::test_an_event_never_sees_itself_nor_its_equals_in_time",
        "experiments/test_evaluate.py::test_the_future_changes_no_score",
    ),
    "time squeezed into float32": (
        "stream/test_times.py::test_seconds_since_1970_are_not_squeezed_into_float32",
        "storage/test_graph.py::test_times_are_exact_at_any_size",
        f"{HERE}::test_gaps_are_exact_where_float32_is_not",
    ),
    "milliseconds refused or confused with seconds; time zones": (
        "stream/test_times.py::test_gaps_in_milliseconds_are_a_thousand_times_those_in_seconds",
        "stream/test_times.py::test_large_epochs_are_taken_as_finer_units_with_a_note_unless_told",
        "stream/test_times.py::test_dates_are_seconds_and_utc_without_an_offset",
    ),
    "a node id beyond the memory, a node that appears late": (
        "storage/test_graph.py::test_a_node_may_appear_late_and_far_away",
        f"{HERE}::test_a_node_that_appears_in_the_last_event_is_trained_on",
    ),
    "sparse, huge or text ids": (
        "stream/test_read.py::test_ids_of_any_kind_are_mapped_densely_and_given_back",
    ),
    "self loops": (
        "stream/test_read.py::test_self_loops_are_events",
        "storage/test_graph.py::test_a_self_loop_stands_once_and_counts_once",
        "parallel/test_schedule.py::test_a_self_loop_waits_for_its_node_and_its_last_write_stands",
    ),
    "equal-time events that share a node run in parallel": (
        "parallel/test_schedule.py::test_equal_times_keep_their_order_in_the_log",
        "parallel/test_exact.py::test_equal_times_are_taken_in_log_order",
    ),
    "an empty window, or a window with node events only": (
        "stream/test_windows.py::test_empty_windows_are_skipped_or_yielded_by_choice",
        "experiments/test_fit.py::test_small_and_odd_logs_have_a_report",
    ),
    "last batch of size 1": (
        f"{HERE}::test_a_last_batch_of_one_event_trains",
        "models/test_base.py::test_a_layer_that_mixes_events_is_refused",
        "experiments/test_fit.py"
        "::test_a_last_segment_of_one_event_moves_the_weights_alike_in_both_executors",
    ),
    "resume gives another result": (
        "experiments/test_resume.py::test_killed_and_resumed_equals_never_killed",
    ),
    "state not detached, memory grows": (
        "storage/test_state.py::test_written_values_are_detached_so_memory_stays_flat",
        "experiments/test_fit.py::test_nothing_piles_up_over_windows",
    ),
    "NaN scores and ties flatter a ranking metric": (
        "experiments/test_metrics.py::test_nan_is_refused_and_leaves_no_trace",
        "experiments/test_metrics.py::test_a_constant_score_gains_nothing_from_ties",
    ),
    "header variants of CSV files": (
        "stream/test_read.py::test_every_text_form_gives_the_same_events",
        "stream/test_read.py::test_compressed_files_and_archives_read_like_plain_ones",
        "stream/test_read.py::test_a_bad_row_is_an_error_that_names_line_column_and_value",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_its_tests(fault: str) -> None:
    assert FAULTS[fault]
    for pointer in FAULTS[fault]:
        path, name = pointer.split("::")
        tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
        assert name in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}, pointer


def _config(**given: Any) -> TrainConfig:
    return TrainConfig(**({"width": 4, "candidates": 5} | given))


def test_no_time_of_training_is_later_than_one_that_is_predicted_next() -> None:
    time = np.sort(np.random.default_rng(0).integers(0, 50, 120))
    log = EventLog.from_arrays([*range(12)] * 10, [*range(1, 13)] * 10, time)
    windows = fit(log, _config(size=30, stride=10))["windows"]
    for before, after in pairwise(windows):
        assert time[before["stop"] - 1] <= time[after["test_start"]]
        assert before["stop"] == after["test_start"]


def test_gaps_are_exact_where_float32_is_not() -> None:
    start = 1_700_000_000
    log = EventLog.from_arrays([0, 0, 0, 0], [1, 2, 3, 4], start + np.arange(0, 40, 10))
    segment = Replay(log, DyRep(4)).resolve(0, 4)
    assert segment.src.gap[:, 0].tolist() == [0, 10, 10, 10]
    assert segment.events.gap.dtype == torch.float64


def test_a_node_that_appears_in_the_last_event_is_trained_on() -> None:
    log = EventLog.from_arrays([0, 1, 2, 9], [1, 2, 3, 1], [1, 2, 3, 4])
    report = fit(log, _config(size=2, stride=1))
    assert report["counts"]["applied"] == 4
    # the first two have no destination to be ranked against but their own ends
    assert report["metrics"]["dyrep"]["overall"]["events"] == 2
    assert np.isfinite(report["metrics"]["dyrep"]["overall"]["loss"])


@pytest.mark.parametrize("executor", ["levels", "sequential"])
def test_a_last_batch_of_one_event_trains(executor: str) -> None:
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 30, (2, 201))
    log = EventLog.from_arrays(src, dst, np.arange(201))
    config = _config(size=201, batch_size=200).model_copy(update={"executor": executor})
    report = fit(log, config)
    assert report["counts"]["applied"] == 201
    assert np.isfinite(report["windows"][0]["train_loss"])

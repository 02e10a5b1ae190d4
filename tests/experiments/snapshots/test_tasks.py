"""What is asked at a step, what a loss is divided by, and what needs no training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from neutronstream.experiments.snapshots.data import SnapshotData, data_of, data_of_snapshots
from neutronstream.experiments.snapshots.links import Links
from neutronstream.experiments.snapshots.tasks import Classes, Values
from neutronstream.parallel.backends import make_propagator
from neutronstream.storage import Snapshot, SparseMatrix
from neutronstream.stream import EventLog

from .small import NODES, clubs, habit, settings


def links(data: SnapshotData, **given: object) -> Links:
    return Links(data, settings(**given), make_propagator("single", data.snapshots))


def four_days() -> SnapshotData:
    """One pair, then three, then two that are new and one of the last day, then any."""
    src = [0, 0, 1, 2, 0, 2, 3, 0]
    dst = [1, 1, 2, 3, 1, 0, 0, 1]
    day = [0, 1, 1, 1, 2, 2, 2, 3]
    return data_of(EventLog.from_arrays(src, dst, day), settings(period=1))


def test_negatives_were_destinations_before_and_make_no_pair_of_the_period() -> None:
    data = data_of(habit(), settings(period="1d"))
    task = links(data)
    for step in (0, 5, 10):
        src, dst, valid = task.candidates(step, "test", 30)
        known = set(np.concatenate(data.pairs[: step + 1]) % NODES)
        keys = set(data.pairs[step + 1].tolist())
        assert valid.all()
        assert set((src * NODES + dst[:, 0]).tolist()) == {k for k in keys if k % NODES in known}
        for source, nodes in zip(src, dst[:, 1:], strict=True):
            assert set(nodes.tolist()) <= known - {source}
            assert not {source * NODES + node for node in nodes} & keys


def test_negatives_are_a_function_of_seed_pair_and_draw() -> None:
    task = links(data_of(habit(), settings(period="1d")))
    few, many = (task.candidates(4, "train 0", count) for count in (1, 6))
    assert np.array_equal(few[1], many[1][:, :2])
    assert not np.array_equal(few[1], task.candidates(4, "train 1", 1)[1])


def test_a_pair_with_a_new_destination_is_not_asked_for() -> None:
    data = four_days()
    task = links(data)
    src, dst, valid = task.candidates(0, "test", 2)  # of 0-1, 1-2 and 2-3, node 1 alone is known
    assert (src.tolist(), dst[:, 0].tolist()) == ([0], [1])
    assert valid.tolist() == [[True, False, False]]  # and no other is, to be drawn
    outputs = {1: task.answer(task.head(3), torch.zeros(4, 3), 1, "val")}
    assert task.measure(outputs, "val")["unscored"] == 2  # of day 2: 2-0 and 3-0; 0-1 is scored


def test_baselines_of_links_know_the_periods_before() -> None:
    data = data_of(habit(), settings(period="1d"))
    task = links(data, candidates=10)
    scores = task.baselines("val")
    ranks: dict[str, list[float]] = {"persistence": [], "edgebank": []}
    for step in data.val:
        src, dst, valid = task.candidates(step, "val", 10)
        assert valid.all()
        seen = {
            "persistence": data.pairs[step],
            "edgebank": np.concatenate(data.pairs[: step + 1]),
        }
        for name, known in seen.items():
            held = np.isin(src[:, None] * NODES + dst, known)
            above = (held[:, 1:] > held[:, :1]).sum(1)
            ranks[name] += (1 + above + (held[:, 1:] == held[:, :1]).sum(1) / 2).tolist()
    for name, rank in ranks.items():
        assert scores[name]["mrr"] == pytest.approx(np.mean(1 / np.array(rank)))
        assert scores[name]["answers"] == len(rank)


def test_baselines_of_values_are_the_last_value_and_the_mean_of_the_training_part() -> None:
    matrix = SparseMatrix.from_edges([0], [1], 2)
    ones = np.ones((2, 1), np.float32)
    targets = [[0, 4], [2, 4], [5, 5], [6, 1]]
    before = np.array([[0, 0], *targets[:-1]], np.float32)[:, :, None]
    snapshots = [
        Snapshot(matrix, np.concatenate((ones, last), 1), np.array(t, np.float32))
        for t, last in zip(targets, before, strict=True)
    ]
    data = data_of_snapshots(snapshots, settings(), last=1)
    assert (data.train, data.val, data.test) == (range(2), range(2, 3), range(3, 4))
    task = Values(data, settings(), make_propagator("single", snapshots))
    scores = task.baselines("test")
    assert scores["persistence"]["mse"] == (1 + 16) / 2
    assert scores["mean"]["mse"] == (25 + 9) / 2
    assert scores["mean"]["mae"] == (5 + 3) / 2
    unknown = data_of_snapshots(snapshots, settings())  # which column is the last value
    task = Values(unknown, settings(), make_propagator("single", snapshots))
    assert set(task.baselines("test")) == {"mean"}


def test_the_baseline_of_classes_is_the_most_frequent_of_the_training_nodes() -> None:
    data = data_of(clubs(), settings())
    task = Classes(data, settings(), make_propagator("single", data.snapshots))
    assert task.baselines("test") == {"majority": {"accuracy": 0.5, "answers": 10}}


def test_the_loss_of_links_is_the_mean_over_all_pairs() -> None:
    data = data_of(habit(), settings(period="1d"))
    task = links(data, negatives=3)
    torch.manual_seed(0)
    head: Any = task.head(6).double()
    rows = torch.randn(NODES, 6, dtype=torch.float64)
    total, count = task.loss(head, rows, 2, 0)
    src, dst, _ = task.candidates(2, "train 0", 3)
    assert count == dst.size == 4 * len(data.pairs[3])
    expected = 0.0
    for source, nodes in zip(src, dst, strict=True):
        for place, node in enumerate(nodes):
            ends = head.source(rows[source]), head.target(rows[node])
            score = ((ends[0] * ends[1]).sum() / 6**0.5 + head.bias).item()
            expected += np.log1p(np.exp(-score if place == 0 else score))
    assert total.item() == pytest.approx(expected, rel=1e-12)


def test_the_mlp_scores_pairs_too() -> None:
    task = links(data_of(habit(), settings(period="1d")), decoder="mlp")
    torch.manual_seed(0)
    head: Any = task.head(6).double()
    rows = torch.randn(NODES, 6, dtype=torch.float64)
    scores = task.answer(head, rows, 2, "test")
    src, dst, _ = task.candidates(2, "test", 4)
    hidden = torch.relu(head.source(rows[src[1]]) + head.target(rows[dst[1, 2]]))
    assert scores[1, 2] == pytest.approx((head.last(hidden) + head.bias).item(), rel=1e-12)


def test_a_figure_that_is_no_number_is_never_the_best() -> None:
    task = links(four_days())
    assert not task.is_better(float("nan"), None)
    assert task.is_better(0.5, None) and not task.is_better(0.5, 0.5)

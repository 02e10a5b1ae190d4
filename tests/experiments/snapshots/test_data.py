"""What a run on snapshots is of: steps, targets, features, and refusals."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from neutronstream.experiments.snapshots.data import (
    SnapshotData,
    data_of,
    data_of_snapshots,
    open_data,
    split_steps,
)
from neutronstream.storage import Snapshot, SparseMatrix
from neutronstream.stream import EventLog

from .small import NODES, STEPS, clubs, habit, settings, wave


def test_a_step_of_a_log_is_to_find_the_pairs_of_the_next_period() -> None:
    log = EventLog.from_arrays([0, 1, 1, 2, 2, 0], [1, 2, 2, 0, 0, 2], [0, 10, 11, 20, 21, 30])
    data = data_of(log, settings(period=10))
    pairs = [[(int(key) // 3, int(key) % 3) for key in keys] for keys in data.pairs]
    assert pairs == [[(0, 1)], [(1, 2)], [(2, 0)], [(0, 2)]]
    assert len(data.snapshots) == 4
    assert (data.train, data.val, data.test) == (range(1), range(1, 2), range(2, 3))


def test_targets_are_those_of_one_period_even_if_snapshots_hold_more() -> None:
    alone = data_of(habit(), settings(period="1d"))
    for more in ({"window": 3}, {"cumulative": True}):
        data = data_of(habit(), settings(period="1d", **more))
        assert data.snapshots[-1].adjacency.num_edges > alone.snapshots[-1].adjacency.num_edges
        assert all(np.array_equal(a, b) for a, b in zip(data.pairs, alone.pairs, strict=True))


def names(data: SnapshotData) -> np.ndarray[Any, Any]:
    features = data.snapshots[0].features
    assert features is not None
    return features[:, 4:]


def test_names_are_a_function_of_seed_and_node() -> None:
    config = settings(period="1d", names=4)
    one, two = data_of(habit(), config), data_of(habit().head(200), config)
    assert one.in_width() == 8  # degrees now, degrees so far, names
    assert np.array_equal(names(one), names(two))
    other = data_of(habit(), settings(period="1d", names=4, seed=1))
    assert not np.array_equal(names(one), names(other))
    many = names(data_of(habit(), settings(period="1d", names=4_000)))
    assert (many**2).sum(1) == pytest.approx(np.ones(NODES), abs=0.1)


def test_undirected_snapshots_have_each_link_both_ways() -> None:
    data = data_of(habit(), settings(period="1d", undirected=True))
    for snapshot in data.snapshots:
        dense = snapshot.adjacency.dense()
        assert np.array_equal(dense, dense.T)


def test_an_undirected_loop_counts_once() -> None:
    log = EventLog.from_arrays([0, 0, 1, 1] * 4, [0, 0, 1, 2] * 4, range(16))
    data = data_of(log, settings(count=4, undirected=True))
    assert data.snapshots[0].adjacency.dense().tolist() == [[2, 0, 0], [0, 1, 1], [0, 1, 0]]


def test_a_signal_is_scaled_by_what_the_training_part_shows() -> None:
    config = settings(lags=2)
    data = data_of(wave(), config)
    assert data.scale is not None
    known = wave().values[: data.train.stop + 2]
    assert data.scale.mean == pytest.approx(known.mean(dtype=np.float64), rel=1e-6)
    last = data.train[-1]
    target = data.snapshots[last].target
    assert target is not None
    assert data.scale.undo(target) == pytest.approx(known[-1], rel=1e-5)


def test_a_graph_without_masks_is_split_by_the_seed() -> None:
    from dataclasses import replace

    bare = replace(clubs(), train=None, val=None, test=None)
    data, other = (data_of(bare, settings(seed=seed)) for seed in (0, 1))
    assert [int(mask.sum()) for mask in data.masks.values()] == [21, 4, 5]
    assert not np.array_equal(data.masks["train"], other.masks["train"])
    assert "at random" in data.notes[0]


def test_labels_that_are_no_classes_are_refused() -> None:
    from dataclasses import replace

    graph = clubs()
    labels = graph.labels.copy()
    labels[0] = -1
    bad = replace(graph, labels=labels, train=np.arange(graph.num_nodes) < 5)
    with pytest.raises(ValueError, match="`train` must mark nodes with labels from 0 to"):
        data_of(bad, settings())
    empty = replace(graph, val=np.zeros(graph.num_nodes, bool))
    with pytest.raises(ValueError, match=r"`val` must mark nodes .*: it marks 0 nodes"):
        data_of(empty, settings())


def test_parts_follow_one_another_and_none_is_empty() -> None:
    for count in range(3, 60):
        parts = split_steps(count, settings())
        assert all(len(part) for part in parts)
        assert [step for part in parts for step in part] == list(range(count))


@pytest.mark.parametrize(
    ("source", "given", "message"),
    [
        ("nonesuch", {}, "`nonesuch` is neither a file nor a data set"),
        (habit(), {"period": "11d"}, "there are 1 steps to predict"),
        (habit(), {"count": 10_000}, "`count` must not exceed the events"),
        (habit(), {"period": "1x"}, "`period` must be ticks or a length of time"),
        (habit().head(0), {}, "the log holds no event"),
        (wave(), {"lags": 29}, "there are 1 steps to predict"),
        (habit().head(3), {}, "a log of at least 4 events makes so many snapshots, and this one"),
        (wave(), {"lags": 29}, "take fewer `lags`, or a signal of more than 30 steps"),
        (wave(), {"period": "7d"}, "`period` is for a log: `wave` is a signal"),
        (habit(), {"lags": 5}, "`lags` is for a signal: `habit` is a log; got 5"),
        (habit(), {"residual": True}, "`residual` is for a signal: `habit` is a log; got True"),
        (clubs(), {"residual": True}, "`residual` is for a signal: `clubs` is one graph"),
        (wave(), {"decoder": "mlp"}, "`decoder` is for a log: `wave` is a signal"),
        (clubs(), {"undirected": True}, "`undirected` is for a log: `clubs` is one graph"),
    ],
)
def test_bad_data_get_one_clear_error(source: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        data_of(source, settings(**given))


def test_a_period_that_leaves_a_part_without_links_is_refused() -> None:
    time = np.concatenate((np.arange(50), [1_000]))
    log = EventLog.from_arrays(np.arange(51) % 5, (np.arange(51) + 1) % 5, time)
    with pytest.raises(ValueError, match="validate on are followed by no event: cut the log by"):
        data_of(log, settings(period=10))


def test_flags_of_a_file_are_refused_for_a_signal() -> None:
    with pytest.raises(ValueError, match="--src is for a file: `chickenpox` is a data set"):
        open_data("chickenpox", settings(), src="from")


def test_snapshots_of_your_own_need_features_and_target() -> None:
    matrix = SparseMatrix.from_edges([0], [1], 2)
    ones = np.ones((2, 1), np.float32)
    whole = [Snapshot(matrix, ones, ones[:, 0]) for _ in range(STEPS)]
    assert data_of_snapshots(whole, settings()).train == range(8)
    with pytest.raises(ValueError, match=r"`target` of snapshot 0 is \(2, 1\), features of the fi"):
        data_of_snapshots([Snapshot(matrix, ones, ones)] * STEPS, settings())
    nothing = np.array([np.nan, 1], np.float32)
    with pytest.raises(ValueError, match="`target` must be finite: snapshot 1 has one that is not"):
        data_of_snapshots([whole[0], Snapshot(matrix, ones, nothing), *whole], settings())
    with pytest.raises(ValueError, match="`residual` needs `last`"):
        data_of_snapshots(whole, settings(residual=True))
    with pytest.raises(ValueError, match="snapshot 1 must have `features` and `target`"):
        data_of_snapshots([whole[0], Snapshot(matrix, ones)], settings())

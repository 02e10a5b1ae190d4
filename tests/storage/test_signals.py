"""Signals become snapshots: lags in, the next value out, scales of the first steps alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from neutronstream.storage import Scale, signal_snapshots


def known(values: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
    """What a snapshot has."""
    assert values is not None
    return values


VALUES = np.array([[1, 10], [2, 20], [3, 30], [4, 40], [5, 50]], np.float32)
EDGE = [[0]], [[1]], [[2.5]]


def test_lags_go_in_oldest_first_and_a_later_value_is_to_be_found() -> None:
    found = signal_snapshots(*EDGE, VALUES, lags=2)
    assert [known(s.features).tolist() for s in found] == [
        [[1, 2], [10, 20]],
        [[2, 3], [20, 30]],
        [[3, 4], [30, 40]],
    ]
    assert [known(s.target).tolist() for s in found] == [[3, 30], [4, 40], [5, 50]]
    assert [(s.start, s.stop, s.start_time) for s in found] == [(1, 2, 1), (2, 3, 2), (3, 4, 3)]
    (far,) = signal_snapshots(*EDGE, VALUES, lags=2, horizon=3)
    assert known(far.features).tolist() == [[1, 2], [10, 20]] and known(far.target).tolist() == [
        5,
        50,
    ]


def test_a_fixed_graph_is_one_object_and_a_changing_one_is_that_of_the_step() -> None:
    fixed = signal_snapshots(*EDGE, VALUES, lags=1)
    assert fixed[0].adjacency is fixed[3].adjacency
    assert fixed[0].adjacency.dense().tolist() == [[0, 0], [2.5, 0]]
    src, dst, weight = (np.array(part[0]) for part in EDGE)
    flat = signal_snapshots(src, dst, weight, VALUES, lags=1)
    assert flat[0].adjacency.version == fixed[0].adjacency.version
    ones = [np.full(step, 1) for step in range(5)]
    changing = signal_snapshots(ones, [0 * part for part in ones], None, VALUES, lags=2)
    assert [s.adjacency.dense()[0, 1] for s in changing] == [1, 2, 3]


def test_other_features_are_those_of_the_step() -> None:
    extra = np.arange(10).reshape(5, 2, 1)
    found = signal_snapshots(*EDGE, VALUES, extra=extra, lags=2)
    assert known(found[0].features).tolist() == [[1, 2, 2], [10, 20, 3]]


def test_a_scale_is_that_of_the_first_steps_and_can_be_undone() -> None:
    scale = Scale.of(VALUES, 2)
    first = VALUES[:2]
    assert scale.mean == first.mean() and scale.deviation == pytest.approx(first.std())
    again = Scale.of(np.concatenate([first, 1e6 * VALUES]), 2)
    assert again == scale
    for log in (False, True):
        scale = Scale.of(VALUES, 3, log=log)
        np.testing.assert_allclose(scale.undo(scale.apply(VALUES)), VALUES, rtol=1e-5)
    assert Scale.of(np.ones((3, 2)), 3).deviation == 1.0


def test_wrong_signals_are_named() -> None:
    with pytest.raises(ValueError, match=r"`values` must be \(steps, nodes\): got \(5,\)"):
        signal_snapshots(*EDGE, VALUES[:, 0])
    with pytest.raises(ValueError, match="4 lags and a horizon of 2 need 6 steps: got 5"):
        signal_snapshots(*EDGE, VALUES, horizon=2)
    with pytest.raises(ValueError, match="`lags` and `horizon` must be at least 1: got 0 and 1"):
        signal_snapshots(*EDGE, VALUES, lags=0)
    with pytest.raises(ValueError, match=r"`extra` must be \(5, 2, width\): got \(4, 2, 1\)"):
        signal_snapshots(*EDGE, VALUES, extra=np.ones((4, 2, 1)))
    holes = VALUES.copy()
    holes[3, 1] = np.nan
    with pytest.raises(ValueError, match=r"`values` must be finite .*: step 3 has nan of node 1"):
        signal_snapshots(*EDGE, holes)
    with pytest.raises(ValueError, match="one array for all steps, or 5: got 2, 2 and 2"):
        signal_snapshots([[0], [0]], [[1], [1]], None, VALUES)
    with pytest.raises(ValueError, match="`steps` must be from 1 to 5: got 6"):
        Scale.of(VALUES, 6)
    with pytest.raises(ValueError, match="`log` needs values above -1: the least is -5"):
        Scale.of(-VALUES[:, :1], 5, log=True)


RING = [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("src", "dst", "weight"),
    [
        ([0, 1], [1, 0], [2.5, 1]),
        (np.array([0, 1]), np.array([1, 0]), np.array([2.5, 1])),
        (RING, None, [2.5, 1]),
        (np.array(RING), None, np.array([2.5, 1])),
        ([np.array(RING)], None, [[2.5, 1]]),
        ([RING] * 5, None, [[2.5, 1]] * 5),
        (np.array([RING] * 5), None, np.array([[2.5, 1]] * 5)),
    ],
)
def test_edges_are_taken_as_users_have_them(src: Any, dst: Any, weight: Any) -> None:
    for snapshot in signal_snapshots(src, dst, weight, VALUES, lags=2):
        assert snapshot.adjacency.dense().tolist() == [[0, 1], [2.5, 0]]


def test_a_graph_without_edges_is_one() -> None:
    for src, dst in (([], []), (np.empty((2, 0)), None)):
        found = signal_snapshots(src, dst, None, VALUES, lags=2)
        assert [s.adjacency.num_edges for s in found] == [0, 0, 0]


def test_what_is_no_edge_index_is_named() -> None:
    with pytest.raises(ValueError, match=r"must be an edge index \(2, edges\), .*: got \(3, 2\)"):
        signal_snapshots(np.ones((3, 2), int), None, None, VALUES)
    with pytest.raises(ValueError, match=r"got \(\) at place 0"):
        signal_snapshots([0, 1], None, None, VALUES)


def test_values_that_float32_does_not_hold_are_named_and_warn_of_nothing() -> None:
    for name, given in (("values", VALUES.astype(float)), ("extra", np.ones((5, 2, 1)))):
        given[2, 1] = 1e39
        values, extra = (given, None) if name == "values" else (VALUES, given)
        with pytest.raises(
            ValueError, match=rf"`{name}` must be finite .*: step 2 has 1e\+39 of n"
        ):
            signal_snapshots(*EDGE, values, extra=extra)


def test_values_at_the_end_of_float32_are_scaled_and_back() -> None:
    values = VALUES * np.float32(6e36)  # the largest is 3e38
    for log in (False, True):
        scale = Scale.of(values, 5, log=log)
        assert np.isfinite(scale.apply(values)).all()
        assert scale.undo(scale.apply(values)) == pytest.approx(values.astype(float), rel=1e-4)

"""Task parallelism: the same promises on 1, 2, 3 and 4 ranks; its plans by themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from neutronstream.parallel.backends.task import (
    Roles,
    Speeds,
    Work,
    Workload,
    assign_ranks,
    measure_speeds,
    predict_work,
)
from neutronstream.parallel.backends.task.pieces import assign, plan_pieces, without_later
from neutronstream.parallel.backends.task.pipeline import plan_window
from neutronstream.parallel.ranks import ALONE

from . import task_promises
from .graphs import power_law
from .run import held_on_ranks

SPEEDS = Speeds(flops=5e10, bandwidth=1e9)
POWERS = [2**power for power in range(15)]
LOAD = Workload(10_000, 200_000, [256, 64, 16], [16, 16])


def test_what_task_ranks_promise_holds_for_one_that_does_both() -> None:
    for promise in task_promises.PROMISES:
        promise(ALONE)


def test_what_task_ranks_promise_holds() -> None:
    for found in held_on_ranks((2, 3, 4), task_promises.__name__):
        assert set(found) == {promise.__name__ for promise in task_promises.PROMISES}


def transforming(load: Workload, size: int = 8) -> int:
    """How many of the ranks transform."""
    return len(assign_ranks(predict_work(load, SPEEDS), size).transform)


def test_each_task_keeps_a_rank_and_none_is_left_over() -> None:
    for size in range(2, 9):
        for ratio in (1e-9, 0.1, 0.5, 1, 3, 1e9):
            roles = assign_ranks(Work(ratio, 1.0), size)
            assert len(roles.transform) >= 1 and len(roles.propagate) >= 1
            assert sorted([*roles.transform, *roles.propagate]) == list(range(size))
    with pytest.raises(ValueError, match="`size` must be at least 2"):
        assign_ranks(Work(1.0, 1.0), 1)
    with pytest.raises(ValueError, match="`work` must be seconds above 0"):
        assign_ranks(Work(0.0, 1.0), 2)


def test_more_features_take_more_ranks_to_transform() -> None:
    found = [transforming(replace(LOAD, widths=[width, 64, 16])) for width in POWERS]
    assert found == sorted(found)
    assert found[0] < found[-1]


def test_a_higher_degree_takes_more_ranks_to_propagate() -> None:
    found = [transforming(replace(LOAD, num_edges=10_000 * degree)) for degree in POWERS[:12]]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1]


def test_transforming_again_weighs_a_third_more() -> None:
    again, kept = (predict_work(replace(LOAD, recompute=flag), SPEEDS) for flag in (True, False))
    assert again.transform == pytest.approx(4 / 3 * kept.transform)
    assert again.propagate == kept.propagate
    forward = 2 * 10_000 * (256 * 64 + 64 * 16) / SPEEDS.flops
    assert again.transform == pytest.approx(4 * forward)
    hop = (200_000 * (1 + 2 * 16) + 10_000) / SPEEDS.bandwidth
    assert again.propagate == pytest.approx(2 * 2 * hop)
    computing = replace(SPEEDS, overlap=1.0)
    hop = 2 * 200_000 * 16 / SPEEDS.flops
    assert predict_work(LOAD, computing).propagate == pytest.approx(2 * 2 * hop)
    edges = predict_work(replace(LOAD, attention_width=16), SPEEDS).transform - again.transform
    assert edges == pytest.approx(4 * 2 * 200_000 * 16**2 / SPEEDS.flops)


def test_measured_seconds_correct_the_model() -> None:
    modelled, measured = Work(1.0, 1.0), Work(9.0, 1.0)
    assert len(assign_ranks(modelled, 4).transform) == 2
    assert len(assign_ranks(modelled.corrected(measured), 4).transform) == 3
    assert modelled.corrected(measured, trust=0.0) == modelled
    assert modelled.corrected(measured, trust=0.5).transform == pytest.approx(3.0)


def test_speeds_are_measured() -> None:
    speeds = measure_speeds(power_law().matrix("gcn"))
    assert 1e7 < speeds.flops < 1e13
    assert 1e5 < speeds.bandwidth < 1e12


def test_each_row_is_in_one_piece() -> None:
    for size, num in ((2, 1), (4, 3), (4, 1)):
        roles = Roles.of(size, num)
        pieces = plan_pieces(roles.rows(23), roles, 5)
        assert len({piece.tag for piece in pieces}) == len(pieces) == 5 * num
        nodes = np.concatenate([np.arange(23)[piece.nodes] for piece in pieces])
        assert sorted(nodes) == list(range(23))


def test_edges_from_later_subgraphs_are_left_out_and_no_others() -> None:
    matrix, random = power_law().matrix("gcn"), np.random.default_rng(0)
    used = np.zeros(matrix.num_edges, bool)
    for _ in range(40):
        group = assign(203, 12, 4, random)
        bare, kept = without_later(matrix, group)
        later = group[:, None] < group[None, :]
        assert np.array_equal(bare.dense(), np.where(later, 0, matrix.dense()))
        assert 0 < kept.sum() < matrix.num_edges
        used |= kept
    assert used.all()
    _, kept = without_later(matrix, assign(203, 12, 1, random))
    assert kept.all()


@pytest.mark.parametrize("is_pipelined", [True, False])
def test_a_snapshot_goes_forward_before_it_comes_back(is_pipelined: bool) -> None:
    for count in range(1, 6):
        plan = plan_window(count, is_pipelined=is_pipelined)
        assert sorted(plan) == sorted((w, n) for w in ("forward", "backward") for n in range(count))
        under_way = 0
        for what, which in plan:
            under_way += 1 if what == "forward" else -1
            assert 0 <= under_way <= (2 if is_pipelined else 1)
            assert what == "forward" or plan.index(("forward", which)) < plan.index((what, which))

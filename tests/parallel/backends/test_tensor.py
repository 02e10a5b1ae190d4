"""Tensor parallelism: the same promises on 1, 2, 3 and 4 ranks, and what is pure."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from neutronstream.models.snapshots import GCN
from neutronstream.parallel.backends import Ownership, make_propagator
from neutronstream.parallel.backends.tensor import Layout, TensorPropagator, deal, plan_route
from neutronstream.parallel.backends.tensor.chunks import cut_rows
from neutronstream.parallel.ranks import Alone
from neutronstream.storage import SparseMatrix

from . import tensor_promises
from .graphs import power_law
from .run import held_on_ranks


def test_what_tensor_ranks_promise_holds() -> None:
    for found in held_on_ranks((1, 2, 3, 4), tensor_promises.__name__):
        assert set(found) == {promise.__name__ for promise in tensor_promises.PROMISES}


def test_nodes_that_come_later_move_nobody() -> None:
    for shares in ([1, 1, 1], [3, 1], [5, 0, 2]):
        known = deal(100, shares)
        for count in (0, 1, 17, 99):
            assert np.array_equal(deal(count, shares), known[:count])
        exact = np.array(shares) / sum(shares) * 100
        assert np.abs(np.bincount(known, minlength=len(shares)) - exact).max() <= 1


def test_a_run_waits_only_for_sources_that_no_earlier_one_had() -> None:
    matrix = SparseMatrix.from_edges([0, 3, 3, 1, 0], [0, 0, 1, 2, 3], 5)
    assert cut_rows(matrix, 2) == [0, 2, 5]
    layout = Layout(Ownership.round_robin(5, 2), (1.0, 1.0), 0, (0, 2, 5))
    assert layout.order.tolist() == [0, 1, 2, 4, 3]  # run by run, rank by rank
    other = Layout(layout.ownership, (1.0, 1.0), 1, (0, 2, 5))
    assert other.order.tolist() == [1, 0, 3, 2, 4]  # a rank's own rows first
    route = plan_route(matrix, layout)
    assert [(chunk.first, chunk.last) for chunk in route.chunks] == [(0, 2), (2, 5)]
    assert [chunk.arrive.nodes.tolist() for chunk in route.chunks] == [[0, 3], [2, 4, 1]]
    assert [chunk.leave.nodes.tolist() for chunk in route.chunks] == [[0, 1], [2, 4, 3]]
    assert [chunk.leave.mine for chunk in route.chunks] == [slice(0, 1), slice(2, 4)]
    assert [chunk.leave.others for chunk in route.chunks] == [slice(1, 2), slice(4, 5)]
    assert [chunk.arrive.sizes for chunk in route.chunks] == [(0, 1), (0, 1)]
    found = np.concatenate([chunk.matrix.dense() for chunk in route.chunks])
    assert np.array_equal(found, matrix.dense()[np.ix_(layout.order, layout.order)])


def test_ranks_give_alike_to_every_chunk() -> None:
    four = Alone()
    four.size = 4
    snapshot = power_law()
    ours = TensorPropagator.of([snapshot], four, chunks=6)
    for chunk in ours.route(snapshot, "gcn", back=False).chunks:
        given = np.bincount(ours.ownership.owner[chunk.arrive.nodes], minlength=4)
        assert given.max() - given.min() <= 1


def test_the_first_product_is_kept_while_the_features_are() -> None:
    snapshot = power_law()
    torch.manual_seed(0)
    plain = GCN([9, 16, 7]).double()
    cached = GCN([9, 16, 7], cached=True).double()
    cached.load_state_dict(plain.state_dict())
    alone = make_propagator("single", [snapshot])
    x = torch.from_numpy(snapshot.features).double()
    for given in (x, x.clone(), x.mul_(2), torch.dropout(x, 0.5, train=True)):
        found, expected = (model(alone, snapshot, given)[0] for model in (cached, plain))
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    learnt = x.clone().requires_grad_()
    cached(alone, snapshot, learnt)[0].sum().backward()
    assert learnt.grad is not None


def test_wrong_shares_are_named() -> None:
    snapshot = power_law()
    with pytest.raises(ValueError, match="`rows` must give a share to 1 ranks: got \\[3, 1\\]"):
        make_propagator("tensor", [snapshot], speeds=[3, 1])
    with pytest.raises(ValueError, match="`shares` must give columns to each of 1 ranks"):
        make_propagator("tensor", [snapshot], columns=[3, 1])
    with pytest.raises(ValueError, match="`chunks` must be at least 1: got 0"):
        make_propagator("tensor", [snapshot], chunks=0)
    with pytest.raises(ValueError, match="`cached` keeps A X"):
        GCN([9, 7], decoupled=True, cached=True)

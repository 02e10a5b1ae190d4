"""The reference backend: torch_geometric's layers, a dense twin, exact gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from neutronstream.models.snapshots import GAT, GCN, SAGE, SnapshotModel
from neutronstream.parallel.backends import FullGraph, Ownership, make_propagator
from neutronstream.parallel.backends.ownership import cut
from neutronstream.parallel.backends.sparse import attend, heads_of, multiply
from neutronstream.storage import Snapshot, SparseMatrix

from .graphs import edges, power_law, skewed


def test_gcn_is_that_of_torch_geometric() -> None:
    from torch_geometric.nn import GCNConv

    snapshot = power_law()
    model = GCN([9, 5, 7]).double()
    x = torch.from_numpy(snapshot.features).double()
    found, _ = model(make_propagator("single", [snapshot]), snapshot, x)
    raw = snapshot.adjacency
    h = x
    for place, layer in enumerate(model.layers):
        theirs = GCNConv(layer.in_features, layer.out_features).double()
        theirs.lin.weight.data = layer.weight.data
        h = theirs(h, edges(raw), torch.from_numpy(raw.weight)) + layer.bias
        h = torch.relu(h) if place == 0 else h
    torch.testing.assert_close(found, h, rtol=1e-12, atol=1e-12)


def test_sage_is_that_of_torch_geometric() -> None:
    from torch_geometric.nn import SAGEConv

    base = power_law()
    ones = SparseMatrix.from_edges(base.adjacency.indices, base.adjacency.row_of, base.num_nodes)
    snapshot = Snapshot(ones, base.features, base.target)
    model = SAGE([9, 7]).double()
    x = torch.from_numpy(snapshot.features).double()
    found, _ = model(make_propagator("single", [snapshot]), snapshot, x)
    theirs = SAGEConv(9, 7).double()
    theirs.lin_l.weight.data = model.others[0].weight.data
    theirs.lin_l.bias.data.zero_()
    theirs.lin_r.weight.data = model.selves[0].weight.data
    expected = theirs(x, edges(ones)) + model.selves[0].bias
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_gat_is_that_of_torch_geometric() -> None:
    from torch_geometric.nn import GATConv

    snapshot = power_law()
    model = GAT([9, 7], heads=2).double()
    x = torch.from_numpy(snapshot.features).double()
    found, _ = model(make_propagator("single", [snapshot]), snapshot, x)
    theirs = GATConv(9, 7, heads=2, concat=False).double()
    theirs.lin.weight.data = model.layers[0].weight.data
    theirs.att_src.data = model.senders[0].data[None]
    theirs.att_dst.data = model.receivers[0].data[None]
    expected = theirs(x, edges(snapshot.adjacency))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_the_chebyshev_matrix_is_that_of_torch_geometric() -> None:
    from torch_geometric.nn import ChebConv

    snapshot = power_law()
    x = torch.from_numpy(snapshot.features).double()
    theirs = ChebConv(9, 4, K=3).double()
    raw = snapshot.adjacency
    expected = theirs(x, edges(raw), torch.from_numpy(raw.weight))
    terms = make_propagator("single", [snapshot]).chebyshev(snapshot, x, 3)
    found = sum(lin(term) for lin, term in zip(theirs.lins, terms, strict=True)) + theirs.bias
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_a_product_sends_along_the_edges() -> None:
    matrix = SparseMatrix.from_edges([0, 0, 2, 0], [1, 1, 0, 2], 4, [1.0, 2.0, 5.0, 0.5])
    x = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0]])
    assert multiply(matrix, x).tolist() == [[15, 150], [3, 30], [0.5, 5], [0, 0]]


@pytest.mark.parametrize("how", ["sum", "mean", "gcn", "loops", "chebyshev"])
def test_the_backward_is_the_adjoint(how: str) -> None:
    matrix = power_law().matrix(how)  # type: ignore[arg-type]
    x = torch.randn(matrix.num_columns, 3, dtype=torch.float64, requires_grad=True)
    y = torch.randn(matrix.num_rows, 3, dtype=torch.float64)
    (back,) = torch.autograd.grad(multiply(matrix, x), x, y)
    dense = torch.from_numpy(matrix.dense())
    torch.testing.assert_close(multiply(matrix, x).detach(), dense @ x.detach())
    torch.testing.assert_close(back, dense.T @ y)
    assert not torch.allclose(dense, dense.T) or how == "loops"


def test_attention_has_the_gradients_of_its_dense_twin() -> None:
    matrix = power_law(40, 150).matrix("loops")
    values = torch.randn(40, 6, dtype=torch.float64, requires_grad=True)
    receiver, sender = (torch.randn(40, 2, dtype=torch.float64, requires_grad=True) for _ in "12")
    there = torch.from_numpy(matrix.dense() != 0)
    raw = torch.nn.functional.leaky_relu(receiver[:, None] + sender[None], 0.2)  # (V, V, h)
    alpha = raw.masked_fill(~there[..., None], -torch.inf).softmax(1)
    expected = torch.einsum("vuh,uhd->vhd", alpha, values.view(40, 2, 3)).flatten(1)
    found = attend(matrix, values, receiver, sender, heads_of(2, 3))
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(found)
    inputs = (values, receiver, sender)
    for ours, theirs in zip(
        torch.autograd.grad(found, inputs, weights),
        torch.autograd.grad(expected, inputs, weights),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_a_slice_of_the_columns_has_the_bits_of_the_whole() -> None:
    matrix = power_law().matrix("gcn")
    x = torch.randn(matrix.num_columns, 13)
    assert torch.equal(multiply(matrix, x)[:, 3:8], multiply(matrix, x[:, 3:8]))


@pytest.mark.parametrize(
    "model", [GCN([9, 16, 7]), GCN([9, 16, 7], decoupled=True), SAGE([9, 16, 7]), GAT([9, 16, 7])]
)
def test_every_model_learns(model: SnapshotModel) -> None:
    snapshot = power_law()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    graph = FullGraph(
        make_propagator("single", [snapshot]), model, snapshot, skewed(snapshot), optimiser
    )
    losses = [graph.step() for _ in range(60)]
    assert losses[-1] < 0.6 * losses[0]
    assert graph.predict().shape == (203, 7)


def test_edges_that_stand_twice_add_up_and_bad_ones_are_named() -> None:
    assert SparseMatrix.from_edges([], [], 0).num_edges == 0
    with pytest.raises(ValueError, match="`dst` must be nodes from 0 to 1: edge 1 has 2"):
        SparseMatrix.from_edges([0, 1], [1, 2], 2)
    with pytest.raises(ValueError, match="`weight` must be finite: edge 0 has nan"):
        SparseMatrix.from_edges([0], [1], 2, [np.nan])
    for how, weight in (("mean", -1.0), ("gcn", -3.0), ("gcn", -1.0), ("chebyshev", -1.0)):
        with pytest.raises(
            ValueError, match=f"`{how}` cannot take negative weights.*node [01] sum"
        ):
            SparseMatrix.from_edges([0], [1], 2, [weight]).normalised(how)  # type: ignore[arg-type]
    signed = SparseMatrix.from_edges([0, 1], [1, 1], 2, [-1.0, 3.0])
    for how in ("sum", "loops", "mean", "gcn"):  # the sums are not negative
        assert np.isfinite(signed.normalised(how).weight).all()  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"numbers that float32 holds: got 1e\+39"):
        SparseMatrix.from_edges([0], [1], 2, [1e39]).weights(np.float32)


@pytest.mark.parametrize(
    ("backend", "option", "value", "message"),
    [
        ("tensor", "chunks", "x", "must be a valid integer: got 'x'"),
        ("tensor", "chunks", True, "must be a valid integer: got True"),
        ("tensor", "speeds", 3, "must be an instance of Sequence: got 3"),
        ("halo", "partition", "mets", "must be 'chunk' or 'metis': got 'mets'"),
        ("task", "num_transform", 1.5, "must be a valid integer: got 1.5"),
    ],
)
def test_an_option_of_another_type_is_named(
    backend: str, option: str, value: Any, message: str
) -> None:
    snapshots = [Snapshot(SparseMatrix.from_edges([0], [1], 2))]
    with pytest.raises(ValueError, match=f"option '{option}' of backend '{backend}' {message}"):
        make_propagator(backend, snapshots, **{option: value})


def test_rows_and_columns_can_be_taken() -> None:
    matrix = power_law().matrix("gcn")
    rows, columns = [5, 3, 202, 5], np.random.default_rng(0).permutation(203)[:50]
    assert np.array_equal(matrix.take_rows(rows).dense(), matrix.dense()[rows])
    taken = matrix.take_columns(columns)
    assert np.array_equal(taken.dense(), matrix.dense()[:, columns])
    assert np.array_equal(taken.transposed.dense(), taken.dense().T)
    assert matrix.version != taken.version
    again = SparseMatrix(203, matrix.indptr, matrix.indices, matrix.weight.copy())
    assert matrix.version == again.version


def test_every_node_has_one_owner() -> None:
    for ownership in (
        Ownership.contiguous(10, [3, 1, 0]),
        Ownership.round_robin(10, 3),
        Ownership.of([2, 0, 0, 1, 2, 2, 2, 0, 1, 2], 3),
    ):
        assert sorted(ownership.order) == list(range(10))
        for node in range(10):
            rank = ownership.owner[node]
            assert ownership.rows[rank][ownership.place[node]] == node
    assert Ownership.contiguous(10, [3, 1, 0]).sizes == [8, 2, 0]
    with pytest.raises(ValueError, match="`owner` must be ranks from 0 to 1: got 0 to 2"):
        Ownership.of([0, 2], 2)
    with pytest.raises(ValueError, match="must be at least 0 and not all 0"):
        cut(3, [0.0, 0.0])


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(ValueError, match=r"`backend` must be one of single.*: got 'tensr'"):
        make_propagator("tensr", [power_law()])


def test_an_option_that_a_backend_does_not_have_is_named() -> None:
    with pytest.raises(ValueError, match="'halo' has no option 'partitio': did you mean 'parti"):
        make_propagator("halo", [power_law()], partitio="metis")
    with pytest.raises(ValueError, match="backend 'single' has no option 'chunks': it has"):
        make_propagator("single", [power_law()], chunks=2)

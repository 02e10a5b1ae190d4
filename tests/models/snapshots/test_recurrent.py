"""The recurrent models are the layers of PyTorch Geometric Temporal: outputs and gradients.

Each runs over six changing snapshots with the weights of the other, in both precisions.
"""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from neutronstream.models.geometric_temporal import load_geometric_temporal
from neutronstream.models.snapshots import (
    A3TGCN,
    GCLSTM,
    MPNNLSTM,
    SNAPSHOT_MODELS,
    TGCN,
    EvolveGCNH,
    EvolveGCNO,
    GConvGRU,
    GConvLSTM,
    SnapshotModel,
    State,
    build_snapshot_model,
    snapshot_options,
)
from neutronstream.models.snapshots.constants import Constants
from neutronstream.parallel.backends import make_propagator
from neutronstream.storage import Snapshot, SparseMatrix

from .sequences import changing, edges_of, features_of

PRECISIONS = pytest.mark.parametrize(
    ("dtype", "near"), [(torch.float32, 1e-5), (torch.float64, 1e-10)]
)


def of_theirs(name: str, *given: Any, dtype: torch.dtype, **more: Any) -> Any:
    """A layer of the other package; its biases, which start at 0, are made to matter."""
    torch.manual_seed(1)
    layer = getattr(load_geometric_temporal().nn.recurrent, name)(*given, **more)
    for parameter in layer.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.3)
    return layer.to(dtype)


def run(model: SnapshotModel, snapshots: list[Snapshot], xs: list[Tensor]) -> list[Tensor]:
    """The outputs, one a snapshot."""
    propagator, state = make_propagator("single", snapshots), State()
    found = []
    for snapshot, x in zip(snapshots, xs, strict=True):
        out, state = model(propagator, snapshot, x, state)
        found.append(out)
    return found


def assert_alike(
    model: SnapshotModel,
    layer: nn.Module,
    ours: list[Tensor],
    theirs: list[Tensor],
    near: float,
    names: dict[str, str] | None = None,
) -> None:
    """Outputs, and the gradients of a sum that weighs all of them."""
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=near, atol=near)
    weights = [torch.randn_like(own) for own in ours]
    for outputs in (ours, theirs):
        torch.stack(
            [(out * by).mean() for out, by in zip(outputs, weights, strict=True)]
        ).sum().backward()  # type: ignore[no-untyped-call]
    known = {name.removeprefix("_"): value.grad for name, value in layer.named_parameters()}
    for old, new in (names or {}).items():
        known[new] = known.pop(old)
    own_gradients = {name: value.grad for name, value in model.named_parameters()}
    assert own_gradients.keys() == known.keys()
    for name, gradient in own_gradients.items():
        torch.testing.assert_close(gradient, known[name], rtol=near, atol=near, msg=name)
    assert sum(bool(g.any()) for g in known.values() if g is not None) > len(known) // 2


@PRECISIONS
@pytest.mark.parametrize("orders", [1, 2, 3])
def test_gconv_gru_is_theirs(dtype: torch.dtype, near: float, orders: int) -> None:
    snapshots = changing()
    xs = features_of(snapshots, dtype)
    layer = of_theirs("GConvGRU", 4, 8, orders, dtype=dtype)
    model = GConvGRU.from_geometric_temporal(layer)
    theirs: list[Tensor] = []
    for snapshot, x in zip(snapshots, xs, strict=True):
        h = theirs[-1] if theirs else torch.zeros(len(x), 8, dtype=dtype)
        theirs.append(layer(x, *edges_of(snapshot, dtype), h))
    assert_alike(model, layer, run(model, snapshots, xs), theirs, near)


@PRECISIONS
@pytest.mark.parametrize(("name", "kind"), [("GConvLSTM", GConvLSTM), ("GCLSTM", GCLSTM)])
def test_the_lstms_are_theirs(dtype: torch.dtype, near: float, name: str, kind: Any) -> None:
    snapshots = changing()
    xs = features_of(snapshots, dtype)
    layer = of_theirs(name, 4, 8, 3, dtype=dtype)
    model = kind.from_geometric_temporal(layer)
    h, c = (torch.zeros(len(xs[0]), 8, dtype=dtype) for _ in "hc")
    theirs = []
    for snapshot, x in zip(snapshots, xs, strict=True):
        h, c = layer(x, *edges_of(snapshot, dtype), h, c)
        theirs.append(h)
    assert_alike(model, layer, run(model, snapshots, xs), theirs, near)


@PRECISIONS
def test_tgcn_is_theirs(dtype: torch.dtype, near: float) -> None:
    snapshots = changing()
    xs = features_of(snapshots, dtype)
    layer = of_theirs("TGCN", 4, 8, dtype=dtype)
    model = TGCN.from_geometric_temporal(layer)
    h, theirs = torch.zeros(len(xs[0]), 8, dtype=dtype), []
    for snapshot, x in zip(snapshots, xs, strict=True):
        h = layer(x, *edges_of(snapshot, dtype), h)
        theirs.append(h)
    assert_alike(model, layer, run(model, snapshots, xs), theirs, near)


@PRECISIONS
def test_a3tgcn_is_theirs(dtype: torch.dtype, near: float) -> None:
    snapshots = changing(width=6)
    xs = features_of(snapshots, dtype)
    layer = of_theirs("A3TGCN", 2, 8, 3, dtype=dtype)
    model = A3TGCN.from_geometric_temporal(layer)
    h, theirs = torch.zeros(len(xs[0]), 8, dtype=dtype), []
    for snapshot, x in zip(snapshots, xs, strict=True):
        parts = x.view(len(x), 3, 2).transpose(1, 2)  # (V, F, periods)
        h = layer(parts, *edges_of(snapshot, dtype), h)
        theirs.append(h)
    assert_alike(model, layer, run(model, snapshots, xs), theirs, near)


EVOLVED = {"pooling_layer.select.weight": "layers.0.pooling"} | {
    name: f"layers.0.{name}"
    for name in (
        "initial_weight",
        *(
            f"recurrent_layer.{kind}_{part}_l0"
            for kind in ("weight", "bias")
            for part in ("ih", "hh")
        ),
    )
}


@PRECISIONS
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("pooled", [False, True])
def test_evolve_gcn_is_theirs(dtype: torch.dtype, near: float, keep: bool, pooled: bool) -> None:
    snapshots = changing()
    xs = features_of(snapshots, dtype)
    if pooled:
        layer = of_theirs("EvolveGCNH", len(xs[0]), 4, dtype=dtype)
        layer.pooling_layer.select.ratio = 4  # theirs is a share, in float32
        model: EvolveGCNO = EvolveGCNH.from_geometric_temporal(layer)
    else:
        layer = of_theirs("EvolveGCNO", 4, dtype=dtype)
        model = EvolveGCNO.from_geometric_temporal(layer)
    model.keep = keep
    names = {old: new for old, new in EVOLVED.items() if pooled or "pooling" not in old}
    for _ in range(2):  # their weights must be reset for a new window; ours are the state
        layer.reinitialize_weight()
        layer.zero_grad()
        model.zero_grad()
        theirs = [
            layer(x, *edges_of(snapshot, dtype)) for snapshot, x in zip(snapshots, xs, strict=True)
        ]
        assert_alike(model, layer, run(model, snapshots, xs), theirs, near, names)


@PRECISIONS
def test_a_stack_of_evolve_gcn_is_a_stack_of_theirs(dtype: torch.dtype, near: float) -> None:
    snapshots = changing()
    xs = features_of(snapshots, dtype)
    first, second = (of_theirs("EvolveGCNO", 4, dtype=dtype) for _ in "12")
    nn.init.normal_(second.initial_weight)
    model = EvolveGCNO.from_geometric_temporal(first, second)
    theirs = []
    for snapshot, x in zip(snapshots, xs, strict=True):
        edges = edges_of(snapshot, dtype)
        theirs.append(second(torch.relu(first(x, *edges)), *edges))
    for own, other in zip(run(model, snapshots, xs), theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=near, atol=near)


def block_diagonal(snapshots: list[Snapshot], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The edges of all snapshots, those of snapshot t among rows t V to (t + 1) V."""
    parts = [edges_of(snapshot, dtype) for snapshot in snapshots]
    index = torch.cat([edges + t * snapshots[0].num_nodes for t, (edges, _) in enumerate(parts)], 1)
    return index, torch.cat([weight for _, weight in parts])


@PRECISIONS
@pytest.mark.parametrize("training", [True, False])
def test_a_window_of_mpnn_lstm_is_theirs(dtype: torch.dtype, near: float, training: bool) -> None:
    snapshots = [replace(snapshot, present=None) for snapshot in changing()]  # theirs counts all
    xs = features_of(snapshots, dtype)
    layer = of_theirs("MPNNLSTM", 4, 8, len(xs[0]), len(xs), 0.0, dtype=dtype).train(training)
    model = MPNNLSTM.from_geometric_temporal(layer).train(training)
    theirs = layer(torch.cat(xs), *block_diagonal(snapshots, dtype))
    ours = model.run_window(make_propagator("single", snapshots), snapshots, xs)
    assert_alike(model, layer, [ours], [theirs], near)
    for own, other in zip(model.buffers(), layer.buffers(), strict=True):
        torch.testing.assert_close(own, other, rtol=near, atol=near)


@PRECISIONS
def test_mpnn_lstm_step_by_step_is_its_window_in_eval_mode(dtype: torch.dtype, near: float) -> None:
    snapshots = changing()
    xs = features_of(snapshots, dtype)
    layer = of_theirs("MPNNLSTM", 4, 8, len(xs[0]), len(xs), 0.3, dtype=dtype)
    layer(torch.cat(xs), *block_diagonal(snapshots, dtype))  # moves the running figures
    layer.eval()
    theirs = layer(torch.cat(xs), *block_diagonal(snapshots, dtype))
    model = MPNNLSTM.from_geometric_temporal(layer).eval()
    last = run(model, snapshots, xs)[-1]
    torch.testing.assert_close(last[:, :16], theirs[:, :16], rtol=near, atol=near)
    torch.testing.assert_close(last[:, 16:], xs[-1])


def test_dropout_takes_its_share_and_none_in_eval_mode() -> None:
    snapshots = changing(1)
    xs = features_of(snapshots, torch.float32)
    model = MPNNLSTM(4, 64, dropout=0.4)
    propagator = make_propagator("single", snapshots)
    z = model._convolve(propagator, snapshots, xs)
    assert 0.35 < float((z == 0).float().mean()) < 0.45
    model.eval()
    assert float((model._convolve(propagator, snapshots, xs) == 0).float().mean()) < 0.05


def test_layers_that_are_other_models_are_refused() -> None:
    theirs: Callable[..., Any] = of_theirs
    layer = theirs("GConvGRU", 4, 8, 2, normalization="rw", dtype=torch.float32)
    with pytest.raises(ValueError, match=r"`layer` must have normalization='sym'.*got 'rw'"):
        GConvGRU.from_geometric_temporal(layer)
    layer = theirs("TGCN", 4, 8, improved=True, dtype=torch.float32)
    with pytest.raises(ValueError, match="`layer` must have improved=False"):
        TGCN.from_geometric_temporal(layer)


def test_of_equal_scores_the_first_node_counts() -> None:
    snapshot = Snapshot(SparseMatrix.from_edges([], [], 6))
    propagator = make_propagator("single", [snapshot])
    scores = torch.tensor([1.0, 3.0, 1.0, 3.0, 2.0, 1.0])
    assert propagator.top_nodes(scores, 5).tolist() == [1, 3, 4, 0, 2]
    with pytest.raises(ValueError, match="`count` must not exceed the 6 nodes: got 7"):
        propagator.top_nodes(scores, 7)


def test_the_share_of_rows_that_theirs_keeps_can_be_one_too_many() -> None:
    from torch_geometric.nn import TopKPooling

    kept = TopKPooling(6, 6 / 85)(torch.randn(85, 6), torch.empty(2, 0, dtype=torch.int64))
    assert len(kept[0]) == 7


def test_what_holds_no_parameter_is_computed_once_a_snapshot() -> None:
    snapshots = changing()
    propagator = make_propagator("single", snapshots)
    calls: list[str] = []
    multiply = propagator.apply

    def counted(snapshot: Snapshot, x: Tensor, how: Any = "gcn", *, hop: int = 0) -> Tensor:
        calls.append(how)
        return multiply(snapshot, x, how, hop=hop)

    propagator.apply = counted  # type: ignore[method-assign]
    model = GConvGRU(4, 8, orders=3)
    xs = features_of(snapshots, torch.float32)

    def epoch() -> int:
        calls.clear()
        state: State = ()
        for snapshot, x in zip(snapshots, xs, strict=True):
            _, state = model(propagator, snapshot, x, state)
        return len(calls)

    per_block = 2 * len(snapshots)
    assert epoch() == 3 * per_block  # x, h and h * r, two products each
    assert epoch() == 2 * per_block
    xs[0].add_(1)  # changed in place
    assert epoch() == 2 * per_block + 2
    xs[1] = xs[1].clone()  # another tensor
    assert epoch() == 2 * per_block + 2
    xs[2].requires_grad_()  # made by something that learns
    assert epoch() == epoch() == 2 * per_block + 2
    kept = model._constants._kept
    del snapshots[3:]
    xs = xs[:3]
    propagator = make_propagator("single", snapshots)
    gc.collect()
    assert len(kept) <= 3
    assert not copy.deepcopy(model)._constants._kept
    assert not pickle.loads(pickle.dumps(model))._constants._kept


@pytest.mark.parametrize("name", list(SNAPSHOT_MODELS))
def test_every_model_by_name_carries_its_state_over_changing_snapshots(name: str) -> None:
    snapshots = changing()
    torch.manual_seed(0)
    model = build_snapshot_model(name, 4, 8)
    propagator, state = make_propagator("single", snapshots), State()
    loss = torch.zeros(())
    for place, (snapshot, x) in enumerate(
        zip(snapshots, features_of(snapshots, torch.float32), strict=True)
    ):
        out, state = model(propagator, snapshot, x, state)
        assert out.shape == (83, model.width) and out.isfinite().all()
        loss = loss + out.square().mean()
        if place == 2:
            state = model.detach(state)
            assert all(value.grad_fn is None for value in state)
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_options_are_checked_by_name() -> None:
    assert snapshot_options("mpnnlstm") == {"dropout": 0.0}
    with pytest.raises(ValueError, match=r"`model` must be one of .*did you mean 'gconvgru'\?"):
        build_snapshot_model("gconvgro", 4, 8)
    with pytest.raises(
        ValueError, match=r"'gconvgru' has no option 'order': did you mean 'orders'"
    ):
        build_snapshot_model("gconvgru", 4, 8, order=2)
    with pytest.raises(ValueError, match="`width` must be at least 1: got 0"):
        build_snapshot_model("tgcn", 4, 0)
    with pytest.raises(ValueError, match="`orders` must be at least 1"):
        build_snapshot_model("gclstm", 4, 8, orders=0)
    with pytest.raises(ValueError, match=r"`periods` must cut the 4 columns .* got 3"):
        build_snapshot_model("a3tgcn", 4, 8, periods=3)
    with pytest.raises(ValueError, match="`dropout` must be at least 0 and below 1: got 1"):
        build_snapshot_model("mpnnlstm", 4, 8, dropout=1)
    with pytest.raises(ValueError, match="`layers` must be at least 1: got 0"):
        build_snapshot_model("evolvegcno", 4, 8, layers=0)


def test_a_state_without_rows_of_nodes_is_replicated() -> None:
    model = build_snapshot_model("evolvegcno", 4, 8, layers=2)
    snapshots = changing(1)
    _, state = model(
        make_propagator("single", snapshots), snapshots[0], features_of(snapshots, torch.float32)[0]
    )
    assert [tuple(weight.shape) for weight in state] == [(1, 8, 8)] * 2
    assert np.isfinite(state[0].detach().numpy()).all()


def test_an_option_of_another_kind_is_named() -> None:
    with pytest.raises(
        ValueError, match="option 'orders' of 'gconvgru' must be int, as 2: got 'x'"
    ):
        build_snapshot_model("gconvgru", 3, 4, orders="x")


def test_what_is_kept_answers_the_question_that_it_was_kept_for() -> None:
    """Other orders, or a product in place of them, are another question about the same tensor."""
    (snapshot,) = changing(1)
    propagator = make_propagator("single", [snapshot])
    (x,) = features_of([snapshot], torch.float32)
    kept = Constants()
    for orders in (3, 2):
        found = kept.chebyshev(propagator, snapshot, x, orders)
        expected = propagator.chebyshev(snapshot, x, orders)
        assert len(found) == orders and all(map(torch.equal, found, expected))
    assert kept.chebyshev(propagator, snapshot, x, 2) is found
    assert torch.equal(kept.apply(propagator, snapshot, x), propagator.apply(snapshot, x))

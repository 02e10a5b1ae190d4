"""What ranks that transform and ranks that propagate promise; run on 1, 2, 3 and 4 ranks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from neutronstream.models.snapshots import GAT, GCN, GCNGRU, SAGE, DecoupledGAT, SnapshotModel
from neutronstream.parallel.backends import FullGraph, Ownership, make_propagator
from neutronstream.parallel.backends.task import (
    DecoupledGraph,
    Roles,
    SnapshotPipeline,
    TaskPropagator,
    assign_ranks,
)
from neutronstream.parallel.backends.task.pieces import assign
from neutronstream.parallel.backends.task.schedule import measured_work
from neutronstream.parallel.ranks import Comm
from neutronstream.parallel.spans import parts
from neutronstream.storage import Snapshot

from .graphs import power_law, skewed

EPOCHS = 30
MODELS: dict[str, Callable[[], SnapshotModel]] = {
    "gcn": lambda: GCN([9, 16, 12, 7]),
    "decoupled gcn": lambda: GCN([9, 16, 7], decoupled=True),
    "sage": lambda: SAGE([9, 16, 7]),
    "gat": lambda: GAT([9, 16, 7], heads=2),
    "decoupled gat": lambda: DecoupledGAT([9, 16, 7], heads=3),
}
BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-10}


def new_model(name: str, dtype: torch.dtype = torch.float64) -> SnapshotModel:
    """The same parameters wherever it is called."""
    torch.manual_seed(3)
    return MODELS[name]().to(dtype)


def adam(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def reference(
    snapshot: Snapshot, name: str, dtype: torch.dtype, epochs: int = EPOCHS
) -> tuple[list[float], Tensor]:
    """Losses and final outputs on one process."""
    model = new_model(name, dtype)
    alone = make_propagator("single", [snapshot])
    graph = FullGraph(alone, model, snapshot, skewed(snapshot), adam(model))
    return [graph.step() for _ in range(epochs)], graph.predict()


def splits(comm: Comm) -> list[int | None]:
    """How many ranks may transform."""
    return list(range(1, comm.size)) if comm.size > 1 else [None]


def models_run_unchanged_and_equal_one_process(comm: Comm) -> dict[str, float]:
    snapshot, worst = power_law(), {}
    for name in MODELS:
        losses, outputs = reference(snapshot, name, torch.float64, 8)
        for num in splits(comm)[: None if name == "gcn" else 1]:
            model = new_model(name)
            ours = make_propagator("task", [snapshot], comm, num_transform=num)
            graph = FullGraph(ours, model, snapshot, skewed(snapshot), adam(model))
            found = [graph.step() for _ in losses]
            worst[name] = float(np.abs(np.subtract(found, losses)).max())
            assert worst[name] < 1e-10
            assert (graph.predict() - outputs).abs().max() < 1e-9
    return worst


def the_operator_has_an_exact_adjoint(comm: Comm) -> None:
    for num_nodes, is_shuffled in ((2, False), (203, False), (203, True)):
        snapshot = power_law(num_nodes, 1500)
        propagator = make_propagator("task", [snapshot], comm)
        if is_shuffled:
            roles = Roles.of(comm.size)
            owner = np.random.default_rng(2).integers(0, len(roles.transform), num_nodes)
            propagator = TaskPropagator(Ownership.of(owner, comm.size), comm, roles)
        alone = make_propagator("single", [snapshot])
        assert propagator.own.tolist() == sorted(propagator.own)
        torch.manual_seed(1)
        x, y = torch.randn(2, num_nodes, 5, dtype=torch.float64)
        own = torch.from_numpy(propagator.own)
        mine = x[own].requires_grad_()
        whole = x.clone().requires_grad_()
        for act, twin in (
            (propagator.apply(snapshot, mine), alone.apply(snapshot, whole)),
            (propagator.power(snapshot, mine, 3, "mean"), alone.power(snapshot, whole, 3, "mean")),
            (
                torch.stack(propagator.chebyshev(snapshot, mine, 4)).sum(0),
                torch.stack(alone.chebyshev(snapshot, whole, 4)).sum(0),
            ),
        ):
            torch.testing.assert_close(propagator.gather(act), twin.detach())
            (back,) = torch.autograd.grad(act, mine, y[own])
            (expected,) = torch.autograd.grad(twin, whole, y)
            torch.testing.assert_close(back, expected[own])


def rows_lie_with_those_that_transform_and_only_slices_travel(comm: Comm) -> None:
    snapshot, width = power_law(), 7
    for num in splits(comm):
        propagator = make_propagator("task", [snapshot], comm, num_transform=num)
        assert isinstance(propagator, TaskPropagator)
        if comm.rank not in propagator.roles.transform:
            assert len(propagator.own) == 0
        x = torch.randn(len(propagator.own), width, requires_grad=True)
        propagator.check(snapshot)
        comm.bytes.clear()
        propagator.apply(snapshot, x).sum().backward()  # type: ignore[no-untyped-call]
        sent = {purpose: traffic.sent for purpose, traffic in comm.bytes.items()}
        totals = comm.gather_objects(sent, "test")
        for purpose, senders in (
            ("split", propagator.roles.transform),
            ("gather", propagator.roles.propagate),
        ):
            moved = [each[purpose] for each in totals]
            assert sum(moved) == (2 * 203 * width * 4 if comm.size > 1 else 0)  # out and back
            assert all(rank in senders for rank, size in enumerate(moved) if size)


def decoupled(
    comm: Comm,
    name: str,
    dtype: torch.dtype = torch.float64,
    snapshot: Snapshot | None = None,
    **options: Any,
) -> DecoupledGraph:
    snapshot = power_law() if snapshot is None else snapshot

    def make_model() -> Any:
        return new_model(name, dtype)

    return DecoupledGraph(
        comm, snapshot, skewed(snapshot), make_model, partial(torch.optim.Adam, lr=0.01), **options
    )


def decoupled_training_is_that_of_one_process(comm: Comm) -> dict[str, float]:
    worst: dict[str, float] = {}
    for dtype, bound in BOUNDS.items():
        for name in ("decoupled gcn", "decoupled gat"):
            losses, outputs = reference(power_law(), name, dtype)
            wanted = splits(comm) if comm.size > 1 else []
            for num in wanted if dtype == torch.float64 else wanted[:1]:
                graph = decoupled(comm, name, dtype, num_transform=num, chunks=3)
                found = [graph.step() for _ in range(EPOCHS)]
                key = f"{name}, {dtype}"
                worst[key] = max(worst.get(key, 0), np.abs(np.subtract(found, losses)).max())
                assert worst[key] < bound
                assert (graph.predict() - outputs).abs().max() < 100 * bound
    return worst


def ranks_without_rows_or_columns_join(comm: Comm) -> None:
    """Two nodes: some transform none; with four ranks, some put no row together for the loss."""
    snapshot = power_law(2, 20, classes=2)
    for name in ("decoupled gcn", "decoupled gat"):
        losses, outputs = reference(snapshot, name, torch.float64, 3)
        for num in splits(comm) if comm.size > 1 else []:
            graph = decoupled(comm, name, snapshot=snapshot, num_transform=num, chunks=3)
            assert np.allclose([graph.step() for _ in losses], losses, rtol=0, atol=1e-12)
            assert (graph.predict() - outputs).abs().max() < 1e-10


def rows_and_gradients_travel_once_each(comm: Comm) -> None:
    """V x width numbers each way, and within the group what one split and one gather move."""
    for num in splits(comm) if comm.size > 1 else []:
        for name, heads in (("decoupled gcn", 0), ("decoupled gat", 3)):
            graph = decoupled(comm, name, num_transform=num, chunks=5)
            copies, width = len(graph.roles.propagate), 7 * max(heads, 1)
            comm.bytes.clear()
            graph.step()
            everyone = comm.gather_objects({k: t.sent for k, t in comm.bytes.items()}, "test")
            moved = {k: sum(each.get(k, 0) for each in everyone) for each in everyone for k in each}
            assert moved["transformed rows"] == 203 * width * 8
            assert moved["transformed rows, gradients"] == 203 * width * 8
            shares = zip(parts(203, copies), parts(width, copies), strict=True)
            inside = 8 * (203 * width - sum(rows * columns for rows, columns in shares))
            assert moved["gather"] == inside
            assert moved["split"] == inside
            if heads:
                assert moved["attention scalars"] == 203 * 2 * heads * copies * 8
                assert moved["attention scalars, gradients"] == 203 * 2 * heads * copies * 8


class Saved:
    """Bytes of tensors that are saved for a way back, now and at most."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._parameters = {p.untyped_storage().data_ptr() for p in parameters}
        self.now = self.most = self.total = 0

    def __call__(self) -> Any:
        return torch.autograd.graph.saved_tensors_hooks(self._pack, lambda held: held[0])

    def _pack(self, tensor: Tensor) -> list[Any]:
        size = tensor.numel() * tensor.element_size()
        if tensor.untyped_storage().data_ptr() in self._parameters:
            size = 0
        self.now += size
        self.total += size
        self.most = max(self.most, self.now)
        held = Held([tensor])
        weakref.finalize(held, self._release, size)
        return held

    def _release(self, size: int) -> None:
        self.now -= size


class Held(list[Any]):
    """A list that can be watched."""


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes that tensors made meanwhile hold, now and at most."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self._count: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(tensor, Tensor) and tensor.numel():
                storage = tensor.untyped_storage()
                self._hold(tensor, storage.data_ptr(), storage.nbytes())
        return found

    def _hold(self, tensor: Tensor, where: int, size: int) -> None:
        if not self._count.get(where):
            self.now += size
            self.most = max(self.most, self.now)
        self._count[where] = self._count.get(where, 0) + 1
        weakref.finalize(tensor, self._let_go, where, size)

    def _let_go(self, where: int, size: int) -> None:
        self._count[where] -= 1
        if not self._count[where]:
            self.now -= size


def who_propagates_holds_no_parameter_and_saves_nothing(comm: Comm) -> dict[str, float]:
    """At most three times its slice of the columns lives at once."""
    most = 0.0
    for num in splits(comm) if comm.size > 1 else []:
        graph = decoupled(comm, "decoupled gcn", num_transform=num, chunks=8)
        graph.step()
        saved, live = Saved([]), Live()
        with saved(), live:
            graph.step()
        if comm.rank in graph.roles.propagate:
            assert graph.model is None
            assert saved.total == 0
            group = len(graph.roles.propagate)
            share = max(203 * -(-7 // group), -(-203 // group) * 7)  # of columns, or of rows
            slices = live.most / (8 * share)
            assert slices < 3 + 2 / 8 + 0.02, (
                slices
            )  # two pieces are on their way; shares are uneven
            most = max(most, slices)
        else:
            assert saved.total > 0
    return {"slices": max(comm.gather_objects(most, "test"))}


def twice_the_pieces_halve_what_who_transforms_saves(comm: Comm) -> dict[str, list[int]]:
    if comm.size == 1:
        return {}
    peaks: dict[bool, list[int]] = {}
    for recompute in (True, False):
        for chunks in (2, 4, 8):
            graph = decoupled(
                comm, "decoupled gcn", chunks=chunks, recompute=recompute, num_transform=1
            )
            saved = Saved(() if graph.model is None else graph.model.parameters())
            with saved():
                graph.step()
            peaks.setdefault(recompute, []).append(saved.most)
    if comm.rank == 0:
        two, four, eight = peaks[True]
        assert abs(two / four - 2) < 0.05
        assert abs(four / eight - 2) < 0.05
        assert max(peaks[False]) < 1.01 * min(peaks[False])  # without recomputing all are held
        assert min(peaks[False]) > 1.9 * two
    return {"recomputed": peaks[True], "kept": peaks[False]}


def transforming_again_changes_no_gradient(comm: Comm) -> None:
    for name in ("decoupled gcn", "decoupled gat") if comm.size > 1 else ():
        gradients = []
        for recompute in (True, False):
            graph = decoupled(comm, name, recompute=recompute)
            graph.step()
            if graph.model is not None:
                gradients.append([p.grad for p in graph.model.parameters()])
                assert all(grad is not None and grad.abs().max() > 0 for grad in gradients[-1])
        for first, second in zip(*gradients, strict=True) if gradients else ():
            assert (first - second).abs().max() <= 1e-12


def dropped_losses(seed: int, epochs: int, subgraphs: int) -> list[float]:
    """The published pipeline by dense matrices on one process."""
    snapshot = power_law()
    model, random = new_model("decoupled gcn"), np.random.default_rng(seed)
    assert isinstance(model, GCN) and snapshot.target is not None
    optimiser = adam(model)
    whole = torch.from_numpy(snapshot.matrix("gcn").dense())
    train, target = torch.from_numpy(skewed(snapshot)), torch.from_numpy(snapshot.target)
    losses = []
    for _ in range(epochs):
        group = torch.from_numpy(assign(203, 8, subgraphs, random))
        kept = whole * (group[None, :] <= group[:, None])
        z = model.transform(torch.from_numpy(snapshot.features).double())
        loss = torch.nn.functional.cross_entropy((kept @ (kept @ z))[train], target[train])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses


def dropping_edges_is_a_choice_and_says_how_many(comm: Comm) -> dict[str, list[float]]:
    if comm.size == 1:
        return {}
    exact = decoupled(comm, "decoupled gcn", chunks=8)
    whole = [exact.step() for _ in range(5)]
    assert exact.dropped == 0 and exact.covered == 1
    one = decoupled(comm, "decoupled gcn", chunks=8, drop_edges=True, subgraphs=1, seed=5)
    for loss in whole:
        assert abs(one.step() - loss) < 1e-10
        assert one.dropped == 0 and one.covered == 1
    graph = decoupled(comm, "decoupled gcn", chunks=8, drop_edges=True, subgraphs=4, seed=5)
    dropped, covered = [], []
    for loss in dropped_losses(5, 25, 4):
        assert abs(graph.step() - loss) < 1e-10
        dropped.append(graph.dropped)
        covered.append(graph.covered)
    assert min(dropped) > 0.05 and len(set(dropped)) > 5
    assert covered[0] == 1 - dropped[0] and covered == sorted(covered) and covered[-1] == 1
    return {"dropped": [min(dropped), max(dropped)], "covered": covered[:4]}


def a_wrong_choice_is_named_on_every_rank(comm: Comm) -> None:
    with pytest.raises(ValueError, match="`num_transform` must leave a rank for each"):
        make_propagator("task", [power_law()], comm, num_transform=comm.size + 1)
    if comm.size == 1:
        with pytest.raises(ValueError, match="got one rank; `FullGraph` trains"):
            decoupled(comm, "decoupled gcn")
        return
    with pytest.raises(ValueError, match="must give rows only to ranks that transform"):
        TaskPropagator(Ownership.round_robin(9, comm.size), comm)
    with pytest.raises(ValueError, match="the model must be decoupled"):
        decoupled(comm, "gcn")
    with pytest.raises(ValueError, match="`drop_edges` is for models without attention"):
        decoupled(comm, "decoupled gat", drop_edges=True)
    with pytest.raises(ValueError, match="`subgraphs` from 1 to as many: got 4 and 5"):
        decoupled(comm, "decoupled gcn", drop_edges=True, subgraphs=5)


WINDOW = [power_law(101, 500 + 60 * place, seed=place) for place in range(5)]
STACKS: dict[str, Callable[[], Any]] = {
    "gcn": lambda: GCN([9, 12, 7], decoupled=True),
    "gcn, gru": lambda: GCNGRU([9, 12, 8], 7),
}


def new_stack(name: str) -> Any:
    torch.manual_seed(4)
    return STACKS[name]().double()


def window_reference(name: str) -> list[float]:
    """Losses on one process, the snapshots one after the other."""
    model = new_stack(name)
    optimiser, alone = adam(model), make_propagator("single", WINDOW)
    total = sum(int(skewed(snapshot).sum()) for snapshot in WINDOW)
    losses = []
    for _ in range(10):
        optimiser.zero_grad()
        loss, state = torch.zeros((), dtype=torch.float64), ()
        for snapshot in WINDOW:
            assert snapshot.target is not None
            output, state = model(alone, snapshot, alone.inputs(snapshot).double(), state)
            where, target = torch.from_numpy(skewed(snapshot)), torch.from_numpy(snapshot.target)
            loss = loss + torch.nn.functional.cross_entropy(
                output[where], target[where], reduction="sum"
            )
        (loss / total).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(float(loss.detach()) / total)
    return losses


def a_window_is_trained_alike_whether_snapshots_overlap_or_not(comm: Comm) -> dict[str, float]:
    worst: dict[str, float] = {}
    for name in STACKS if comm.size > 1 else ():
        expected = window_reference(name)
        for chunks, num in ((1, None), (3, 1)):
            losses, parameters = [], []
            for is_pipelined in (True, False):
                pipeline = SnapshotPipeline(
                    comm,
                    WINDOW,
                    [skewed(snapshot) for snapshot in WINDOW],
                    partial(new_stack, name),
                    partial(torch.optim.Adam, lr=0.01),
                    num_transform=num,
                    chunks=chunks,
                    recompute=chunks == 1,
                    is_pipelined=is_pipelined,
                )
                losses.append([pipeline.step() for _ in expected])
                values = () if pipeline.model is None else pipeline.model.parameters()
                parameters.append([value.detach() for value in values])
            assert losses[0] == losses[1]  # bit for bit
            assert all(map(torch.equal, *parameters))
            worst[name] = float(np.abs(np.subtract(losses[0], expected)).max())
            assert worst[name] < 1e-10
    return worst


def measured_seconds_say_who_does_what(comm: Comm) -> list[float]:
    if comm.size == 1:
        return []
    graph = decoupled(comm, "decoupled gcn", num_transform=1)
    work = measured_work(graph)
    assert work.transform > 0 and work.propagate > 0
    assert len(set(comm.gather_objects([work.transform, work.propagate], "test")[0])) == 2
    roles = assign_ranks(work, comm.size)
    assert len(roles.transform) + len(roles.propagate) == comm.size
    assert comm.gather_objects(list(roles.transform), "test") == [list(roles.transform)] * comm.size
    return [work.transform, work.propagate]


PROMISES: tuple[Callable[[Comm], Any], ...] = (
    models_run_unchanged_and_equal_one_process,
    the_operator_has_an_exact_adjoint,
    rows_lie_with_those_that_transform_and_only_slices_travel,
    decoupled_training_is_that_of_one_process,
    ranks_without_rows_or_columns_join,
    rows_and_gradients_travel_once_each,
    who_propagates_holds_no_parameter_and_saves_nothing,
    twice_the_pieces_halve_what_who_transforms_saves,
    transforming_again_changes_no_gradient,
    dropping_edges_is_a_choice_and_says_how_many,
    a_wrong_choice_is_named_on_every_rank,
    a_window_is_trained_alike_whether_snapshots_overlap_or_not,
    measured_seconds_say_who_does_what,
)

"""What the tensor-parallel backend promises; run on 1, 2, 3 and 4 ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from neutronstream.models.snapshots import GAT, GCN, SAGE, DecoupledGAT, SnapshotModel
from neutronstream.parallel.backends import FullGraph, make_propagator
from neutronstream.parallel.backends.tensor import (
    TensorPropagator,
    exposed_bytes,
    gather,
    split,
)
from neutronstream.parallel.ranks import Comm
from neutronstream.storage import Snapshot, SparseMatrix

from .graphs import power_law, skewed

EPOCHS = 30
BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-10}
MODELS: dict[str, Callable[[], SnapshotModel]] = {
    "gcn, 2 layers": lambda: GCN([9, 16, 7]),
    "gcn, 3 layers": lambda: GCN([9, 16, 12, 7]),
    "gcn, cached": lambda: GCN([9, 16, 7], cached=True),
    "gcn, decoupled": lambda: GCN([9, 16, 7], decoupled=True),
    "sage": lambda: SAGE([9, 16, 7]),
    "gat": lambda: GAT([9, 16, 7], heads=2),
    "gat, decoupled": lambda: DecoupledGAT([9, 16, 7], heads=3),
}

IN_SINGLE = ("gcn, 3 layers", "gcn, decoupled", "gat", "gat, decoupled")


def tensor(snapshot: Snapshot, comm: Comm, **options: Any) -> TensorPropagator:
    found = make_propagator("tensor", [snapshot], comm, **options)
    assert isinstance(found, TensorPropagator)
    return found


def new_graph(
    propagator: Any, snapshot: Snapshot, name: str, dtype: torch.dtype = torch.float64
) -> FullGraph:
    """With the same parameters wherever it is called."""
    torch.manual_seed(3)
    model = MODELS[name]().to(dtype)
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    return FullGraph(propagator, model, snapshot, skewed(snapshot), adam)


def losses(graph: FullGraph, count: int = EPOCHS) -> list[float]:
    return [graph.step() for _ in range(count)]


@cache
def alone(name: str, dtype: torch.dtype = torch.float64) -> list[float]:
    """What the reference loses on the graph of these tests, on every rank by itself."""
    snapshot = power_law()
    return losses(new_graph(make_propagator("single", [snapshot]), snapshot, name, dtype))


def apart(found: Sequence[float], expected: Sequence[float]) -> float:
    return float(np.abs(np.subtract(found, expected)).max())


def sent(comm: Comm, act: Callable[[], object]) -> dict[str, tuple[int, int]]:
    """Bytes that all ranks sent while they acted, and this rank's calls, by purpose."""
    comm.bytes.clear()
    act()
    own = {purpose: [traffic.sent, traffic.calls] for purpose, traffic in comm.bytes.items()}
    everyone = comm.gather_objects(own, "test")
    return {
        purpose: (sum(other[purpose][0] for other in everyone), calls)
        for purpose, (_, calls) in own.items()
    }


def block_bytes(propagator: TensorPropagator, width: int, element: int) -> int:
    """B(d): what rank p gives rank q is n_p x c_q numbers."""
    rows, columns = propagator.ownership.sizes, propagator.layout.widths(width)
    return element * sum(n * c for p, n in enumerate(rows) for q, c in enumerate(columns) if p != q)


def every_model_loses_what_it_loses_alone(comm: Comm) -> dict[str, dict[str, float]]:
    """Properties 1, 2 and 3."""
    snapshot, found = power_law(), {}
    for dtype, bound in BOUNDS.items():
        worst = {}
        for name in MODELS if dtype == torch.float64 else IN_SINGLE:
            graph = new_graph(tensor(snapshot, comm), snapshot, name, dtype)
            worst[name] = apart(losses(graph), alone(name, dtype))
            assert worst[name] <= bound, (name, worst)
        found[str(dtype)] = worst
    return found


def attention_learns_as_it_does_alone(comm: Comm) -> float:
    """Property 2: the vectors of attention move, and as in the reference."""
    snapshot = power_law()
    ours = new_graph(tensor(snapshot, comm), snapshot, "gat")
    theirs = new_graph(make_propagator("single", [snapshot]), snapshot, "gat")
    before = {name: value.detach().clone() for name, value in ours.model.named_parameters()}
    losses(ours), losses(theirs)
    moved = []
    for name, value in theirs.model.named_parameters():
        mine = ours.model.get_parameter(name)
        torch.testing.assert_close(mine, value, rtol=0, atol=1e-8)
        if name.startswith(("receivers", "senders")):
            moved.append(float((mine - before[name]).norm().detach()))
    assert len(moved) == 4
    assert min(moved) > 1e-2
    return min(moved)


def decoupling_is_another_model(comm: Comm) -> None:
    """Property 3: the flag is honest."""
    snapshot = power_law()
    for name in ("gcn", "gat"):
        coupled = "gcn, 2 layers" if name == "gcn" else name
        other = losses(new_graph(tensor(snapshot, comm), snapshot, f"{name}, decoupled"), 3)
        assert apart(other, alone(coupled)[:3]) > 1e-3


def the_matrix_in_place_of_its_transpose_would_be_seen(comm: Comm) -> None:
    """Property 4: the graph is directed enough for these tests to notice."""
    snapshot = power_law()
    graph = new_graph(tensor(snapshot, comm), snapshot, "gcn, 2 layers")
    with patch.object(SparseMatrix, "transposed", property(lambda matrix: matrix)):
        found = losses(graph, 5)
    assert apart(found, alone("gcn, 2 layers")[:5]) > 1e-3


def split_and_gather_are_inverse_and_adjoint(comm: Comm) -> None:
    """Property 5; also for ranks without rows or columns, and with axes between."""
    one = [float(rank == 0) for rank in range(comm.size)]
    last = one[::-1]
    for num_nodes in (2, 61):
        for options in (
            {},
            {"speeds": [3.0, *[1.0] * (comm.size - 1)]},
            {"rows": one, "columns": last},
        ):
            snapshot = power_law(num_nodes, 100)
            propagator = tensor(snapshot, comm, **options)
            layout = propagator.layout
            for shape in ((7,), (1,), (3, 5)):
                torch.manual_seed(comm.rank)
                x = torch.randn(len(propagator.own), *shape, dtype=torch.float64)
                whole = split(comm, layout, x.requires_grad_())
                columns = layout.widths(shape[-1])[comm.rank]
                assert whole.shape == (num_nodes, *shape[:-1], columns)
                y = torch.randn_like(whole).requires_grad_()
                back = gather(comm, layout, whole, shape[-1])
                assert torch.equal(back, x)
                there = gather(comm, layout, y, shape[-1])
                assert torch.equal(split(comm, layout, there), y)
                left = propagator.total((whole * y).sum())
                right = propagator.total((x * there).sum())
                assert abs(float(left - right)) < 1e-12 * max(1.0, abs(float(left)))
                (gathered,) = torch.autograd.grad(whole, x, y.detach())
                assert torch.equal(gathered, there)


ACTS: tuple[Callable[[Any, Snapshot, Tensor], Tensor], ...] = (
    lambda p, graph, rows: p.apply(graph, rows),
    lambda p, graph, rows: p.apply(graph, rows, "mean", hop=1),
    lambda p, graph, rows: p.power(graph, rows, 0),
    lambda p, graph, rows: p.power(graph, rows, 2),
    lambda p, graph, rows: p.power(graph, rows, 5, "sum"),
    lambda p, graph, rows: torch.stack(p.chebyshev(graph, rows, 4)).sum(0),
    lambda p, graph, rows: torch.stack(p.chebyshev(graph, rows, 1)).sum(0),
)
"""Ways to use the operator: backend, snapshot and rows in, rows out."""


def the_operator_is_that_of_one_process(comm: Comm) -> None:
    """Outputs bit for bit, gradients to 1e-12; also with fewer nodes than ranks, and chunks."""
    for num_nodes, chunks in ((2, 1), (203, 1), (2, 5), (203, 5)):
        snapshot = power_law(num_nodes, 1500)
        ours = tensor(snapshot, comm, chunks=chunks)
        reference = make_propagator("single", [snapshot])
        torch.manual_seed(1)
        x, y = torch.randn(2, num_nodes, 5, dtype=torch.float64)
        own = torch.from_numpy(ours.own)
        mine, whole = x[own].requires_grad_(), x.clone().requires_grad_()
        for act in ACTS:
            found, expected = act(ours, snapshot, mine), act(reference, snapshot, whole)
            assert torch.equal(found, expected[own])
            (back,) = torch.autograd.grad(found, mine, y[own])
            (forth,) = torch.autograd.grad(expected, whole, y)
            torch.testing.assert_close(back, forth[own], rtol=1e-12, atol=1e-12)
            left = ours.total((found * y[own]).sum())
            right = ours.total((mine * back).sum())
            torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


def ranks_multiply_and_transform_alike(comm: Comm) -> list[int]:
    """Properties 6 and 7, counted in a step that is taken."""
    snapshot = power_law()
    for chunks in (1, 4):
        ours = tensor(snapshot, comm, chunks=chunks)
        ours.trace = []
        new_graph(ours, snapshot, "gcn, 2 layers").step()
        work = comm.gather_objects(
            sum(step.size for step in ours.trace if step.act == "multiply"), "test"
        )
        nnz, products = snapshot.matrix("gcn").num_edges, 2 * 2
        assert sum(work) == nnz * 2 * (16 + 7)
        assert max(work) - min(work) <= nnz * products  # a column in each product
        sizes = ours.ownership.sizes
        assert max(sizes) - min(sizes) <= (1 if chunks == 1 else comm.size)
    runs = np.array_split(snapshot.matrix("gcn").degree, comm.size)  # as runs of nodes would
    edges = [int(degrees.sum()) for degrees in runs]
    assert comm.size == 1 or max(edges) * comm.size / sum(edges) >= 1.5
    return work


def bytes_and_calls_are_those_of_the_formulas(comm: Comm) -> None:
    """Properties 8, 9 and 10: 4 sum B(d), whatever the edges are."""
    widths = {
        "gcn, 2 layers": [16, 7],
        "gcn, 3 layers": [16, 12, 7],
        "gcn, cached": [7],
        "gcn, decoupled": [7],
        "gat": [16, 14],
        "gat, decoupled": [21],
    }
    graphs = [power_law(), power_law(num_edges=4_000, seed=1), power_law(is_sorted=False)]
    for snapshot in graphs:
        for chunks in (1, 3):
            ours = tensor(snapshot, comm, chunks=chunks)
            for name, exchanged in widths.items():
                graph = new_graph(ours, snapshot, name, torch.float32)
                graph.step()
                found = sent(comm, graph.step)
                expected = 2 * sum(block_bytes(ours, width, 4) for width in exchanged)
                pieces = chunks if name.startswith("gcn") else 1
                assert found["split"] == (expected, 2 * len(exchanged) * pieces)
                assert found["gather"] == (expected, 2 * len(exchanged) * pieces)
                parameters = sum(value.numel() for value in graph.model.parameters())
                assert found["gradients"][0] == 2 * (comm.size - 1) * parameters * 4
                if name.startswith("gat"):
                    heads, layers = (3, 1) if name.endswith("decoupled") else (2, 2)
                    scalars = (comm.size - 1) * 203 * 2 * heads * 4
                    back = layers if comm.size > 1 else 0
                    if comm.size > 1:
                        assert found["attention scalars"] == (layers * scalars, layers)
                        assert found["attention scalars, gradients"] == (layers * scalars, back)


def repeated_products_travel_once(comm: Comm) -> None:
    """One split and one gather, however often it is multiplied between."""
    snapshot = power_law()
    ours = tensor(snapshot, comm)
    x = torch.randn(len(ours.own), 6)
    z, scalars = torch.randn(len(ours.own), 2, 3), torch.randn(len(ours.own), 2)
    ours.check(snapshot)
    each = block_bytes(ours, 6, 4)
    for act, gathered in (
        (lambda: ours.apply(snapshot, x), each),
        (lambda: ours.power(snapshot, x, 5), each),
        (lambda: ours.chebyshev(snapshot, x, 4), 3 * each),  # order 0 stays where it is
        (lambda: ours.attend_power(snapshot, z, scalars, scalars, 3), each),
    ):
        found = sent(comm, act)
        assert found["split"] == (each, 1)
        assert found["gather"] == (gathered, 1)


def bytes_are_those_of_the_anchors(comm: Comm) -> None:
    """Property 8 again, in plain numbers for 1,200 nodes; 12 for the scalars of attention."""
    for name, model, known in (
        ("decoupled", GCN([24, 32, 7], decoupled=True), {2: 67_200, 4: 100_800}),
        ("coupled", GCN([24, 32, 32, 7]), {2: 681_600, 4: 1_022_400}),
        ("attention", GAT([24, 32, 4], heads=2), {2: 384_000, 4: 576_000}),
    ):
        snapshot = power_law(1_200, 6_000, width=24, classes=model.width)
        adam = torch.optim.Adam(model.parameters())
        graph = FullGraph(tensor(snapshot, comm), model, snapshot, skewed(snapshot), adam)
        found = sent(comm, graph.step)
        if comm.size in known:
            assert found["split"][0] + found["gather"][0] == known[comm.size], name


def parameters_stay_the_same_bits_on_all_ranks(comm: Comm) -> None:
    """Property 11."""
    snapshot = power_law()
    graph = new_graph(tensor(snapshot, comm), snapshot, "gcn, 2 layers", torch.float32)
    for _ in range(3):
        found = sent(comm, graph.step)
        assert found["gradients"][1] == (2 if comm.size > 1 else 1)
        flat = torch.cat([value.detach().flatten() for value in graph.model.parameters()])
        first = comm.all_gather_rows(flat, [len(flat)] * comm.size, "test").view(comm.size, -1)
        assert torch.equal(first, flat.expand_as(first))


def chunks_change_no_bit(comm: Comm) -> None:
    """Property 13: the same losses and bytes, each row sent once; also more chunks than rows."""
    snapshot = power_law(61, 400)
    for name in ("gcn, 2 layers", "gcn, decoupled"):
        whole = tensor(snapshot, comm)
        expected = new_graph(whole, snapshot, name, torch.float32)
        known, volume = losses(expected, 3), sent(comm, expected.step)
        for chunks in (5, 100):
            ours = tensor(snapshot, comm, chunks=chunks)
            graph = new_graph(ours, snapshot, name, torch.float32)
            assert apart(losses(graph, 3), known) <= 1e-6
            found = sent(comm, graph.step)
            if ours.ownership.sizes == whole.ownership.sizes:
                assert found["split"][0] == volume["split"][0]
                assert found["gather"][0] == volume["gather"][0]
    for chunks in (1, 5, 100):
        ours = tensor(snapshot, comm, chunks=chunks)
        for how in ("gcn", "mean"):
            for back in (False, True):
                route = ours.route(snapshot, how, back=back)
                for parts in zip(*((c.arrive, c.leave) for c in route.chunks), strict=True):
                    nodes = np.concatenate([part.nodes for part in parts])
                    assert sorted(nodes.tolist()) == list(range(61))


def exchanges_go_on_beside_the_products(comm: Comm) -> dict[str, float]:
    """Property 14: fewer bytes are waited for while nothing is multiplied."""
    snapshot, found = power_law(), {}
    for name in ("gcn, 2 layers", "gcn, decoupled"):
        waited = []
        for chunks in (1, 4):
            ours = tensor(snapshot, comm, chunks=chunks)
            graph = new_graph(ours, snapshot, name)
            graph.step()
            ours.trace = []
            graph.step()
            moved = sum(step.size for step in ours.trace if step.act == "start")
            assert moved == sum(step.size for step in ours.trace if step.act == "wait")
            waited.append((exposed_bytes(ours.trace), moved))
        (serial, whole), (chunked, moved) = waited
        assert serial == whole
        if comm.size > 1:
            assert chunked < 0.85 * moved
            found[name] = chunked / moved
    return found


def uneven_speeds_divide_the_work(comm: Comm) -> list[int]:
    """Property 15: 3 to 1, to the column, and the same losses."""
    snapshot, speeds = power_law(), [3.0] + [1.0] * (comm.size - 1)
    ours = tensor(snapshot, comm, speeds=speeds)
    for width in (16, 7):
        widths = ours.layout.widths(width)
        for share, columns in zip(speeds, widths, strict=True):
            assert abs(columns - width * share / sum(speeds)) < 1
    for share, rows in zip(speeds, ours.ownership.sizes, strict=True):
        assert abs(rows - 203 * share / sum(speeds)) <= 1
    ours.trace = []
    for name in ("gcn, 2 layers", "gat"):
        graph = new_graph(ours, snapshot, name)
        assert apart(losses(graph), alone(name)) <= 1e-10
    return ours.layout.widths(16)


def ranks_without_rows_or_columns_join(comm: Comm) -> None:
    """Shares of nothing: the last rank has no rows, or the first no columns, or both."""
    if comm.size == 1:
        return
    snapshot = power_law()
    all_but_last = [1.0] * (comm.size - 1) + [0.0]
    all_but_first = all_but_last[::-1]
    for options in ({"rows": all_but_last}, {"rows": all_but_last, "columns": all_but_first}):
        for name, chunks in (("gcn, 2 layers", 3), ("gat", 1), ("gat, decoupled", 1)):
            ours = tensor(snapshot, comm, chunks=chunks, **options)
            assert ours.ownership.sizes[-1] == 0
            graph = new_graph(ours, snapshot, name)
            assert apart(losses(graph, 4), alone(name)[:4]) <= 1e-10


def another_snapshot_on_a_rank_is_an_error(comm: Comm) -> None:
    """Property 25: nobody trains on another graph unnoticed."""
    snapshot = power_law(seed=comm.rank // max(comm.size - 1, 1))
    ours = tensor(snapshot, comm)
    x = torch.randn(len(ours.own), 3)
    try:
        ours.apply(snapshot, x)
    except ValueError as error:
        assert "the ranks differ in snapshot" in str(error)
    else:
        assert comm.size == 1


def one_rank_alone_sends_nothing(comm: Comm) -> None:
    """Property 25."""
    snapshot = power_law()
    graph = new_graph(tensor(snapshot, comm), snapshot, "gat")
    found = sent(comm, graph.step)
    assert (sum(total for total, _ in found.values()) == 0) == (comm.size == 1)


PROMISES: tuple[Callable[[Comm], Any], ...] = (
    every_model_loses_what_it_loses_alone,
    attention_learns_as_it_does_alone,
    decoupling_is_another_model,
    the_matrix_in_place_of_its_transpose_would_be_seen,
    split_and_gather_are_inverse_and_adjoint,
    the_operator_is_that_of_one_process,
    ranks_multiply_and_transform_alike,
    bytes_and_calls_are_those_of_the_formulas,
    repeated_products_travel_once,
    bytes_are_those_of_the_anchors,
    parameters_stay_the_same_bits_on_all_ranks,
    chunks_change_no_bit,
    exchanges_go_on_beside_the_products,
    uneven_speeds_divide_the_work,
    ranks_without_rows_or_columns_join,
    another_snapshot_on_a_rank_is_an_error,
    one_rank_alone_sends_nothing,
)

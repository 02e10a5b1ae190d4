"""What backend `hetero` promises, on any number of ranks.

    PYTHONPATH=src:. mpiexec -n 4 python tests/parallel/backends/run.py \
        tests.parallel.backends.hetero_promises [PROMISE ...]
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from neutronstream.models.snapshots import GAT, GCN, SnapshotModel
from neutronstream.parallel.backends import FullGraph, Propagator, make_propagator
from neutronstream.parallel.backends.hetero import (
    HeteroPropagator,
    Load,
    Resources,
    link_bytes,
    measure,
    tree,
    vertex_parallel,
)
from neutronstream.parallel.backends.hetero.simulate import Exchange
from neutronstream.parallel.backends.partition import chunk
from neutronstream.parallel.ranks import Comm

from .graphs import few_nodes, power_law, skewed
from .halo_promises import EPOCHS, LIMIT, apart, losses, losses_on, made, sent

WIDTHS = {"gcn": (9, 16, 7), "deep": (9, 16, 12, 7), "sage": (9, 16, 7), "gat": (9, 16, 7)}
PURPOSES = tuple(
    name + end for name in ("halo rows", "relayed rows") for end in ("", ", gradients")
)


def cluster(size: int) -> Resources:
    """Two nodes, 0 and 1 here, 2 and 3 there, the second one slower, little between them."""
    bandwidth = np.full((4, 4), 0.02e9)
    bandwidth[:2, :2] = bandwidth[2:, 2:] = 4e9
    return Resources.of([4e9, 2e9, 1e9, 1e9], bandwidth).first(size)


def straggler(size: int) -> Resources:
    """All alike, but for one link: a way round it by a rank that needs the row not is shorter."""
    bandwidth = np.full((4, 4), 4e9)
    bandwidth[0, 1] = bandwidth[1, 0] = 0.02e9
    return Resources.of([2e9] * 4, bandwidth).first(size)


def hetero(comm: Comm, resources: Resources, **options: Any) -> HeteroPropagator:
    """The backend on the power-law graph, with nodes where much must cross slow links."""
    return HeteroPropagator(chunk(203, comm.size), comm, resources=resources, **options)


def trains_like_one_process(comm: Comm) -> dict[str, Any]:
    """Losses of 30 epochs of Adam with copies and relays, both precisions; attention is learned."""
    found: dict[str, Any] = {"copies": 0, "relays": 0}
    for dtype, limit in LIMIT.items():
        for kind, epochs in (("gcn", EPOCHS), ("gat", EPOCHS), ("deep", 5), ("sage", 5)):
            single = make_propagator("single", [power_law()])
            expected, alone = losses(single, kind, dtype, epochs)
            # relays alone train for long in one precision a model
            both = epochs < EPOCHS or (kind == "gcn") == (dtype == torch.float64)
            for make, copies in ((cluster, True), (straggler, False))[: 2 if both else 1]:
                propagator = hetero(comm, make(comm.size), widths=WIDTHS[kind], copies=copies)
                plan = propagator.plan(power_law())
                found["copies"] += plan.copies
                found["relays"] += sum(int(stage.rows[1].sum()) for stage in plan.stages)
                curve, model = losses(propagator, kind, dtype, epochs)
                off = apart(curve, expected)
                assert off <= limit, (kind, dtype, make.__name__, off)
                if isinstance(model, GAT) and isinstance(alone, GAT):
                    for ours, theirs in zip(model.senders, alone.senders, strict=True):
                        torch.testing.assert_close(ours, theirs, rtol=0, atol=100 * limit)
    if comm.size > 2:
        assert found["copies"] > 100, found
        assert found["relays"] > 100, found
    return found


def relays_alone_are_exact(comm: Comm) -> int:
    """Without copies, and without `widths` at all, where any model may call."""
    expected, _ = losses(make_propagator("single", [power_law()]), "gcn", torch.float64, 5)
    relayed = 0
    for make in (cluster, straggler):
        for options in ({"widths": WIDTHS["gcn"], "copies": False}, {}):
            propagator = hetero(comm, make(comm.size), **options)
            before = sent(comm, "relayed rows")
            found, _ = losses(propagator, "gcn", torch.float64, 5)
            relayed += sent(comm, "relayed rows") - before
            assert apart(found, expected) <= 1e-10
    assert relayed > 0 or comm.size < 3
    return relayed


def has_an_exact_adjoint(comm: Comm) -> None:
    """<A x, y> = <x, A^T y> over the ranks, through relays; powers and polynomials too."""
    snapshot = power_law()
    random = np.random.default_rng(3)
    x, y = (torch.from_numpy(random.normal(size=(203, 4))) for _ in range(2))
    propagator = hetero(comm, cluster(comm.size))
    own = torch.from_numpy(propagator.own)
    dense = torch.from_numpy(snapshot.matrix("gcn").dense())
    mine = x[own].requires_grad_()
    out = propagator.power(snapshot, mine, 2)
    torch.testing.assert_close(out, (dense @ dense @ x)[own])
    (back,) = torch.autograd.grad(out, mine, y[own])
    torch.testing.assert_close(back, (dense.T @ dense.T @ y)[own])
    dense = torch.from_numpy(snapshot.matrix("chebyshev").dense())
    terms = propagator.chebyshev(snapshot, x[own], 3)
    torch.testing.assert_close(terms[2], (2 * dense @ dense @ x - x)[own])


def decoupled_layers_take_copies_too(comm: Comm) -> None:
    """All layers of each node first, then all hops: each is a layer with copies of its own."""
    curves = []
    for propagator in (
        make_propagator("single", [power_law()]),
        hetero(comm, cluster(comm.size), widths=(9, 7, 7)),
    ):
        torch.manual_seed(5)
        model = GCN([9, 16, 7], decoupled=True).double()
        curves.append(losses_on(power_law(), propagator, model, 5)[0])
    assert apart(*curves) <= 1e-10


class Listener:
    """Writes down what each exchange of a real `Comm` sends to each rank."""

    def __init__(self, comm: Comm) -> None:
        self.sent: list[list[int]] = []
        self._comm, self._exchange = comm, comm.all_to_all_rows

    def __enter__(self) -> Listener:
        def listening(
            rows: torch.Tensor, sent: list[int], received: list[int], purpose: str
        ) -> torch.Tensor:
            row = rows.element_size() * rows[:1].numel() if len(rows) else 0
            if purpose in PURPOSES:
                self.sent.append([count * row for count in sent])
            return self._exchange(rows, sent, received, purpose)

        self._comm.all_to_all_rows = listening  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        self._comm.all_to_all_rows = self._exchange  # type: ignore[method-assign]


def moves_what_is_planned(comm: Comm) -> dict[str, int]:
    """Over every link and in every exchange, as the clocks have it; copies send no gradients."""
    load = Load(WIDTHS["gcn"])
    found = {}
    for name, options in (
        ("kept", {"copies": False, "relays": False}),
        ("copied", {"relays": False}),
        ("relayed", {"copies": False}),
        ("both", {}),
    ):
        propagator = hetero(comm, cluster(comm.size), widths=WIDTHS["gcn"], **options)
        plan = propagator.plan(power_law())
        before = sent(comm, *PURPOSES)
        with Listener(comm) as listener:
            losses(propagator, "gcn", torch.float32, 1)
        assert sent(comm, *PURPOSES) - before == plan.planned_bytes([16, 7])
        steps = vertex_parallel(plan.stages, load, power_law().matrix("loops").degree)
        exchanges = [step.sent[comm.rank] for step in steps if isinstance(step, Exchange)]
        planned = exchanges[: -2 if comm.size > 1 else None]  # the last two are of parameters
        # where nobody fetches anything there is no step, but an exchange of nothing
        sums = [comm.gather_objects(sum(row), "test") for row in listener.sent]
        moved = [row for row, each in zip(listener.sent, sums, strict=True) if any(each)]
        assert moved == [row.tolist() for row in planned]
        slow = cluster(comm.size).bandwidth < 1e9
        found[name] = int(link_bytes(plan.stages, load)[slow].sum())
    if comm.size > 2:
        assert found["copied"] < found["kept"]
        assert found["relayed"] < found["kept"] or comm.size < 4
        assert found["both"] <= found["copied"]
    return found


def ranks_without_rows_take_part(comm: Comm) -> None:
    """Three nodes on up to four ranks, of which one is trained on."""
    snapshot = few_nodes()
    where = np.array([True, False, False])
    for kind in ("gcn", "gat"):
        curves = []
        propagators: tuple[Propagator, ...] = (
            make_propagator("single", [snapshot]),
            make_propagator(
                "hetero", [snapshot], comm, resources=cluster(comm.size), widths=WIDTHS[kind]
            ),
            make_propagator("hetero", [snapshot], comm, resources=cluster(comm.size)),
        )
        for propagator in propagators:
            model: SnapshotModel = made(kind, torch.float64)
            optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
            graph = FullGraph(propagator, model, snapshot, where, optimiser)
            curves.append([graph.step() for _ in range(5)])
            assert graph.predict().shape == (3, 7)
        assert all(apart(curve, curves[0]) <= 1e-10 for curve in curves)


def all_ranks_measure_the_same(comm: Comm) -> list[float]:
    """Speeds and links as they are now, and a backend made of them."""
    found = measure(comm)
    assert (found.speed > 1e6).all()
    shown = [found.speed.tolist(), found.bandwidth.tolist(), found.latency.tolist()]
    assert len({str(other) for other in comm.gather_objects(shown, "test")}) == 1
    assert tree(found).workers == tuple(range(comm.size))
    propagator = make_propagator("hetero", [power_law()], comm, widths=WIDTHS["gcn"])
    expected, _ = losses(make_propagator("single", [power_law()]), "gcn", torch.float64, 3)
    assert apart(losses(propagator, "gcn", torch.float64, 3)[0], expected) <= 1e-10
    return [float(speed) for speed in found.speed]


def one_rank_sends_nothing(comm: Comm) -> None:
    """Not a byte of rows, gradients, plans or partitions."""
    if comm.size == 1:
        losses(hetero(comm, cluster(1), widths=WIDTHS["gat"]), "gat", torch.float32, 2)
        assert sum(traffic.sent for traffic in comm.bytes.values()) == 0


def another_snapshot_is_detected(comm: Comm) -> None:
    """On every rank, before a plan is made for it."""
    if comm.size == 1:
        return
    mine = power_law(seed=1 if comm.rank == comm.size - 1 else 0)
    propagator = hetero(comm, cluster(comm.size), widths=WIDTHS["gcn"])
    with pytest.raises(ValueError, match=re.escape("the ranks differ in snapshot:")):
        FullGraph(
            propagator,
            made("gcn", torch.float32),
            mine,
            skewed(mine),
            torch.optim.Adam(made("gcn", torch.float32).parameters()),
        )


PROMISES = (
    trains_like_one_process,
    relays_alone_are_exact,
    has_an_exact_adjoint,
    decoupled_layers_take_copies_too,
    moves_what_is_planned,
    ranks_without_rows_take_part,
    all_ranks_measure_the_same,
    one_rank_sends_nothing,
    another_snapshot_is_detected,
)

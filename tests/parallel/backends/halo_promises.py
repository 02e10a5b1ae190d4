"""What backends `halo` and `broadcast` promise, on any number of ranks.

    PYTHONPATH=src:. mpiexec -n 4 python tests/parallel/backends/run.py \
        tests.parallel.backends.halo_promises [PROMISE ...]
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from neutronstream.models.snapshots import GAT, GCN, SAGE, SnapshotModel
from neutronstream.parallel.backends import FullGraph, Propagator, make_propagator
from neutronstream.parallel.ranks import Comm
from neutronstream.storage import Snapshot, SparseMatrix
from neutronstream.storage.sparse import NORMALISATIONS, Normalisation

from .graphs import few_nodes, power_law, skewed

EPOCHS = 30
LIMIT = {torch.float32: 1e-5, torch.float64: 1e-10}
OURS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("halo", {"partition": "chunk"}),
    ("halo", {"partition": "metis"}),
    ("broadcast", {}),
)


def made(kind: str, dtype: torch.dtype) -> SnapshotModel:
    """A model that is the same on every rank."""
    torch.manual_seed(5)
    model: dict[str, SnapshotModel] = {
        "gcn": GCN([9, 16, 7]),
        "deep": GCN([9, 16, 12, 7]),
        "sage": SAGE([9, 16, 7]),
        "gat": GAT([9, 16, 7], heads=2),
    }
    return model[kind].to(dtype)


def losses(
    propagator: Propagator, kind: str, dtype: torch.dtype, epochs: int = EPOCHS
) -> tuple[list[float], SnapshotModel]:
    """What Adam makes of the model on the power-law graph, epoch by epoch."""
    return losses_on(power_law(), propagator, made(kind, dtype), epochs)


def losses_on(
    snapshot: Snapshot, propagator: Propagator, model: SnapshotModel, epochs: int
) -> tuple[list[float], SnapshotModel]:
    """What Adam makes of the model, epoch by epoch."""
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    graph = FullGraph(propagator, model, snapshot, skewed(snapshot), optimiser)
    return [graph.step() for _ in range(epochs)], model


def apart(found: Sequence[float], expected: Sequence[float]) -> float:
    """The largest difference."""
    return float(np.abs(np.subtract(found, expected)).max())


def sent(comm: Comm, *purposes: str) -> int:
    """The bytes that all ranks sent for these so far."""
    mine = sum(comm.bytes[name].sent for name in purposes if name in comm.bytes)
    return sum(comm.gather_objects(mine, "test"))


def shown_by(name: str, partition: str = "") -> set[tuple[str, torch.dtype]]:
    """Which models train for long, in which precision; runs of nodes show all, the others half."""
    if partition == "chunk":
        return {(kind, dtype) for kind in ("gcn", "gat") for dtype in LIMIT}
    first, second = LIMIT if name == "halo" else reversed(LIMIT)
    return {("gcn", first), ("gat", second)}


def trains_like_one_process(comm: Comm) -> float:
    """Losses of 30 epochs of Adam, GCN and GAT, both precisions; and attention is learned."""
    worst = 0.0
    for dtype, limit in LIMIT.items():
        for kind, epochs in (("gcn", EPOCHS), ("gat", EPOCHS), ("sage", 3)):
            single = make_propagator("single", [power_law()])
            expected, alone = losses(single, kind, dtype, epochs)
            for name, options in OURS:
                if epochs == EPOCHS and (kind, dtype) not in shown_by(name, **options):
                    continue
                propagator = make_propagator(name, [power_law()], comm, **options)
                found, model = losses(propagator, kind, dtype, epochs)
                off = apart(found, expected)
                assert off <= limit, (name, options, kind, dtype, off)
                worst = max(worst, off) if dtype == torch.float32 else worst
                if isinstance(model, GAT) and isinstance(alone, GAT):
                    torch.manual_seed(5)
                    before = GAT([9, 16, 7], heads=2).to(dtype)
                    for ours, theirs, first in zip(
                        model.senders, alone.senders, before.senders, strict=True
                    ):
                        assert (ours - first).norm() > 1e-3
                        torch.testing.assert_close(ours, theirs, rtol=0, atol=100 * limit)
    return worst


def has_an_exact_adjoint(comm: Comm) -> None:
    """<A x, y> = <x, A^T y> over the ranks, and every rank has its rows of the whole's product."""
    snapshot = power_law()
    random = np.random.default_rng(3)
    x, y = (torch.from_numpy(random.normal(size=(203, 4))) for _ in range(2))
    for name, options in OURS:
        propagator = make_propagator(name, [snapshot], comm, **options)
        own = torch.from_numpy(propagator.own)
        for how in NORMALISATIONS:
            dense = torch.from_numpy(snapshot.matrix(how).dense())
            mine = x[own].requires_grad_()
            out = propagator.apply(snapshot, mine, how)
            torch.testing.assert_close(out, (dense @ x)[own])
            (back,) = torch.autograd.grad(out, mine, y[own])
            torch.testing.assert_close(back, (dense.T @ y)[own])
            torch.testing.assert_close(
                propagator.power(snapshot, mine, 2, how).detach(),
                (dense @ dense @ x)[own],
            )


def moves_what_the_formulas_say(comm: Comm) -> dict[str, int]:
    """2 |R| sum(d) b an epoch, by whatever partition; (N - 1) V in the place of |R| for blocks."""
    found: dict[str, int] = {}
    layers: tuple[tuple[str, Normalisation, list[int]], ...]
    layers = ("gcn", "gcn", [16, 7]), ("gat", "loops", [16 + 2, 2 * 7 + 2])
    for kind, how, widths in layers:
        for name, options in OURS:
            propagator = make_propagator(name, [power_law()], comm, **options)
            purposes = ("halo rows", "halo rows, gradients", "blocks", "blocks, gradients")
            before = sent(comm, *purposes)
            losses(propagator, kind, torch.float32, 2)
            moved = sent(comm, *purposes) - before
            if name == "halo":
                remote = remote_pairs(propagator, power_law(), how)
                assert moved == 2 * 2 * remote * sum(widths) * 4
                planned = propagator.planned_bytes(power_law(), widths, how)  # type: ignore[attr-defined]
            else:
                assert moved == 2 * 2 * (comm.size - 1) * 203 * sum(widths) * 4
                planned = propagator.planned_bytes(widths)  # type: ignore[attr-defined]
            assert moved == 2 * planned
            found[f"{kind} {name} {options.get('partition', '')}".strip()] = moved // 2
    return found


def remote_pairs(propagator: Propagator, snapshot: Snapshot, how: Normalisation) -> int:
    """|R|, counted the slow way."""
    matrix, owner = snapshot.matrix(how), propagator.ownership.owner
    ends = zip(matrix.row_of.tolist(), matrix.indices.tolist(), strict=True)
    return len({(owner[v], u) for v, u in ends if owner[v] != owner[u]})


def moves_more_when_edges_are_added(comm: Comm) -> None:
    """Unlike tensor parallelism, whose bytes know nothing of the edges."""
    old = power_law()
    raw = old.adjacency
    random = np.random.default_rng(8)
    src = np.concatenate((raw.indices, random.integers(0, 203, 900)))
    dst = np.concatenate((raw.row_of, random.integers(0, 203, 900)))
    new = Snapshot(SparseMatrix.from_edges(src, dst, 203), old.features, old.target)
    moved = []
    for snapshot in (old, new):
        propagator = make_propagator("halo", [snapshot], comm)
        before = sent(comm, "halo rows", "halo rows, gradients")
        losses_on(snapshot, propagator, made("gcn", torch.float32), 1)
        moved.append(sent(comm, "halo rows", "halo rows, gradients") - before)
        assert moved[-1] == 2 * remote_pairs(propagator, snapshot, "gcn") * (16 + 7) * 4
    assert moved[0] < moved[1] or comm.size == 1


def ranks_without_rows_take_part(comm: Comm) -> None:
    """Three nodes on up to four ranks, of which one is trained on."""
    snapshot = few_nodes()
    where = np.array([True, False, False])
    for kind in ("gcn", "gat"):
        curves = []
        for name, options in (("single", {}), *OURS):
            model = made(kind, torch.float64)
            propagator = make_propagator(
                name, [snapshot], *([comm] if name != "single" else []), **options
            )
            optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
            graph = FullGraph(propagator, model, snapshot, where, optimiser)
            curves.append([graph.step() for _ in range(5)])
            assert graph.predict().shape == (3, 7)
        assert all(apart(curve, curves[0]) <= 1e-10 for curve in curves)


def one_rank_sends_nothing(comm: Comm) -> None:
    """Not a byte of rows, gradients, totals or partitions."""
    if comm.size > 1:
        return
    for name, options in OURS:
        before = sum(traffic.sent for traffic in comm.bytes.values())
        losses(make_propagator(name, [power_law()], comm, **options), "gat", torch.float32, 2)
        assert sum(traffic.sent for traffic in comm.bytes.values()) == before


def another_snapshot_is_detected(comm: Comm) -> None:
    """On every rank, before any of its rows is used."""
    if comm.size == 1:
        return
    mine = power_law(seed=1 if comm.rank == comm.size - 1 else 0)
    for name, options in OURS:
        if options.get("partition") == "metis":
            continue  # the partition is the first rank's, so it is the same as below
        propagator = make_propagator(name, [mine], comm, **options)
        x = torch.ones(len(propagator.own), 2)
        expected = re.escape("the ranks differ in snapshot:")
        with pytest.raises(ValueError, match=expected):
            propagator.apply(mine, x)
        with pytest.raises(ValueError, match=expected):
            propagator.attend(mine, x[..., None], x, x)


PROMISES = (
    trains_like_one_process,
    has_an_exact_adjoint,
    moves_what_the_formulas_say,
    moves_more_when_edges_are_added,
    ranks_without_rows_take_part,
    one_rank_sends_nothing,
    another_snapshot_is_detected,
)

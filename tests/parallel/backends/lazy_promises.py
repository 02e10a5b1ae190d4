"""What lazy message passing promises, on any number of ranks.

    PYTHONPATH=src:. mpiexec -n 4 python tests/parallel/backends/run.py \
        tests.parallel.backends.lazy_promises [PROMISE ...]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from neutronstream.models.snapshots import GAT, GCN, SAGE
from neutronstream.parallel.backends import FullGraph, Ownership, make_propagator
from neutronstream.parallel.backends.lazy import (
    NETWORKS,
    DeltaHalo,
    Drift,
    EndToEnd,
    LazySettings,
    LazyTrainer,
    LazyWindows,
    Network,
    Part,
    Stale,
    end_to_end_bytes,
    lazy_bytes,
    link_parts,
    traffic_ratio,
)
from neutronstream.parallel.backends.lazy.engine import flat_gradients
from neutronstream.parallel.backends.lazy.gate import PURPOSES, Phase
from neutronstream.parallel.backends.lazy.goals import loss_of
from neutronstream.parallel.backends.lazy.links import Links, PairHead
from neutronstream.parallel.backends.lazy.settings import Payload
from neutronstream.parallel.backends.lazy.stages import Kind, Stage, dropout, flat_weights
from neutronstream.parallel.ranks import ALONE, Comm
from neutronstream.storage import Snapshot, SparseMatrix, uniform
from neutronstream.storage.sparse import NORMALISATIONS

from .graphs import power_law, skewed

KINDS: tuple[Kind, ...] = ("gcn", "sage", "gat")
PAYLOADS: tuple[Payload, ...] = ("raw+hidden", "hidden", "logits")
WAYS: tuple[tuple[Kind, Payload], ...] = (
    *((kind, "raw+hidden") for kind in KINDS),
    *(("gcn", "hidden"), ("gat", "logits")),
)
SMALL = LazySettings(hidden=8, heads=2, rounds=3, dropout=0.5, double=True, seed=3)


def graph(num_nodes: int = 97, num_edges: int = 400, seed: int = 0) -> Snapshot:
    """Directed, with hubs; the last node has no edge."""
    return power_law(num_nodes, num_edges, seed=seed)


def masks_of(snapshot: Snapshot) -> list[Any]:
    """To train on (nearly all of them low ids), to choose by, and to test on."""
    train = skewed(snapshot)
    rest = np.flatnonzero(~train)
    val, test = np.zeros_like(train), np.zeros_like(train)
    val[rest[::3]], test[rest[1::3]] = True, True
    return [train, val, test]


def owned(num_nodes: int, size: int, how: str = "uneven") -> Ownership:
    """Nodes dealt out: unevenly at random, or all to the last rank."""
    if how == "last":
        return Ownership.of(np.full(num_nodes, size - 1), size)
    share = np.arange(1, size + 1) / np.arange(1, size + 1).sum()
    return Ownership.of(np.random.default_rng(7).choice(size, num_nodes, p=share), size)


def part_of(comm: Comm, snapshot: Snapshot, how: str = "uneven") -> Part:
    ownership = owned(snapshot.num_nodes, comm.size, how)
    return Part.of(snapshot, masks_of(snapshot), ownership, comm.rank)


def trained(comm: Comm, settings: LazySettings, how: str = "uneven") -> LazyTrainer:
    trainer = LazyTrainer(part_of(comm, graph(), how), settings, comm)
    trainer.train()
    return trainer


def summed(comm: Comm, value: float) -> float:
    return float(sum(comm.gather_objects(value, "test")))


def whole(comm: Comm, trainer: LazyTrainer | EndToEnd) -> torch.Tensor:
    """What is predicted for all nodes, on every rank."""
    ownership = trainer.part.ownership
    stacked = comm.all_gather_rows(trainer.predict(), ownership.sizes, "test")
    found = torch.empty_like(stacked)
    found[torch.from_numpy(ownership.order)] = stacked
    return found


@dataclass(frozen=True)
class Letter:
    """What one rank sent to another."""

    purpose: str
    to: int
    data: bytes

    def holds(self, values: np.ndarray[Any, Any]) -> bool:
        """Whether one of the values is in it, as it is or in another of the usual types."""
        for dtype in (np.float64, np.int64, np.float32, np.int32):
            size = np.dtype(dtype).itemsize
            numbers = np.frombuffer(self.data[: len(self.data) // size * size], dtype)
            if np.isin(numbers, values.astype(dtype)).any():
                return True
        return False


@contextmanager
def opened(comm: Comm) -> Iterator[list[Letter]]:
    """All that this rank sends to others, where it goes over to MPI or torch."""
    letters: list[Letter] = []
    scatter, start, gather = comm._scatter, comm._start_exchange, comm._gather
    within: list[bool] = []  # one of the two may call the other

    def note(label: str, to: int, data: torch.Tensor) -> None:
        if to != comm.rank:
            letters.append(Letter(label.split("`")[1], to, data.numpy().tobytes()))

    def spied(act: Callable[..., Any]) -> Callable[..., Any]:
        def spy(out: torch.Tensor, sent: list[int], *rest: Any) -> Any:
            if not within:
                for to, data in enumerate(torch.split(out, sent)):
                    note(rest[-1], to, data)
            within.append(True)
            try:
                return act(out, sent, *rest)
            finally:
                within.pop()

        return spy

    def spied_gather(own: torch.Tensor, out: torch.Tensor, counts: list[int], label: str) -> None:
        for to in range(comm.size):
            note(label, to, own)
        gather(own, out, counts, label)

    spies = {"_scatter": spied(scatter), "_start_exchange": spied(start)}
    vars(comm).update(spies, _gather=spied_gather)
    try:
        yield letters
    finally:
        for name in (*spies, "_gather"):
            del vars(comm)[name]


# 1, 2, 3


def exchanges_rows_once_a_stage_whatever_the_rounds(comm: Comm) -> None:
    for payload, rounds in ((PAYLOADS[0], 5), *((payload, 2) for payload in PAYLOADS)):
        trainer = trained(comm, replace(SMALL, payload=payload, rounds=rounds, hops=3))
        calls = trainer.gate.calls
        assert calls["feature"] + calls["embed"] == 3
        assert calls["feature"] == (payload == "raw+hidden")
        assert calls["grad"] == rounds * len(trainer.stages)


def sends_no_row_inside_the_rounds(comm: Comm) -> None:
    for payload in PAYLOADS:
        trainer = LazyTrainer(part_of(comm, graph()), replace(SMALL, payload=payload), comm)
        for stage in range(len(trainer.stages)):
            start = len(trainer.gate.phases)
            trainer.train_stage(stage)
            found = [phase.purpose for phase in trainer.gate.phases[start:]]
            first = found.index("weights")
            assert found[:first] in ([], ["feature"], ["embed"])
            assert set(found[first + 1 :]) == {"grad", "metric"}


def sends_no_gradient_of_a_row(comm: Comm) -> None:
    lazy = trained(comm, SMALL)
    twin = EndToEnd(part_of(comm, graph()), SMALL, comm)
    twin.train()
    assert lazy.gate.everyones_bytes()["embed gradient"] == 0
    assert lazy.gate.calls["embed gradient"] == 0
    assert (twin.gate.everyones_bytes()["embed gradient"] > 0) == (comm.size > 1)
    with pytest.raises(ValueError, match="gradients of rows do not leave a rank with 'raw"):
        lazy.gate.row_gradients(torch.zeros(len(lazy.part.boundary.halo), 8).double())


# 4, 5


def keeps_books_that_equal_the_formulas(comm: Comm) -> dict[str, int]:
    report: dict[str, int] = {}
    base = graph()
    pairs = 0  # the slow way
    ownership = owned(base.num_nodes, comm.size)
    for rank in range(comm.size):
        rows = base.adjacency.take_rows(ownership.rows[rank]).indices
        pairs += int((ownership.owner[np.unique(rows)] != rank).sum())
    for kind, payload in product(KINDS, PAYLOADS):
        double = payload != "hidden"
        settings = replace(SMALL, kind=kind, payload=payload, double=double, every=2)
        trainer = trained(comm, settings)
        found = trainer.gate.everyones_bytes()
        assert found == lazy_bytes(replace(trainer.shape, boundary_rows=pairs))
        assert sum(comm.gather_objects(len(trainer.part.boundary.given), "test")) == pairs
        report[f"{kind} {payload}"] = found["feature"] + found["embed"]
    for kind in KINDS:
        twin = EndToEnd(part_of(comm, base), replace(SMALL, kind=kind, every=2), comm)
        twin.train()
        twin.predict()
        expected = end_to_end_bytes(replace(twin.shape, boundary_rows=pairs))
        assert twin.gate.everyones_bytes() == expected
    return report


def saves_what_the_ratio_says(comm: Comm) -> float:
    lazy, twin = trained(comm, SMALL), EndToEnd(part_of(comm, graph()), SMALL, comm)
    twin.train()
    twin.predict()
    rows = ("feature", "embed", "embed gradient")
    ours, theirs = (sum(t.gate.everyones_bytes()[r] for r in rows) for t in (lazy, twin))
    pairs = summed(comm, len(lazy.part.boundary.given))
    evaluating = (len(twin.history.accuracies) + 1) * pairs * 8 * 8
    expected = traffic_ratio(9, [8], SMALL.rounds)
    assert theirs - evaluating == pytest.approx(expected * ours, rel=1e-12)
    assert comm.size == 1 or ours > 0
    return expected


# 6, 7


def learns_the_same_as_one_rank(comm: Comm) -> float:
    """Loss curves and predictions of every kind and payload, dropout included; and of the twin."""
    worst = 0.0
    for (kind, payload), share in (*product(WAYS, [0.5]), (WAYS[0], 0.0)):
        settings = replace(SMALL, kind=kind, payload=payload, dropout=share, rounds=6)
        ours = trained(comm, settings)
        found = whole(comm, ours)
        if comm.rank > 0:
            continue  # all ranks have the same, and one compares
        alone = trained(ALONE, settings)
        for stage, history in alone.histories.items():
            off = np.abs(np.subtract(ours.histories[stage].losses, history.losses)).max()
            assert off < 1e-9, (kind, payload, share, stage, off)
            assert ours.histories[stage].accuracies == history.accuracies
            assert ours.histories[stage].best == history.best
            worst = max(worst, float(off))
        torch.testing.assert_close(found, alone.predict(), rtol=0, atol=1e-9)
    for kind in KINDS:
        settings = replace(SMALL, kind=kind)
        twins = [EndToEnd(part_of(c, graph()), settings, c) for c in (comm, ALONE)]
        histories = [twin.train() for twin in twins]
        assert np.abs(np.subtract(histories[0].losses, histories[1].losses)).max() < 1e-9
        torch.testing.assert_close(whole(comm, twins[0]), twins[1].predict(), rtol=0, atol=1e-9)
    return worst


def sums_the_gradient_of_the_mean_over_all_nodes(comm: Comm) -> None:
    for kind in KINDS:
        settings = replace(SMALL, kind=kind, hops=1)
        found = []
        for ranks in (comm, ALONE):
            trainer = LazyTrainer(part_of(ranks, graph()), settings, ranks)
            inputs, module = trainer._fetch(0), trainer.stages[0]
            rows = np.flatnonzero(trainer.part.train)
            scores = module(inputs.take(rows), dropout(0.5, 3, 0, 0))
            labels = torch.from_numpy(trainer.part.labels[rows])
            loss_of(scores, labels, trainer.sizes[0]).backward()  # type: ignore[no-untyped-call]
            flat = flat_gradients([module])
            found.append(trainer.gate.gradients(flat, len(flat)))
        assert float((found[0] - found[1]).norm() / found[1].norm()) < 1e-12
        # the mean of means would be another one: nearly all training nodes have a low id
        assert float(found[1].norm()) > 1e-3


# 8


def copes_with_ranks_that_have_nothing(comm: Comm) -> None:
    """All nodes on the last rank; fewer nodes than ranks; ranks without an edge between them."""
    for kind in KINDS:
        settings = replace(SMALL, kind=kind)
        lazy = trained(comm, settings, "last")
        twin = EndToEnd(part_of(comm, graph(), "last"), settings, comm)
        twin.train()
        alone = EndToEnd(part_of(ALONE, graph()), settings)
        alone.train()
        expected = trained(ALONE, settings).predict()
        torch.testing.assert_close(whole(comm, lazy), expected, rtol=0, atol=1e-9)
        torch.testing.assert_close(whole(comm, twin), alone.predict(), rtol=0, atol=1e-9)
        assert lazy.gate.everyones_bytes()["embed"] == 0
        few = Snapshot(
            SparseMatrix.from_edges([0, 1], [1, 0], 2),
            np.eye(2, 9, dtype=np.float32),
            np.array([0, 1]),
        )
        both = [np.ones(2, bool)] * 3
        found = []
        for ranks in (comm, ALONE):
            part = Part.of(few, both, Ownership.round_robin(2, ranks.size), ranks.rank)
            for trainer in (LazyTrainer(part, settings, ranks), EndToEnd(part, settings, ranks)):
                trainer.train()
                found.append(whole(ranks, trainer))
        torch.testing.assert_close(found[0], found[2], rtol=0, atol=1e-9)
        torch.testing.assert_close(found[1], found[3], rtol=0, atol=1e-9)
    apart = Snapshot(  # each rank's nodes among themselves
        SparseMatrix.from_edges(range(comm.size), range(comm.size), comm.size),
        np.random.default_rng(0).normal(size=(comm.size, 9)).astype(np.float32),
        np.arange(comm.size) % 2,
    )
    everyone = [np.ones(comm.size, bool)] * 3
    part = Part.of(apart, everyone, Ownership.round_robin(comm.size, comm.size), comm.rank)
    trainer = LazyTrainer(part, SMALL, comm)
    trainer.train()
    assert trainer.gate.everyones_bytes()["feature"] == 0
    assert torch.isfinite(trainer.predict()).all()


# 9, 10, 11


def takes_halo_rows_as_constants(comm: Comm) -> None:
    for kind in KINDS:
        settings = replace(SMALL, kind=kind)
        expected = trained(comm, settings)

        class Meddling(LazyTrainer):
            """Spoils the halo once the stage has begun."""

            def exchange(self, stage: int, own: torch.Tensor) -> torch.Tensor:
                self.last = super().exchange(stage, own)
                assert not self.last.requires_grad and not own.requires_grad
                return self.last

            def _rounds(self, *given: Any) -> Any:
                self.last.fill_(float("nan"))
                return super()._rounds(*given)

        trainer = Meddling(part_of(comm, graph()), settings, comm)
        trainer.train()
        assert torch.equal(trainer.predict(), expected.predict())
        assert not trainer.predict().requires_grad


def freezes_a_stage_before_the_next(comm: Comm) -> None:
    for payload in PAYLOADS:
        trainer = LazyTrainer(part_of(comm, graph()), replace(SMALL, payload=payload), comm)
        kept: list[torch.Tensor] = []
        for stage in range(len(trainer.stages)):
            before = [flat_weights(module) for module in trainer.stages]
            trainer.train_stage(stage)
            after = [flat_weights(module) for module in trainer.stages]
            for other, (a, b) in enumerate(zip(before, after, strict=True)):
                assert torch.equal(a, b) == (other != stage)
            kept.append(after[stage])
            assert not any(p.requires_grad for p in trainer.stages[stage].parameters())
        everyones = comm.gather_objects([flat.tolist() for flat in kept], "test")
        assert all(other == everyones[0] for other in everyones)  # bit for bit


def sends_the_width_of_the_payload(comm: Comm) -> None:
    """And keeps no auxiliary classifier, unless its scores are what is sent."""
    for payload in PAYLOADS:
        trainer = trained(comm, replace(SMALL, payload=payload))
        pairs = summed(comm, len(trainer.part.boundary.given))
        crossings = 1 if payload == "raw+hidden" else 2
        width = 7 if payload == "logits" else 8
        assert trainer.gate.everyones_bytes()["embed"] == 8 * pairs * crossings * width
        names = [name for stage in trainer.inference for name in stage]
        assert any(name.startswith("head.") for name in names) == (payload == "logits")


# 12, 13


def aggregates_by_degrees_in_the_whole_graph(comm: Comm) -> float:
    base, worst = graph(), 0.0
    x = np.random.default_rng(1).normal(size=(base.num_nodes, 5))
    trainer = LazyTrainer(part_of(comm, base), SMALL, comm)
    own = x[trainer.part.own]
    boundary = trainer.part.boundary
    halo = comm.all_to_all_rows(
        torch.from_numpy(own[boundary.given]), boundary.sent, boundary.received, "test"
    )
    full = np.concatenate((own, halo.numpy()))
    assert np.array_equal(full, x[trainer.graph.nodes])
    for ours, how in ((trainer.graph.gcn, "gcn"), (trainer.graph.mean, "mean")):
        expected = base.matrix(how).dense() @ x  # type: ignore[arg-type]
        off = np.abs(ours.dense() @ full - expected[trainer.part.own]).max(initial=0)
        assert off < 1e-12
        worst = max(worst, float(off))
    looped = trainer.graph.looped.dense()
    whole_loops = base.matrix("loops").dense()
    assert np.array_equal(looped, whole_loops[trainer.part.own][:, trainer.graph.nodes])
    return worst


def gives_lonely_nodes_an_output(comm: Comm) -> None:
    lonely = graph().num_nodes - 1
    for kind, payload in WAYS:
        trainer = trained(comm, replace(SMALL, kind=kind, payload=payload))
        found = whole(comm, trainer)[lonely]
        assert torch.isfinite(found).all() and (found != 0).any()


# 14, 15, 16


def lets_no_interior_feature_out(comm: Comm) -> None:
    """Numbers that stand nowhere else are planted; the same search finds those that may leave."""
    base = graph()
    assert base.features is not None
    ownership = owned(base.num_nodes, comm.size)
    marked = base.features.copy()
    # eighths, so that they are the same in every type
    marks = 7_000 + np.arange(marked.size).reshape(marked.shape) / 8
    marked[:] = marks
    snapshot = Snapshot(base.adjacency, marked.astype(np.float32), base.target)
    for kind, payload in WAYS:
        part = Part.of(snapshot, masks_of(base), ownership, comm.rank)
        boundary = np.zeros(len(part.own), bool)
        boundary[part.boundary.given] = True
        with opened(comm) as letters:
            trainer = LazyTrainer(part, replace(SMALL, kind=kind, payload=payload), comm)
            trainer.train()
            trainer.accuracy(part.test)
        own = marks[part.own]
        assert not any(letter.holds(own[~boundary]) for letter in letters)
        leaves = any(letter.holds(own[boundary]) for letter in letters)
        assert leaves == (payload == "raw+hidden" and bool(boundary.any()))
        purposes = {letter.purpose for letter in letters}
        assert purposes <= set(PURPOSES)
        assert payload == "raw+hidden" or "feature" not in purposes


def gives_each_boundary_row_to_a_rank_once(comm: Comm) -> None:
    base = graph()
    assert base.features is not None
    named = base.features.copy()
    named[:, 0] = np.arange(base.num_nodes)  # a row says whose it is
    snapshot = Snapshot(base.adjacency, named, base.target)
    ownership = owned(base.num_nodes, comm.size)
    part = Part.of(snapshot, masks_of(base), ownership, comm.rank)
    with opened(comm) as letters:
        LazyTrainer(part, SMALL, comm).train()
    dense = base.adjacency.dense() != 0
    for to in range(comm.size):
        rows = [
            np.frombuffer(letter.data, np.float64).reshape(-1, 9)[:, 0]
            for letter in letters
            if letter.purpose == "feature" and letter.to == to
        ]
        nodes = sorted(int(node) for node in np.concatenate(rows)) if rows else []
        needed = np.flatnonzero(dense[ownership.rows[to]].any(0))
        mine = [int(v) for v in needed if ownership.owner[v] == comm.rank and to != comm.rank]
        assert nodes == mine


def lets_no_label_and_no_mask_out(comm: Comm) -> None:
    """Labels that stand for nothing else are searched for; and with learning rate 0 everything but
    sums and weights that follow from them is the same whatever the labels and the masks."""
    base = graph()
    assert base.target is not None
    random = np.random.default_rng(5)
    strange = 2_000 + np.arange(base.num_nodes)  # classes, none twice
    snapshot = Snapshot(base.adjacency, base.features, strange)
    ownership = owned(base.num_nodes, comm.size)
    for payload in PAYLOADS:
        part = Part.of(snapshot, masks_of(base), ownership, comm.rank)
        with opened(comm) as letters:
            LazyTrainer(part, replace(SMALL, payload=payload, rounds=1), comm).train()
        own = strange[part.own]
        assert not any(letter.holds(own) for letter in letters)
    still = replace(SMALL, learning_rate=0.0)
    for kind, payload in WAYS:
        seen = []
        for turn in range(2):
            masks = masks_of(base) if turn == 0 else [random.random(97) < 0.5 for _ in "123"]
            labels = base.target if turn == 0 else random.permutation(base.target)
            other = Snapshot(base.adjacency, base.features, labels)
            part = Part.of(other, masks, ownership, comm.rank)
            with opened(comm) as letters:
                LazyTrainer(part, replace(still, kind=kind, payload=payload), comm).train()
            seen.append([x for x in letters if x.purpose not in ("grad", "metric", "control")])
            assert all(len(x.data) <= 8 * 3 for x in letters if x.purpose in ("metric", "control"))
        assert seen[0] == seen[1]


def stops_what_is_not_allowed(comm: Comm) -> None:
    """At the door, before anything is sent."""
    base = graph()
    part = part_of(comm, base)
    gate = LazyTrainer(part, SMALL, comm).gate
    closed = LazyTrainer(part, replace(SMALL, payload="logits"), comm).gate
    before = {name: traffic.sent for name, traffic in comm.bytes.items()}
    values = torch.zeros(len(part.own), 3, dtype=torch.float64)
    to = (comm.rank + 1) % comm.size
    inside = sorted(set(range(len(part.own))) - set(part.boundary.given_to(to).tolist()))
    counts = [int(rank == to) for rank in range(comm.size)]
    if inside:
        with pytest.raises(ValueError, match=f"has no edge to rank {to}: its row must not leave"):
            gate.some_rows(values, np.array(inside[:1]), counts, counts, "embed")
    with pytest.raises(ValueError, match="`purpose` must be one of embed for rows with 'logits'"):
        closed.rows(values, "feature")
    with pytest.raises(ValueError, match="`purpose` must be one of feature, embed for rows"):
        gate.rows(values, "labels")
    with pytest.raises(ValueError, match=r"`embed` must be torch.float64: got torch.int64"):
        gate.rows(values.long(), "embed")
    with pytest.raises(ValueError, match=r"`metric` must be torch.float64: got torch.bool"):
        gate.metrics(torch.from_numpy(part.train))
    with pytest.raises(ValueError, match="a metric is 8 numbers at most"):
        gate.metrics(torch.zeros(9, dtype=torch.float64))
    with pytest.raises(ValueError, match="must be constants: got values with a gradient"):
        gate.rows(values.requires_grad_(), "embed")
    with pytest.raises(ValueError, match="must be a gradient of 5 parameters"):
        gate.gradients(torch.zeros(6, dtype=torch.float64), 5)
    after = {name: traffic.sent for name, traffic in comm.bytes.items()}
    assert before == after


def notices_an_edge_that_one_end_does_not_know(comm: Comm) -> None:
    """Without it a rank could be asked for rows that are none of the other's business."""
    base = graph()
    part = part_of(comm, base)
    if comm.size == 1 or not len(part.boundary.given):
        return
    keep = part.away_src != part.own[part.boundary.given[0]]
    blind = replace(part, away_src=part.away_src[keep], away_dst=part.away_dst[keep])
    with pytest.raises(ValueError, match="an edge must be known to the owners of both"):
        LazyTrainer(blind, SMALL, comm)


# 19


def snapshots(count: int = 4, *, start: int = 0) -> list[Snapshot]:
    """A graph that changes a little from one to the next, in edges and features."""
    base = graph()
    assert base.features is not None
    src, dst = base.adjacency.indices.astype(np.int64), base.adjacency.row_of
    found = []
    for step in range(start, start + count):
        random = np.random.default_rng(100 + step)
        features = base.features.copy()
        for earlier in range(step + 1):
            some = np.random.default_rng(earlier).integers(0, 97, 3)
            features[some] += np.float32(earlier)
        more = random.integers(0, 96, (2, 4))
        kept = np.arange(len(src)) % 50 != step
        ends = np.concatenate((src[kept], more[0])), np.concatenate((dst[kept], more[1]))
        found.append(Snapshot(SparseMatrix.from_edges(*ends, 97), features, base.target))
    return found


def parts_of(comm: Comm, graphs: list[Snapshot]) -> list[Part]:
    return [part_of(comm, snapshot) for snapshot in graphs]


def pairs_of(part: Part) -> list[tuple[int, int, int]]:
    """To which rank, which row of a window, of which node."""
    width = part.ownership.num_nodes // part.snapshots
    pairs = []
    for to in range(part.ownership.size):
        for row in part.own[part.boundary.given_to(to)].tolist():
            pairs.append((to, row, row % width))
    return pairs


def exchanges_once_a_stage_for_a_whole_window(comm: Comm) -> None:
    for kind in KINDS:
        graphs = snapshots()
        settings = replace(SMALL, kind=kind)
        part = Part.of_window(parts_of(comm, graphs))
        trainer = LazyTrainer(part, settings, comm)
        trainer.train()
        assert trainer.gate.calls["feature"] + trainer.gate.calls["embed"] == 2
        found = trainer.gate.everyones_bytes()
        apart = sum(len(one.boundary.given) for one in parts_of(comm, graphs))
        pairs = int(summed(comm, apart))
        assert found["feature"] == 8 * pairs * 9 and found["embed"] == 8 * pairs * 8
        assert found == lazy_bytes(replace(trainer.shape, boundary_rows=pairs))
        alone = LazyTrainer(Part.of_window(parts_of(ALONE, graphs)), settings)
        alone.train()
        torch.testing.assert_close(whole(comm, trainer), alone.predict(), rtol=0, atol=1e-9)


def sends_only_rows_that_are_new_or_changed(comm: Comm) -> dict[str, int]:
    """And learns and predicts the same as if all were sent, bit for bit."""
    report: dict[str, int] = {}
    for kind in KINDS:
        graphs = snapshots()
        settings = replace(SMALL, kind=kind)
        part = Part.of_window(parts_of(comm, graphs))
        full, delta = LazyTrainer(part, settings, comm), DeltaHalo()
        lean = LazyTrainer(part, settings, comm, delta=delta)
        for trainer in (full, lean):
            trainer.train()
        assert torch.equal(full.predict(), lean.predict())
        known: dict[tuple[int, int], bytes] = {}  # the slow way
        changed = 0
        place = {row: at for at, row in enumerate(part.own.tolist())}
        for to, row, node in pairs_of(part):
            now = part.features[place[row]].tobytes()
            changed += known.get((to, node)) != now
            known[to, node] = now
        ours, theirs = lean.gate.everyones_bytes(), full.gate.everyones_bytes()
        assert delta.sent_rows[0] == changed
        assert ours["feature"] == 8 * 9 * summed(comm, changed)
        assert ours["embed"] <= theirs["embed"]
        assert comm.size == 1 or ours["feature"] < 0.6 * theirs["feature"]
        report[kind] = ours["feature"]
    return report


def predicts_a_new_snapshot_from_what_has_changed(comm: Comm) -> None:
    """With frozen weights, exactly; and no more rows than lie within reach of a change."""
    old, new = snapshots(2)
    for kind in KINDS:
        settings = replace(SMALL, kind=kind, hops=3)
        windows = LazyWindows(settings, comm, drift=Drift(tolerance=1e9))
        assert windows.step(parts_of(comm, [old])) == "all"
        assert windows.trainer is not None
        stages = windows.trainer.stages
        before = dict(windows.delta.sent_rows)
        assert windows.step(parts_of(comm, [new])) == "none"
        lean = windows.trainer
        full = LazyTrainer(part_of(comm, new), settings, comm)
        full.adopt(stages)
        assert torch.equal(full.predict(), lean.predict())
        ours, theirs = lean.gate.everyones_bytes(), full.gate.everyones_bytes()
        for purpose in ("feature", "embed"):
            assert ours[purpose] <= theirs[purpose]
        assert comm.size == 1 or ours["feature"] < theirs["feature"]
        if kind != "gcn" or comm.size == 1:
            continue
        # within reach: the slow way, by the matrices written out
        was, now = old.matrix("gcn").dense(), new.matrix("gcn").dense()
        assert old.features is not None and new.features is not None
        reached = (old.features != new.features).any(1)
        first = {(to, node) for to, _, node in pairs_of(part_of(comm, old))}
        pairs = {(to, node) for to, _, node in pairs_of(part_of(comm, new))}
        for stage in range(3):
            allowed = {(to, v) for to, v in pairs if reached[v] or (to, v) not in first}
            assert windows.delta.sent_rows[stage] - before[stage] <= len(allowed)
            reached = (was != now).any(1) | ((now != 0) & reached).any(1) | reached


def trains_the_last_stage_again_without_a_row(comm: Comm) -> None:
    for kind, payload in WAYS:
        settings = replace(SMALL, kind=kind, payload=payload)
        trainer = LazyTrainer(part_of(comm, graph()), settings, comm)
        trainer.train()
        before, weights = dict(trainer.gate.sent), flat_weights(trainer.stages[-1])
        history = trainer.train_stage(len(trainer.stages) - 1, rounds=3)
        assert history.grown and history.rounds == 3
        for purpose in ("setup", "feature", "embed", "embed gradient", "weights"):
            assert trainer.gate.sent[purpose] == before[purpose]
        assert not torch.equal(weights, flat_weights(trainer.stages[-1]))
        trainer.train_stage(0, rounds=2)  # those above are out of date
        with pytest.raises(ValueError, match="`stage` must be at most 1, the next one: got 2"):
            trainer.train_stage(2)
        trainer.train_stage(1)
        assert trainer.gate.calls["embed"] >= 2


def trains_again_when_it_predicts_badly(comm: Comm) -> None:
    base = graph()
    assert base.target is not None
    plain = (4 * np.eye(7, 9)[base.target]).astype(np.float32)
    settings = replace(SMALL, kind="sage", rounds=20, learning_rate=0.1, dropout=0.0)
    windows = LazyWindows(settings, comm, drift=Drift(tolerance=9.0, period=5), top_rounds=30)
    acts = []
    for shift in (0, 0, 3, 3, 3, 3):  # the classes are others from the third window on
        now = Snapshot(base.adjacency, plain, (base.target + shift) % 7)
        acts.append(windows.step(parts_of(comm, [now])))
    assert acts == ["all", "none", "top", "none", "none", "all"]
    everyones = comm.gather_objects(acts, "test")
    assert all(other == acts for other in everyones)


def says_how_far_rows_are_out_of_date(comm: Comm) -> None:
    old, new = snapshots(2)
    rows = {}
    for eps in (0.0, 1e-3, 1e9):
        windows = LazyWindows(SMALL, comm, eps=eps, drift=Drift(tolerance=1e9))
        windows.step(parts_of(comm, [old]))
        windows.step(parts_of(comm, [new]))
        rows[eps] = summed(comm, sum(windows.delta.sent_rows.values()))
        skipped = summed(comm, windows.delta.skipped)
        assert (skipped > 0) == (eps == 1e9 and comm.size > 1) or 0 < eps < 1
        assert skipped == 0 or eps > 0
        left_out = summed(comm, sum(windows.delta.full_rows.values())) - rows[eps]
        assert skipped <= eps * left_out
    assert rows[1e9] <= rows[1e-3] <= rows[0.0]


# over time


def timed(settings: LazySettings = SMALL, **given: Any) -> LazySettings:
    return replace(settings, temporal="gru", **given)


def keeps_a_stage_over_time_to_each_rank(comm: Comm) -> None:
    """No row crosses for it, in its rounds or before, and none if it is trained again."""
    graphs = snapshots()
    pairs = int(summed(comm, sum(len(one.boundary.given) for one in parts_of(comm, graphs))))
    for payload, hops in (("raw+hidden", 2), ("hidden", 1), ("logits", 1)):
        settings = timed(payload=payload, hops=hops)
        trainer = LazyTrainer(Part.of_window(parts_of(comm, graphs)), settings, comm)
        last = len(trainer.stages) - 1
        for stage in range(last):
            trainer.train_stage(stage)
        assert trainer.gate.calls["feature"] + trainer.gate.calls["embed"] == hops
        start = len(trainer.gate.phases)
        trainer.train_stage(last)
        assert {phase.purpose for phase in trainer.gate.phases[start:]} == {
            *("weights", "grad", "metric")
        }
        found = trainer.gate.everyones_bytes()
        assert found == lazy_bytes(replace(trainer.shape, boundary_rows=pairs))
        start = len(trainer.gate.phases)
        trainer.train_stage(last, rounds=2)
        assert {phase.purpose for phase in trainer.gate.phases[start:]} == {"grad", "metric"}


def learns_over_time_the_same_as_one_rank(comm: Comm) -> float:
    graphs, worst = snapshots(), 0.0
    for kind, payload in (WAYS[0], WAYS[1], WAYS[-1]):
        settings = timed(kind=kind, payload=payload)
        ours = LazyTrainer(Part.of_window(parts_of(comm, graphs)), settings, comm)
        ours.train()
        found = whole(comm, ours)
        alone = LazyTrainer(Part.of_window(parts_of(ALONE, graphs)), settings)
        alone.train()
        for stage, history in alone.histories.items():
            off = np.abs(np.subtract(ours.histories[stage].losses, history.losses)).max()
            assert off < 1e-10
            worst = max(worst, float(off))
        torch.testing.assert_close(found, alone.predict(), rtol=0, atol=1e-10)
    twins = []
    for ranks in (comm, ALONE):
        part = Part.of_window(parts_of(ranks, graphs))
        twin = EndToEnd(part, timed(), ranks)
        twins.append((twin.train().losses, whole(ranks, twin)))
    assert np.abs(np.subtract(twins[0][0], twins[1][0])).max() < 1e-10
    torch.testing.assert_close(twins[0][1], twins[1][1], rtol=0, atol=1e-10)
    return worst


# links


def link_window(comm: Comm) -> Part:
    parts = link_parts(snapshots(6), owned(97, comm.size), comm.rank)
    return Part.of_window(parts)


LINKS = replace(SMALL, hidden=6, rounds=2, dropout=0.0)


def learns_links_without_a_row_inside_the_rounds(comm: Comm) -> None:
    """Rows cross once a stage, between the owners of an edge's or an asked link's ends."""
    part = link_window(comm)
    assert part.pairs is not None
    owner, width = part.ownership.owner, part.ownership.num_nodes
    wanted = {(int(owner[v]), int(u)) for u, v in zip(part.away_src, part.away_dst, strict=True)}
    for u, v in zip(part.pairs.src.tolist(), part.pairs.dst.tolist(), strict=True):
        for near, far in ((u, v), (v, u)):
            if owner[near] == comm.rank != owner[far]:
                wanted.add((int(owner[far]), near))
    given = [(to, v) for to in range(comm.size) for v in part.own[part.boundary.given_to(to)]]
    assert len(given) == len(wanted) and set(given) == wanted and width == 5 * 97
    pairs = int(summed(comm, len(given)))
    for kind in KINDS:
        trainer = LazyTrainer(part, timed(LINKS, kind=kind), comm)
        for stage in range(3):
            start = len(trainer.gate.phases)
            trainer.train_stage(stage)
            found = [phase.purpose for phase in trainer.gate.phases[start:]]
            assert found[0] == ("feature", "embed", "weights")[stage]
            assert set(found[found.index("weights") + 1 :]) == {"grad", "metric"}
        assert trainer.gate.calls["feature"] + trainer.gate.calls["embed"] == 2
        assert 0 <= trainer.accuracy("test") <= 1
        heads = [any(name.startswith("head.") for name in kept) for kept in trainer.inference]
        assert heads == [False, False, True]
        found_bytes = trainer.gate.everyones_bytes()
        expected = lazy_bytes(replace(trainer.shape, boundary_rows=pairs))
        for purpose in ("setup", "feature", "embed", "embed gradient", "grad", "weights"):
            assert found_bytes[purpose] == expected[purpose]


def lets_no_interior_feature_of_a_window_out(comm: Comm) -> None:
    """Numbers that stand nowhere else are planted; only ends of edges and of asked links leave."""
    graphs = snapshots(6)
    marks = 7_000 + np.arange(6 * 97 * 9).reshape(6, 97, 9) / 8
    marked = [replace(g, features=m.astype(np.float32)) for g, m in zip(graphs, marks, strict=True)]
    part = Part.of_window(link_parts(marked, owned(97, comm.size), comm.rank))
    boundary = np.zeros(len(part.own), bool)
    boundary[part.boundary.given] = True
    with opened(comm) as letters:
        trainer = LazyTrainer(part, timed(LINKS), comm)
        trainer.train()
        trainer.accuracy("test")
    own = marks[:5].reshape(-1, 9)[part.own]
    assert not any(letter.holds(own[~boundary]) for letter in letters)
    assert any(letter.holds(own[boundary]) for letter in letters) == bool(boundary.any())
    assert {letter.purpose for letter in letters} <= set(PURPOSES)


def learns_from_links_what_one_rank_learns(comm: Comm) -> float:
    """Without negatives, which depend on who has what: each owner's half weighs a half."""
    worst = 0.0
    for kind in KINDS:
        settings = timed(LINKS, kind=kind, per_link=0, dropout=0.3)
        ours = LazyTrainer(link_window(comm), settings, comm)
        alone = LazyTrainer(link_window(ALONE), settings)
        assert ours.sizes == alone.sizes
        for trainer in (ours, alone):
            trainer.train()
        for stage, history in alone.histories.items():
            off = np.abs(np.subtract(ours.histories[stage].losses, history.losses)).max()
            assert off < 1e-10
            worst = max(worst, float(off))
        order = torch.from_numpy(ours.part.own)
        torch.testing.assert_close(ours.embed(), alone.embed()[order], rtol=0, atol=1e-9)
    settings = timed(LINKS, per_link=0)
    both = [LazyWindows(settings, ranks, drift=Drift(tolerance=1e9)) for ranks in (comm, ALONE)]
    for start, act in ((0, "all"), (1, "none")):  # a window later
        for windows in both:
            graphs, ownership = snapshots(5, start=start), owned(97, windows.comm.size)
            assert windows.step(link_parts(graphs, ownership, windows.comm.rank)) == act
        ours, alone = (windows.trainer for windows in both)  # type: ignore[assignment]
        assert ours.gate.calls["feature"] + ours.gate.calls["embed"] == 2
        assert abs(ours.loss() - alone.loss()) < 1e-10
    return worst


def sums_the_gradient_of_the_plain_loss_of_links(comm: Comm) -> float:
    """Pair by pair, from the whole graph, with what each rank may draw from; and sums them."""
    worst = 0.0
    for negatives in ("local", "global"):
        settings = replace(LINKS, negatives=negatives, per_link=2)
        trainer = LazyTrainer(link_window(comm), settings, comm)
        trainer._inputs.append(trainer._fetch(0))
        module = trainer.stages[0]
        loss = trainer.goal.lesson(trainer._view(0)).loss(5)
        loss.backward()  # type: ignore[no-untyped-call]
        own = flat_gradients([module])
        module.zero_grad()
        expected = plain_link_loss(module, comm, settings, turn=5)
        expected.backward()  # type: ignore[no-untyped-call]
        off = float((own - flat_gradients([module])).abs().max())
        assert off < 1e-12 and abs(float(loss.detach()) - float(expected.detach())) < 1e-12
        total = trainer.gate.gradients(own, len(own))
        everyones = np.array(comm.gather_objects(own.tolist(), "test")).sum(0)
        torch.testing.assert_close(total, torch.from_numpy(everyones), rtol=0, atol=1e-12)
        assert float(total.norm()) > 1e-3
        worst = max(worst, off)
    return worst


def plain_link_loss(
    module: Stage, comm: Comm, settings: LazySettings, *, turn: int
) -> torch.Tensor:
    """The slow way, for a first GCN stage."""
    graphs, owner = snapshots(6), owned(97, comm.size).owner
    own = {v for v in range(97) if owner[v] == comm.rank}
    head = module.head
    assert isinstance(head, PairHead)
    edges = [{(u, v) for v, u in np.argwhere(g.adjacency.dense() != 0).tolist()} for g in graphs]
    losses: list[torch.Tensor] = [head.bias[0] * 0]
    count = 0
    for step in range(3):  # of five, the last two are to choose by and to test on
        features = graphs[step].features
        assert features is not None
        x = torch.from_numpy(features).double()
        mixed = torch.from_numpy(graphs[step].matrix("gcn").dense()) @ x
        h = torch.relu(module.norm(module.conv(mixed)))  # type: ignore[misc]
        of_source, from_target = head.source(h), head.from_target(x)
        of_target, from_source = head.target(h), head.from_source(x)
        before = {edge for earlier in edges[: step + 1] for edge in earlier}
        known = {v for _, v in before}
        asked = {(u, v) for u, v in edges[step + 1] if v in known}
        count += len(asked)
        touched = {(u, v) for u, v in asked if u in own or v in own}
        told = {v for u, v in before if u in own or v in own} | {v for _, v in touched}
        there = own | {u for u, v in edges[step] if v in own}
        there |= {end for pair in touched for end in pair}
        for name, place in (("source", 0), ("target", 1)):
            pool = sorted(told & (there if place == 0 else own))
            rows: list[tuple[int, int, float, int]] = []
            for u, v in touched:
                if (u, v)[place] in own:
                    drawn = draw_slowly(settings, turn, name, step, u, v, pool, asked)
                    rows += [(u, v, 1.0, -1), *((u, w, weight, 1) for w, weight in drawn)]
            if rows:
                table = torch.from_numpy(np.array(rows, np.float64))
                us, ws, weights, signs = table[:, 0].long(), table[:, 1].long(), *table.T[2:]
                near, far = (of_source, from_target) if place == 0 else (from_source, of_target)
                score = signs * ((near[us] * far[ws]).sum(1) / 6**0.5 + head.bias)
                losses.append((0.5 * weights * torch.nn.functional.softplus(score)).sum())
    return torch.stack(losses).sum() / count / (1 + settings.per_link)


def draw_slowly(
    settings: LazySettings,
    turn: int,
    end: str,
    step: int,
    u: int,
    v: int,
    pool: list[int],
    asked: set[tuple[int, int]],
) -> list[tuple[int, float]]:
    key = np.array([(step * 97 + u) * 5 * 97 + step * 97 + v])
    found = []
    for column in range(settings.per_link):
        for again in range(8 if settings.negatives == "local" else 1):
            if not pool:
                break
            name = f"negatives 0 {turn} {end} {again}"
            share = float(uniform(settings.seed, name, key, settings.per_link)[0, column])
            if settings.negatives == "local":
                w, weight = pool[int(share * len(pool))], 1.0
            else:
                w, weight = int(share * 97), 97 / len(pool)
            if w != u and (u, w) not in asked and w in pool:
                found.append((w, weight))
                break
    return found


def uses_negatives_that_one_rank_uses(comm: Comm) -> int:
    """If they are drawn from all nodes; fewer, as rows that are elsewhere stay there."""
    everyone = []
    for ranks in (comm, ALONE):
        settings = replace(LINKS, negatives="global", per_link=4)
        trainer = LazyTrainer(link_window(ranks), settings, ranks)
        goal = trainer.goal
        assert isinstance(goal, Links)
        found = []
        for half in goal.halves["train"]:
            drawn = goal.draw(half, "negatives 0 0")
            row, column = np.nonzero(drawn.weight)
            nodes = trainer.graph.nodes[drawn.place[row, column]]
            ends = np.full(len(row), half.of_source), half.src[row], half.dst[row], column, nodes
            found += np.stack(ends, 1).tolist()
        lists = ranks.gather_objects(found, "test")
        everyone.append([tuple(one) for part in lists for one in part])
    ours, alone = everyone
    assert len(set(ours)) == len(ours) and set(ours) <= set(alone)
    assert (len(ours) < len(alone)) == (comm.size > 1)
    return len(ours)


def scores_a_pair_by_what_its_ends_say(comm: Comm) -> None:
    part = link_window(comm)
    trainer = LazyTrainer(part, timed(LINKS, per_link=0), comm)
    alone = LazyTrainer(link_window(ALONE), timed(LINKS, per_link=0))
    for one in (trainer, alone):
        one.train()
    assert part.pairs is not None and isinstance(alone.goal, Links)
    owner = part.ownership.owner
    inside = (owner[part.pairs.src] == comm.rank) & (owner[part.pairs.dst] == comm.rank)
    found = trainer.score(part.pairs.src, part.pairs.dst)
    expected = alone.score(part.pairs.src, part.pairs.dst)
    whole_pairs = torch.from_numpy(inside)
    torch.testing.assert_close(found[whole_pairs], expected[whole_pairs], rtol=0, atol=1e-9)
    strangers = sorted(set(range(97)) - set(trainer.graph.nodes.tolist()))
    if len(strangers) and len(part.own):
        with pytest.raises(ValueError, match="must have an own end and the other at hand"):
            trainer.score(part.own[:1], np.array(strangers[:1]))


# late ranks


def goes_on_with_the_last_rows_of_late_ranks(comm: Comm) -> dict[str, int]:
    """As if they were put in by hand; they are counted, and are no saving."""
    if comm.size == 1:
        return {}
    slow = comm.size - 1
    old, new, newer = ([one] for one in snapshots(3))
    report: dict[str, int] = {}
    seen: dict[int, dict[int, torch.Tensor]] = {0: {}, 1: {}}  # by stage and node

    class Watched(LazyTrainer):
        def exchange(self, stage: int, own: torch.Tensor) -> torch.Tensor:
            found = super().exchange(stage, own)
            for node, row in zip(self.part.boundary.halo.tolist(), found, strict=True):
                seen[stage][node] = row.clone()
            return found

    class ByHand(LazyTrainer):
        def exchange(self, stage: int, own: torch.Tensor) -> torch.Tensor:
            found = super().exchange(stage, own)
            for place, node in enumerate(self.part.boundary.halo.tolist()):
                if self.part.ownership.owner[node] == slow:
                    last = seen[stage].get(node)
                    found[place] = 0 if last is None else last
            return found

    for kind in KINDS:
        settings = replace(SMALL, kind=kind)
        for known in seen.values():
            known.clear()
        windows = LazyWindows(settings, comm, drift=Drift(tolerance=1e9))
        windows.step(parts_of(comm, old))
        assert windows.trainer is not None and not windows.trainer.stale
        stages = windows.trainer.stages
        before = Watched(part_of(comm, old[0]), settings, comm)
        before.adopt(stages)
        full, sent = dict(windows.delta.full_rows), dict(windows.delta.sent_rows)
        windows.step(parts_of(comm, new), late={slow})
        ours = windows.trainer
        by_hand = ByHand(part_of(comm, new[0]), settings, comm)
        by_hand.adopt(stages)
        assert torch.equal(ours.predict(), by_hand.predict())
        right = LazyTrainer(part_of(comm, new[0]), settings, comm)
        right.adopt(stages)
        off = [not torch.equal(ours.predict(), right.predict())]
        assert any(comm.gather_objects(off, "test"))
        halo = ours.part.boundary.halo
        lacking = halo[ours.part.ownership.owner[halo] == slow].tolist()
        for stage, width in ((0, 9), (1, 8)):
            never = sum(node not in seen[stage] for node in lacking)
            assert ours.stale[stage] == Stale(len(lacking), never, len(lacking) * width * 8)
        if comm.rank == slow:
            assert ours.gate.sent["feature"] == ours.gate.sent["embed"] == 0
            assert (windows.delta.full_rows, windows.delta.sent_rows) == (full, sent)
        report[kind] = len(lacking)
        windows.step(parts_of(comm, newer))  # in time: what was missed comes now
        assert windows.trainer is not None and not windows.trainer.stale
        caught_up = LazyTrainer(part_of(comm, newer[0]), settings, comm)
        caught_up.adopt(stages)
        assert torch.equal(windows.trainer.predict(), caught_up.predict())
    windows = LazyWindows(SMALL, comm, drift=Drift(period=1))  # trained in every window
    first = Watched(part_of(comm, old[0]), SMALL, comm)
    first.train()
    windows.step(parts_of(comm, old))
    assert windows.step(parts_of(comm, new), late={slow}) == "all"
    by_hand = ByHand(part_of(comm, new[0]), SMALL, comm)
    by_hand.begin_from(first.stages)
    by_hand.train()
    assert windows.trainer is not None
    assert torch.equal(windows.trainer.predict(), by_hand.predict())
    return report


# fewer bytes of gradients


def sends_rounded_gradients_in_fewer_bytes(comm: Comm) -> None:
    """Of another result; the rows that cross stay as they are."""
    exact = trained(comm, replace(SMALL, double=False))
    for rounding in ("bf16", "fp16"):
        ours = trained(comm, replace(SMALL, double=False, rounding=rounding))
        found, plain = ours.gate.everyones_bytes(), exact.gate.everyones_bytes()
        assert found == {name: n // (1 + (name == "grad")) for name, n in plain.items()}
        pairs = int(summed(comm, len(ours.part.boundary.given)))
        assert found == lazy_bytes(replace(ours.shape, boundary_rows=pairs))
        assert ours.gate.calls["grad"] == exact.gate.calls["grad"]
        assert not torch.equal(ours.predict(), exact.predict())
        for stage, history in exact.histories.items():
            close = np.subtract(ours.histories[stage].losses, history.losses)
            assert np.abs(close).max() < 0.05
        weights = [[flat_weights(stage).tolist() for stage in ours.stages]]
        everyones = comm.gather_objects(weights, "test")
        assert all(other == everyones[0] for other in everyones)


def averages_the_weights_of_local_steps(comm: Comm) -> None:
    """A sum every so many rounds; of one step it is plain training, and so it is on one rank."""
    for how in ("uneven", "last"):
        settings = replace(SMALL, rounds=7, every=2, local_steps=2, learning_rate=0.05)
        ours = trained(comm, settings, how)
        assert ours.gate.calls["grad"] == 4 * len(ours.stages)
        pairs = int(summed(comm, len(ours.part.boundary.given)))
        found = ours.gate.everyones_bytes()
        assert found == lazy_bytes(replace(ours.shape, boundary_rows=pairs))
        plain = trained(ALONE, replace(settings, local_steps=1))
        off = (whole(comm, ours) - plain.predict()).abs().max()
        assert (off < 1e-9) == (comm.size == 1 or how == "last")
        assert torch.isfinite(ours.predict()).all()
        weights = [flat_weights(stage).tolist() for stage in ours.stages]
        everyones = comm.gather_objects(weights, "test")
        assert all(other == everyones[0] for other in everyones)


# 20


def takes_longer_on_slower_networks(comm: Comm) -> dict[str, float]:
    lazy, twin = trained(comm, SMALL), EndToEnd(part_of(comm, graph()), SMALL, comm)
    twin.train()
    both = [trainer.gate.everyones_phases() for trainer in (lazy, twin)]
    total = sum(phase.sent for own in both[0] for phase in own)
    assert total == sum(lazy.gate.everyones_bytes().values())
    assert all(isinstance(phase, Phase) for own in both[0] for phase in own)

    def times(latency: float, bandwidth: float) -> tuple[float, float]:
        network = Network(latency, bandwidth)
        return network.seconds(both[0]), network.seconds(both[1])

    if comm.size == 1:
        assert times(1.0, 1.0) == (0, 0)
        return {}
    latencies = [times(latency, 1e6) for latency in (0.0, 1e-3, 1e-1)]
    bandwidths = [times(1e-3, bandwidth) for bandwidth in (1e3, 1e6, 1e9)]
    for which in (0, 1):
        assert sorted(t[which] for t in latencies) == [t[which] for t in latencies]
        falling = [t[which] for t in bandwidths]
        assert falling == sorted(falling, reverse=True) and len(set(falling)) == 3
    gaps = [end - ours for ours, end in bandwidths]
    assert gaps == sorted(gaps, reverse=True) and gaps[0] > gaps[1] > gaps[2]
    return {name: network.seconds(both[0]) for name, network in NETWORKS.items()}


# the twin and the backend


def is_its_twin_when_there_is_one_stage(comm: Comm) -> None:
    for kind in KINDS:
        settings = replace(SMALL, kind=kind, hops=1)
        lazy = trained(comm, settings)
        twin = EndToEnd(part_of(comm, graph()), settings, comm)
        assert lazy.histories[0].losses == twin.train().losses
        assert torch.equal(lazy.predict(), twin.predict())


def is_a_backend_with_constants(comm: Comm) -> None:
    """`apply` is exact forward; backward it knows the block of own rows, and sends nothing."""
    snapshot = graph()
    single = make_propagator("single", [snapshot])
    lazy = make_propagator("lazy", [snapshot], comm)
    own = torch.from_numpy(lazy.own)
    x = torch.from_numpy(np.random.default_rng(2).normal(size=(97, 4)))
    for how in NORMALISATIONS:
        mine = x[own].requires_grad_()
        out = lazy.apply(snapshot, mine, how)
        expected = single.apply(snapshot, x, how)[own]
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
        ones = torch.ones_like(out)
        (back,) = torch.autograd.grad(out, mine, ones)
        block = torch.from_numpy(snapshot.matrix(how).dense())[own][:, own]
        torch.testing.assert_close(back, block.T @ ones)
    before = comm.bytes["constant rows"].calls
    for model in (GCN([9, 8, 7]), SAGE([9, 8, 7]), GAT([9, 8, 7])):
        for parameter in model.parameters():
            parameter.data.fill_(0.1)
        x = torch.from_numpy(snapshot.features)
        ours, _ = model(lazy, snapshot, x[own])
        theirs, _ = model(single, snapshot, x)
        torch.testing.assert_close(ours, theirs[own], rtol=0, atol=1e-5)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
        model.apply(lambda module: getattr(module, "reset_parameters", lambda: None)())
        full = FullGraph(lazy, model, snapshot, skewed(snapshot), optimiser)
        losses = [full.step() for _ in range(10)]
        assert losses[-1] < losses[0]
    assert comm.bytes["constant rows"].calls > before
    assert not any("constant rows," in purpose for purpose in comm.bytes)
    mine = x[own].requires_grad_()
    nodes = np.array([96, 0, 1, 0, 5])
    found = lazy.fetch(mine, nodes)
    assert torch.equal(found.detach(), x[torch.from_numpy(nodes)])
    (back,) = torch.autograd.grad(found.sum(), mine)
    counts = np.bincount(nodes, minlength=97)[lazy.own]
    assert np.array_equal(back[:, 0].numpy(), counts)


PROMISES = (
    exchanges_rows_once_a_stage_whatever_the_rounds,
    sends_no_row_inside_the_rounds,
    sends_no_gradient_of_a_row,
    keeps_books_that_equal_the_formulas,
    saves_what_the_ratio_says,
    learns_the_same_as_one_rank,
    sums_the_gradient_of_the_mean_over_all_nodes,
    copes_with_ranks_that_have_nothing,
    takes_halo_rows_as_constants,
    freezes_a_stage_before_the_next,
    sends_the_width_of_the_payload,
    aggregates_by_degrees_in_the_whole_graph,
    gives_lonely_nodes_an_output,
    lets_no_interior_feature_out,
    gives_each_boundary_row_to_a_rank_once,
    lets_no_label_and_no_mask_out,
    stops_what_is_not_allowed,
    notices_an_edge_that_one_end_does_not_know,
    exchanges_once_a_stage_for_a_whole_window,
    sends_only_rows_that_are_new_or_changed,
    predicts_a_new_snapshot_from_what_has_changed,
    trains_the_last_stage_again_without_a_row,
    trains_again_when_it_predicts_badly,
    says_how_far_rows_are_out_of_date,
    takes_longer_on_slower_networks,
    keeps_a_stage_over_time_to_each_rank,
    learns_over_time_the_same_as_one_rank,
    learns_links_without_a_row_inside_the_rounds,
    lets_no_interior_feature_of_a_window_out,
    learns_from_links_what_one_rank_learns,
    sums_the_gradient_of_the_plain_loss_of_links,
    uses_negatives_that_one_rank_uses,
    scores_a_pair_by_what_its_ends_say,
    goes_on_with_the_last_rows_of_late_ranks,
    sends_rounded_gradients_in_fewer_bytes,
    averages_the_weights_of_local_steps,
    is_its_twin_when_there_is_one_stage,
    is_a_backend_with_constants,
)

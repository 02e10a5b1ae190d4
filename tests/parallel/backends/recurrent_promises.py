"""Recurrent models over changing snapshots: what holds on every backend and number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neutronstream.models.snapshots import (
    EvolveGCNO,
    SnapshotModel,
    State,
    build_snapshot_model,
)
from neutronstream.parallel.backends import BACKENDS, Propagator, make_propagator
from neutronstream.parallel.ranks import ALONE, Comm
from neutronstream.storage import Snapshot, SparseMatrix
from tests.models.snapshots.sequences import changing

MODELS: dict[str, dict[str, Any]] = {
    "gconvgru": {"orders": 3},
    "gconvlstm": {"orders": 2},
    "gclstm": {"orders": 3},
    "evolvegcno": {},
    "evolvegcnh": {},
    "tgcn": {},
    "a3tgcn": {},
    "mpnnlstm": {"dropout": 0.2},
}
WIDTH = 6  # of hidden rows, no multiple of 4 ranks


def names() -> list[str]:
    """The backends that are exact on ranks."""
    return [name for name in BACKENDS if name not in ("single", "lazy", "auto")]


class Window(nn.Module):
    """A model, a head and the snapshots of a window, which is one optimiser step."""

    def __init__(
        self,
        propagator: Propagator,
        model: SnapshotModel,
        snapshots: Sequence[Snapshot],
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.propagator, self.snapshots = propagator, snapshots
        self.model = model
        self.head = nn.Linear(model.width, 1)
        self.to(dtype)
        self.xs = [propagator.inputs(snapshot).to(dtype) for snapshot in snapshots]
        self.optimiser = torch.optim.Adam(self.parameters(), lr=0.01)
        # those that are learned from have low ids, so that a rank may have none
        self.train_nodes = np.arange(snapshots[0].num_nodes) < max(1, snapshots[0].num_nodes // 5)

    def outputs(self, state: State = ()) -> tuple[list[Tensor], State]:
        """(n, 1) a snapshot, and the last state."""
        found = []
        for snapshot, x in zip(self.snapshots, self.xs, strict=True):
            rows, state = self.model(self.propagator, snapshot, x, state)
            found.append(self.head(rows))
        return found, state

    def loss(self, outputs: Sequence[Tensor]) -> Tensor:
        """This rank's part of the mean squared error."""
        mine = self.propagator.local(self.train_nodes)
        total = outputs[0].new_zeros(())
        for snapshot, out in zip(self.snapshots, outputs, strict=True):
            assert snapshot.target is not None
            wanted = self.propagator.local(snapshot.target).to(out.dtype)
            total = total + (out[:, 0] - wanted)[mine].square().sum()
        return total / (len(self.snapshots) * int(self.train_nodes.sum()))

    def backward(self) -> tuple[float, list[Tensor]]:
        """One pass there and back: the loss over all ranks, and the outputs (V, 1) a snapshot."""
        self.optimiser.zero_grad(set_to_none=True)
        outputs = self.outputs()[0]
        loss = self.loss(outputs)
        loss.backward()  # type: ignore[no-untyped-call]
        self.propagator.sum_gradients(self.parameters())
        return float(self.propagator.total(loss)), [self.propagator.gather(out) for out in outputs]

    def predict(self) -> list[Tensor]:
        """(V, 1) a snapshot, on every rank."""
        self.eval()
        with torch.no_grad():
            return [self.propagator.gather(out) for out in self.outputs()[0]]

    def step(self) -> float:
        """One optimiser step; the loss before it."""
        loss, _ = self.backward()
        self.optimiser.step()
        return loss


def propagator_on(backend: str, comm: Comm, snapshots: Sequence[Snapshot]) -> Propagator:
    """The backend; one that would measure the machine is told of it."""
    told = {"hetero": {"resources": "homogeneous"}}
    return make_propagator(backend, snapshots, comm, **told.get(backend, {}))


def window_on(
    backend: str,
    comm: Comm,
    name: str,
    snapshots: Sequence[Snapshot],
    dtype: torch.dtype = torch.float64,
    **options: Any,
) -> Window:
    """The same weights on every rank and backend."""
    torch.manual_seed(3)
    assert snapshots[0].features is not None
    model = build_snapshot_model(name, snapshots[0].features.shape[1], WIDTH, **options)
    return Window(propagator_on(backend, comm, snapshots), model, snapshots, dtype)


def every_model_is_that_of_one_process(comm: Comm) -> dict[str, dict[str, float]]:
    """Outputs, loss and gradients; the largest difference of each backend in each precision."""
    snapshots, worst = changing(5, num_nodes=45), {}
    for dtype, near in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        off = dict.fromkeys(names(), 0.0)
        for name, options in MODELS.items():
            alone = window_on("single", ALONE, name, snapshots, dtype, **options)
            wanted = alone.backward()
            for backend in off:
                there = window_on(backend, comm, name, snapshots, dtype, **options)
                worse = max(_difference(there, alone, there.backward(), wanted), off[backend])
                assert worse <= near, (backend, name, dtype, worse)
                off[backend] = worse
        worst[str(dtype)] = off
    return worst


def _difference(
    there: Window,
    alone: Window,
    found: tuple[float, list[Tensor]],
    wanted: tuple[float, list[Tensor]],
) -> float:
    """The largest, over loss, outputs, gradients and the running figures of a normalisation."""
    pairs = list(zip(found[1], wanted[1], strict=True))
    pairs += zip(there.buffers(), alone.buffers(), strict=True)
    for mine, theirs in zip(there.parameters(), alone.parameters(), strict=True):
        assert mine.grad is not None and theirs.grad is not None
        pairs.append((mine.grad, theirs.grad))
    return max(abs(found[0] - wanted[0]), *(float((a - b).abs().max()) for a, b in pairs))


def a_long_run_has_the_losses_of_one_process(comm: Comm) -> float:
    """Thirty Adam steps in float32 of a model that convolves its state."""
    snapshots = changing(5)
    backend = "tensor" if "tensor" in BACKENDS else "halo"
    alone, there = (
        window_on(name, on, "gconvgru", snapshots, torch.float32)
        for name, on in (("single", ALONE), (backend, comm))
    )
    off = max(abs(there.step() - alone.step()) for _ in range(30))
    assert off <= 1e-5, (backend, off)
    return off


def what_tensor_moves_is_what_the_formulas_say(comm: Comm) -> dict[str, list[int]]:
    """(4 T - 1) K B(d) of a GConvGRU, 4 T B(C) of an EvolveGCN-O, nothing of a T-GCN."""
    if "tensor" not in BACKENDS:
        return {}
    snapshots, orders = changing(5, num_nodes=45, width=WIDTH), 3
    steps, found = len(snapshots), {}
    gru = window_on("tensor", comm, "gconvgru", snapshots, orders=orders)
    exchange = _exchange_bytes(gru.propagator, WIDTH)
    gru.backward()  # of x once and for all
    found["gconvgru"] = [_moved(gru), (4 * steps - 1) * orders * exchange]
    evolve = window_on("tensor", comm, "evolvegcno", snapshots, layers=1, keep=False)
    found["evolvegcno"] = [_moved(evolve), 4 * steps * exchange]
    kept = window_on("tensor", comm, "evolvegcno", snapshots, layers=2)
    kept.backward()  # the first layer's products, once and for all
    found["evolvegcno, first layer kept"] = [_moved(kept), 4 * steps * exchange]
    tgcn = window_on("tensor", comm, "tgcn", snapshots)
    found["tgcn, first"] = [_moved(tgcn), 2 * steps * exchange]
    found["tgcn"] = [_moved(tgcn), 0]
    for name, (measured, formula) in found.items():
        assert measured == formula, (name, measured, formula)
    return found


def _exchange_bytes(propagator: Propagator, width: int) -> int:
    """B(d): a matrix of that width, split or gathered, over all ranks, in float64."""
    ranks = propagator.comm.size
    rows = propagator.ownership.sizes
    columns = [width // ranks + (rank < width % ranks) for rank in range(ranks)]
    return 8 * sum(
        rows[here] * columns[there]
        for here in range(ranks)
        for there in range(ranks)
        if here != there
    )


def _moved(window: Window) -> int:
    """What one pass there and back moves between products, over all ranks."""
    before = _sent(window.propagator.comm)
    window.backward()
    mine = _sent(window.propagator.comm) - before
    comm = window.propagator.comm
    return int(comm.all_reduce(torch.tensor([mine]), "test")[0])


def _sent(comm: Comm) -> int:
    ledger = comm.bytes
    return sum(ledger[purpose].sent for purpose in ("split", "gather") if purpose in ledger)


def nodes_that_come_later_move_nobody(comm: Comm) -> int:
    """A state goes on to a graph with more nodes: old rows stay, new ones stand behind them."""
    few, more = 45, 52
    early, late = changing(3, num_nodes=few), changing(3, num_nodes=more, seed=1)
    after = []
    for backend in ("single", *(name for name in names() if name != "hetero")):  # it maps by itself
        on = ALONE if backend == "single" else comm
        first = window_on(backend, on, "gconvgru", early)
        old = first.propagator
        grown = old.ownership.grown(more)
        assert np.array_equal(grown.owner[:few], old.ownership.owner)
        assert np.array_equal(grown.place[:few], old.ownership.place)
        assert grown.num_nodes == more
        second = Window(type(old)(grown, on), first.model, late, torch.float64)
        second.head = first.head
        _, (h,) = first.outputs()
        new = len(second.propagator.own) - len(h)
        outputs, _ = second.outputs((torch.cat((h, h.new_zeros(new, WIDTH))),))
        after.append(second.propagator.gather(outputs[-1]))
    for found in after[1:]:
        torch.testing.assert_close(found, after[0], rtol=1e-10, atol=1e-10)
    return len(after)


def nodes_are_dealt_out_so_that_later_ones_move_nobody(comm: Comm) -> list[str]:
    """Where nodes are not run after run, the backend of the larger graph owns alike."""
    kept = []
    for backend in names():
        before, after = (
            propagator_on(backend, comm, changing(1, num_nodes=count)).ownership.owner
            for count in (45, 52)
        )
        if np.array_equal(after[:45], before):
            kept.append(backend)
    assert "tensor" in kept or "tensor" not in names()
    return kept


def lazy_outputs_are_exact(comm: Comm) -> float:
    """That backend leaves out gradients between ranks, so only what goes forward is compared."""
    snapshots, worst = changing(5, num_nodes=45), 0.0
    for name in ("gconvgru", "evolvegcnh", "tgcn", "mpnnlstm"):
        alone, there = (
            window_on(backend, on, name, snapshots, **MODELS[name]).predict()
            for backend, on in (("single", ALONE), ("lazy", comm))
        )
        pairs = zip(there, alone, strict=True)
        worst = max(worst, *(float((own - other).abs().max()) for own, other in pairs))
    assert worst <= 1e-10
    return worst


def ranks_without_nodes_take_part(comm: Comm) -> int:
    """Two nodes for as many ranks as there are."""
    width = 2
    random = np.random.default_rng(0)
    snapshots = [
        Snapshot(
            SparseMatrix.from_edges([0, 1], [1, 0], 2),
            random.normal(size=(2, width)).astype(np.float32),
            random.normal(size=2).astype(np.float32),
        )
        for _ in range(3)
    ]
    for name in ("gconvgru", "evolvegcno", "mpnnlstm"):
        expected = window_on("single", ALONE, name, snapshots).step()
        for backend in names():
            assert abs(window_on(backend, comm, name, snapshots).step() - expected) <= 1e-10
    torch.manual_seed(0)
    pooled = build_snapshot_model("evolvegcnh", width, 2)
    alone = Window(make_propagator("single", snapshots), pooled, snapshots, torch.float64)
    expected = alone.backward()[0]
    for backend in names():
        there = Window(propagator_on(backend, comm, snapshots), pooled, snapshots, torch.float64)
        there.head.load_state_dict(alone.head.state_dict())
        assert abs(there.backward()[0] - expected) <= 1e-10
    return comm.size


def sums_of_rows_have_their_adjoint(comm: Comm) -> float:
    """<sum x, y> summed over ranks that weigh the sum differently has the gradient of one sum."""
    snapshots = changing(1, num_nodes=7)
    propagator = make_propagator("halo", snapshots, comm)
    whole = torch.arange(21, dtype=torch.float64).view(7, 3)
    x = propagator.local(whole.numpy()).requires_grad_()
    found = propagator.sum_rows(x)
    assert found.tolist() == whole.sum(0).tolist()
    (found * (comm.rank + 1)).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert (x.grad == comm.size * (comm.size + 1) / 2).all()
    return float(found[0].detach())


def the_highest_scores_are_the_same_on_every_rank(comm: Comm) -> list[int]:
    """Equal scores stand in the order of the nodes."""
    scores = np.array([0.5, 2.0, -1.0, 2.0, 0.5, 2.0, 9.0])
    for backend in names():
        propagator = propagator_on(backend, comm, changing(1, num_nodes=7))
        assert propagator.top_nodes(propagator.local(scores), 5).tolist() == [6, 1, 3, 5, 0]
    return comm.gather_objects(comm.rank, "test")


def a_kept_layer_equals_one_that_is_not(comm: Comm) -> float:
    """A (X W) and (A X) W agree."""
    snapshots = changing(5, num_nodes=45, width=WIDTH)
    losses = []
    for keep in (True, False):
        window = window_on(names()[0], comm, "evolvegcno", snapshots, keep=keep)
        assert isinstance(window.model, EvolveGCNO)
        losses.append([window.step() for _ in range(3)])
    kept, not_kept = losses
    off = max(abs(one - other) for one, other in zip(kept, not_kept, strict=True))
    assert off <= 1e-10
    return off


PROMISES = (
    every_model_is_that_of_one_process,
    a_long_run_has_the_losses_of_one_process,
    what_tensor_moves_is_what_the_formulas_say,
    nodes_that_come_later_move_nobody,
    nodes_are_dealt_out_so_that_later_ones_move_nobody,
    lazy_outputs_are_exact,
    ranks_without_nodes_take_part,
    sums_of_rows_have_their_adjoint,
    the_highest_scores_are_the_same_on_every_rank,
    a_kept_layer_equals_one_that_is_not,
)

"""A window of snapshots, one transformed while another is propagated.

The parameters stay the same within a window, so nothing is stale and no edge is dropped: that the
work overlaps changes the time and not a bit of the result.  The ranks that transform hold the order
(one forward, one backward, PipeDream's 1F1B); those that propagate take the snapshots as they come.
NeutronTask (PVLDB 18(6)) overlaps sub-graphs of one graph; to overlap snapshots is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ....models.snapshots import GCN, GCNGRU
from ....storage.snapshot import Snapshot
from ....stream import Bool
from ...ranks import Comm, agree
from ...sharing import sum_gradients
from .engine import GroupLoss, MakeOptimiser, outputs_of, tell_shape
from .pieces import Piece, pieces_of, plan_pieces
from .roles import Roles
from .sides import PropagateSide, TransformSide

AHEAD = 2  # snapshots that are transformed before the first must be back


def plan_window(count: int, *, is_pipelined: bool = True) -> list[tuple[str, int]]:
    """What those that transform do in turn: snapshots `forward`, and their gradients `backward`.

    >>> [f"{what[0]}{which}" for what, which in plan_window(4)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'f3', 'b2', 'b3']
    >>> [f"{what[0]}{which}" for what, which in plan_window(2, is_pipelined=False)]
    ['f0', 'b0', 'f1', 'b1']
    """
    ahead = min(AHEAD if is_pipelined else 1, count)
    plan = [("forward", which) for which in range(ahead)]
    for which in range(count):
        plan.append(("backward", which))
        if which + ahead < count:
            plan.append(("forward", which + ahead))
    return plan


class SnapshotPipeline:
    """Node classification on a window of snapshots; at least two ranks, see `DecoupledGraph`.

    The model is a decoupled `GCN`, used on each snapshot alone, or a `GCNGRU`, whose GRU and
    readout run where the rows are.  The loss is the mean over the training nodes of all snapshots
    together.  With `is_pipelined` off the ranks wait for each other, snapshot by snapshot: the same
    result, to be compared with.
    """

    def __init__(
        self,
        comm: Comm,
        snapshots: Sequence[Snapshot],
        train: Sequence[Bool],  # (V,) a snapshot
        make_model: Callable[[], GCN | GCNGRU],
        make_optimiser: MakeOptimiser,
        *,
        num_transform: int | None = None,
        chunks: int = 1,
        recompute: bool = True,
        is_pipelined: bool = True,
    ) -> None:
        if comm.size < 2:
            raise ValueError("a rank must transform and another propagate: got one rank")
        sizes = sorted({snapshot.num_nodes for snapshot in snapshots})
        if len(sizes) != 1 or len(train) != len(snapshots):
            raise ValueError(
                "`snapshots` must be at least one, all of as many nodes, and `train` as many: got "
                f"{len(snapshots)} of {sizes} nodes, and {len(train)}"
            )
        versions = " ".join(snapshot.version for snapshot in snapshots)
        agree(comm, {"snapshots": versions, "chunks": chunks, "is_pipelined": is_pipelined})
        self.comm, self.roles = comm, Roles.of(comm.size, num_transform)
        self.snapshots = snapshots
        self._plan = plan_window(len(snapshots), is_pipelined=is_pipelined)
        self._is_pipelined = is_pipelined
        ownership = self.roles.rows(sizes[0])
        is_transforming = comm.rank in self.roles.transform
        self._group = comm.group(int(is_transforming))
        self.model: GCN | GCNGRU | None = make_model() if is_transforming else None
        stack = self.model if isinstance(self.model, GCNGRU) else None
        self._recurs = bool(comm.gather_objects(stack is not None, "facts")[0])
        graph_part = stack.gcn if stack is not None else self.model
        assert not isinstance(graph_part, GCNGRU)
        self.shape = tell_shape(comm, graph_part)
        each = chunks * len(self.roles.transform)
        self._pieces = [
            plan_pieces(ownership, self.roles, chunks, place * each)
            for place in range(len(snapshots))
        ]
        self._num_train = sum(int(where.sum()) for where in train)
        if not self._num_train:
            raise ValueError("`train` must name at least one node of one snapshot")
        self._losses: list[GroupLoss] = []
        if graph_part is not None and self.model is not None:
            self.side: TransformSide | PropagateSide = TransformSide(
                comm, self.roles, self.shape, outputs_of(graph_part), recompute=recompute
            )
            self._optimiser = make_optimiser(self.model.parameters())
            own = ownership.rows[comm.rank]
            self._x = [self._features(snapshot)[torch.from_numpy(own)] for snapshot in snapshots]
            self._target = [_rows(snapshot.target, own) for snapshot in snapshots]
            self._train = [torch.from_numpy(np.flatnonzero(where[own])) for where in train]
        else:
            self.side = PropagateSide(comm, self.roles, self.shape)
            self._matrices = [snapshot.matrix("gcn") for snapshot in snapshots]
            if not self._recurs:
                self._losses = [
                    GroupLoss(self._group, self.shape, snapshot, where, self._num_train)
                    for snapshot, where in zip(snapshots, train, strict=True)
                ]

    def step(self) -> float:
        """One step of the optimiser on the whole window; the loss before it."""
        if isinstance(self.side, PropagateSide):
            loss = self._serve_stack(self.side) if self._recurs else self._serve(self.side)
        else:
            assert self.model is not None
            self.model.train()
            self._optimiser.zero_grad(set_to_none=True)
            if isinstance(self.model, GCNGRU):
                loss = self._learn_stack(self.side, self.model)
            else:
                loss = self._learn(self.side)
            sum_gradients(self._group, self.model.parameters())
            self._optimiser.step()
        self.side.flush()
        told = torch.tensor(loss, dtype=torch.float64)
        return float(self.comm.all_reduce(told, "totals"))

    def _learn(self, side: TransformSide) -> float:
        for what, which in self._plan:
            pieces = self._own(which)
            if what == "forward":
                side.forward(self._x[which], pieces)
            else:
                side.backward(self._x[which], pieces)
                side.flush(pieces[-1].tag)  # gradients have come back: the rows have left
        return 0.0

    def _serve(self, side: PropagateSide) -> float:
        total = 0.0
        for which, matrix in enumerate(self._matrices):
            pieces = self._pieces[which]
            y = side.forward(matrix, pieces)
            with side.clock.running():
                rows = self._losses[which].outputs(y)
                loss, gradient = self._losses[which].of(rows)
            side.backward(matrix, gradient, pieces)
            if which + 1 >= AHEAD:
                side.flush(self._pieces[which + 1 - AHEAD][-1].tag)
            total += loss
        return total

    def _learn_stack(self, side: TransformSide, model: GCNGRU) -> float:
        """The GRU reads each snapshot as it is back; its gradients leave as they are found."""
        read: list[Tensor] = []
        losses: list[Tensor] = []
        state: tuple[Tensor, ...] = ()
        for what, which in self._plan:
            if what == "forward":
                side.forward(self._x[which], self._own(which))
                continue
            rows = side.read(self._own(which)).requires_grad_()  # (n, width)
            read.append(rows)
            with side.clock.running():
                output, state = model.combine(rows, state)
                where = self._train[which]
                losses.append(
                    functional.cross_entropy(
                        output[where], self._target[which][where], reduction="sum"
                    )
                )
        loss = torch.stack(losses).sum() / self._num_train
        if self._is_pipelined:
            for which, rows in enumerate(read):
                rows.register_hook(partial(self._give_back, side, which))  # type: ignore[no-untyped-call]
        with side.clock.running():
            loss.backward()  # type: ignore[no-untyped-call]
        for which in reversed(range(len(read))):
            if not self._is_pipelined:
                gradient = read[which].grad
                assert gradient is not None
                self._give_back(side, which, gradient)
            side.backward(self._x[which], self._own(which))
        return float(loss.detach())

    def _give_back(self, side: TransformSide, which: int, gradient: Tensor) -> None:
        side.give_back(gradient, self._own(which))

    def _serve_stack(self, side: PropagateSide) -> float:
        for matrix, pieces in zip(self._matrices, self._pieces, strict=True):
            side.give(side.forward(matrix, pieces), pieces)
        for matrix, pieces in zip(self._matrices[::-1], self._pieces[::-1], strict=True):
            side.backward(matrix, side.take_back(matrix.num_rows, pieces), pieces)
        return 0.0

    def _own(self, which: int) -> list[Piece]:
        return pieces_of(self.comm.rank, self._pieces[which])

    def _features(self, snapshot: Snapshot) -> Tensor:
        if snapshot.features is None:
            raise ValueError("each snapshot must have `features`, from which a model starts")
        return torch.from_numpy(snapshot.features).to(self.shape.dtype)


def _rows(target: np.ndarray[tuple[int], np.dtype[np.int64]] | None, own: np.ndarray) -> Tensor:
    if target is None:
        raise ValueError("each snapshot must have a `target`, one class a node, to learn")
    return torch.from_numpy(target[own])

"""One optimiser step of a decoupled model, by ranks that transform and ranks that propagate.

Ranks that transform hold the parameters and the features of their rows; ranks that propagate hold
the graph and the targets.  A step gives the loss and the gradients of one process: no edge is
dropped unless `drop_edges` says so.  V x width numbers travel each way (NeutronTask, PVLDB 18(6)).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ....models.snapshots import GCN, DecoupledGAT
from ....storage.snapshot import Snapshot
from ....stream import Bool, Int64
from ...ranks import Comm, agree
from ...sharing import sum_gradients
from ..ownership import Ownership, cut
from ..tensor.split import GATHER, SPLIT
from .pieces import (
    Piece,
    SubGraph,
    assign,
    pieces_of,
    plan_pieces,
    plan_subgraphs,
    without_later,
)
from .roles import Roles, Shape
from .sides import PropagateSide, Transform, TransformSide

Decoupled = GCN | DecoupledGAT
MakeOptimiser = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class DecoupledGraph:
    """Node classification by a decoupled model; at least two ranks.

    `make_model` is called only on ranks that transform, and must give all of them the same
    parameters.  `chunks` pieces of rows leave each of them a step.  With `recompute` a piece is
    transformed again on its way back, and only one piece's activations are held at a time; the
    model must then give the same again, so nothing in it may be left to chance.

    `drop_edges` is the published pipeline, which is another objective every epoch: nodes are
    shuffled into `subgraphs` in turn and edges from later ones are left out; `dropped` is the share
    of edges that the last step left out, `covered` that of edges that any step has used.
    `predict` uses all edges, and all count as used where none is left out.

    Raises:
        ValueError: if there is one rank only, the model is not decoupled, or the model attends and
            `drop_edges` is on.
    """

    def __init__(
        self,
        comm: Comm,
        snapshot: Snapshot,
        train: Bool,  # (V,) the nodes that are learned from
        make_model: Callable[[], Decoupled],
        make_optimiser: MakeOptimiser,
        *,
        num_transform: int | None = None,
        chunks: int = 4,
        recompute: bool = True,
        drop_edges: bool = False,
        subgraphs: int = 1,
        seed: int = 0,
    ) -> None:
        if comm.size < 2:
            raise ValueError(
                "a rank must transform and another propagate: got one rank; `FullGraph` trains a "
                "decoupled model on one"
            )
        if snapshot.features is None or snapshot.target is None:
            raise ValueError("the snapshot must have `features` and a `target`")
        if not train.any():
            raise ValueError("`train` must name at least one node")
        if chunks < 1 or not 1 <= subgraphs <= max(chunks, 1):
            raise ValueError(
                "`chunks` must be at least 1, and `subgraphs` from 1 to as many: "
                f"got {chunks} and {subgraphs}"
            )
        agree(comm, {"snapshot": snapshot.version, "chunks": chunks, "seed": seed})
        agree(comm, {"subgraphs": subgraphs if drop_edges else None})
        self.comm, self.roles = comm, Roles.of(comm.size, num_transform)
        self.snapshot, self.chunks = snapshot, chunks
        self.subgraphs = subgraphs if drop_edges else 0
        self._random = np.random.default_rng(seed)
        self._ownership = self.roles.rows(snapshot.num_nodes)
        self._transforms = comm.rank in self.roles.transform
        self._group = comm.group(int(self._transforms))
        self.model: Decoupled | None = make_model() if self._transforms else None
        self.shape = tell_shape(comm, self.model)
        if drop_edges and self.shape.heads:
            raise ValueError("`drop_edges` is for models without attention: leave it off")
        self._pieces = plan_pieces(self._ownership, self.roles, chunks)
        self.dropped = self.covered = 0.0
        if self.model is not None:
            self.side: TransformSide | PropagateSide = TransformSide(
                comm, self.roles, self.shape, outputs_of(self.model), recompute=recompute
            )
            self._optimiser = make_optimiser(self.model.parameters())
            own = snapshot.features[self._ownership.rows[comm.rank]]
            self._x = torch.from_numpy(own).to(self.shape.dtype)  # (n, F)
        else:
            self.side = PropagateSide(comm, self.roles, self.shape)
            self._matrix = snapshot.matrix("loops" if self.shape.heads else "gcn")
            self._used = np.zeros(self._matrix.num_edges, bool)
            self._loss = GroupLoss(self._group, self.shape, snapshot, train, int(train.sum()))

    def step(self) -> float:
        """One step of the optimiser; the loss before it."""
        group = self._shuffle() if self.subgraphs else None
        graphs = None if group is None else plan_subgraphs(self._ownership, self.roles, group)
        loss, dropped, covered = 0.0, 0.0, float(not self._transforms)
        if isinstance(self.side, TransformSide):
            self._learn(self.side, graphs)
        elif group is None or graphs is None:
            loss = self._serve(self.side)
        else:
            loss, dropped, covered = self._serve_subgraphs(self.side, group, graphs)
        self.side.flush()
        told = torch.tensor([loss, dropped, covered], dtype=torch.float64)
        told[1:] /= len(self.roles.propagate)  # all of them say the same
        total, self.dropped, self.covered = self.comm.all_reduce(told, "totals").tolist()
        return float(total)

    def _learn(self, side: TransformSide, graphs: list[SubGraph] | None) -> None:
        assert self.model is not None
        self.model.train()
        self._optimiser.zero_grad(set_to_none=True)
        out = self._pieces if graphs is None else _of_all(graphs)
        back = self._pieces if graphs is None else _of_all(graphs[::-1])
        side.forward(self._x, pieces_of(self.comm.rank, out))
        side.backward(self._x, pieces_of(self.comm.rank, back))
        sum_gradients(self._group, self.model.parameters())
        self._optimiser.step()

    def _serve(self, side: PropagateSide) -> float:
        """Propagates there and back; this rank's part of the loss."""
        y = side.forward(self._matrix, self._pieces)
        rows = self._loss.outputs(y)
        del y  # no more than three times a slice lives at once
        loss, gradient = self._loss.of(rows)
        del rows
        side.backward(self._matrix, gradient, self._pieces)
        return loss

    def _serve_subgraphs(
        self, side: PropagateSide, group: Int64, graphs: list[SubGraph]
    ) -> tuple[float, float, float]:
        """The same without later edges; the loss, and what is `dropped` and `covered`."""
        matrix, kept = without_later(self._matrix, group)
        self._used |= kept
        rows = self._loss.outputs(side.forward_by_subgraph(matrix, graphs))
        loss, gradient = self._loss.of(rows)
        side.backward_by_subgraph(matrix, gradient, graphs)
        return loss, 1 - float(kept.mean()), float(self._used.mean())

    def predict(self) -> Tensor:
        """The outputs for all nodes, on every rank: (V, classes)."""
        rows = torch.empty((0, self.shape.width // max(self.shape.heads, 1)))
        if isinstance(self.side, TransformSide):
            assert self.model is not None
            self.model.eval()
            own = pieces_of(self.comm.rank, self._pieces)
            self.side.forward(self._x, own, learns=False)
            rows = rows.to(self.shape.dtype)
        else:
            rows = self._loss.outputs(self.side.forward(self._matrix, self._pieces))
            self.side.forget()
        self.side.flush()
        sizes = self.roles.results(self.snapshot.num_nodes)
        return self.comm.all_gather_rows(rows, sizes, "results")

    def _shuffle(self) -> Int64:
        """(V,) this epoch's sub-graph of each node, the same on every rank."""
        return assign(self.snapshot.num_nodes, self.chunks, self.subgraphs, self._random)


class GroupLoss:
    """The loss of what the ranks that propagate hold, a slice of the columns each."""

    def __init__(
        self, group: Comm, shape: Shape, snapshot: Snapshot, train: Bool, num_train: int
    ) -> None:
        self._group, self._heads = group, max(shape.heads, 1)
        ownership = Ownership.contiguous(snapshot.num_nodes, [1.0] * group.size)
        self._rows = ownership.sizes
        self._columns = cut(shape.width, [1.0] * group.size)
        own = ownership.rows[group.rank]
        assert snapshot.target is not None
        self._target = torch.from_numpy(snapshot.target[own])
        self._train = torch.from_numpy(np.flatnonzero(train[own]))
        self._num_train = num_train

    def outputs(self, y: Tensor) -> Tensor:
        """This rank's rows, whole, their heads averaged: (V, c) -> (m, classes)."""
        rows = self._gather(y)
        if self._heads == 1:
            return rows
        return rows.view(len(rows), self._heads, rows.shape[1] // self._heads).mean(1)

    def of(self, logits: Tensor) -> tuple[float, Tensor]:
        """This rank's part of the mean cross-entropy of its rows, which are written over.

        And the gradient of the whole by this rank's columns, (V, c): the softmax less what is true,
        by hand, so that nothing is saved.
        """
        found = logits[self._train].log_softmax(1)
        true = self._target[self._train][:, None]
        loss = -float(found.gather(1, true).sum()) / self._num_train
        found = found.exp_().scatter_add_(1, true, found.new_full(true.shape, -1.0))
        logits.zero_()[self._train] = found.div_(self._num_train * self._heads)
        del found, true
        whole = logits if self._heads == 1 else logits.repeat(1, self._heads)
        return loss, self._split(whole)

    def _gather(self, y: Tensor) -> Tensor:
        """All rows of some columns to some rows, whole: (V, c) -> (m, width)."""
        mine = self._rows[self._group.rank]
        sent = [rows * y.shape[1] for rows in self._rows]
        received = [mine * columns for columns in self._columns]
        found = self._group.all_to_all_rows(y.reshape(-1), sent, received, GATHER)
        blocks = zip(torch.split(found, received), self._columns, strict=True)
        return torch.cat([block.view(mine, columns) for block, columns in blocks], 1)

    def _split(self, rows: Tensor) -> Tensor:
        """The adjoint of `_gather`: (m, width) -> (V, c)."""
        mine = self._columns[self._group.rank]
        flat = torch.cat([block.reshape(-1) for block in torch.split(rows, self._columns, 1)])
        sent = [len(rows) * columns for columns in self._columns]
        received = [count * mine for count in self._rows]
        found = self._group.all_to_all_rows(flat, sent, received, SPLIT)
        return found.view(sum(self._rows), mine)


def outputs_of(model: Decoupled) -> Transform:
    """What the model makes of rows of features."""

    def transform(x: Tensor) -> tuple[Tensor, ...]:
        z = model.transform(x)
        return (z, model.scalars(z)) if isinstance(model, DecoupledGAT) else (z,)

    return transform


def tell_shape(comm: Comm, model: Decoupled | None) -> Shape:
    """What the first rank knows of its model, on every rank."""
    facts: dict[str, Any] = {}
    if model is not None:
        heads = model.heads if isinstance(model, DecoupledGAT) else 0
        dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
        facts = {"width": model.width * max(heads, 1), "heads": heads, "dtype": dtype}
        facts["hops"] = len(model.layers)
        facts["decoupled"] = isinstance(model, DecoupledGAT) or model.decoupled
    told = comm.gather_objects(facts, "facts")[0]
    if not told.pop("decoupled"):
        raise ValueError("the model must be decoupled: `GCN(..., decoupled=True)`, `DecoupledGAT`")
    return Shape(told["width"], told["heads"], told["hops"], getattr(torch, told["dtype"]))


def _of_all(graphs: list[SubGraph]) -> list[Piece]:
    return [piece for graph in graphs for piece in graph.pieces]

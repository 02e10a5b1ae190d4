"""The two sides of decoupled training: what transforms rows, and what propagates columns.

Rows travel in pieces, so that the first hop begins before the last row is transformed, and the
last hop back ends after the first row has its gradient: `H += A[:, piece] z` as a piece arrives
drops no edge.  Each side does one pass back a step.  Propagation is linear, so those that propagate
keep no activation (NeutronTask, PVLDB 18(6); the streaming by source is ours: the paper drops edges
instead, which is `forward_by_subgraph`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from time import thread_time
from typing import TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from ....storage.sparse import SparseMatrix
from ...ranks import Comm, Pending
from ..sparse import attention, heads_of, product, weigh
from .pieces import Piece, SubGraph
from .roles import Roles, Shape

FORWARD, BACKWARD = "transformed rows", "transformed rows, gradients"
GIVEN, GIVEN_BACK = "propagated rows", "propagated rows, gradients"
SCALARS, SCALARS_BACK = "attention scalars", "attention scalars, gradients"


Transform: TypeAlias = Callable[[Tensor], tuple[Tensor, ...]]
"""Rows of features to rows as they travel (n, width), and where there are heads scalars (n, 2h)."""


class Clock:
    """Seconds of CPU time within `running`."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """What is done within counts."""
        start = thread_time()
        yield
        self.seconds += thread_time() - start


class _Side:
    def __init__(self, comm: Comm, roles: Roles, shape: Shape) -> None:
        self.comm, self.roles, self.shape = comm, roles, shape
        self.columns = roles.columns(shape.width)
        self.clock = Clock()
        self._sent: list[tuple[int, Pending]] = []

    def _send(self, rows: Tensor, to: int, purpose: str, tag: int) -> None:
        self._sent.append((tag, self.comm.start_send(rows, to, purpose, tag)))

    def flush(self, last_tag: int | None = None) -> None:
        """Returns when what was sent has left, of all tags or of those up to one."""
        kept = []
        for tag, pending in self._sent:
            if last_tag is None or tag <= last_tag:
                pending.wait()
            else:
                kept.append((tag, pending))
        self._sent = kept


class TransformSide(_Side):
    """A rank that has the model and rows of features, and no graph."""

    def __init__(
        self,
        comm: Comm,
        roles: Roles,
        shape: Shape,
        transform: Transform,
        *,
        recompute: bool = True,
    ) -> None:
        super().__init__(comm, roles, shape)
        self.transform, self.recompute = transform, recompute
        self._kept: dict[int, tuple[Tensor, ...]] = {}

    def forward(self, x: Tensor, pieces: Sequence[Piece], *, learns: bool = True) -> None:
        """Transforms the pieces and sends each off; activations stay only without `recompute`."""
        for piece in pieces:
            with self.clock.running(), torch.set_grad_enabled(learns and not self.recompute):
                outputs = self.transform(x[piece.rows])
                if learns and not self.recompute:
                    self._kept[piece.tag] = outputs
                parts = torch.split(outputs[0].detach(), self.columns, 1)
            for rank in self.roles.propagate:
                self._send(parts[rank], rank, FORWARD, piece.tag)
                if self.shape.heads:
                    self._send(outputs[1], rank, SCALARS, piece.tag)

    def backward(self, x: Tensor, pieces: Sequence[Piece]) -> None:
        """Adds to the parameters' gradients what comes back for the pieces, in this order."""
        coming = [self._receive(piece) for piece in pieces[:1]]
        for place, piece in enumerate(pieces):
            if place + 1 < len(pieces):
                coming.append(self._receive(pieces[place + 1]))
            outputs = self._kept.pop(piece.tag, None)
            if outputs is None:
                with self.clock.running():
                    outputs = self.transform(x[piece.rows])
            parts, scalars = coming[place]
            gradients = [torch.cat([part.wait() for part in parts], 1)]
            if scalars:
                gradients.append(torch.stack([part.wait() for part in scalars]).sum(0))
            coming[place] = [], []
            with self.clock.running():
                torch.autograd.backward(outputs, gradients)

    def read(self, pieces: Sequence[Piece]) -> Tensor:
        """The rows of these pieces after all hops, from `PropagateSide.give`: (n, width)."""
        coming = [self._start(piece, GIVEN) for piece in pieces]
        return torch.cat([torch.cat([part.wait() for part in parts], 1) for parts in coming])

    def give_back(self, gradient: Tensor, pieces: Sequence[Piece]) -> None:
        """Sends off the gradient by what was `read`, piece by piece."""
        for piece in pieces:
            parts = torch.split(gradient[piece.rows], self.columns, 1)
            for rank in self.roles.propagate:
                self._send(parts[rank], rank, GIVEN_BACK, piece.tag)

    def _start(self, piece: Piece, purpose: str) -> list[Pending]:
        return [
            self.comm.start_receive(
                (piece.count, self.columns[rank]), self.shape.dtype, rank, purpose, piece.tag
            )
            for rank in self.roles.propagate
        ]

    def _receive(self, piece: Piece) -> tuple[list[Pending], list[Pending]]:
        parts: list[Pending] = self._start(piece, BACKWARD)
        scalars: list[Pending] = []
        if self.shape.heads:
            shape = piece.count, 2 * self.shape.heads
            scalars = [
                self.comm.start_receive(shape, self.shape.dtype, rank, SCALARS_BACK, piece.tag)
                for rank in self.roles.propagate
            ]
        return parts, scalars


class PropagateSide(_Side):
    """A rank that has the graph and a slice of the columns, and no parameter."""

    def __init__(self, comm: Comm, roles: Roles, shape: Shape) -> None:
        super().__init__(comm, roles, shape)
        self.width = self.columns[comm.rank]  # c
        first = sum(self.columns[: comm.rank])
        each = shape.width // max(shape.heads, 1)
        self.head_of = heads_of(max(shape.heads, 1), each)[first : first + self.width]
        self._attended: tuple[Tensor, ...] = ()  # outputs and inputs of the pass that is open
        self._parts: WeakKeyDictionary[SparseMatrix, dict[int, SparseMatrix]]
        self._parts = WeakKeyDictionary()

    def forward(self, matrix: SparseMatrix, pieces: Sequence[Piece]) -> Tensor:
        """A^hops z for this rank's columns of what is sent: (V, c)."""
        if self.shape.heads:
            return self._attend(matrix, pieces)
        y: Tensor | None = None  # (V, c)
        for piece, z in self._arriving(pieces):
            with self.clock.running():
                found = product(self._part(matrix, piece), z)
                y = found if y is None else y.add_(found)
        with self.clock.running():
            for _ in range(self.shape.hops - 1):
                assert y is not None
                y = product(matrix, y)
        assert y is not None, "there is a piece at least"
        return y

    def backward(self, matrix: SparseMatrix, gradient: Tensor, pieces: Sequence[Piece]) -> None:
        """The adjoint of `forward`; of the last hop each piece is sent as soon as it is there."""
        if self.shape.heads:
            self._attend_back(gradient, pieces)
            return
        with self.clock.running():
            for _ in range(self.shape.hops - 1):
                gradient = product(matrix.transposed, gradient)
        for piece in pieces:
            with self.clock.running():
                found = product(self._part(matrix, piece).transposed, gradient)
            self._send(found, piece.rank, BACKWARD, piece.tag)

    def _part(self, matrix: SparseMatrix, piece: Piece) -> SparseMatrix:
        """The columns of the matrix that a piece is multiplied by; in all, another matrix."""
        if piece.count == matrix.num_columns:
            return matrix
        assert isinstance(piece.nodes, slice)
        kept = self._parts.setdefault(matrix, {})
        if piece.tag not in kept:
            kept[piece.tag] = matrix.take_columns(np.arange(piece.nodes.start, piece.nodes.stop))
        return kept[piece.tag]

    def give(self, y: Tensor, pieces: Sequence[Piece]) -> None:
        """Sends rows after all hops to those that transform; see `TransformSide.read`."""
        for piece in pieces:
            self._send(y[piece.nodes], piece.rank, GIVEN, piece.tag)

    def take_back(self, num_nodes: int, pieces: Sequence[Piece]) -> Tensor:
        """The gradient by what was given: (V, c)."""
        gradient = torch.empty((num_nodes, self.width), dtype=self.shape.dtype)
        for piece, part in self._arriving(pieces, GIVEN_BACK):
            gradient[piece.nodes] = part
        return gradient

    def forget(self) -> None:
        """After a `forward` that no `backward` follows."""
        self._attended = ()

    def forward_by_subgraph(self, matrix: SparseMatrix, graphs: Sequence[SubGraph]) -> Tensor:
        """All hops of a sub-graph before the next is there: each keeps every hop's rows, (V, c)."""
        shape = matrix.num_rows, self.width
        hops = [torch.zeros(shape, dtype=self.shape.dtype) for _ in range(self.shape.hops + 1)]
        for graph in graphs:
            for piece, z in self._arriving(graph.pieces):
                hops[0][piece.nodes] = z
            with self.clock.running():
                rows = matrix.take_rows(graph.nodes)
                for before, after in pairwise(hops):
                    after[graph.nodes] = product(rows, before)
        return hops[-1]

    def backward_by_subgraph(
        self, matrix: SparseMatrix, gradient: Tensor, graphs: Sequence[SubGraph]
    ) -> None:
        """The adjoint of `forward_by_subgraph`, from the last sub-graph to the first."""
        hops = [torch.zeros_like(gradient) for _ in range(self.shape.hops)] + [gradient]
        for graph in reversed(graphs):
            with self.clock.running():
                rows = matrix.take_rows(graph.nodes)
                for after, before in pairwise(reversed(hops)):
                    before += product(rows.transposed, after[graph.nodes])
            for piece in graph.pieces:
                self._send(hops[0][piece.nodes], piece.rank, BACKWARD, piece.tag)

    def _attend(self, matrix: SparseMatrix, pieces: Sequence[Piece]) -> Tensor:
        """The first hop needs the scalars of all nodes: only the way of the pieces overlaps.

        Attention is not linear in z: each hop's input and the attention stay for the way back.
        """
        z = torch.empty((matrix.num_rows, self.width), dtype=self.shape.dtype)
        scalars = torch.empty((matrix.num_rows, 2 * self.shape.heads), dtype=self.shape.dtype)
        for piece, part in self._arriving(pieces):
            z[piece.nodes] = part
            shape = piece.count, scalars.shape[1]
            scalars[piece.nodes] = self.comm.start_receive(
                shape, self.shape.dtype, piece.rank, SCALARS, piece.tag
            ).wait()
        with self.clock.running(), torch.enable_grad():
            heads = self.shape.heads
            given = z.requires_grad_(), scalars.requires_grad_()
            alpha = attention(matrix, scalars[:, :heads], scalars[:, heads:])  # once for all hops
            y: Tensor = z
            for _ in range(self.shape.hops):
                y = weigh(matrix, alpha, y, self.head_of)
        self._attended = y, *given
        return y.detach()

    def _attend_back(self, gradient: Tensor, pieces: Sequence[Piece]) -> None:
        y, *given = self._attended
        self._attended = ()
        with self.clock.running():
            z, scalars = torch.autograd.grad(y, given, gradient)
        for piece in pieces:
            self._send(z[piece.nodes], piece.rank, BACKWARD, piece.tag)
            self._send(scalars[piece.nodes], piece.rank, SCALARS_BACK, piece.tag)

    def _arriving(
        self, pieces: Sequence[Piece], purpose: str = FORWARD
    ) -> Iterator[tuple[Piece, Tensor]]:
        """Each piece with its rows, the next one on its way already."""
        coming = [self._receive(piece, purpose) for piece in pieces[:1]]
        for place, piece in enumerate(pieces):
            if place + 1 < len(pieces):
                coming.append(self._receive(pieces[place + 1], purpose))
            yield piece, coming[place].wait()
            coming[place] = Pending(torch.empty(0), lambda: None)

    def _receive(self, piece: Piece, purpose: str) -> Pending:
        shape = piece.count, self.width
        return self.comm.start_receive(shape, self.shape.dtype, piece.rank, purpose, piece.tag)

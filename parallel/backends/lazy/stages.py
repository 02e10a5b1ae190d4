"""Stages: one layer each, with what it needs to be trained alone.

A stage takes rows that do not change while it is trained: own rows aggregated once (GCN, SAGE), or
own and halo rows that attention weighs anew each round (GAT).  All but the last have an auxiliary
classifier, which is thrown away after training unless its logits are what goes to the next stage.
Layers are those of the RETEXO release (dropout, convolution, layer norm, rectifier), except that
the aggregate is kept before any dropout, and that attention's heads stand side by side within.

A stage over time (`gru`) goes, node by node, along the snapshots of a window: it sees own rows
only, so it needs no exchange, and what it says of a snapshot has read no later one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from ....storage.counter import key_of
from ....storage.sparse import SparseMatrix
from ....stream import Int64
from ..sparse import attend, heads_of, multiply
from . import kernels
from .part import LocalGraph

Kind = Literal["mlp", "gcn", "sage", "gat", "gru"]

LOCAL: tuple[Kind, ...] = ("mlp", "gru")
"""Stages that see no row but own ones, so that none crosses for them."""

Drop = Callable[[Tensor, Int64], Tensor]
"""Some of the numbers of rows set to 0, given the nodes that the rows are of."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a stage is applied to: m rows out."""

    x: Tensor  # (u, w) m aggregated rows, or, for attention, the rows that are weighed
    nodes: Int64  # (u,) of which nodes
    matrix: SparseMatrix | None = None  # (m, u) for attention
    receivers: Int64 | None = None  # (m,) which rows of x are the outputs', if not each
    steps: int = 1  # for a stage over time: x is (steps, nodes) rows

    def take(self, rows: Int64) -> Inputs:
        """What is needed for some of the m rows."""
        if self.steps > 1:  # all of the past, and the future with it, of some nodes
            assert self.receivers is not None
            width = len(self.nodes) // self.steps
            step, node = np.divmod(self.receivers[rows], max(width, 1))
            some_nodes, place = np.unique(node, return_inverse=True)
            columns = (np.arange(self.steps)[:, None] * width + some_nodes).reshape(-1)
            receivers = step * len(some_nodes) + place
            x = self.x[torch.from_numpy(columns)]
            return Inputs(x, self.nodes[columns], None, receivers, self.steps)
        if self.matrix is None or self.receivers is None:
            return Inputs(self.x[torch.from_numpy(rows)], self.nodes[rows])
        some = self.matrix.take_rows(rows)
        columns = np.unique(some.indices).astype(np.int64)  # a loop each: receivers are there
        receivers = np.searchsorted(columns, self.receivers[rows])
        x = self.x[torch.from_numpy(columns)]
        return Inputs(x, self.nodes[columns], some.take_columns(columns), receivers)


def gather_inputs(
    kind: Kind, graph: LocalGraph, own: Tensor, halo: Tensor, steps: int = 1
) -> Inputs:
    """The inputs for all own rows, given (n, d) and (h, d); exact gradients go to both.

    A stage over time sees the own rows of `steps` snapshots.
    """
    nodes = graph.nodes[: graph.num_own]
    if kind == "mlp":
        return Inputs(own, nodes)
    if kind == "gru":
        return Inputs(own, nodes, None, np.arange(len(nodes)), steps)
    full = torch.cat((own, halo))
    if kind == "gcn":
        return Inputs(multiply(graph.gcn, full), nodes)
    if kind == "sage":
        return Inputs(torch.cat((own, multiply(graph.mean, full)), dim=1), nodes)
    return Inputs(full, graph.nodes, graph.looped, np.arange(graph.num_own))


class Stage(nn.Module):
    """A layer: `hidden` gives (m, width), `forward` the class scores (m, C)."""

    def __init__(
        self, kind: Kind, in_width: int, width: int, classes: int, *, is_last: bool, heads: int
    ) -> None:
        super().__init__()
        self.kind, self.is_last = kind, is_last
        self.width = classes if is_last else width
        self.heads = heads if kind == "gat" else 1
        if kind == "gru":
            self.width = width  # its class scores are its head's
        each = self.width if is_last else self.width // self.heads
        if self.width != each * self.heads and not is_last:
            raise ValueError(f"`hidden` must be a multiple of {heads} heads: got {width}")
        self.conv: nn.Module
        if kind == "gru":
            self.conv = nn.GRU(in_width, width)
        elif kind == "gat":
            self.conv = nn.Linear(in_width, self.heads * each, bias=False)
            self.receiver = nn.Parameter(torch.empty(self.heads, each))
            self.sender = nn.Parameter(torch.empty(self.heads, each))
            self.bias = nn.Parameter(torch.zeros(self.width))
            nn.init.xavier_uniform_(self.receiver)
            nn.init.xavier_uniform_(self.sender)
        else:
            self.conv = nn.Linear(2 * in_width if kind == "sage" else in_width, self.width)
            nn.init.zeros_(self.conv.bias)
        if isinstance(self.conv, nn.Linear):
            nn.init.xavier_uniform_(self.conv.weight)
        is_bare = not classes or (is_last and kind != "gru")
        self.norm = None if is_last else nn.LayerNorm(self.width)
        self.head: nn.Module | None = None if is_bare else nn.Linear(self.width, classes)

    def hidden(self, inputs: Inputs, drop: Drop | None = None) -> Tensor:
        """The stage's outputs without its auxiliary classifier: (m, width)."""
        x = inputs.x if drop is None else drop(inputs.x, inputs.nodes)
        if self.kind == "gru":
            return self._go_along(inputs, x)
        out = self._attend(inputs, self.conv(x)) if self.kind == "gat" else self.conv(x)
        return out if self.norm is None else torch.relu(self.norm(out))

    def _go_along(self, inputs: Inputs, x: Tensor) -> Tensor:
        """From snapshot to snapshot, every node for itself, from a state of 0: (m, width)."""
        if not len(x):
            return x.new_zeros((0, self.width))
        found: Tensor = self.conv(x.view(inputs.steps, -1, x.shape[1]))[0]  # (steps, nodes, width)
        found = found.reshape(-1, self.width)
        rows = inputs.receivers
        return found if rows is None else found[torch.from_numpy(rows)]

    def _attend(self, inputs: Inputs, z: Tensor) -> Tensor:
        assert inputs.matrix is not None and inputs.receivers is not None
        by_head = z.view(len(z), self.heads, z.shape[1] // self.heads)  # (u, h, d)
        sender = (by_head * self.sender).sum(-1)  # (u, h)
        receiver = (by_head * self.receiver).sum(-1)[torch.from_numpy(inputs.receivers)]  # (m, h)
        heads = heads_of(self.heads, by_head.shape[2])
        found = attend(inputs.matrix, z, receiver, sender, heads)  # (m, h d)
        if self.is_last:
            found = found.view(len(found), self.heads, self.width).mean(1)
        return found + self.bias

    def forward(self, inputs: Inputs, drop: Drop | None = None) -> Tensor:
        """Class scores: (m, C)."""
        found = self.hidden(inputs, drop)
        scores: Tensor = found if self.head is None else self.head(found)
        return scores


def dropout(share: float, seed: int, stage: int, turn: int) -> Drop | None:
    """Dropout as a function of seed, stage, round and node, so that ranks agree on every row."""
    if share == 0:
        return None
    key = key_of(seed, f"dropout {stage} {turn}")

    def drop(x: Tensor, nodes: Int64) -> Tensor:
        kept = torch.empty_like(x, requires_grad=False)
        rows = x.detach().numpy()
        with np.errstate(over="ignore"):  # uint64 wraps on purpose
            kernels.draw_kept(key, nodes, share, rows, not x.requires_grad, kept.numpy())
        return x * kept

    return drop


def flat_weights(stage: nn.Module) -> Tensor:
    """All parameters in one row."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in stage.parameters()])


def set_weights(stage: nn.Module, flat: Tensor) -> None:
    """The inverse of `flat_weights`."""
    sizes = [parameter.numel() for parameter in stage.parameters()]
    for parameter, part in zip(stage.parameters(), torch.split(flat, sizes), strict=True):
        parameter.data.copy_(part.view_as(parameter))


def count_parameters(stage: nn.Module) -> int:
    """How many numbers the stage learns."""
    return sum(parameter.numel() for parameter in stage.parameters())

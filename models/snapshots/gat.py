"""Graph attention network (Velickovic et al., ICLR 2018), with additive attention.

A score is the sum of a scalar of the receiver and one of the sender, so that ranks exchange two
scalars a node and head, and never anything an edge.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...storage.snapshot import Snapshot
from .base import SnapshotModel, State, layer_widths
from .operator import Propagator


class GAT(SnapshotModel):
    """Layers of the given widths: heads side by side within, averaged in the last.

    `widths[1:-1]` must be multiples of `heads`.
    """

    def __init__(self, widths: Sequence[int], heads: int = 2) -> None:
        super().__init__()
        pairs = layer_widths(widths)
        if heads < 1:
            raise ValueError(f"`heads` must be at least 1: got {heads}")
        for width in widths[1:-1]:
            if width % heads:
                raise ValueError(f"`widths` within must be multiples of {heads} heads: got {width}")
        self.width = widths[-1]
        self.heads = heads
        self.layers = nn.ModuleList()
        self.receivers = nn.ParameterList()
        self.senders = nn.ParameterList()
        self.biases = nn.ParameterList()
        last = len(pairs) - 1
        for place, (before, after) in enumerate(pairs):
            each = after if place == last else after // heads
            self.layers.append(nn.Linear(before, heads * each, bias=False))
            self.receivers.append(nn.Parameter(torch.empty(heads, each)))
            self.senders.append(nn.Parameter(torch.empty(heads, each)))
            self.biases.append(nn.Parameter(torch.zeros(after)))
            nn.init.xavier_uniform_(self.layers[-1].weight)  # type: ignore[arg-type]
            nn.init.xavier_uniform_(self.receivers[-1])
            nn.init.xavier_uniform_(self.senders[-1])

    def forward(
        self, propagator: Propagator, snapshot: Snapshot, x: Tensor, state: State = ()
    ) -> tuple[Tensor, State]:
        """Output rows before any softmax: (n, widths[0]) -> (n, widths[-1])."""
        for hop, layer in enumerate(self.layers):
            z = layer(x).unflatten(1, (self.heads, -1))  # (n, h, d)
            receiver = (z * self.receivers[hop]).sum(-1)  # (n, h)
            sender = (z * self.senders[hop]).sum(-1)  # (n, h)
            found = propagator.attend(snapshot, z, receiver, sender, hop=hop)
            if hop + 1 < len(self.layers):
                x = functional.elu(found.flatten(1) + self.biases[hop])
            else:
                x = found.mean(1) + self.biases[hop]
        return x, ()

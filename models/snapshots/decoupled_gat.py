"""Decoupled GAT: layers of each node alone, then attention along the edges, several times.

The attention is that of the transformed rows and is the same at every hop (NeutronTP, PVLDB 18(2);
NeutronTask, PVLDB 18(6)), so that it travels once: another model than `GAT`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...storage.snapshot import Snapshot
from .base import SnapshotModel, State, layer_widths, run_layers
from .operator import Propagator


class DecoupledGAT(SnapshotModel):
    """Layers of the given widths; `heads` copies of the output, averaged after the last hop."""

    def __init__(self, widths: Sequence[int], heads: int = 2) -> None:
        super().__init__()
        pairs = layer_widths(widths)
        self.width = widths[-1]
        pairs[-1] = pairs[-1][0], heads * self.width
        self.heads = heads
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairs)
        self.receivers = nn.Parameter(torch.empty(heads, self.width))
        self.senders = nn.Parameter(torch.empty(heads, self.width))
        for layer in self.layers:
            nn.init.xavier_uniform_(layer.weight)  # type: ignore[arg-type]
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        nn.init.xavier_uniform_(self.receivers)
        nn.init.xavier_uniform_(self.senders)

    def forward(
        self, propagator: Propagator, snapshot: Snapshot, x: Tensor, state: State = ()
    ) -> tuple[Tensor, State]:
        """Output rows before any softmax: (n, widths[0]) -> (n, widths[-1])."""
        z = self.transform(x)
        receiver, sender = torch.split(self.scalars(z), self.heads, 1)
        by_head = z.view(len(x), self.heads, self.width)
        found = propagator.attend_power(snapshot, by_head, receiver, sender, len(self.layers))
        return found.mean(1), ()

    def transform(self, x: Tensor) -> Tensor:
        """The layers of each node alone: (n, widths[0]) -> (n, heads * width)."""
        return run_layers(self.layers, x)

    def scalars(self, z: Tensor) -> Tensor:
        """What a node adds to scores, as receiver and as sender: (n, heads * width) -> (n, 2h)."""
        by_head = z.view(len(z), self.heads, self.width)
        return torch.cat(((by_head * self.receivers).sum(-1), (by_head * self.senders).sum(-1)), 1)

"""Graph convolutional network (Kipf and Welling, ICLR 2017): H' = act(A H W + b).

The product with W comes first, so that what travels between ranks has the width of the layer's
output.  `decoupled` applies all layers to each node alone and sends along the edges after them,
as often as there are layers (NeutronTP, PVLDB 18(2), section 4): less travels, but it is another
model.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...storage.snapshot import Snapshot
from .base import SnapshotModel, State
from .operator import Propagator


class GCN(SnapshotModel):
    """Layers of the given widths; `widths[0]` is that of the features."""

    def __init__(self, widths: Sequence[int], *, decoupled: bool = False) -> None:
        super().__init__()
        if len(widths) < 2:
            raise ValueError(f"`widths` must name the input and an output: got {list(widths)}")
        self.width = widths[-1]
        self.decoupled = decoupled
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(widths))
        for layer in self.layers:
            nn.init.xavier_uniform_(layer.weight)  # type: ignore[arg-type]
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(
        self, propagator: Propagator, snapshot: Snapshot, x: Tensor, state: State = ()
    ) -> tuple[Tensor, State]:
        """Output rows before any softmax: (n, widths[0]) -> (n, widths[-1])."""
        if self.decoupled:
            return propagator.power(snapshot, self.transform(x), len(self.layers)), ()
        for hop, layer in enumerate(self.layers):
            sent = functional.linear(x, layer.weight)  # type: ignore[arg-type]
            x = propagator.apply(snapshot, sent, hop=hop) + layer.bias  # type: ignore[operator]
            if hop + 1 < len(self.layers):
                x = torch.relu(x)
        return x, ()

    def transform(self, x: Tensor) -> Tensor:
        """The layers of each node alone, which is all that `decoupled` learns."""
        for hop, layer in enumerate(self.layers):
            x = layer(x)
            if hop + 1 < len(self.layers):
                x = torch.relu(x)
        return x

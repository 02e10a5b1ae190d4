"""Graph convolutional network (Kipf and Welling, ICLR 2017): H' = act(A H W + b).

The product with W comes first, so that what travels between ranks has the width of the layer's
output.  `cached` turns that round in the first layer: A X is computed once for features X that
stay, and no message goes for it again.  `decoupled` applies all layers to each node alone and sends
along the edges after them, as often as there are layers (NeutronTP, PVLDB 18(2), section 4): less
travels, but it is another model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...storage.snapshot import Snapshot
from .base import SnapshotModel, State, layer_widths, run_layers
from .constants import Constants
from .operator import Propagator


class GCN(SnapshotModel):
    """Layers of the given widths; `widths[0]` is that of the features.

    `cached` keeps A X as long as it is asked for with the same tensor of features and the same
    backend.  Features that change, as under dropout, come as new tensors or with a gradient: they
    are sent anew, and rightly, but with their width.
    """

    def __init__(
        self, widths: Sequence[int], *, decoupled: bool = False, cached: bool = False
    ) -> None:
        super().__init__()
        if cached and decoupled:
            raise ValueError("`cached` keeps A X, which a `decoupled` model has not: give one")
        pairs = layer_widths(widths)
        self.width = widths[-1]
        self.decoupled, self.cached = decoupled, cached
        self._sent = Constants()
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairs)
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
            if hop == 0 and self.cached:
                x = layer(self._sent.apply(propagator, snapshot, x))
            else:
                sent = functional.linear(x, layer.weight)  # type: ignore[arg-type]
                x = propagator.apply(snapshot, sent, hop=hop) + layer.bias  # type: ignore[operator]
            if hop + 1 < len(self.layers):
                x = torch.relu_(x)  # a sum that nothing else keeps
        return x, ()

    def transform(self, x: Tensor) -> Tensor:
        """The layers of each node alone, which is all that `decoupled` learns."""
        return run_layers(self.layers, x)

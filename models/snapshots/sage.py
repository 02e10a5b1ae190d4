"""GraphSAGE with means (Hamilton et al., NeurIPS 2017): H' = act(H W_1 + mean(H) W_2 + b).

The mean is over in-neighbours; a node without any gets 0 there, as in torch_geometric's `SAGEConv`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...storage.snapshot import Snapshot
from .base import SnapshotModel, State, layer_widths
from .operator import Propagator


class SAGE(SnapshotModel):
    """Layers of the given widths; `widths[0]` is that of the features."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        pairs = layer_widths(widths)
        self.width = widths[-1]
        self.selves = nn.ModuleList(nn.Linear(before, after) for before, after in pairs)
        self.others = nn.ModuleList(nn.Linear(before, after, bias=False) for before, after in pairs)

    def forward(
        self, propagator: Propagator, snapshot: Snapshot, x: Tensor, state: State = ()
    ) -> tuple[Tensor, State]:
        """Output rows before any softmax: (n, widths[0]) -> (n, widths[-1])."""
        for hop, (own, other) in enumerate(zip(self.selves, self.others, strict=True)):
            sent = propagator.apply(snapshot, other(x), "mean", hop=hop)
            x = own(x[: len(sent)]) + sent  # a backend with copies gives back fewer rows
            if hop + 1 < len(self.selves):
                x = torch.relu(x)
        return x, ()

"""GRU on GCN: what a decoupled GCN makes of each snapshot goes into a GRU, node by node.

The graph part does not depend on the state, so that the next snapshot can be transformed while this
one is propagated (our use of NeutronTask, PVLDB 18(6), for snapshots).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...storage.snapshot import Snapshot
from .base import SnapshotModel, State
from .gcn import GCN
from .operator import Propagator


class GCNGRU(SnapshotModel):
    """A decoupled GCN of the given widths, a GRU as wide as its last, and a linear readout."""

    def __init__(self, widths: Sequence[int], outputs: int) -> None:
        super().__init__()
        self.width = outputs
        self.gcn = GCN(widths, decoupled=True)
        self.cell = nn.GRUCell(widths[-1], widths[-1])
        self.readout = nn.Linear(widths[-1], outputs)

    def forward(
        self, propagator: Propagator, snapshot: Snapshot, x: Tensor, state: State = ()
    ) -> tuple[Tensor, State]:
        """Output rows before any softmax, and the GRU's state: (n, widths[0]) -> (n, outputs)."""
        rows, _ = self.gcn(propagator, snapshot, x)
        return self.combine(rows, state)

    def combine(self, rows: Tensor, state: State) -> tuple[Tensor, State]:
        """What follows the graph: (n, widths[-1]) -> (n, outputs) and the state."""
        hidden = self.cell(torch.tanh(rows), *state)  # (n, widths[-1])
        return self.readout(hidden), (hidden,)

"""GC-LSTM: an LSTM whose products with h are Chebyshev filters (Chen et al. 2018).

What it learns of x it learns of each node alone; the four filters share the terms of h, so that
one block a step goes between ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...storage.snapshot import Snapshot
from .base import State
from .chebyshev import ChebyshevFilter, ChebyshevModel
from .operator import Propagator


class GCLSTM(ChebyshevModel):
    """State is (h, c), output h, all (n, width); `orders` is the K of a filter.

    It is torch_geometric_temporal's `GCLSTM` with symmetric normalisation, which convolves h but
    not c, where the paper convolves both.
    """

    def _add_gates(self, in_width: int) -> None:
        width, orders = self.width, self.orders
        for gate in "ifco":
            setattr(self, f"conv_{gate}", ChebyshevFilter(width, width, orders))
            weight = nn.Parameter(torch.empty(in_width, width))
            setattr(self, f"W_{gate}", nn.init.xavier_uniform_(weight))
            setattr(self, f"b_{gate}", nn.Parameter(torch.zeros(1, width)))

    def forward(
        self, propagator: Propagator, snapshot: Snapshot, x: Tensor, state: State = ()
    ) -> tuple[Tensor, State]:
        """(n, in_width) -> (n, width); without a state h and c are 0."""
        h, c = state or (x.new_zeros(len(x), self.width), x.new_zeros(len(x), self.width))
        terms = propagator.chebyshev(snapshot, h, self.orders)

        def raw(gate: str) -> Tensor:
            own: Tensor = x @ getattr(self, f"W_{gate}") + getattr(self, f"b_{gate}")
            found: Tensor = own + getattr(self, f"conv_{gate}")(terms)
            return found

        c = torch.sigmoid(raw("f")) * c + torch.sigmoid(raw("i")) * torch.tanh(raw("c"))
        h = torch.sigmoid(raw("o")) * torch.tanh(c)
        return h, (h, c)

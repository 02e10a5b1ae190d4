"""GConvLSTM: an LSTM with peepholes whose products are Chebyshev filters (Seo et al. 2018).

The four filters of x share one block of terms, computed once a snapshot, and the four of h another.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...storage.snapshot import Snapshot
from .base import State
from .chebyshev import ChebyshevFilter, ChebyshevModel
from .operator import Propagator


class GConvLSTM(ChebyshevModel):
    """State is (h, c), output h, all (n, width); `orders` is the K of a filter.

    It is torch_geometric_temporal's `GConvLSTM` with symmetric normalisation.
    """

    w_c_i: nn.Parameter  # (1, width) the peepholes
    w_c_f: nn.Parameter
    w_c_o: nn.Parameter

    def _add_gates(self, in_width: int) -> None:
        width, orders = self.width, self.orders
        for gate in "ifco":
            setattr(self, f"conv_x_{gate}", ChebyshevFilter(in_width, width, orders))
            setattr(self, f"conv_h_{gate}", ChebyshevFilter(width, width, orders))
            setattr(self, f"b_{gate}", nn.Parameter(torch.zeros(1, width)))
            if gate != "c":
                peephole = nn.Parameter(torch.empty(1, width))
                setattr(self, f"w_c_{gate}", nn.init.xavier_uniform_(peephole))

    def forward(
        self, propagator: Propagator, snapshot: Snapshot, x: Tensor, state: State = ()
    ) -> tuple[Tensor, State]:
        """(n, in_width) -> (n, width); without a state h and c are 0."""
        h, c = state or (x.new_zeros(len(x), self.width), x.new_zeros(len(x), self.width))
        of_x = self._constants.chebyshev(propagator, snapshot, x, self.orders)
        of_h = propagator.chebyshev(snapshot, h, self.orders)

        def raw(gate: str) -> Tensor:
            convolved: Tensor = getattr(self, f"conv_x_{gate}")(of_x)
            convolved = convolved + getattr(self, f"conv_h_{gate}")(of_h)
            biased: Tensor = convolved + getattr(self, f"b_{gate}")
            return biased

        enter = torch.sigmoid(raw("i") + self.w_c_i * c)
        keep = torch.sigmoid(raw("f") + self.w_c_f * c)
        c = keep * c + enter * torch.tanh(raw("c"))
        leave = torch.sigmoid(raw("o") + self.w_c_o * c)  # looks at the new cell
        h = leave * torch.tanh(c)
        return h, (h, c)

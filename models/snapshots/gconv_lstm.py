"""GConvLSTM: an LSTM with peepholes whose products are Chebyshev filters (Seo et al. 2018).

The four filters of x share one block of terms, computed once a snapshot, and the four of h another.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from ...storage.snapshot import Snapshot
from .base import SnapshotModel, State
from .constants import Constants
from .filters import ChebyshevFilter, check_orders, take_weights
from .operator import Propagator


class GConvLSTM(SnapshotModel):
    """State is (h, c), output h, all (n, width); `orders` is the K of a filter.

    It is torch_geometric_temporal's `GConvLSTM` with symmetric normalisation.
    """

    w_c_i: nn.Parameter  # (1, width) the peepholes
    w_c_f: nn.Parameter
    w_c_o: nn.Parameter

    def __init__(self, in_width: int, width: int, *, orders: int = 2) -> None:
        super().__init__()
        check_orders(orders)
        self.width = width
        self.orders = orders
        for gate in "ifco":
            setattr(self, f"conv_x_{gate}", ChebyshevFilter(in_width, width, orders))
            setattr(self, f"conv_h_{gate}", ChebyshevFilter(width, width, orders))
            setattr(self, f"b_{gate}", nn.Parameter(torch.zeros(1, width)))
            if gate != "c":
                peephole = nn.Parameter(torch.empty(1, width))
                setattr(self, f"w_c_{gate}", nn.init.xavier_uniform_(peephole))
        self._constants = Constants()

    @classmethod
    def from_geometric_temporal(cls, layer: Any) -> Self:
        """The model that a layer of torch_geometric_temporal is, with its weights."""
        model = cls(layer.in_channels, layer.out_channels, orders=layer.K)
        return take_weights(model, layer, normalization="sym", bias=True)

    def forward(
        self, propagator: Propagator, snapshot: Snapshot, x: Tensor, state: State = ()
    ) -> tuple[Tensor, State]:
        """(n, in_width) -> (n, width); without a state h and c are 0."""
        h, c = state or (x.new_zeros(len(x), self.width), x.new_zeros(len(x), self.width))

        def spread() -> list[Tensor]:
            return propagator.chebyshev(snapshot, x, self.orders)

        of_x = self._constants.of(propagator, snapshot, x, spread)
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

"""GConvGRU: a gated recurrent unit whose products are Chebyshev filters (Seo et al. 2018).

Of a step's six filters the three of x share the terms T_k(L) x, which hold no parameter and are
computed once a snapshot; the two gates share those of h; the candidate has its own, of h * r.  So
whatever carries the rows between ranks does it for two blocks a step, not for six.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...storage.snapshot import Snapshot
from .base import State
from .chebyshev import ChebyshevFilter, ChebyshevModel
from .operator import Propagator


class GConvGRU(ChebyshevModel):
    """State and output are h (n, width); `orders` is the K of a filter, its reach plus 1.

    It is torch_geometric_temporal's `GConvGRU` with symmetric normalisation.
    """

    def _add_gates(self, in_width: int) -> None:
        width, orders = self.width, self.orders
        self.conv_x_z, self.conv_h_z = _pair(in_width, width, orders)
        self.conv_x_r, self.conv_h_r = _pair(in_width, width, orders)
        self.conv_x_h, self.conv_h_h = _pair(in_width, width, orders)

    def forward(
        self, propagator: Propagator, snapshot: Snapshot, x: Tensor, state: State = ()
    ) -> tuple[Tensor, State]:
        """(n, in_width) -> (n, width); without a state h is 0."""
        (h,) = state or (x.new_zeros(len(x), self.width),)
        of_x = self._constants.chebyshev(propagator, snapshot, x, self.orders)
        of_h = propagator.chebyshev(snapshot, h, self.orders)
        update = torch.sigmoid(self.conv_x_z(of_x) + self.conv_h_z(of_h))
        reset = torch.sigmoid(self.conv_x_r(of_x) + self.conv_h_r(of_h))
        of_kept = propagator.chebyshev(snapshot, h * reset, self.orders)
        candidate = torch.tanh(self.conv_x_h(of_x) + self.conv_h_h(of_kept))
        h = update * h + (1 - update) * candidate
        return h, (h,)


def _pair(in_width: int, width: int, orders: int) -> tuple[ChebyshevFilter, ChebyshevFilter]:
    """A filter of x and one of h."""
    return ChebyshevFilter(in_width, width, orders), ChebyshevFilter(width, width, orders)

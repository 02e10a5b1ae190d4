"""T-GCN (Zhao et al., T-ITS 2020), and A3T-GCN, where attention weighs periods (Bai et al. 2021).

A gated recurrent unit reads a graph convolution of x.  The convolution does not look at the state,
and A x, which its three uses share, holds no parameter: it is computed once a snapshot, after which
a step sends nothing between ranks.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from ...storage.snapshot import Snapshot
from .base import SnapshotModel, State
from .constants import Constants
from .filters import Convolution, take_weights
from .operator import Propagator


class TGCN(SnapshotModel):
    """State and output are h (n, width); it is torch_geometric_temporal's `TGCN`."""

    def __init__(self, in_width: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.conv_z, self.linear_z = _gate(in_width, width)
        self.conv_r, self.linear_r = _gate(in_width, width)
        self.conv_h, self.linear_h = _gate(in_width, width)
        self._constants = Constants()

    @classmethod
    def from_geometric_temporal(cls, layer: Any) -> Self:
        """The model that a layer of torch_geometric_temporal is, with its weights."""
        model = cls(layer.in_channels, layer.out_channels)
        return take_weights(model, layer, improved=False, add_self_loops=True)

    def forward(
        self, propagator: Propagator, snapshot: Snapshot, x: Tensor, state: State = ()
    ) -> tuple[Tensor, State]:
        """(n, in_width) -> (n, width); without a state h is 0."""
        (h,) = state or (x.new_zeros(len(x), self.width),)
        spread = self._constants.apply(propagator, snapshot, x)  # (n, in_width)
        h = self.step(spread, h)
        return h, (h,)

    def step(self, spread: Tensor, h: Tensor) -> Tensor:
        """The next h, given A x: (n, in_width), (n, width) -> (n, width)."""
        update = torch.sigmoid(self.linear_z(torch.cat((self.conv_z(spread), h), 1)))
        reset = torch.sigmoid(self.linear_r(torch.cat((self.conv_r(spread), h), 1)))
        candidate = torch.tanh(self.linear_h(torch.cat((self.conv_h(spread), h * reset), 1)))
        return update * h + (1 - update) * candidate


class A3TGCN(SnapshotModel):
    """State and output are h (n, width), a mean over periods of what one T-GCN cell makes of each.

    The features hold `periods` equal parts, one after the other: by default every column is a
    period, as the lags of a signal are; features that are no history want `periods=1`.  The cell
    reads each part with the same h before it, none after another, and learned weights say how much
    each counts: so does torch_geometric_temporal's `A3TGCN`, where the paper runs the cell through
    the periods.
    """

    def __init__(self, in_width: int, width: int, *, periods: int | None = None) -> None:
        super().__init__()
        count = in_width if periods is None else periods
        if count < 1 or in_width % count:
            raise ValueError(
                f"`periods` must cut the {in_width} columns of the features into equal parts: got "
                f"{periods}"
            )
        self.width = width
        self.periods = count
        self.base_tgcn = TGCN(in_width // count, width)
        self.attention = nn.Parameter(torch.empty(count).uniform_())
        self._constants = Constants()

    @classmethod
    def from_geometric_temporal(cls, layer: Any) -> Self:
        """The model that a layer of torch_geometric_temporal is, with its weights."""
        model = cls(layer.in_channels * layer.periods, layer.out_channels, periods=layer.periods)
        return take_weights(model, layer, improved=False, add_self_loops=True)

    def forward(
        self, propagator: Propagator, snapshot: Snapshot, x: Tensor, state: State = ()
    ) -> tuple[Tensor, State]:
        """(n, in_width) -> (n, width); without a state h is 0."""
        (h,) = state or (x.new_zeros(len(x), self.width),)
        spread = self._constants.apply(propagator, snapshot, x)  # (n, in_width)
        parts = torch.cat(spread.chunk(self.periods, 1))  # (periods n, in_width / periods)
        each = self.base_tgcn.step(parts, h.repeat(self.periods, 1))
        each = each.view(self.periods, len(h), self.width)
        found = torch.einsum("p,pnd->nd", self.attention.softmax(0), each)
        return found, (found,)


def _gate(in_width: int, width: int) -> tuple[Convolution, nn.Linear]:
    return Convolution(in_width, width), nn.Linear(2 * width, width)

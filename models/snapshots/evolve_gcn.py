"""EvolveGCN (Pareja et al., AAAI 2020): the weights of a graph convolution go from step to step.

In the -O form a recurrent unit makes the next weights of the last ones alone; in the -H form it
also reads the rows of the nodes with the highest scores.  The weights are square and replicated:
every rank makes the same, and its share of their gradient is linear, so that one sum over the ranks
at the end of the window is exact.

torch_geometric_temporal keeps the evolved weights on the module, where they (and their graph)
outlive an epoch unless `reinitialize_weight` is called; here they are the state.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from ...storage.snapshot import Snapshot
from .base import SnapshotModel, State
from .constants import Constants
from .filters import take_weights
from .operator import Propagator


class EvolveGCNO(SnapshotModel):
    """State is (W,) a layer, each (1, width, width); the output A x W has no bias.

    With one layer and no projection it is torch_geometric_temporal's `EvolveGCNO`; features of
    another width are projected first, and further layers follow a rectifier.  `keep` computes A x
    of unchanging features once: the first layer then sends nothing between ranks.
    """

    def __init__(self, in_width: int, width: int, *, layers: int = 2, keep: bool = True) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"`layers` must be at least 1: got {layers}")
        self.width = width
        self.keep = keep
        self.projection = nn.Linear(in_width, width) if in_width != width else nn.Identity()
        self.layers = nn.ModuleList(self._layer() for _ in range(layers))
        self._constants = Constants()

    def _layer(self) -> EvolvingWeight:
        return EvolvingWeight(self.width)

    @classmethod
    def from_geometric_temporal(cls, *layers: Any) -> Self:
        """The model of some layers of torch_geometric_temporal, with their weights."""
        width = layers[0].in_channels
        model = cls(width, width, layers=len(layers))
        fixed = {"improved": False, "normalize": True, "add_self_loops": True}
        for own, layer in zip(model.layers, layers, strict=True):
            names = {"pooling_layer.select.weight": "pooling"}
            take_weights(own, layer, names, in_channels=width, **fixed)
        return model

    def forward(
        self, propagator: Propagator, snapshot: Snapshot, x: Tensor, state: State = ()
    ) -> tuple[Tensor, State]:
        """(n, in_width) -> (n, width); without a state the weights start from the learned ones."""
        weights = state or tuple(layer.initial_weight for layer in self.layers)  # type: ignore[misc]
        x = self.projection(x)
        evolved = []
        for hop, (layer, weight) in enumerate(zip(self.layers, weights, strict=True)):
            weight = layer(propagator, snapshot, x, weight)
            evolved.append(weight)
            x = self._convolve(propagator, snapshot, x, weight[0], hop)
            if hop + 1 < len(self.layers):
                x = torch.relu(x)
        return x, tuple(evolved)

    def _convolve(
        self, propagator: Propagator, snapshot: Snapshot, x: Tensor, weight: Tensor, hop: int
    ) -> Tensor:
        if self.keep and not x.requires_grad:
            return self._constants.apply(propagator, snapshot, x, hop=hop) @ weight
        return propagator.apply(snapshot, x @ weight, hop=hop)


class EvolveGCNH(EvolveGCNO):
    """As `EvolveGCNO`, where the recurrent unit also reads the `width` rows that score highest.

    A score is x p / |p| for a learned p; rows are weighted with its hyperbolic tangent.  Of equal
    scores the first node counts.  It is torch_geometric_temporal's `EvolveGCNH`, but for the number
    of rows: that one computes it as a share of the nodes in float32, which can give one too many.
    """

    def _layer(self) -> EvolvingWeight:
        return PooledWeight(self.width)


class EvolvingWeight(nn.Module):
    """The next weights of the last ones: a gated recurrent unit, a row at a time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.initial_weight = nn.Parameter(torch.empty(1, width, width))
        self.recurrent_layer = nn.GRU(width, width)
        nn.init.xavier_uniform_(self.initial_weight[0])

    def forward(
        self, propagator: Propagator, snapshot: Snapshot, x: Tensor, weight: Tensor
    ) -> Tensor:
        """(1, width, width) -> (1, width, width)."""
        _, evolved = self.recurrent_layer(self.read(propagator, snapshot, x, weight), weight)
        return evolved  # type: ignore[no-any-return]

    def read(self, propagator: Propagator, snapshot: Snapshot, x: Tensor, weight: Tensor) -> Tensor:
        """What the recurrent unit reads: the last weights."""
        return weight


class PooledWeight(EvolvingWeight):
    """The next weights of the last ones and of the rows that score highest."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.pooling = nn.Parameter(torch.empty(1, width).uniform_(-(width**-0.5), width**-0.5))

    def read(self, propagator: Propagator, snapshot: Snapshot, x: Tensor, weight: Tensor) -> Tensor:
        """The `width` best rows of nodes that exist, weighted, then zeros: (1, width, width)."""
        scores = (x * self.pooling).sum(1) / self.pooling.norm()  # (n,)
        rows, count = x * torch.tanh(scores)[:, None], min(self.width, snapshot.num_nodes)
        if snapshot.present is not None:  # a node that comes later is not there to be chosen
            absent = ~propagator.local(snapshot.present)
            scores = scores.masked_fill(absent, -torch.inf)
            count = min(count, int(snapshot.present.sum()))
        best = propagator.fetch(rows, propagator.top_nodes(scores, count))
        return nn.functional.pad(best, (0, 0, 0, self.width - count))[None]

"""MPNN-LSTM (Panagopoulos et al., AAAI 2021): two graph convolutions, read by two LSTMs.

The convolutions do not look at the state.  Each is followed by a rectifier, a batch normalisation
over all nodes that exist by then, on whichever rank they are (torch_geometric_temporal's counts
those that come later as well), and dropout, whose mask is a function of the training step and the
node: it is the same on any number of ranks and after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from ...storage.counter import uniform
from ...storage.snapshot import Snapshot
from .base import SnapshotModel, State
from .constants import Constants
from .filters import Convolution, take_weights
from .operator import Propagator


class MPNNLSTM(SnapshotModel):
    """State is (h1, c1, h2, c2) of both LSTMs; the output (h1, h2, x) is 2 hidden + in_width wide.

    `forward` goes on by a snapshot and normalises over its nodes.  `run_window` is
    torch_geometric_temporal's `MPNNLSTM`: it starts from nothing, normalises over the nodes of all
    snapshots at once and puts more columns of x beside the states.  The two agree in `eval` mode.
    """

    def __init__(self, in_width: int, hidden: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise ValueError(f"`dropout` must be at least 0 and below 1: got {dropout}")
        self.hidden = hidden
        self.width = 2 * hidden + in_width
        self.dropout = dropout
        self.convolution_1 = Convolution(in_width, hidden)
        self.convolution_2 = Convolution(hidden, hidden)
        self.batch_norm_1 = NodeNorm(hidden)
        self.batch_norm_2 = NodeNorm(hidden)
        self.recurrent_1 = nn.LSTM(2 * hidden, hidden)
        self.recurrent_2 = nn.LSTM(hidden, hidden)
        self._constants = Constants()

    @classmethod
    def from_geometric_temporal(cls, layer: Any) -> Self:
        """The model that a layer of torch_geometric_temporal is, with its weights."""
        model = cls(layer.in_channels, layer.hidden_size, dropout=layer.dropout)
        return take_weights(model, layer)

    def forward(
        self, propagator: Propagator, snapshot: Snapshot, x: Tensor, state: State = ()
    ) -> tuple[Tensor, State]:
        """(n, in_width) -> (n, width); without a state h and c of both are 0."""
        empty = x.new_zeros(len(x), self.hidden)
        h_1, c_1, h_2, c_2 = state or (empty, empty, empty, empty)
        read = self._convolve(propagator, [snapshot], [x])  # (1, n, 2 hidden)
        between, (h, c) = self.recurrent_1(read, (h_1[None], c_1[None]))
        _, (h_last, c_last) = self.recurrent_2(between, (h_2[None], c_2[None]))
        return torch.cat((h[0], h_last[0], x), 1), (h[0], c[0], h_last[0], c_last[0])

    def run_window(
        self, propagator: Propagator, snapshots: Sequence[Snapshot], xs: Sequence[Tensor]
    ) -> Tensor:
        """T times (n, in_width) -> (n, 2 hidden + in_width + T - 1), after the last snapshot.

        Beside the states stand the features of the first snapshot and the last one of each other.
        """
        read = self._convolve(propagator, snapshots, xs)  # (T, n, 2 hidden)
        between, (h_1, _) = self.recurrent_1(read)
        _, (h_2, _) = self.recurrent_2(between)
        beside = [xs[0], *(x[:, -1:] for x in xs[1:])]
        return torch.cat((h_1[0], h_2[0], *beside), 1)

    def _convolve(
        self, propagator: Propagator, snapshots: Sequence[Snapshot], xs: Sequence[Tensor]
    ) -> Tensor:
        """What the LSTMs read: (T, n, 2 hidden)."""
        first = [
            self.convolution_1(self._constants.apply(propagator, snapshot, x))
            for snapshot, x in zip(snapshots, xs, strict=True)
        ]
        z_1 = self._settle(propagator, snapshots, torch.stack(first), self.batch_norm_1)
        second = [
            propagator.apply(snapshot, self.convolution_2.lin(z), hop=1) + self.convolution_2.bias
            for snapshot, z in zip(snapshots, z_1, strict=True)
        ]
        z_2 = self._settle(propagator, snapshots, torch.stack(second), self.batch_norm_2)
        return torch.cat((z_1, z_2), 2)

    def _settle(
        self, propagator: Propagator, snapshots: Sequence[Snapshot], z: Tensor, norm: NodeNorm
    ) -> Tensor:
        """Rectified, normalised, dropped out: (T, n, hidden)."""
        there = [np.ones(s.num_nodes, bool) if s.present is None else s.present for s in snapshots]
        count = sum(int(present.sum()) for present in there)
        known = torch.cat([propagator.local(present) for present in there])  # (T n,)
        z = norm(propagator, torch.relu(z).flatten(0, 1), known, count).view(z.shape)
        if not self.training or not self.dropout:
            return z
        own = propagator.local(np.arange(snapshots[0].num_nodes)).numpy()  # (n,)
        step, layer = int(norm.num_batches_tracked), 1 if norm is self.batch_norm_1 else 2
        drawn = [
            uniform(step, f"dropout {layer} of {place}", own, self.hidden)
            for place in range(len(snapshots))
        ]
        kept = torch.from_numpy(np.stack(drawn) >= self.dropout)  # (T, n, hidden)
        return z * kept / (1 - self.dropout)


class NodeNorm(nn.Module):
    """Batch normalisation whose mean and variance are over the rows of all ranks."""

    running_mean: Tensor  # (d,)
    running_var: Tensor  # (d,)
    num_batches_tracked: Tensor  # ()

    def __init__(self, width: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, propagator: Propagator, x: Tensor, known: Tensor, count: int) -> Tensor:
        """(n, d) -> (n, d); `known` (n,) rows count, which are `count` on all ranks together."""
        if self.training:
            rows, count = x[known], max(count, 1)
            mean = propagator.sum_rows(rows) / count  # (d,)
            variance = propagator.sum_rows((rows - mean).square()) / count
            self._follow(mean.detach(), variance.detach() * (count / max(count - 1, 1)))
        else:
            mean, variance = self.running_mean, self.running_var
        return (x - mean) / (variance + self.eps).sqrt() * self.weight + self.bias

    def _follow(self, mean: Tensor, variance: Tensor) -> None:
        """Moves the running figures; the variance is the unbiased one, as torch has it."""
        self.num_batches_tracked += 1
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance, self.momentum)

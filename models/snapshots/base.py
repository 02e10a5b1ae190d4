"""What every model of snapshots is: rows of features in, rows of outputs and a state out.

A model holds replicated parameters and sees the n rows of its rank only; what it learns of other
nodes comes through the `Propagator`.  The state goes from snapshot to snapshot and never travels
between ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import Tensor, nn

from ...storage.snapshot import Snapshot
from .operator import Propagator

State: TypeAlias = tuple[Tensor, ...]
"""What a recurrent model carries to the next snapshot; () at the first, and for models without."""


class SnapshotModel(nn.Module):
    """A model of snapshots: (n, F) -> (n, width)."""

    width: int
    """Of the output rows."""

    def forward(
        self, propagator: Propagator, snapshot: Snapshot, x: Tensor, state: State = ()
    ) -> tuple[Tensor, State]:
        """The output rows of this rank's nodes, and the state for the next snapshot."""
        raise NotImplementedError(f"{type(self).__name__} must define `forward`")

    def detach(self, state: State) -> State:
        """The state without its history, at the end of a window."""
        return tuple(value.detach() for value in state)


def layer_widths(widths: Sequence[int]) -> list[tuple[int, int]]:
    """The widths before and after each layer.

    Raises:
        ValueError: if there is no layer.

    >>> layer_widths([16, 8, 3])
    [(16, 8), (8, 3)]
    """
    if len(widths) < 2:
        raise ValueError(f"`widths` must name the input and an output: got {list(widths)}")
    return list(pairwise(widths))


def run_layers(layers: nn.ModuleList, x: Tensor) -> Tensor:
    """What layers make of each node alone, with a rectifier between them: (n, d) -> (n, width)."""
    for place, layer in enumerate(layers):
        x = layer(x if place == 0 else torch.relu(x))
    return x

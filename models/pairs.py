"""Pairs: what the losses of a segment are made of, each node as the row that holds its state.

It is to `DynamicGNN.losses_of` what a chain is to `scan`: nothing is gathered into views.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from ..stream import Bool, EventBatch, Float64, Int64


@dataclass(frozen=True, slots=True)
class PairsAround:
    """The `k` most recent events of all that stand in pairs, of M nodes beside an event.

    Those are [source, destination, corrupted sources, corrupted destinations].
    """

    rows: Int64  # (n, M, k) in which the neighbours stand
    mask: Bool  # (n, M, k); False is padding
    event: Int64  # (n, M, k) position in the log
    gap: Float64  # (n, M, k) seconds since that event
    idle_gap: Float64  # (n, M, k) seconds since the neighbour's own last event
    log: EventBatch  # all events


@dataclass(frozen=True, slots=True)
class Pairs:
    """`n` events with their ends and `m` corrupted ones of a side, as rows of tables of states."""

    num_base: int  # the first rows, which carry no gradient
    kind: Int64  # (n,)
    ends: Int64  # (n, 2) source and destination
    other_src: Int64  # (n, m), or (n, 0)
    other_src_valid: Bool  # likewise; False is padding
    other_dst: Int64  # (n, m)
    other_dst_valid: Bool  # (n, m)
    idle: Float64  # (n, M), of `rows`: time since the last event, in mean gaps of a node
    around: PairsAround | None = None  # for models that read `around`
    total: int = 0  # events of the segment, of which these may be one rank's share; 0: these alone

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def weight(self) -> float:
        """What a loss counts in the mean over the segment."""
        return 1 / max(self.total, len(self), 1)

    @property
    def rows(self) -> Int64:
        """All nodes of an event, (n, M): source, destination, corrupted sources, destinations."""
        return np.concatenate([self.ends, self.other_src, self.other_dst], axis=1)

    def gathered(self) -> Pairs:
        """The same pairs of a table in which each node of an event has a row of its own."""
        n, count = self.idle.shape
        own = np.arange(n * count).reshape(n, count)
        first = 2 + self.other_src.shape[1]
        ends, sources, destinations = own[:, :2], own[:, 2:first], own[:, first:]
        return replace(self, num_base=0, ends=ends, other_src=sources, other_dst=destinations)


@dataclass(frozen=True, slots=True)
class Priced:
    """What the pairs of a segment cost."""

    losses: Tensor  # (n,)
    expected: Tensor | None = None  # (n,) `expected_idle`, without gradient

"""Pairs: what the losses of a segment are made of, each node as the row that holds its state.

It is to `DynamicGNN.losses_of` what a chain is to `scan`: nothing is gathered into views.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    around: PairsAround | None = None  # for models that read `around`

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, slots=True)
class Priced:
    """What the pairs of a segment cost."""

    losses: Tensor  # (n,)
    expected: Tensor | None = None  # (n,) `expected_idle`, without gradient

"""Who transforms and who propagates.

Invariant: the ranks that transform come first and hold all rows; those that propagate hold the
graph, a slice of the columns each, and no row.  One rank alone does both.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..ownership import Ownership, cut


@dataclass(frozen=True, slots=True)
class Roles:
    """The two kinds of ranks (T and P in NeutronTask, PVLDB 18(6))."""

    transform: tuple[int, ...]
    propagate: tuple[int, ...]
    size: int

    @staticmethod
    def of(size: int, num_transform: int | None = None) -> Roles:
        """The first ranks transform, half of them if not said; the others propagate.

        Raises:
            ValueError: if no rank would be left for one of the two.

        >>> Roles.of(3, 2)
        Roles(transform=(0, 1), propagate=(2,), size=3)
        """
        if size == 1 and num_transform in (None, 1):
            return Roles((0,), (0,), 1)
        wanted = size // 2 if num_transform is None else num_transform
        if not 1 <= wanted < size:
            raise ValueError(
                f"`num_transform` must leave a rank for each of the two tasks: got {wanted} of "
                f"{size} ranks"
            )
        return Roles(tuple(range(wanted)), tuple(range(wanted, size)), size)

    def rows(self, num_nodes: int) -> Ownership:
        """Runs of rows, even among the ranks that transform."""
        shares = [float(rank in self.transform) for rank in range(self.size)]
        return Ownership.contiguous(num_nodes, shares)

    @property
    def shares(self) -> tuple[float, ...]:
        """The shares of the columns: equal ones of the ranks that propagate."""
        return tuple(float(rank in self.propagate) for rank in range(self.size))

    def columns(self, width: int) -> list[int]:
        """How many columns each rank multiplies."""
        return cut(width, self.shares)

    def results(self, num_nodes: int) -> list[int]:
        """How many rows each rank has after the ranks that propagate have put rows together."""
        return self.columns(num_nodes)


@dataclass(frozen=True, slots=True)
class Shape:
    """What both sides must know of a decoupled model."""

    width: int  # of a transformed row, all heads side by side
    heads: int  # 0: no attention
    hops: int
    dtype: torch.dtype

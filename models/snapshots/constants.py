"""What is computed from a snapshot's features alone, computed once.

Features do not change while a model learns, so what the graph makes of them before any parameter
takes part is the same in every epoch; over ranks it then costs no message from the second on.
Invariant: all ranks keep and forget alike, for what decides is the same on all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch import Tensor

from ...storage.snapshot import Snapshot
from .operator import Propagator

T = TypeVar("T")


class Constants:
    """What an operator made of x last, snapshot by snapshot, kept for when it is asked for again.

    A tensor with a gradient is never kept: something that learns has made it.
    """

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[Snapshot, tuple[Any, ...]] = WeakKeyDictionary()

    def apply(
        self, propagator: Propagator, snapshot: Snapshot, x: Tensor, *, hop: int = 0
    ) -> Tensor:
        """The operator's `apply`: (n, d) -> (n, d)."""
        asked = "apply", hop
        return self._of(
            propagator, snapshot, x, asked, lambda: propagator.apply(snapshot, x, hop=hop)
        )

    def chebyshev(
        self, propagator: Propagator, snapshot: Snapshot, x: Tensor, orders: int
    ) -> list[Tensor]:
        """The operator's `chebyshev`: (n, d) -> orders times (n, d)."""
        asked = "chebyshev", orders
        return self._of(
            propagator, snapshot, x, asked, lambda: propagator.chebyshev(snapshot, x, orders)
        )

    def _of(
        self,
        propagator: Propagator,
        snapshot: Snapshot,
        x: Tensor,
        asked: tuple[str, int],
        compute: Callable[[], T],
    ) -> T:
        if x.requires_grad:
            return compute()
        known = self._kept.get(snapshot)
        if (
            known is not None
            and known[0] is propagator
            and known[1] is x
            and known[2:4] == (x._version, asked)
        ):
            kept: T = known[4]
            return kept
        found = compute()
        self._kept[snapshot] = propagator, x, x._version, asked, found
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> Constants:
        return Constants()

    def __reduce__(self) -> tuple[type[Constants], tuple[()]]:
        return Constants, ()

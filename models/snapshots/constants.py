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
    """A value a snapshot, kept while it is asked for with the same tensor and the same operator.

    A tensor with a gradient is never kept: something that learns has made it.
    """

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[Snapshot, tuple[Any, ...]] = WeakKeyDictionary()

    def of(
        self, propagator: Propagator, snapshot: Snapshot, x: Tensor, compute: Callable[[], T]
    ) -> T:
        """What `compute` gives, or gave when it was last asked for with these."""
        if x.requires_grad:
            return compute()
        known = self._kept.get(snapshot)
        if (
            known is not None
            and known[0] is propagator
            and known[1] is x
            and known[2] == x._version
        ):
            kept: T = known[3]
            return kept
        found = compute()
        self._kept[snapshot] = propagator, x, x._version, found
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> Constants:
        return Constants()

    def __reduce__(self) -> tuple[type[Constants], tuple[()]]:
        return Constants, ()

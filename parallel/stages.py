"""Where the time of a run goes: one clock that is always in exactly one stage.

Invariant: naming a stage ends the one before it, so that the seconds of all stages together are
those between the first name and `pause`.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

from torch import Tensor

STAGES = (
    *("resolve", "sample", "schedule", "hoist", "scan", "score", "backward score"),
    *("backward scan", "backward hoist", "exchange", "step", "commit", "measure"),
)
"""All stages of a run, in the order in which a segment passes them."""


class Stages:
    """Seconds by stage.

    >>> stages = Stages()
    >>> stages.enter("scan")
    >>> stages.pause()
    >>> list(stages.seconds)
    ['scan']
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._current: str | None = None
        self._since = 0.0

    def enter(self, name: str) -> str | None:
        """Time from now on is that of the stage `name`; the stage until now."""
        before = self._current
        now = perf_counter()
        if before is not None:
            self.seconds[before] = self.seconds.get(before, 0.0) + now - self._since
        self._current, self._since = name, now
        return before

    def pause(self) -> None:
        """Time from now on is that of no stage."""
        if self._current is not None:
            self.enter(self._current)
        self._current = None

    def take(self, total: Mapping[str, float]) -> dict[str, float]:
        """`total` with the seconds until now added, which are then forgotten; the clock pauses."""
        self.pause()
        found, self.seconds = self.seconds, {}
        names = [name for name in STAGES if name in found or name in total]
        return {name: total.get(name, 0.0) + found.get(name, 0.0) for name in names}

    def on_backward(self, name: str, value: Tensor) -> Tensor:
        """`value`; when its gradient is known, the stage `name` begins."""
        if not value.requires_grad:
            return value
        marked = value.view_as(value)  # a weight would keep its hook for good

        def begin(_: Tensor) -> None:
            self.enter(name)

        marked.register_hook(begin)  # type: ignore[no-untyped-call]
        return marked

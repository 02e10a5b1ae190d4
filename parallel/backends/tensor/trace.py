"""What a rank did in which order, so that overlap can be counted and not only timed.

An exchange is exposed if nothing is multiplied between its start and the wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Act: TypeAlias = Literal["start", "wait", "multiply"]


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a rank did."""

    act: Act
    purpose: str  # of an exchange; "" for a product
    chunk: int
    size: int  # bytes that this rank receives, or entries times columns of a product


def exposed_bytes(trace: Sequence[Step]) -> int:
    """Bytes of the exchanges beside which nothing was multiplied.

    >>> begun, done = Step("start", "split", 0, 80), Step("wait", "split", 0, 80)
    >>> exposed_bytes([begun, done]), exposed_bytes([begun, Step("multiply", "", 0, 5), done])
    (80, 0)
    """
    beside: dict[tuple[str, int], int] = {}
    exposed = 0
    for step in trace:
        key = step.purpose, step.chunk
        if step.act == "start":
            beside[key] = 0
        elif step.act == "wait":
            exposed += 0 if beside.pop(key) else step.size
        else:
            beside = {key: done + step.size for key, done in beside.items()}
    return exposed

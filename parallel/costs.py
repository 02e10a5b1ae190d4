"""What an event and a message cost: the constants by which work is shared over ranks and threads.

They are fixed, not measured while running, so that a run repeated on as many ranks decides, and
rounds, as the first one did.  `benchmarks/scale_model.py` measures them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds; forward and backward together."""

    event: float  # the updates of one event
    message: float = 60e-6  # one exchange there and one back, without its bytes
    byte: float = 2 * 0.5e-9  # a byte of rows there, and of gradients back

    def shared(self, longest: int, num_bytes: int, ranks: int) -> float:
        """With `longest` events on the busiest rank and `num_bytes` of rows written in all."""
        arriving = num_bytes * (ranks - 1) / ranks
        return longest * self.event + self.message + arriving * self.byte

    def worth_sharing(self, num_events: int, longest: int, num_bytes: int, ranks: int) -> bool:
        """Whether ranks that share the events are done before ranks that all update everything.

        >>> Costs(event=2e-5).worth_sharing(200, 100, 200 * 2 * 256, 2)
        True
        >>> Costs(event=2e-5).worth_sharing(200, 199, 200 * 2 * 256, 2)
        False
        """
        return self.shared(longest, num_bytes, ranks) < num_events * self.event


FUSED = Costs(event=20e-6)
LEVELS = Costs(event=300e-6)


def threaded(width: int) -> Costs:
    """Of scans in threads of one process: nothing is exchanged, but parts are made and woken twice.

    An event's products grow with the square of the states' width.

    >>> [threaded(width).worth_sharing(200, 100, 0, 2) for width in (64, 100)]
    [False, True]
    """
    return Costs(event=0.7e-9 * width**2, message=400e-6, byte=0.0)

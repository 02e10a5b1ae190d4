"""What lazy message passing sends, by formula, and how long that takes on a network.

All bytes are payload, counted once, at the sender, and summed over k ranks.  B is the sum over
ordered pairs of ranks of the rows that one needs of the other.  The sum of gradients is counted as
it is done here: each rank sends each other its share, and then the sum of its own; that is
2 (k - 1) |theta| in all, as much as a ring sends, or a star.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .gate import PURPOSES, Phase


@dataclass(frozen=True, slots=True)
class Shape:
    """What the bytes of a run depend on."""

    ranks: int
    boundary_rows: int  # B
    sent_first: int  # width of what goes out before stage 0; 0: nothing
    widths: tuple[int, ...]  # of the outputs of the stages, but for those that stay
    parameters: tuple[int, ...]  # of each stage, its auxiliary head included
    rounds: tuple[int, ...]  # of each stage, as run; of local ones those that end in a sum
    evaluations: tuple[int, ...]  # of each stage
    itemsize: int = 4  # bytes of a number
    grad_itemsize: int | None = None  # of one of a gradient, if another


def lazy_bytes(shape: Shape) -> dict[str, int]:
    """Bytes by purpose of a lazy run; rows do not depend on the number of rounds.

    >>> cora = Shape(4, 4_642, 1_433, (256,), (1, 1), (200, 200), (0, 0))
    >>> lazy_bytes(cora)["feature"], lazy_bytes(cora)["embed"]
    (26607944, 4753408)
    """
    item, others = shape.itemsize, shape.ranks - 1
    found = _common(shape)
    found["embed"] = item * shape.boundary_rows * sum(shape.widths)
    item = shape.grad_itemsize or item
    steps = zip(shape.rounds, shape.parameters, strict=True)
    found["grad"] = 2 * item * others * sum(rounds * size for rounds, size in steps)
    found["metric"] = _metrics(shape.ranks, sum(shape.evaluations))
    return found


def end_to_end_bytes(shape: Shape) -> dict[str, int]:
    """Bytes by purpose of the end-to-end twin, whose first-layer inputs are kept.

    All its stages have one number of rounds and of evaluations: those of the first are read.  Each
    evaluation and the last prediction is a forward pass more.

    >>> cora = Shape(4, 4_642, 1_433, (256,), (1, 1), (200, 200), (200, 200))
    >>> end_to_end_bytes(cora)["embed"], end_to_end_bytes(cora)["embed gradient"]
    (1906116608, 950681600)
    """
    item, others = shape.itemsize, shape.ranks - 1
    rounds, evaluations = shape.rounds[0], shape.evaluations[0]
    once = item * shape.boundary_rows * sum(shape.widths)
    found = _common(shape)
    found["embed"] = (rounds + evaluations + 1) * once
    found["embed gradient"] = rounds * once
    found["grad"] = 2 * item * others * rounds * sum(shape.parameters)
    found["metric"] = _metrics(shape.ranks, evaluations)
    return found


def traffic_ratio(features: int, widths: Sequence[int], rounds: int) -> float:
    """Row bytes end to end over lazy, without evaluations: whatever the ranks and the partition.

    >>> round(traffic_ratio(1_433, [256], 200), 1)
    61.5
    """
    return (features + 2 * rounds * sum(widths)) / (features + sum(widths))


def _common(shape: Shape) -> dict[str, int]:
    found = dict.fromkeys(PURPOSES, 0)
    others = shape.ranks - 1
    found["setup"] = 8 * shape.ranks * others + (8 + 8) * shape.boundary_rows  # ids and degrees
    found["feature"] = shape.itemsize * shape.boundary_rows * shape.sent_first
    found["weights"] = shape.itemsize * others * sum(shape.parameters)
    found["control"] = 2 * others * 8 * 3  # how many nodes are trained on, chosen by, tested on
    return found


def _metrics(ranks: int, evaluations: int) -> int:
    """Three sums in float64 an evaluation: loss, right answers and loss on those chosen by."""
    return 2 * (ranks - 1) * 8 * 3 * evaluations


@dataclass(frozen=True, slots=True)
class Network:
    """A link from each rank: seconds a message, bytes a second."""

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        if not (self.latency >= 0 and self.bandwidth > 0):
            raise ValueError(
                "`latency` must be at least 0 and `bandwidth` above 0: got "
                f"{self.latency} and {self.bandwidth}"
            )

    def seconds(self, phases: Sequence[Sequence[Phase]]) -> float:
        """How long the exchanges of all ranks take, one after the other: each lasts as long as its
        slowest rank, `latency * messages + bytes / bandwidth`.

        Raises:
            ValueError: if the ranks had not the same exchanges.

        >>> a, b = Phase("grad", 1, 100), Phase("grad", 2, 50)
        >>> Network(1.0, 50.0).seconds([[a], [b]])
        3.0
        """
        if len({len(own) for own in phases}) > 1:
            raise ValueError(
                f"`phases` must be as many on every rank: got {[len(own) for own in phases]}"
            )
        times = (
            max(self.latency * one.messages + one.sent / self.bandwidth for one in together)
            for together in zip(*phases, strict=True)
        )
        return float(sum(times))


NETWORKS = {
    "datacentre": Network(1e-4, 10e9 / 8),
    "wan": Network(50e-3, 100e6 / 8),
    "proximity": Network(30e-3, 1.5e6 / 8),
    "edge": Network(60e-3, 10e6 / 8),
}
"""Assumed links for the four levels that RETEXO names: 10 Gb/s and 0.1 ms, 100 Mb/s and 50 ms,
1.5 Mb/s (Bluetooth) and 30 ms, 10 Mb/s (cellular) and 60 ms."""

"""Which backend suits a graph and a number of ranks: predicted seconds of a step, and why.

Only backends that train the same model the same way are weighed: `tensor`, and `halo` with either
partition.  `task` pays for decoupled models, `hetero` where ranks or links are unlike, `lazy`
learns layer by layer, and `broadcast` is a baseline: these are asked for by name.

The rates are constants and not measured while running, so that a repeated run chooses alike;
`benchmarks/backends.py` measures them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np

from ...storage.snapshot import Snapshot
from .halo import wanted
from .ownership import Ownership, cut
from .partition import chunk, edges_of, imbalance, metis, most_nodes, union


@dataclass(frozen=True, slots=True)
class Rates:
    """What a rank does in a second, and what it takes to tell another."""

    product: float = 1.5e9  # multiply-adds of a sparse product
    byte: float = 0.5e-9  # seconds a byte that arrives
    message: float = 60e-6  # seconds an exchange
    thin: int = 8  # columns below which a sparse product is no cheaper: indices dominate


@dataclass(frozen=True, slots=True)
class Estimate:
    """A step of one backend: forward and backward over all snapshots."""

    backend: str
    seconds: float
    bytes: int  # over all ranks
    balance: float  # the busiest rank's work over the mean
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The backend with its options, as a person reads it."""
        given = ", ".join(str(value) for value in self.options.values())
        return f"{self.backend} ({given})" if given else self.backend


@dataclass(frozen=True, slots=True)
class Choice:
    """A backend, and why it."""

    backend: str
    reason: str
    options: Mapping[str, Any] = field(default_factory=dict)
    estimates: tuple[Estimate, ...] = ()  # the quickest first


def choose(
    snapshots: Sequence[Snapshot],
    ranks: int,
    widths: Sequence[int],
    *,
    rates: Rates | None = None,
    current: str | None = None,
    itemsize: int = 4,
) -> Choice:
    """The backend with the shortest predicted step for these snapshots.

    Args:
        widths: of what each product with the adjacency takes, one a layer or gate.
        current: the label of what is in use: another must be a tenth quicker to take its place.

    Raises:
        ValueError: if there is no rank, no snapshot or no width.
    """
    if ranks < 1 or not snapshots or not widths:
        raise ValueError(
            "`choose` needs a rank, a snapshot and a width: got "
            f"{ranks} ranks, {len(snapshots)} snapshots, widths {list(widths)}"
        )
    if ranks == 1:
        return Choice("single", "one rank holds everything, and nothing travels")
    rates = Rates() if rates is None else rates
    given = list(snapshots), ranks, list(widths), rates, itemsize
    runs = chunk(most_nodes(snapshots), ranks)
    found = [_tensor(*given), _halo(*given, runs, "chunk")]
    if find_spec("pymetis") is not None:
        together = metis(union(snapshots), ranks, weigh_edges=len(snapshots) > 1)
        found.append(_halo(*given, together, "metis"))
    estimates = tuple(sorted(found, key=lambda estimate: estimate.seconds))
    best = estimates[0]
    for estimate in estimates[1:]:
        if estimate.label == current and estimate.seconds <= 1.1 * best.seconds:
            best = estimate
    others = "; ".join(_told(estimate) for estimate in estimates if estimate is not best)
    reason = f"{_told(best)}, against {others}"
    return Choice(best.backend, reason, best.options, estimates)


def _told(estimate: Estimate) -> str:
    return (
        f"{estimate.label} {1e3 * estimate.seconds:.2f} ms a step "
        f"({estimate.bytes / 2**20:.1f} MiB, busiest rank {estimate.balance:.2f} of the mean)"
    )


def _tensor(
    snapshots: Sequence[Snapshot],
    ranks: int,
    widths: Sequence[int],
    rates: Rates,
    itemsize: int,
) -> Estimate:
    """Two exchanges a product there and two back, all edges times a slice of the columns."""
    seconds, total, slices = 0.0, 0.0, np.zeros(ranks)
    for snapshot in snapshots:
        for width in widths:
            columns = cut(width, [1.0] * ranks)
            moved = snapshot.num_nodes * width * (ranks - 1) / ranks * itemsize
            total += 4 * moved
            work = snapshot.adjacency.num_edges * max(*columns, min(rates.thin, width))
            slices += columns
            seconds += 4 * (moved / ranks * rates.byte + rates.message) + 2 * work / rates.product
    return Estimate("tensor", seconds, round(total), imbalance(slices))


def _halo(
    snapshots: Sequence[Snapshot],
    ranks: int,
    widths: Sequence[int],
    rates: Rates,
    itemsize: int,
    ownership: Ownership,
    partition: str,
) -> Estimate:
    """One exchange of remote rows a product there and one back, own edges times all columns."""
    seconds, total, edges = 0.0, 0.0, np.zeros(ranks)
    for snapshot in snapshots:
        matrix = snapshot.adjacency
        rows = tuple(own[own < snapshot.num_nodes] for own in ownership.rows)
        remote = [len(nodes) for nodes in wanted(matrix, rows, rows)]
        own_edges = edges_of(matrix, Ownership(rows))
        edges += own_edges
        for width in widths:
            total += 2 * sum(remote) * width * itemsize
            moved = max(remote) * width * itemsize
            work = int(own_edges.max()) * width
            seconds += 2 * (moved * rates.byte + rates.message) + 2 * work / rates.product
    return Estimate("halo", seconds, round(total), imbalance(edges), {"partition": partition})

"""What the ranks of a run did: rows, work and bytes of each, and how even that is.

A run may be gone on with on other ranks or over another backend: a figure is told with the `Maker`
of the epochs that it is of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import process_time
from typing import Any

import numpy as np

from ...parallel import Comm
from ...parallel.backends import Propagator
from ...parallel.backends.partition import imbalance
from ...parallel.backends.task import TaskPropagator
from ...parallel.backends.tensor import TensorPropagator
from .data import SnapshotData


@dataclass(frozen=True, slots=True)
class Backend:
    """Which backend was taken, and why."""

    name: str
    reason: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Maker:
    """What made the epochs from `first` on."""

    first: int  # epoch, from 1
    backend: str
    ranks: int
    reason: str
    options: dict[str, Any]
    rows: list[int]  # of nodes, of each rank
    work: list[float]  # see `work`
    set_up: int  # bytes of all ranks before training

    def is_like(self, other: Maker) -> bool:
        """Whether both do the same."""
        mine, theirs = ((m.backend, m.ranks, m.options) for m in (self, other))
        return mine == theirs

    def __str__(self) -> str:
        return f"{self.backend} on {self.ranks} rank{'s' if self.ranks > 1 else ''}"


class Watch:
    """What this rank sends and computes between `begin` and `end`."""

    def __init__(self, comm: Comm) -> None:
        self.comm = comm
        self.begin()

    def begin(self) -> None:
        """Counts from here."""
        self._before = {name: (t.calls, t.sent) for name, t in self.comm.bytes.items()}
        self._seconds = process_time()

    def end(self) -> dict[str, Any]:
        """`cpu_seconds`, and by purpose `[calls, bytes sent]`."""
        seconds, moved = process_time() - self._seconds, {}
        for name, traffic in self.comm.bytes.items():
            calls, sent = self._before.get(name, (0, 0))
            if traffic.calls > calls:
                moved[name] = [traffic.calls - calls, traffic.sent - sent]
        return {"cpu_seconds": seconds, "bytes": moved}


def balance(maker: Maker, ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What each rank holds and does in an epoch of training, and the largest over the mean.

    `ranks` are what `Watch.end` gave on each.
    """
    found: dict[str, Sequence[float]] = {
        "rows": maker.rows,
        "work": maker.work,
        "bytes": [sum(sent for _, sent in one["bytes"].values()) for one in ranks],
        "cpu_seconds": [one["cpu_seconds"] for one in ranks],
    }
    return {name: {"ranks": each, "imbalance": _imbalance(each)} for name, each in found.items()}


def work(propagator: Propagator, data: SnapshotData, width: int) -> list[float]:
    """Edges times columns that each rank multiplies: its slice of all edges, or all of its own.

    It is that of one product of `width` columns with each snapshot.
    """
    degree = np.sum([snapshot.adjacency.degree for snapshot in data.snapshots], axis=0)  # (V,)
    if isinstance(propagator, TensorPropagator):
        columns = propagator.layout.widths(width)
    elif isinstance(propagator, TaskPropagator):
        columns = propagator.roles.columns(width)
    else:
        return [int(degree[nodes].sum()) * width for nodes in propagator.ownership.rows]
    return [int(degree.sum()) * count for count in columns]


def by_purpose(ranks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each purpose the exchanges, the bytes of all ranks, and the largest over the mean."""
    names = dict.fromkeys(name for one in ranks for name in one["bytes"])
    found = []
    for name in names:
        each = [one["bytes"].get(name, [0, 0]) for one in ranks]
        sent = [bytes_sent for _, bytes_sent in each]
        found.append(
            {
                "purpose": name,
                "exchanges": max(calls for calls, _ in each),
                "bytes": sum(sent),
                "imbalance": _imbalance(sent),
            }
        )
    return found


def bytes_of(ranks: Sequence[Mapping[str, Any]]) -> int:
    """What all ranks sent, of what `Watch.end` gave on each."""
    return sum(sent for one in ranks for _, sent in one["bytes"].values())


def _imbalance(each: Sequence[float]) -> float | None:
    """Of what the ranks did; None where none did anything.

    >>> _imbalance([3, 1]), _imbalance([0, 0])
    (1.5, None)
    """
    return imbalance(each) if any(each) else None

"""Slow twins that several folders test against: plain Python, a dictionary and a loop each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neutronstream.stream import EventLog

Version = tuple[int, int]
"""The event that wrote a node, and which of its writes it was; (-1, node) before any did."""

Sets = Sequence[Sequence[int]]
"""The nodes that each event reads or writes, in order."""


def naive_versions(reads: Sets, writes: Sets) -> list[list[Version]]:
    """For every read, the latest earlier write of that node."""
    latest: dict[int, Version] = {}
    seen = []
    for event, (read, written) in enumerate(zip(reads, writes, strict=True)):
        seen.append([latest.get(node, (-1, node)) for node in read])
        for place, node in enumerate(written):
            latest[node] = (event, place)
    return seen


def naive_levels(reads: Sets, writes: Sets) -> list[int]:
    """The longest path to every event over reads of earlier events' writes."""
    levels: list[int] = []
    for versions in naive_versions(reads, writes):
        levels.append(max((levels[event] + 1 for event, _ in versions if event >= 0), default=0))
    return levels


def hazard_levels(reads: Sets, writes: Sets) -> list[int]:
    """The longest path over all conflicts of a state without versions: RAW, WAR and WAW."""
    levels: list[int] = []
    for j in range(len(reads)):
        read, written = set(reads[j]), set(writes[j])
        before = [
            levels[i] + 1
            for i in range(j)
            if not (
                read.isdisjoint(writes[i])
                and written.isdisjoint(reads[i])
                and written.isdisjoint(writes[i])
            )
        ]
        levels.append(max(before, default=0))
    return levels


def order_violations(reads: Sets, writes: Sets, levels: Sequence[int]) -> list[Version]:
    """All pairs i < j of events where j reads what i wrote, but does not come in a later level."""
    read_sets = [set(read) for read in reads]
    return [
        (i, j)
        for j in range(len(reads))
        for i in range(j)
        if levels[i] >= levels[j] and not read_sets[j].isdisjoint(writes[i])
    ]


def random_log(
    seed: int,
    num_events: int,
    num_nodes: int,
    *,
    ties: float = 0.5,
    loops: float = 0.1,
    hub: float = 0.2,
    kinds: Sequence[str] = (),
    num_initial: int = 0,
) -> EventLog:
    """A random log: shares of events with the time of the one before, from a node to itself, and
    of the hub, node 0."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, num_nodes, (2, num_events))
    src = np.where(rng.random(num_events) < hub, 0, src)
    dst = np.where(rng.random(num_events) < loops, src, dst)
    gaps = np.exp(rng.normal(6.0, 3.0, num_events)).astype(np.int64)
    time = np.cumsum(np.where(rng.random(num_events) < ties, 0, gaps))
    codes = rng.integers(0, max(1, len(kinds)), num_events).tolist()
    names = [kinds[code] for code in codes] if kinds else None
    first = rng.integers(0, num_nodes, (2, num_initial))
    initial = (first[0], first[1]) if num_initial else None
    return EventLog.from_arrays(src, dst, time, kind=names, initial=initial, name="random")

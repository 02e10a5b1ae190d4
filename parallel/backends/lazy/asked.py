"""Which links are asked for: at each snapshot of a window those of the next one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ....storage.snapshot import Snapshot
from ....storage.sparse import holds
from ..ownership import Ownership
from .part import USES, Part


def link_parts(
    snapshots: Sequence[Snapshot],
    ownership: Ownership,
    rank: int,
    *,
    val_ratio: float = 0.15,
    test_ratio: float = 0.15,
    undirected: bool = False,
) -> list[Part]:
    """A rank's parts of all snapshots but the last, each with the links of the one after it.

    The first steps are to train on, the next to choose by, the last to test on.  A link whose
    destination was none before is not asked for: negatives are known ones, so that being new would
    give the answer away.  With `undirected` messages go along the edges both ways.

    Raises:
        ValueError: if there are fewer than four snapshots, if they overlap, or one has no features.
    """
    count = len(snapshots) - 1
    if count < 3:
        raise ValueError(
            "`snapshots` must be at least 4, since a step to train on, one to choose by and one to "
            f"test on are each followed by another: got {len(snapshots)}"
        )
    val, test = (max(1, round(count * ratio)) for ratio in (val_ratio, test_ratio))
    if val + test >= count:
        raise ValueError(
            f"`val_ratio` and `test_ratio` must leave a step of {count} to train on: got "
            f"{val_ratio} and {test_ratio}"
        )
    here = ownership.owner == rank
    known = heard = np.zeros(0, np.int64)  # destinations so far: all, and those this rank knows of
    parts = []
    for step in range(count):
        now, after = snapshots[step], snapshots[step + 1]
        if after.start < now.stop:
            raise ValueError(
                f"snapshot {step + 1} must not hold events of snapshot {step}, or its links are "
                "known: cut the log without `window` and `cumulative`"
            )
        src, dst = now.adjacency.indices.astype(np.int64), now.adjacency.row_of
        known = np.union1d(known, dst)
        heard = np.union1d(heard, dst[here[src] | here[dst]])
        src, dst = after.adjacency.indices.astype(np.int64), after.adjacency.row_of
        asked = holds(known, dst)
        src, dst = src[asked], dst[asked]
        told = np.union1d(heard, dst[here[src] | here[dst]])
        use = USES[(step >= count - val - test) + (step >= count - test)]
        seen = replace(now, adjacency=now.adjacency.both_ways()) if undirected else now
        parts.append(Part.of_links(seen, (src, dst), use, told, ownership, rank))
    return parts

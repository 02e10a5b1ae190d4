"""How rows are cut for the ranks: each holds a run of them, in the order of the ranks."""

from __future__ import annotations

from collections.abc import Sequence


def parts(length: int, count: int) -> list[int]:
    """`count` parts of a length, as even as can be.

    >>> parts(10, 4)
    [3, 3, 2, 2]
    """
    return [length // count + (part < length % count) for part in range(count)]


def span_of(rank: int, sizes: Sequence[int]) -> slice:
    """Where a rank's rows stand among those of all, of which each has `sizes[rank]`.

    >>> span_of(1, [2, 3])
    slice(2, 5, None)
    """
    start = sum(sizes[:rank])
    return slice(start, start + sizes[rank])

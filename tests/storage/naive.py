"""Small makers shared by the tests of the store."""

from __future__ import annotations

import numpy as np

from neutronstream.stream.events import EventBatch, Int64


def batch_of(*events: tuple[int, int, int]) -> EventBatch:
    """The events `(src, dst, time)` as a batch."""
    src, dst, time = np.array(events, np.int64).reshape(-1, 3).T.copy()
    return EventBatch(src, dst, time, np.zeros(len(src), np.uint8))


def ids(*numbers: int) -> Int64:
    """The numbers as an int64 array."""
    return np.array(numbers, np.int64)


def random_batch(
    rng: np.random.Generator, size: int, num_nodes: int, start: int, *, ties: float = 0.5
) -> EventBatch:
    """Random events from time `start` on; a share of `ties` has the time of the one before."""
    src, dst = rng.integers(0, num_nodes, (2, size))
    steps = np.where(rng.random(size) < ties, 0, rng.integers(1, 5, size))
    return EventBatch(src, dst, start + np.cumsum(steps), np.zeros(size, np.uint8))

"""Pairs that did not happen, to be told from those that did; and when a pair was seen last.

Three strategies of Poursafaei et al. (2022) as DyGLib (Yu et al. 2023) samples them, for each batch
of a set of events: `random` keeps the source and draws any destination; `historical` draws pairs
seen before the batch but not in it; `inductive` those of them that were not seen in training.
Where too few are left, random pairs outside the batch fill up.  Invariant: the draws of a batch are
a function of the seed and of the events themselves, whatever model is scored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...storage import uniform
from ...stream import Bool, EventBatch, Int64

STRATEGIES = ("random", "historical", "inductive")


@dataclass(frozen=True, slots=True)
class Pairs:
    """A pair beside each of `n` events and for each of the `STRATEGIES`."""

    src: Int64  # (n, 3)
    dst: Int64  # (n, 3)
    valid: Bool  # (n, 3) False where there is no pair that did not happen


def draw_pairs(
    history: EventBatch,
    positions: Int64,
    *,
    seen: int,
    batch_size: int,
    seed: int,
    name: str = "",
) -> Pairs:
    """Negative pairs for the events of `history` at `positions` (n,), batch by batch.

    The first `seen` events of `history` are those that have been trained on by then.  Sources and
    destinations are any of `history`.  Draws depend on `seed`, `name` and the position.

    >>> columns = np.array([[0, 1, 0, 2], [5, 6, 6, 7], [1, 2, 3, 4]])
    >>> log = EventBatch(*columns, np.zeros(4, np.uint8))
    >>> pairs = draw_pairs(log, np.array([3]), seen=2, batch_size=1, seed=0)
    >>> pairs.src[0, [0, 2]].tolist(), int(pairs.dst[0, 2])  # one pair only was seen since then
    ([2, 0], 6)
    """
    n = len(positions)
    src, dst = np.zeros((n, 3), np.int64), np.zeros((n, 3), np.int64)
    valid = np.zeros((n, 3), np.bool_)
    if not n:
        return Pairs(src, dst, valid)
    bank = _Bank(history)
    draws = {s: uniform(seed, f"{name} {s}", positions, 2) for s in STRATEGIES}
    src[:, 0] = history.src[positions]
    dst[:, 0] = bank.all_dst[_scaled(draws["random"][:, 0], len(bank.all_dst))]
    valid[:, 0] = True
    first_unseen = int(np.searchsorted(bank.since, seen))
    for start in range(0, n, batch_size):
        rows = slice(start, min(start + batch_size, n))
        batch = positions[rows]
        for column, low in ((1, 0), (2, first_unseen)):
            drawn = bank.draw(batch, low, draws[STRATEGIES[column]][rows])
            src[rows, column], dst[rows, column], valid[rows, column] = drawn
    return Pairs(src, dst, valid)


class _Bank:
    """The distinct pairs of a run of events, in order of first appearance."""

    def __init__(self, history: EventBatch) -> None:
        self.history = history
        self.all_src, row = np.unique(history.src, return_inverse=True)
        self.all_dst, column = np.unique(history.dst, return_inverse=True)
        self.cell = row * np.int64(len(self.all_dst)) + column  # (n,) of each event, in the grid
        cells, first, which = np.unique(self.cell, return_index=True, return_inverse=True)
        order = np.argsort(first)
        self.since = first[order]  # (p,) position of the first event of each pair
        self.cells = cells[order]  # (p,)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        self.pair = place[which]  # (n,) pair of each event

    def draw(
        self, batch: Int64, low: int, draws: np.typing.NDArray[np.float64]
    ) -> tuple[Int64, Int64, Bool]:
        """A pair for each event of `batch`, of those from the `low`-th on that were seen before."""
        time, n = self.history.time, len(batch)
        start = int(np.searchsorted(time, time[batch[0]], side="left"))
        stop = int(np.searchsorted(time, time[batch[-1]], side="right"))
        high = int(np.searchsorted(self.since, start))
        present = np.unique(self.pair[start:stop])  # what happens at the times of the batch
        present = present[(present >= low) & (present < high)] - low
        left = max(high - low, 0) - len(present)
        grid = len(self.all_src) * len(self.all_dst)
        taken = np.unique(self.cell[batch])
        fill = max(n - left, 0)
        cells = np.zeros(n, np.int64)
        if n > fill:
            some = _distinct(draws[fill:, 0], left)
            cells[fill:] = self.cells[low + _skipping(some, present)]
        if fill and grid > len(taken):
            cells[:fill] = _skipping(_distinct(draws[:fill, 1], grid - len(taken)), taken)
        valid = np.ones(n, np.bool_)
        valid[:fill] = grid > len(taken)
        return (
            self.all_src[cells // len(self.all_dst)],
            self.all_dst[cells % len(self.all_dst)],
            valid,
        )


def last_seen(history: EventBatch, src: Int64, dst: Int64, before: Int64) -> Int64:
    """The position of the last event of each pair before a position, or -1; shapes as given.

    >>> log = EventBatch(*np.array([[0, 1, 0], [5, 6, 5], [1, 2, 3]]), np.zeros(3, np.uint8))
    >>> last_seen(log, np.array([0, 0, 1]), np.array([5, 5, 5]), np.array([3, 2, 3])).tolist()
    [2, 0, -1]
    """
    if not len(history):
        return np.full(src.shape, -1, np.int64)
    width = 1 + int(max(history.dst.max(), dst.max(initial=0)))
    pairs, which = np.unique(history.src * width + history.dst, return_inverse=True)
    size = np.int64(len(history) + 1)
    steps = np.sort(which * size + np.arange(len(history)))  # by pair, then by position
    wanted = src * width + dst
    place = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    found = np.searchsorted(steps, place * size + before) - 1
    last = steps[np.maximum(found, 0)]
    is_there = (pairs[place] == wanted) & (found >= 0) & (last // size == place)
    return np.where(is_there, last % size, -1)


def _scaled(draws: np.typing.NDArray[np.float64], count: int) -> Int64:
    return np.minimum((draws * count).astype(np.int64), count - 1)


def _distinct(draws: np.typing.NDArray[np.float64], count: int) -> Int64:
    """A number below `count` for each draw, all different if there are enough: a shuffle's head."""
    if len(draws) > count:
        return _scaled(draws, count)
    moved: dict[int, int] = {}
    chosen = np.empty(len(draws), np.int64)
    for i, draw in enumerate(draws.tolist()):
        j = min(i + int(draw * (count - i)), count - 1)
        chosen[i] = moved.get(j, j)
        moved[j] = moved.get(i, i)
    return chosen


def _skipping(numbers: Int64, left_out: Int64) -> Int64:
    """The `numbers`-th whole numbers of those that are not in `left_out`, which is sorted."""
    return numbers + np.searchsorted(left_out - np.arange(len(left_out)), numbers, side="right")

"""Scores that need no training: what a model must beat before it has learned anything.

Invariant: an event's candidates are scored from the events strictly before it in log order, then
it is learned; a batch gives what its events would give one by one.  EdgeBank is the memory of
pairs of Poursafaei et al. (2022, "Towards Better Evaluation for Dynamic Link Prediction").
The state follows from the learned events alone, so a resumed run restores it by `learn`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, final

import numpy as np

from ..stream import EventBatch, Float64, Int64
from . import kernels


class Baseline(ABC):
    """A score of (source, candidate) at each event; `name` is its key in a report."""

    name: ClassVar[str]

    @final
    def score_and_learn(self, batch: EventBatch, candidates: Int64) -> Float64:
        """The scores (n, M) of `candidates` (n, M) for each event's source, then learn the batch.

        A candidate that no event has named yet is scored 0.

        Raises:
            ValueError: if `candidates` is not (n, M), or an id is negative or not below 2**31.
        """
        pool = np.ascontiguousarray(candidates, np.int64)
        if pool.ndim != 2 or len(pool) != len(batch):
            raise ValueError(
                "`candidates` must be (n, M) with a row an event: "
                f"got shape {pool.shape} for {len(batch)} events"
            )
        for name, ids in (("batch", batch.src), ("batch", batch.dst), ("candidates", pool)):
            if ids.size and not 0 <= ids.min() <= ids.max() < 2**31:
                raise ValueError(
                    f"node ids in `{name}` must lie in 0 .. 2**31 - 1: "
                    f"got {ids.min()} .. {ids.max()}"
                )
        scores = np.zeros(pool.shape)
        if len(batch):
            self._run(batch, pool, scores)
        return scores

    @final
    def learn(self, batch: EventBatch) -> None:
        """Learn the events of `batch` without scoring anything."""
        self.score_and_learn(batch, np.empty((len(batch), 0), np.int64))

    @abstractmethod
    def _run(self, batch: EventBatch, candidates: Int64, scores: Float64) -> None:
        """Fill `scores`, which are 0, event by event, learning each after its row."""


@final
class EdgeBank(Baseline):
    """1 for a directed pair that was seen before, else 0.

    With `window`, only pairs seen at most that many ticks ago count (`time - last <= window`,
    inclusive): the time-window variant, see `default_window`.

    >>> batch = EventBatch(*np.array([[0, 0, 1], [1, 1, 0], [3, 5, 9]]), np.zeros(3, np.uint8))
    >>> EdgeBank().score_and_learn(batch, np.array([[1, 2], [1, 2], [0, 2]])).tolist()
    [[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]]
    """

    name = "edgebank"

    def __init__(self, window: int | None = None) -> None:
        if window is not None and window < 0:
            raise ValueError(f"`window` must not be negative (None for no limit): got {window}")
        self._window = -1 if window is None else int(window)
        self._keys, self._times = kernels.empty_table(64)
        self._used = np.zeros(1, np.int64)

    def _run(self, batch: EventBatch, candidates: Int64, scores: Float64) -> None:
        done = 0
        while done < len(batch):
            if 2 * self._used[0] >= len(self._keys):
                self._keys, self._times = _doubled(self._keys, self._times)
            done = kernels.run_edge_bank(
                self._keys,
                self._times,
                self._used,
                self._window,
                done,
                batch.src,
                batch.dst,
                batch.time,
                candidates,
                scores,
            )


@final
class Popularity(Baseline):
    """How often the candidate has been a destination so far.

    >>> batch = EventBatch(*np.array([[0, 0, 1], [1, 1, 0], [3, 5, 9]]), np.zeros(3, np.uint8))
    >>> Popularity().score_and_learn(batch, np.array([[1, 2], [1, 2], [1, 2]])).tolist()
    [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]
    """

    name = "popularity"

    def __init__(self) -> None:
        self._count = np.zeros(0, np.int64)

    def _run(self, batch: EventBatch, candidates: Int64, scores: Float64) -> None:
        self._count = _with_rows(self._count, int(max(batch.dst.max(), candidates.max(initial=0))))
        kernels.run_popularity(self._count, batch.dst, candidates, scores)


@final
class RecentPartner(Baseline):
    """1 for the partner that the source met last, in either direction, 1/2 for the one before ...

    A candidate that the source never met is scored 0.  A self loop makes a node its own partner.

    >>> batch = EventBatch(*np.array([[0, 2, 0], [1, 0, 3], [3, 5, 9]]), np.zeros(3, np.uint8))
    >>> RecentPartner().score_and_learn(batch, np.array([[1, 2]] * 3)).tolist()
    [[0.0, 0.0], [0.0, 0.0], [0.5, 1.0]]
    """

    name = "recent_partner"

    def __init__(self) -> None:
        self._keys, self._places = kernels.empty_table(64)
        self._used = np.zeros(1, np.int64)
        self._rows = np.zeros((0, 4), np.int64)
        self._partner = np.zeros(64, np.int64)
        self._tree = np.zeros(64, np.int64)
        self._free = np.zeros(1, np.int64)

    def _run(self, batch: EventBatch, candidates: Int64, scores: Float64) -> None:
        self._rows = _with_rows(self._rows, int(max(batch.src.max(), batch.dst.max())))
        done = 0
        while done < len(batch):
            done = kernels.run_recent_partner(
                self._keys,
                self._places,
                self._used,
                self._rows,
                self._partner,
                self._tree,
                self._free,
                done,
                batch.src,
                batch.dst,
                candidates,
                scores,
            )
            if 2 * (self._used[0] + 2) > len(self._keys):
                self._keys, self._places = _doubled(self._keys, self._places)
            elif done < len(batch):
                self._partner = np.concatenate([self._partner, np.zeros_like(self._partner)])
                self._tree = np.concatenate([self._tree, np.zeros_like(self._tree)])


def default_window(time: Int64, share: float = 0.15) -> int:
    """A window for `EdgeBank`: how many ticks the last `share` of the events `time` (n,) took.

    This is the published choice, the duration of the test split; TGB and DGB split off 15 %.  To
    score a log from its start without knowing its end, give the times of the part seen so far.

    >>> default_window(np.array([0, 10, 20, 30, 100, 104]), share=0.5)
    74
    """
    if not 0 < share <= 1:
        raise ValueError(f"`share` must lie in (0, 1]: got {share}")
    if not len(time):
        return 0
    first = len(time) - max(1, round(share * len(time)))
    return int(time[-1] - time[first])


def _doubled(keys: Int64, values: Int64) -> tuple[Int64, Int64]:
    """The same table with twice the slots."""
    table = kernels.empty_table(2 * len(keys))
    kernels.rehash(keys, values, *table)
    return table


def _with_rows(table: Int64, last: int) -> Int64:
    """The table with a row for node `last`, doubled at least when it grows: amortised."""
    if last < len(table):
        return table
    grown = np.zeros((max(last + 1, 2 * len(table)), *table.shape[1:]), np.int64)
    grown[: len(table)] = table
    return grown

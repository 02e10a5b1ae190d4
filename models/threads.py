"""Threads of one process, each in compiled loops of its own, which leave Python alone meanwhile.

The invariant: what threads write is apart, or is added up in the order of the parts; so as many
threads give the same bits again.  They are not torch's, whose own wait by spinning: beside them the
small tensors of a step take many times as long wherever a core is not free.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import pairwise
from threading import Lock
from typing import Any

import numpy.typing as npt


class _Pool:
    """Threads that wait for tasks: none before there is a task for them."""

    def __init__(self) -> None:
        self.count = 1  # that a task may take
        self.forget()

    def forget(self) -> None:
        """Begin anew, in a process to which threads were not forked along."""
        self._lock, self._size = Lock(), 0
        self._threads: ThreadPoolExecutor | None = None

    def begin(self, tasks: Sequence[Callable[[], object]]) -> list[Future[object]]:
        """Give each task to a thread; the interpreter ends the threads when it ends."""
        with self._lock:
            if self._threads is None or self._size < len(tasks):
                if self._threads is not None:
                    self._threads.shutdown(wait=False)  # what it was given is done still
                self._size = len(tasks)
                self._threads = ThreadPoolExecutor(self._size, "neutronstream")
            return [self._threads.submit(task) for task in tasks]


_POOL = _Pool()
os.register_at_fork(after_in_child=_POOL.forget)


def count_threads() -> int:
    """How many threads compiled loops may take: one, unless told otherwise."""
    return _POOL.count


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Let compiled loops take `count` threads of this process, until the block ends.

    Raises:
        ValueError: if `count` is below 1.

    >>> with using_threads(3):
    ...     spans(7, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 7, None)]
    """
    if count < 1:
        raise ValueError(f"`count` must be at least 1 thread: got {count}")
    before, _POOL.count = _POOL.count, count
    try:
        yield
    finally:
        _POOL.count = before


def spans(count: int, least: int) -> list[slice]:
    """Where `count` rows are cut into even spans, one a thread, each of at least `least` rows.

    Of fewer rows there is one span.

    >>> spans(7, 8)
    [slice(0, 7, None)]
    """
    parts = max(1, min(count_threads(), count // least))
    return [slice(a, b) for a, b in pairwise(count * part // parts for part in range(parts + 1))]


def together(tasks: Sequence[Callable[[], object]]) -> None:
    """Do all tasks, each in a thread, the first in this one; return when all are done.

    Raises:
        BaseException: what the first task that failed raised.
    """
    if len(tasks) == 1:
        tasks[0]()
        return
    others = _POOL.begin(tasks[1:])
    try:
        tasks[0]()
    finally:
        wait(others)  # they write into what the caller holds
    for other in others:
        other.result()


def added(parts: Sequence[npt.NDArray[Any]], first: int = 0) -> npt.NDArray[Any]:
    """The sum of arrays of one form, in order, made in the first one; rows from `first` on."""
    total = parts[0]
    for part in parts[1:]:
        total[first:] += part[first:]
    return total
